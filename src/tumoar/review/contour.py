"""A contour: the section of a structure in a slice, so that what lies around it is not the structure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.image import Grid
from tumoar.review.strokes import Mask

AROUND = 3.0
"""Millimeters around a contour that are outside of the structure, unless another piece of it is there."""


def around_contour(inside: npt.NDArray[np.int32], axis: int, mask: Mask, grid: Grid) -> npt.NDArray[np.int32]:
    """Voxels (n, 3) that a contour in slices across an axis takes from a structure, and those around it.

    Pieces of the structure in the slice that the contour does not meet stay.
    """
    spacing = np.delete(grid.spacing, axis)
    drawn = np.zeros(mask.shape, bool)
    drawn[tuple(inside.T)] = True
    out = []
    for index in np.unique(inside[:, axis]):
        section, now = np.take(drawn, index, axis), np.take(mask, index, axis)
        pieces, _ = ndimage.label(now)
        met = np.isin(pieces, np.unique(pieces[section & now])) & now
        near = ndimage.distance_transform_edt(~section, spacing) <= AROUND
        found = np.argwhere((met | (near & ~now)) & ~section)
        out.append(np.insert(found, axis, index, axis=1))
    return np.concatenate(out).astype(np.int32)
