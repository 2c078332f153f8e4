"""Small label maps made of balls, with values among the trained labels."""

from __future__ import annotations

import numpy as np


def two_balls(radius):
    """A map with a ball of label 1 that holds a ball of label 4."""
    distance = np.sqrt(sum((i - 15.5) ** 2 for i in np.indices((32, 32, 32))))
    return ((distance < 12).astype(np.uint8) + 3 * (distance < radius)).astype(np.uint8)


def shifted(dx):
    """Two balls beside the middle of the box, with a thin label (7) in the center."""
    out = np.roll(two_balls(6.0), dx, axis=0)
    out[14 + dx : 18 + dx, 15:17, 6:26] = 7
    return out
