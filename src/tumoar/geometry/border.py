"""The border of an outline as a level function: how far, in mm, it must move to reach a voxel.

Moving the border by `a` mm gives the voxels with a level of at most `a`. Votes enter where samples disagree:
the level is the mean of the signed distances to the voxels with most and with few votes, so that the border
moves faster there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.distance import distance_to

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Box = tuple[slice, slice, slice]

VOTES = (0.1, 0.9)
"""Fractions of the votes whose borders enter the level."""
MARGIN = 14.0
"""Millimeters around the outline in which levels are known."""
SMOOTHING = 1.0
"""Standard deviation, mm, of the Gaussian that removes the steps of voxels from distances."""
LEAST = 1e-3
"""Millimeters between the outline and a voxel on either side, at least."""
SOFTNESS = 0.25
"""Millimeters from the border within which the levels of thin structures are bent."""


@dataclass(frozen=True, eq=False)
class Border:
    """Levels (X, Y, Z) in mm inside `box` of a larger grid, negative in the outline.

    They are infinite where the structure cannot be.
    """

    levels: Field
    box: Box
    spacing: tuple[float, float, float]

    @property
    def voxel(self) -> float:
        """Volume of a voxel, cm³."""
        return float(np.prod(self.spacing)) / 1000

    @cached_property
    def _sorted(self) -> Field:
        return np.sort(self.levels[np.isfinite(self.levels)])

    def count(self, a: float) -> int:
        """Voxels inside the border if it moves by `a` mm."""
        return int(np.searchsorted(self._sorted, a, side="right"))

    def volume(self, a: float) -> float:
        """Volume, cm³, if the border moves by `a` mm; it never falls as `a` rises."""
        return self.count(a) * self.voxel

    def onto(self, shape: tuple[int, ...], box: Box) -> Field:
        """Levels in another box of the same grid; infinite where they are not known."""
        whole = np.full(shape, np.inf, np.float32)
        whole[self.box] = self.levels
        return whole[box]

    def displacement(self, count: int) -> float:
        """Displacement, mm, at which the structure has so many voxels."""
        levels = self._sorted
        at = int(np.clip(count, 1, len(levels)))
        above = levels[min(at, len(levels) - 1)]
        return float((levels[at - 1] + above) / 2)


def find_border(
    outline: Mask, votes: Field, domain: Mask, spacing: Sequence[float], softness: float = 0.0
) -> Border:
    """Levels around a non-empty outline; the structure lies in `domain`, or in the outline.

    Voted parts that the outline omits do not count as votes. Smoothing moves the border of a thin structure
    inward; levels on the wrong side are moved back. Without `softness`, mm, all of them become the smallest
    possible level; with it, they keep their order, so that the border of a thin structure can move.
    """
    box = box_around(outline, spacing)
    outline, votes, domain = outline[box], votes[box], domain[box]
    votes = np.where(omitted(outline, votes), 0, votes)
    few, most = VOTES
    nested = (outline | (votes > few), outline & (votes >= most))
    distances = [_distance(mask, spacing) for mask in nested if mask.any()]
    mean = np.sum(distances, axis=0) / np.float32(len(distances))
    smooth = ndi.gaussian_filter(mean, SMOOTHING / np.asarray(spacing), mode="nearest", truncate=3)
    levels = np.where(outline, -_positive(-smooth, softness), _positive(smooth, softness)).astype(np.float32)
    levels[~(domain | outline)] = np.inf
    i, j, k = map(float, spacing)
    return Border(levels, box, (i, j, k))


def _positive(levels: Field, softness: float) -> Field:
    """Levels of at least `LEAST`: softness · log(1 + exp(level / softness)), or the larger of the two."""
    if not softness:
        return np.maximum(levels, LEAST)
    soft = np.float32(softness)
    return LEAST + soft * np.logaddexp(np.float32(0), levels / soft)


def omitted(outline: Mask, votes: Field) -> Mask:
    """Parts with votes that hold a majority somewhere but no voxel of the outline."""
    if not (missing := (votes > 0.5) & ~outline).any():
        return np.zeros_like(outline)
    parts, count = ndi.label((votes > VOTES[0]) | outline, np.ones((3, 3, 3)))
    voted, drawn = (np.bincount(parts[at], minlength=count + 1) > 0 for at in (missing, outline))
    return np.asarray((voted & ~drawn)[parts])


def crossings(border: Border, reference: Mask) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Levels (n,) where the border of a reference runs, and its positions (n, 3) in mm.

    `reference` has the grid of the outline. Faces of voxels where levels are not known are left out.
    """
    found = list(_faces(border, reference[border.box]))
    return np.concatenate([v for v, _ in found]), np.concatenate([x for _, x in found])


def _faces(border: Border, inside: Mask) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    for axis in range(3):
        low, high = (np.take(inside, range(s, inside.shape[axis] + s - 1), axis) for s in (0, 1))
        a, b = (np.take(border.levels, range(s, inside.shape[axis] + s - 1), axis) for s in (0, 1))
        at = (low != high) & np.isfinite(a) & np.isfinite(b)
        where = np.argwhere(at) + 0.5 * (np.arange(3) == axis)
        yield (a[at].astype(np.float64) + b[at]) / 2, where * border.spacing


def _distance(mask: Mask, spacing: Sequence[float]) -> Field:
    """Signed distance in mm to a surface half a voxel from the centers on either side, negative inside."""
    half = np.float32(np.mean(spacing) / 2)
    outside, inside = distance_to(mask, spacing), distance_to(~mask, spacing)
    return np.where(mask, half - inside, outside - half)


def box_around(mask: Mask, spacing: Sequence[float], margin: float = MARGIN) -> Box:
    """Box of a non-empty mask with a margin, mm."""
    wide = np.ceil(margin / np.asarray(spacing)).astype(int)
    i, j, k = (
        slice(max(s.start - w, 0), min(s.stop + w, n))
        for s, w, n in zip(ndi.find_objects(mask.astype(np.uint8))[0], wide, mask.shape)
    )
    return i, j, k
