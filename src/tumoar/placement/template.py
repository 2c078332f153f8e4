"""What the first placement of the atlas looks for: a few soft classes, in the brain and around it.

The atlas knows only "background" outside brain and eye sockets. Skull, soft tissue and air are taken from an
average of heads (`data/surroundings.npz`), laid onto the atlas by landmarks that both have: without them a
face can pass for brain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, place
from tumoar.model.atlas import pi as pi_of
from tumoar.vocabulary.labels import LabelTable

Volume = npt.NDArray[np.float32]
Points = npt.NDArray[np.float64]
Landmarks = Mapping[str, Points]
"""(3,) in world space by name: of a structure, or of one end of the brain."""

SPACING = 3.0
"""mm, of the grid on which an atlas is read."""
BLURS = (6.0, 4.0, 2.0)
"""mm; one level of a template each, coarse to fine."""
EXTENTS = (0.02, 0.98)
ENDS = ("brain@left", "brain@right", "brain@back", "brain@front", "brain@bottom", "brain@top")
"""Landmarks at the brain's extents, low and high along each axis."""
FIRST_NAMES = (
    "white matter", "gray matter", "deep gray matter", "CSF", "brainstem", "left hippocampus",
    "right hippocampus", "optic chiasm", "left optic nerve", "right optic nerve", "left eye tissue",
    "right eye tissue", "left eye fluid", "right eye fluid", "eye socket fat", "eye socket muscles",
    *ENDS,
)  # fmt: skip
"""What the rows of a list of landmarks without names stand for."""
LEAST_PROBABLE = 1e-3
"""A class that is nowhere more probable than this is not part of a template."""
FLOOR = 0.01
"""Part of every class that is spread over the whole template, so that no sample is impossible anywhere."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Average of what lies outside brain and eye sockets: parts (X, Y, Z, 3) of air, bone and soft tissue."""

    parts: Volume
    grid: Grid
    landmarks: Landmarks


@dataclass(frozen=True, eq=False)
class Template:
    """Class probabilities (X, Y, Z, C) per level, in atlas space.

    `is_brain` (C,) tells which are brain, `is_atlas` (C,) which are the atlas' own: brain and eye sockets.
    """

    levels: tuple[Volume, ...]
    grid: Grid
    is_brain: npt.NDArray[np.bool_]
    is_atlas: npt.NDArray[np.bool_]
    center: Points
    brain_volume: float
    skull_stripped: bool


@cache
def default_surroundings() -> Surroundings:
    """The average shipped with the package."""
    with as_file(files("tumoar").joinpath("data/surroundings.npz")) as path, np.load(path) as stored:
        parts = stored["parts"].astype(np.float32) / 255
        grid = Grid(parts.shape[:3], stored["affine"])
        names = stored["names"].tolist() if "names" in stored else FIRST_NAMES
        return Surroundings(parts, grid, dict(zip(names, stored["landmarks"], strict=True)))


def atlas_template(atlas: Atlas, surroundings: Surroundings, *, skull_stripped: bool) -> Template:
    """The template of a mesh atlas."""
    return make_template(*at_rest(atlas), atlas.labels, surroundings, skull_stripped=skull_stripped)


def at_rest(atlas: Atlas) -> tuple[Volume, Grid]:
    """Probabilities (X, Y, Z, K) of the undeformed atlas on a grid that fills its box."""
    low, high = atlas.box
    shape = np.ceil((high - low) / SPACING).astype(int)
    affine = np.diag([SPACING, SPACING, SPACING, 1.0])
    affine[:3, 3] = (low + high - (shape - 1) * SPACING) / 2
    grid = Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)
    placed = place(atlas, np.eye(4), grid)
    return pi_of(placed, placed.reference), grid


def make_template(
    pi: Volume, grid: Grid, labels: LabelTable, surroundings: Surroundings, *, skull_stripped: bool
) -> Template:
    """A template from atlas probabilities pi (X, Y, Z, K) on an isotropic grid of a few mm.

    Structures that share a mixture share a class. Skull-stripped, all that is not brain is one class.
    """
    trained = np.array([s.trained for s in labels.structures])
    pi = np.where(trained, pi, np.float32(0))
    pi /= pi.sum(-1, keepdims=True)
    to_source = fit_landmarks(landmarks(pi, grid, labels), surroundings.landmarks)
    wide = _widened(grid, surroundings.grid, to_source)
    low = np.round(wide.index(grid.affine[:3, 3])).astype(int)
    full = np.zeros((*wide.shape, labels.K), np.float32)
    full[..., 0] = 1
    full[tuple(slice(a, a + n) for a, n in zip(low, grid.shape))] = pi

    brain = [full[..., labels.in_brain & (labels.x_of_l == x)].sum(-1) for x in _brain_mixtures(labels)]
    beside: list[Volume] = []  # structures that are not brain
    if skull_stripped:
        rest = [1 - sum(brain)]
    else:
        fluid = full[..., np.array([s.gmm == "eye fluid" for s in labels.structures])].sum(-1)
        socket = 1 - sum(brain) - fluid - full[..., 0]
        parts = _resampled(surroundings, wide, to_source) * full[..., :1]
        beside = [p for p in (fluid, socket) if p.max() > LEAST_PROBABLE]
        rest = [*beside, *np.moveaxis(parts, -1, 0)]
    classes = np.clip(np.stack([*brain, *rest], -1), 0, 1).astype(np.float32)
    inside = sum(brain) > 0.5
    return Template(
        levels=tuple(_blurred(classes, blur / grid.spacing) for blur in BLURS),
        grid=wide,
        is_brain=np.arange(classes.shape[-1]) < len(brain),
        is_atlas=np.arange(classes.shape[-1]) < len(brain) + len(beside),
        center=wide.world(np.argwhere(inside).mean(0)),
        brain_volume=float(inside.sum() * wide.voxel_volume),
        skull_stripped=skull_stripped,
    )


def landmarks(pi: Volume, grid: Grid, labels: LabelTable) -> dict[str, Points]:
    """Centroids of all trained structures that are there but background, and the brain's extents.

    Parts have the landmark of their whole.
    """
    points = {}
    for name in labels.wholes[1:]:
        columns = [l for l in labels.parts(name) if labels.structures[l].trained]
        p = pi[..., columns].sum(-1)
        if p.any():
            points[name] = grid.world(ndi.center_of_mass(p))
    brain = pi[..., labels.in_brain].sum(-1)
    middle = np.array(ndi.center_of_mass(brain))
    for axis in range(3):
        profile = np.cumsum(brain.sum(tuple(a for a in range(3) if a != axis)))
        for end, part in zip(ENDS[2 * axis :], EXTENTS):
            at = middle.copy()
            at[axis] = np.interp(part * profile[-1], profile, np.arange(len(profile)))
            points[end] = grid.world(at)
    return points


def fit_landmarks(source: Landmarks, target: Landmarks) -> npt.NDArray[np.float64]:
    """4x4 least-squares affine map by the landmarks that both have, the brain's extents among them."""
    both = [name for name in target if name in source]
    return fit_affine(np.array([source[n] for n in both]), np.array([target[n] for n in both]))


def fit_affine(source: Points, target: Points) -> npt.NDArray[np.float64]:
    """4x4 least-squares affine map of points to points."""
    out = np.eye(4)
    out[:3] = np.linalg.lstsq(np.column_stack([source, np.ones(len(source))]), target, rcond=None)[0].T
    return out


def _brain_mixtures(labels: LabelTable) -> list[int]:
    return sorted(
        {int(labels.x_of_l[k]) for k, s in enumerate(labels.structures) if s.in_brain and s.trained}
    )


def _widened(grid: Grid, around: Grid, to_around: npt.NDArray[np.float64]) -> Grid:
    """The grid, widened in whole voxels to hold all of another grid that lies beyond an affine map."""
    corners = np.array(np.meshgrid(*[(0, n - 1) for n in around.shape])).reshape(3, -1).T
    back = np.linalg.inv(to_around)
    at = grid.index(around.world(corners) @ back[:3, :3].T + back[:3, 3])
    low = np.minimum(np.floor(at.min(0)), 0).astype(int)
    high = np.maximum(np.ceil(at.max(0)), np.array(grid.shape) - 1).astype(int)
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world(low)
    shape = high - low + 1
    return Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)


def _resampled(surroundings: Surroundings, onto: Grid, to_source: npt.NDArray[np.float64]) -> Volume:
    m = surroundings.grid.inverse @ to_source @ onto.affine
    parts = [
        ndi.affine_transform(p, m[:3, :3], m[:3, 3], onto.shape, order=1, mode="nearest")
        for p in np.moveaxis(surroundings.parts, -1, 0)
    ]
    out = np.stack(parts, -1)
    return out / out.sum(-1, keepdims=True)


def _blurred(classes: Volume, sigma: npt.NDArray[np.float64]) -> Volume:
    out = ndi.gaussian_filter(classes, (*sigma, 0), mode="nearest")
    out = (1 - FLOOR) * out + FLOOR * out.mean((0, 1, 2))
    return np.ascontiguousarray(out / out.sum(-1, keepdims=True), np.float32)
