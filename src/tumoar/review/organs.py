"""Let the border of an organ follow a corrected piece of it.

The voxels of a stroke say how far the border was off there. Beyond the slices of the stroke, which the user
has seen, the border moves by as much, less with distance from the stroke.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from tumoar.geometry.border import box_around
from tumoar.geometry.distance import distance_to
from tumoar.review.strokes import Mask, Stroke

LENGTH = (3.0, 8.0)
"""Millimeters, least and most, at which a displacement has fallen to 0.6; else 2 mm more than it is."""
STEPS = 6
"""Sizes of displacement that are told apart."""
FAR = 2.5
"""Lengths at which a displacement ends."""


def follow_stroke(mask: Mask, stroke: Stroke, spacing: tuple[float, float, float]) -> Mask:
    """Mask of an organ whose border follows a stroke."""
    drawn = np.zeros(mask.shape, bool)
    drawn[tuple(stroke.voxels.T)] = True
    wrong = drawn & (mask != stroke.inside)
    out = np.where(drawn, stroke.inside, mask)
    if not wrong.any() or not mask.any():
        return out
    box = box_around(wrong, spacing, margin=FAR * LENGTH[1])
    off = _depth(mask if stroke.inside else ~mask, spacing)
    most = float(off[wrong].max())
    length = float(np.clip(most + 2, *LENGTH))
    reach = np.zeros(out[box].shape, np.float32)
    for low in np.linspace(0, most, STEPS, endpoint=False):
        some = wrong[box] & (off[box] > low)
        far = distance_to(some, spacing)
        moved = (low + most / STEPS) * np.exp(-0.5 * (far / length) ** 2)
        reach = np.maximum(reach, np.where(far <= FAR * length, moved, 0))
    moves = (off[box] > 0) & (off[box] <= reach) & ~_seen(stroke, mask.shape)[box]
    out[box] = np.where(moves, stroke.inside, out[box])
    return out


def _depth(mask: Mask, spacing: tuple[float, float, float]) -> np.ndarray:
    """Millimeters from a mask to each voxel outside of it; 0 in the mask."""
    return ndimage.distance_transform_edt(~mask, spacing).astype(np.float32)


def _seen(stroke: Stroke, shape: tuple[int, ...]) -> Mask:
    """Voxels in the slices of a stroke."""
    low, high = stroke.voxels.min(0), stroke.voxels.max(0)
    axis = int(np.argmin(high - low))
    out = np.zeros(shape, bool)
    np.moveaxis(out, axis, 0)[low[axis] : high[axis] + 1] = True
    return out
