"""What strokes tell about voxels, painted ones and those beside them that were left as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.review.allowed import CAVITY, CORE, EDEMA, NONE, States, states_of
from tumoar.review.evidence import LEFT_IN, LEFT_OUT, PAINTED_IN, PAINTED_OUT, UNSEEN
from tumoar.review.strokes import Stroke
from tumoar.vocabulary.labels import LabelTable

RING = 10.0
"""Millimeters around a stroke, in its slices, in which the user has seen what was not painted."""

Told = npt.NDArray[np.uint8]


def find_told(
    strokes: Sequence[Stroke], before: States, table: LabelTable, spacing: tuple[float, float, float]
) -> tuple[Told, Told]:
    """(X, Y, Z) what strokes tell about tumor (z) and core (y); `before` is the outline that they correct."""
    tumor, core = before != NONE, (before & (CORE | CAVITY)) > 0
    told_z, told_y = (np.full(before.shape, UNSEEN, np.uint8) for _ in range(2))
    for stroke in strokes:
        own, inside = states_of(table.organ(stroke.structure), table), stroke.inside
        at = tuple(stroke.voxels.T)
        ring = _ring(stroke, before.shape, spacing)
        if own & EDEMA:
            _leave(told_z, ring, tumor)
            # What is not edema may be core, of which this says nothing.
            may = at if inside or own & CORE else tuple(stroke.voxels[~core[at]].T)
            told_z[may] = PAINTED_IN if inside else PAINTED_OUT
        if (own & CORE and not own & EDEMA) or (own == EDEMA and inside):
            _leave(told_y, ring, core)
            told_y[at] = PAINTED_IN if inside and own & CORE else PAINTED_OUT
    return told_z, told_y


def _leave(told: Told, ring: tuple[npt.NDArray[np.intp], ...], now: npt.NDArray[np.bool_]) -> None:
    """Count voxels of a ring as they are, except painted ones."""
    free = (told[ring] != PAINTED_IN) & (told[ring] != PAINTED_OUT)
    some = tuple(part[free] for part in ring)
    told[some] = np.where(now[some], LEFT_IN, LEFT_OUT)


def _ring(
    stroke: Stroke, shape: tuple[int, ...], spacing: tuple[float, float, float]
) -> tuple[npt.NDArray[np.intp], ...]:
    """Voxels around a stroke in its slices, along the axis in which it is thinnest."""
    low, high = stroke.voxels.min(0), stroke.voxels.max(0) + 1
    wide = np.ceil(RING / np.array(spacing)).astype(int)
    wide[np.argmin(high - low)] = 0
    low, high = np.maximum(low - wide, 0), np.minimum(high + wide, shape)
    painted = np.zeros(high - low, bool)
    painted[tuple((stroke.voxels - low).T)] = True
    near = ~painted & (ndimage.distance_transform_edt(~painted, spacing) <= RING)
    return tuple(part + first for part, first in zip(np.nonzero(near), low, strict=True))
