"""Tumor maps of simulated patients: analytic and sampled shapes, and their position in a brain."""

from __future__ import annotations

import numpy as np
from scipy import ndimage as ndi
from scipy.special import expit

from tumoar.geometry.image import Grid
from tumoar.model.shape.base import ShapePrior, select_color
from tumoar.simulate.patient import EDEMA, ENHANCING, NECROSIS, Maps, Mask, smooth_noise
from tumoar.vocabulary.labels import LabelTable

TRIES = 40
SWEEPS = 15


def draw_blob(
    rng: np.random.Generator,
    *,
    core_ml: float = 25.0,
    edema: float = 1.6,
    rim: float = 3.0,
    spacing: float = 1.0,
) -> Maps:
    """Draw a lumpy core with an enhancing rim of `rim` mm around necrosis, in edema `edema` times as wide."""
    radius = (3000.0 * core_ml / (4 * np.pi)) ** (1 / 3)
    half = int(np.ceil(2.0 * edema * radius / spacing))
    shape = (2 * half + 1,) * 3
    grid = Grid(shape, np.diag([spacing, spacing, spacing, 1.0]))
    where = (np.indices(shape) - half) * spacing
    stretch = np.exp(rng.normal(0, 0.12, 3))
    distance = np.sqrt(((where / stretch[:, None, None, None]) ** 2).sum(0))
    core_edge = distance - radius * (1 + 0.12 * smooth_noise(grid, radius / 2, rng))
    edema_edge = distance - edema * radius * (1 + 0.2 * smooth_noise(grid, radius / 1.5, rng))
    core = _largest(core_edge < 0)
    inside = ndi.distance_transform_edt(core, sampling=spacing)
    out = np.zeros(shape, np.uint8)
    out[_largest((edema_edge < 0) | core)] = EDEMA
    out[core] = ENHANCING
    out[inside > rim * (1 + 0.3 * smooth_noise(grid, 6.0, rng))] = NECROSIS
    return out


def draw_shape(
    shape_z: ShapePrior, shape_y: ShapePrior, rng: np.random.Generator, *, core_ml: float = 20.0
) -> Maps:
    """Draw a tumor from the shape priors of z and y: `SWEEPS` of their Gibbs sampler from a lumpy ball.

    Core stays inside tumor; its outer 3 mm enhance.
    """
    blob = draw_blob(rng, core_ml=core_ml)
    z, y = blob > 0, blob > EDEMA
    everywhere = np.ones(z.shape, bool)
    for _ in range(SWEEPS):
        z = _redraw(shape_z, z, everywhere, rng) | y
        y = _redraw(shape_y, y, everywhere, rng) & z
    z = _largest(z)
    y = _largest(y & z)
    out = z.astype(np.uint8) * EDEMA
    out[y] = ENHANCING
    out[ndi.distance_transform_edt(y) > 3.0] = NECROSIS
    return out


def _redraw(prior: ShapePrior, v: Mask, region: Mask, rng: np.random.Generator) -> Mask:
    """One Gibbs sweep of the prior, one color after the other."""
    v = v.copy()
    for color in range(prior.colors):
        part = select_color(region, color, prior.colors)
        odds = prior.field(v, part, int(rng.integers(0, 2**63)))
        v[part] = rng.random(int(part.sum())) < expit(odds[part])
    return v


def draw_place(tumor: Maps, label_map: Maps, labels: LabelTable, rng: np.random.Generator) -> Maps:
    """Place the tumor (same voxel size, any field of view) in the brain, mirrored at random.

    Of several positions in white matter, the one with the largest part of the tumor in the brain is used.
    """
    tumor = np.flip(tumor, tuple(axis for axis in range(3) if rng.random() < 0.5))
    voxels = np.argwhere(tumor > 0)
    middle = voxels.mean(0).round().astype(int)
    brain = np.isin(label_map, labels.indices[labels.in_brain])
    white = np.argwhere(label_map == labels.indices[labels.l("white matter")])
    best, best_inside = None, -1
    for place in rng.choice(white, TRIES):
        at = voxels - middle + place
        ok = ((at >= 0) & (at < brain.shape)).all(1)
        inside = int(brain[tuple(at[ok].T)].sum())
        if inside > best_inside:
            best, best_inside = (at[ok], ok), inside
    assert best is not None
    out = np.zeros(label_map.shape, np.uint8)
    out[tuple(best[0].T)] = tumor[tuple(voxels[best[1]].T)]
    return out


def _largest(mask: Mask) -> Mask:
    pieces, n = ndi.label(mask)
    return pieces == 1 + np.argmax(np.bincount(pieces.ravel())[1:]) if n else mask
