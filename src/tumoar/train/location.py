"""Measure where tumors occur from label maps that share one space."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, pi, place
from tumoar.model.location import Location

Array = npt.NDArray[np.floating]

SPACING = 6.0
"""Millimeters between the points of the map."""
BLUR = 12.0
"""Millimeters, standard deviation: a few hundred tumors do not tell more."""
COMMON = 0.05
"""Places are common if at most this fraction of all tumor volume lies in places with a lower frequency."""


def measure_location(counts: Array, grid: Grid, affine: Array, atlas: Atlas) -> Location:
    """Smoothed frequency of tumor in the brain of the atlas, the same on both sides.

    `counts` (X, Y, Z) is the number of patients with tumor in each voxel of `grid`. `affine` (4, 4) maps
    world coordinates of the atlas to those of the grid.
    """
    points = _grid_around(atlas)
    to_mask = grid.inverse @ affine @ points.affine
    sigma = SPACING / 2 / grid.spacing
    tumor = ndimage.affine_transform(
        ndimage.gaussian_filter(np.asarray(counts, np.float32), sigma),
        to_mask[:3, :3],
        to_mask[:3, 3],
        output_shape=points.shape,
        order=1,
    )
    placed = place(atlas, np.eye(4), points)
    brain = pi(placed, placed.reference)[..., atlas.labels.in_brain].sum(-1)
    tumor = (tumor + tumor[::-1]) / 2
    brain = (brain + brain[::-1]) / 2
    inside, around = (ndimage.gaussian_filter(v, BLUR / SPACING) for v in (tumor * brain, brain))
    frequency = inside / np.maximum(around, 0.05)
    order = np.argsort(frequency, axis=None)
    share = np.cumsum((tumor * brain).ravel()[order])
    common = frequency.ravel()[order][np.searchsorted(share, COMMON * share[-1])]
    return Location(np.clip(frequency / common, 0, 1).astype(np.float32), points.affine)


def _grid_around(atlas: Atlas) -> Grid:
    """Points over the box of the atlas, symmetric about its plane between left and right."""
    low, high = atlas.box
    half = np.ceil(max(-low[0], high[0]) / SPACING)
    low, high = np.r_[-half * SPACING, low[1:]], np.r_[half * SPACING, high[1:]]
    X, Y, Z = (int(n) for n in np.ceil((high - low) / SPACING) + 1)
    affine = np.diag([SPACING, SPACING, SPACING, 1.0])
    affine[:3, 3] = low
    return Grid((X, Y, Z), affine)
