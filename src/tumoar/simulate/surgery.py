"""Resections of simulated tumors: cavities as surgeons make them, with blood, air and a bone flap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.simulate.patient import AIR as AIR_FILLED
from tumoar.simulate.patient import BLOOD as BLOOD_FILLED
from tumoar.simulate.patient import EDEMA, FLUID, NECROSIS, WALL, Maps, Mask, smooth_noise
from tumoar.simulate.tissue import TissueTable

Way = Literal["gross", "partial", "surface", "collapsed", "blood"]
WAYS: tuple[Way, ...] = get_args(Way)
"""Gross total; with a nodule left behind; only what lies near the surface; collapsed; with blood products."""

BEYOND = 2.0
"""Millimeters of tissue around the core that a gross total resection removes."""
CORRIDOR = 8.0
"""Radius in mm of the way from the surface to the tumor."""
SHALLOW = 22.0
"""Millimeters below the surface that a resection along it reaches."""
LEFT = 0.3
"""Fraction of the core that a partial resection leaves, on the side away from the surface."""
SLIT = 0.3
"""Half width of a collapsed cavity, as a fraction of that of nine tenths of the core."""
WALL_WIDTH = 1.5
"""Millimeters of the wall that enhance because of surgery."""
FLAP, CUT = 32.0, 2.0
"""Radius in mm of the bone flap, and width of the cut around it."""
IN_BLOOD, IN_AIR = 0.3, 0.1
"""Fractions of a cavity that are blood, at its back, and air, at its front: patients lie on their backs."""


@dataclass(frozen=True)
class Surgery:
    """How a tumor was removed; `air` is left in the cavity soon after, and the `wall` enhances later."""

    way: Way = "gross"
    air: bool = False
    wall: bool = False


def resect(tumor: Maps, brain: Mask, grid: Grid, how: Surgery, rng: np.random.Generator) -> Maps:
    """Tumor map after surgery: with a cavity, which is open to the surface of the brain.

    `tumor` has the values of `simulate`. Core outside the cavity remains.
    """
    core = (tumor > EDEMA) & brain
    if not core.any():
        raise ValueError("there is no core to remove")
    filled = ndi.binary_fill_holes(brain)
    depth = ndi.distance_transform_edt(filled, sampling=grid.spacing)
    entry = _find_entry(core, depth, filled, grid)
    cavity = _cut(core, brain, depth, entry, grid, how.way, rng)
    out = tumor.copy()
    lost = core & ~cavity
    if how.way in ("gross", "collapsed", "blood"):
        out[lost] = EDEMA  # of a gross total resection, tissue that has come back into place
    if how.wall:
        near = ndi.distance_transform_edt(~cavity, sampling=grid.spacing) <= WALL_WIDTH
        out[near & brain & ~cavity & (out < NECROSIS)] = WALL
    out[cavity] = FLUID
    _fill_part(out, cavity, how.way == "blood", IN_BLOOD, BLOOD_FILLED, back=True)
    _fill_part(out, cavity, how.air, IN_AIR, AIR_FILLED, back=False)
    return out


def open_skull(tissue: Maps, cavity: Mask, brain: Mask, grid: Grid, table: TissueTable) -> Maps:
    """Cut a bone flap over the cavity: a ring of soft tissue in the bone."""
    filled = ndi.binary_fill_holes(brain)
    depth = ndi.distance_transform_edt(filled, sampling=grid.spacing)
    entry = _find_entry(cavity, depth, filled, grid)
    where = np.indices(tissue.shape).astype(np.float32) * grid.spacing[:, None, None, None]
    radius = np.sqrt(sum((where[d] - entry[d] * grid.spacing[d]) ** 2 for d in range(3)))
    bone = np.isin(tissue, [table.index(name) for name in ("compact bone", "marrow")])
    out = tissue.copy()
    out[bone & (np.abs(radius - FLAP) <= CUT / 2)] = table.index("soft tissue")
    return out


def _find_entry(core: Mask, depth: npt.NDArray[np.floating], filled: Mask, grid: Grid) -> npt.NDArray:
    """(3,) voxel of the surface nearest to the core, in the upper half of the brain if there is a choice."""
    surface = np.argwhere(filled & (depth <= 1.5 * grid.spacing.max()))
    upper = surface[surface[:, 2] >= np.argwhere(filled).mean(0)[2]]
    surface = upper if len(upper) else surface
    middle = np.argwhere(core).mean(0)
    return np.asarray(surface[(((surface - middle) * grid.spacing) ** 2).sum(1).argmin()])


def _cut(
    core: Mask,
    brain: Mask,
    depth: npt.NDArray[np.floating],
    entry: npt.NDArray,
    grid: Grid,
    way: Way,
    rng: np.random.Generator,
) -> Mask:
    """What is removed, with the way to it."""
    where = np.indices(core.shape).astype(np.float32) * grid.spacing[:, None, None, None]
    middle, start = (np.argwhere(core).mean(0) * grid.spacing, entry * grid.spacing)
    along = (start - middle) / max(float(np.linalg.norm(start - middle)), 1e-6)
    height = sum((where[d] - middle[d]) * along[d] for d in range(3))  # toward the surface
    square = sum((where[d] - middle[d]) ** 2 for d in range(3)) - height**2
    ragged = 1 + 0.15 * smooth_noise(grid, 5.0, rng)
    corridor = (np.sqrt(np.maximum(square, 0)) <= CORRIDOR * ragged) & (height >= 0)
    wide = ndi.distance_transform_edt(~core, sampling=grid.spacing) <= BEYOND * ragged
    out = wide
    if way == "partial":
        out = wide & (height > np.quantile(height[core], LEFT))
    elif way == "surface":
        out = (wide | corridor) & (depth <= SHALLOW * ragged)
    elif way == "collapsed":
        across = np.cross(along, [0.0, 0.0, 1.0] if abs(along[2]) < 0.9 else [1.0, 0.0, 0.0])
        across /= np.linalg.norm(across)
        offset = sum((where[d] - middle[d]) * across[d] for d in range(3))
        half = np.quantile(np.abs(offset[core]), 0.9)
        out = wide & (np.abs(offset) <= SLIT * half * ragged)
        corridor &= np.abs(offset) <= SLIT * half
    pieces, count = ndi.label((out | corridor) & brain)
    sizes = np.bincount(pieces.ravel(), minlength=count + 1)
    return np.asarray(pieces == 1 + int(sizes[1:].argmax()))


def _fill_part(out: Maps, cavity: Mask, wanted: bool, share: float, value: int, *, back: bool) -> None:
    """Fill the hindmost or foremost part of the cavity (in place)."""
    if wanted:
        y = np.indices(cavity.shape)[1]
        level = np.quantile(y[cavity], share if back else 1 - share)
        out[cavity & (y <= level if back else y >= level)] = value
