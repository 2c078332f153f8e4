"""The 48 ways to store one image."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from tumoar.geometry.image import Grid, Image

ORDERS = [(axes, flips) for axes in permutations(range(3)) for flips in product((False, True), repeat=3)]


def stored(image, axes, flips):
    """The same image in world space, stored with its axes permuted and reversed."""
    to_stored = np.eye(4)[:, [*axes, 3]]
    data = image.data.transpose(axes)
    for axis, flip in enumerate(flips):
        if flip:
            data = np.flip(data, axis)
            reverse = np.eye(4)
            reverse[axis, axis] = -1
            reverse[axis, 3] = data.shape[axis] - 1
            to_stored = to_stored @ reverse
    return Image(data, Grid(data.shape, image.grid.affine @ to_stored))
