"""Where the brain is brighter than on the other side: evidence for edema that no single voxel holds.

Cortex, the walls of the ventricles and the base of the brain are bright in FLAIR on both sides; a tumor is
bright on one. The prior of tumor is reduced where a region is not brighter than its mirror image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.image import Case, Grid

Array = npt.NDArray[np.floating]

BLUR = 6.0
"""Millimeters: sides are compared over regions, as no two hemispheres fold alike."""
MIDDLE, WIDTH = 0.08, 0.04
"""Difference in log intensity at which the prior is halfway, and the scale of its rise."""
LEAST_OFFSET = 0.3
"""Log intensity by which edema must exceed white matter in a contrast for sides to be compared in it."""


def weigh_asymmetry(
    case: Case, grid: Grid, affine: Array, brain: Array, least: float
) -> npt.NDArray[np.float32] | None:
    """(X, Y, Z) factor on the prior of tumor, on a coarser grid: 1 where brighter, near `least` where darker.

    `affine` (4, 4) maps atlas world coordinates, whose left and right are mirror images, to those of the
    grid; `brain` (X, Y, Z) is its prior probability. None without a contrast in which edema is bright.
    """
    bright = [c.tumor_offset["edema"] if c.tumor_offset else 0.0 for c in case.contrasts]
    if least >= 1 or max(bright) < LEAST_OFFSET:
        return None
    n = int(np.argmax(bright))
    step = round(case.grid.shape[0] / grid.shape[0])
    D = case.D[n, ::step, ::step, ::step]
    mask = ((brain > 0.5) & np.isfinite(D)).astype(np.float32)
    sigma = BLUR / grid.spacing
    mean = ndimage.gaussian_filter(np.where(mask > 0, D, 0), sigma)
    mean = np.where(mask > 0, mean / np.maximum(ndimage.gaussian_filter(mask, sigma), 1e-3), 0)
    M = np.asarray(affine, float)
    turn = grid.inverse @ M @ np.diag([-1.0, 1, 1, 1]) @ np.linalg.inv(M) @ grid.affine
    other, seen = (
        ndimage.affine_transform(v, turn[:3, :3], turn[:3, 3], order=1, cval=0.0) for v in (mean, mask)
    )
    seen_there = (seen > 0.5) & (mask > 0)
    difference = np.where(seen_there, mean - other / np.maximum(seen, 0.5), np.inf)
    rise = 1 / (1 + np.exp(-np.clip((difference - MIDDLE) / WIDTH, -50, 50)))
    return np.asarray(least + (1 - least) * rise, np.float32)
