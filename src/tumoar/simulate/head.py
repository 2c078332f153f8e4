"""Draw heads from an atlas: displace its nodes smoothly, then label every voxel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, pi, place
from tumoar.numerics.tetra import volumes
from tumoar.simulate.patient import Maps, smooth_noise

BEND = 4.0
"""SD of the displacement of nodes along each axis in mm."""
WAVES = 24
LENGTH = (60.0, 140.0)
"""Wavelengths of the displacement in mm."""
FOLDING = 1.0
"""SD, in log probability, of the field that folds gray matter into its neighbors."""


def draw_head(atlas: Atlas, rng: np.random.Generator, *, spacing: float = 1.0) -> tuple[Maps, Grid]:
    """Draw a label map with indices of the label table, and its grid in the world of the atlas.

    Labels are not drawn voxel by voxel, which would give noise: the most probable one is used, after adding a
    smooth field to the log probability of gray matter.
    """
    low, high = atlas.box
    shape = np.floor((high - low) / spacing).astype(int)
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:3, 3] = (low + high - (shape - 1) * spacing) / 2
    grid = Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)
    bent = bend(atlas, rng)
    placed = place(atlas, np.eye(4), grid)
    scores = pi(placed, grid.index(bent))
    np.log(np.maximum(scores, 1e-9), out=scores)
    scores[..., [not s.trained for s in atlas.labels.structures]] = -np.inf
    scores[..., atlas.labels.l("gray matter")] += FOLDING * smooth_noise(grid, 2.0, rng)
    return atlas.labels.indices[scores.argmax(-1)], grid


def bend(atlas: Atlas, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Displace nodes by a sum of waves, halved until no tetrahedron folds; faces of the box are fixed."""
    direction = rng.normal(size=(WAVES, 3))
    direction *= (
        2 * np.pi / (rng.uniform(*LENGTH, (WAVES, 1)) * np.linalg.norm(direction, axis=1, keepdims=True))
    )
    amplitude = rng.normal(0, BEND * np.sqrt(2 / WAVES), (WAVES, 3))
    waves = np.sin(atlas.nodes @ direction.T + rng.uniform(0, 2 * np.pi, WAVES))
    shift = np.where(atlas.fixed, 0.0, waves @ amplitude)
    while not (volumes(atlas.nodes + shift, atlas.tetrahedra) > 0).all():
        shift /= 2
    return atlas.nodes + shift
