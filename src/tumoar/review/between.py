"""Fill the slices between two strokes of a structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.ndimage import distance_transform_edt

from tumoar.geometry.image import Grid
from tumoar.review.strokes import Stroke
from tumoar.vocabulary.errors import UsageError

Mask = npt.NDArray[np.bool_]


def fill_between(strokes: Sequence[Stroke], grid: Grid) -> tuple[npt.NDArray[np.int32], int]:
    """Voxels (n, 3) between the last two strokes, each drawn in one slice of the same plane; and its axis.

    The signed distance to the border, in mm, goes linearly from one shape to the other (Raya and Udupa,
    "Shape-based interpolation of multidimensional objects", 1990).
    """
    if len(strokes) < 2 or strokes[-1].inside != strokes[-2].inside:
        raise _refused("there are no two strokes of one kind", "paint the structure in two slices first")
    first, last = strokes[-2].voxels, strokes[-1].voxels
    flat = [a for a in range(3) if len({*first[:, a]}) == 1 and len({*last[:, a]}) == 1]
    apart = [a for a in flat if abs(int(last[0, a]) - int(first[0, a])) > 1]
    if not apart:
        raise _refused("the last two strokes have no slices between them", "paint in two slices of one plane")
    axis = apart[0]
    if last[0, axis] < first[0, axis]:
        first, last = last, first
    begin, end = int(first[0, axis]), int(last[0, axis])
    across = [a for a in range(3) if a != axis]
    low = np.minimum(first.min(0), last.min(0))[across]
    shape = np.maximum(first.max(0), last.max(0))[across] - low + 3
    spacing = [float(grid.spacing[a]) for a in across]
    one, other = (_signed_distance(v[:, across] - low + 1, shape, spacing) for v in (first, last))
    out = []
    for k in range(begin + 1, end):
        share = (k - begin) / (end - begin)
        found = np.argwhere((1 - share) * one + share * other > 0) + low - 1
        out.append(np.insert(found, axis, k, axis=1))
    voxels = np.concatenate(out).astype(np.int32)
    if not len(voxels):
        raise _refused("the last two strokes do not overlap", "paint one more slice between them")
    return voxels, axis


def _signed_distance(
    pixels: npt.NDArray[np.int32], shape: npt.NDArray[np.int32], spacing: list[float]
) -> npt.NDArray[np.float64]:
    """Distance to the border in mm, positive inside; the border of the area is outside."""
    mask = np.zeros(shape, bool)
    mask[tuple(pixels.T)] = True
    return np.asarray(distance_transform_edt(mask, spacing) - distance_transform_edt(~mask, spacing))


def _refused(what: str, do: str) -> UsageError:
    return UsageError("review", what, do=do)
