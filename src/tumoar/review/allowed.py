"""What strokes say about the tumor: the states that each voxel may have.

A state is none, edema, core or cavity; a set of them is a sum of bits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.review.strokes import Mask, Stroke
from tumoar.vocabulary.labels import LabelTable, Organ

NONE, EDEMA, CORE, CAVITY = 1, 2, 4, 8
ALL = NONE | EDEMA | CORE | CAVITY
FREE = -1

States = npt.NDArray[np.uint8]
Held = npt.NDArray[np.int8]


def states_of(organ: Organ, table: LabelTable) -> int:
    """States in which a voxel belongs to an organ; 0 if that does not depend on tumor."""
    if table.is_anatomy(organ):
        return 0
    bits = {"edema": EDEMA, "core": CORE}
    return sum(bits[part] for part in organ.tumor) + (CAVITY if organ.structures else 0)


def find_allowed(strokes: Iterable[Stroke], table: LabelTable, shape: tuple[int, int, int]) -> States:
    """(X, Y, Z) states that strokes leave on the reference image; the last one prevails where they differ."""
    out = np.full(shape, ALL, np.uint8)
    for stroke in strokes:
        own = states_of(table.organ(stroke.structure), table)
        if own:
            at = tuple(stroke.voxels.T)
            says = np.uint8(own if stroke.inside else ALL & ~own)
            left = out[at] & says
            out[at] = np.where(left > 0, left, says)
    return out


def index_into(onto: Grid, grid: Grid, box: tuple[slice, slice, slice]) -> npt.NDArray[np.int64]:
    """(x, y, z, 3) voxel of `onto` that contains the center of each voxel in a box of `grid`."""
    i, j, k = (np.arange(s.start, s.stop) for s in box)
    M = onto.inverse @ grid.affine
    parts = [np.multiply.outer(n, M[:3, axis]) for axis, n in enumerate((i, j, k))]
    found = parts[0][:, None, None] + parts[1][None, :, None] + parts[2][None, None] + M[:3, 3]
    return np.rint(found).astype(np.int64)


def look_up(values: States, index: npt.NDArray[np.int64], otherwise: int) -> States:
    """Values at voxels (..., 3); `otherwise` outside the array."""
    inside = np.asarray(((index >= 0) & (index < values.shape)).all(-1))
    safe = np.where(inside[..., None], index, 0)
    found = values[safe[..., 0], safe[..., 1], safe[..., 2]]
    return np.where(inside, found, np.uint8(otherwise))


def hold(allowed: States, level: States, is_cavity: Mask) -> tuple[Held, Held]:
    """z and y that are held where states are excluded; `level` is z + y now, for what z and y cannot say.

    That is one case: neither core nor none, but edema or cavity; such voxels stay a cavity if they are one.
    """
    z, y = (np.full(allowed.shape, FREE, np.int8) for _ in range(2))
    z[allowed & NONE == 0] = 1
    z[allowed == NONE] = 0
    y[allowed & EDEMA == 0] = 1
    y[(allowed & (CORE | CAVITY) == 0) | (allowed == NONE)] = 0
    no_core = (allowed & CORE == 0) & (allowed & CAVITY > 0) & (allowed & EDEMA > 0)
    y[no_core & ~is_cavity] = 0
    y[no_core & is_cavity] = 1
    return z, y
