"""Reorient voxel axes to canonical order (i right, j front, k up) and back.

Axes are only permuted and flipped, so the inverse is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image


@dataclass(frozen=True)
class Orientation:
    """Canonical axis w is axis `axes[w]` of the `native` grid, reversed where `flips[w]`."""

    native: Grid
    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    @property
    def codes(self) -> str:
        """Axis codes of the native grid, e.g. "LPS" for indices that increase to the left, back and up."""
        letters = {axis: "RAS"[w] if not flip else "LPI"[w] for w, (axis, flip) in enumerate(self._pairs())}
        return "".join(letters[axis] for axis in range(3))

    @property
    def grid(self) -> Grid:
        """The canonical grid: the same voxel centers in canonical order."""
        to_native = np.zeros((4, 4))
        to_native[3, 3] = 1
        for w, (axis, flip) in enumerate(self._pairs()):
            to_native[axis, w] = -1 if flip else 1
            to_native[axis, 3] = self.native.shape[axis] - 1 if flip else 0
        a, b, c = (self.native.shape[axis] for axis in self.axes)
        return Grid((a, b, c), self.native.affine @ to_native, self.native.frame)

    def _pairs(self) -> list[tuple[int, bool]]:
        return list(zip(self.axes, self.flips))


def find_orientation(grid: Grid) -> Orientation:
    """Find the permutation and flips that bring the axes of `grid` closest to right, front, up."""
    cosines = grid.affine[:3, :3] / grid.spacing

    def closeness(axes: tuple[int, ...]) -> tuple[float, ...]:
        turned = cosines[:, axes]
        turned = turned * np.where(np.diagonal(turned) < 0, -1, 1)
        # Ties between two orders are broken by the directions, not by the storage order of the file.
        return (round(float(np.trace(turned)), 6), *turned.round(6).ravel().tolist())

    i, j, k = max(permutations(range(3)), key=closeness)
    return Orientation(grid, (i, j, k), (cosines[0, i] < 0, cosines[1, j] < 0, cosines[2, k] < 0))


def reorient(image: Image) -> tuple[Image, Orientation]:
    """Reorient an image to canonical axes, C-contiguous; returns it with its `Orientation`."""
    orientation = find_orientation(image.grid)
    return Image(to_canonical(image.data, orientation), orientation.grid, image.source), orientation


def to_canonical(array: npt.NDArray[np.generic], orientation: Orientation) -> npt.NDArray[np.generic]:
    """Reorient an array from the native to the canonical grid; further axes are unchanged."""
    _require_shape(array, orientation.native.shape)
    turned = array.transpose(*orientation.axes, *range(3, array.ndim))
    return np.ascontiguousarray(turned[_steps(orientation)])


def to_native(array: npt.NDArray[np.generic], orientation: Orientation) -> npt.NDArray[np.generic]:
    """Reorient an array from the canonical to the native grid; exact inverse of `to_canonical`."""
    _require_shape(array, tuple(orientation.native.shape[axis] for axis in orientation.axes))
    inverse = np.argsort(orientation.axes)
    return np.ascontiguousarray(array[_steps(orientation)].transpose(*inverse, *range(3, array.ndim)))


def _steps(orientation: Orientation) -> tuple[slice, ...]:
    return tuple(slice(None, None, -1 if flip else 1) for flip in orientation.flips)


def _require_shape(array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape[:3] != shape:
        raise ValueError(f"array must have the grid's shape {shape}, got {array.shape}")
