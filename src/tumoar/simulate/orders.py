"""The 48 ways to store one image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np

from tumoar.geometry.image import Grid, Image

ORDERS = [(axes, flips) for axes in permutations(range(3)) for flips in product((False, True), repeat=3)]
"""Which axis comes first, second and third, and which of these are reversed."""


def reorder(grid: Grid, axes: Sequence[int], flips: Sequence[bool]) -> Grid:
    """The same voxels with their axes permuted and reversed."""
    to_stored = np.eye(4)[:, [*axes, 3]]
    shape = tuple(grid.shape[axis] for axis in axes)
    for axis in np.flatnonzero(flips).tolist():
        reverse = np.eye(4)
        reverse[axis, axis] = -1
        reverse[axis, 3] = shape[axis] - 1
        to_stored = to_stored @ reverse
    return Grid((shape[0], shape[1], shape[2]), grid.affine @ to_stored, grid.frame)


def stored(image: Image, axes: Sequence[int], flips: Sequence[bool]) -> Image:
    """The same image in world space, stored with its axes permuted and reversed."""
    data = np.flip(image.data.transpose(axes), tuple(np.flatnonzero(flips).tolist()))
    return Image(data, reorder(image.grid, axes, flips))
