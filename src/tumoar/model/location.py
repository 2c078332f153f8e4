"""Where tumors occur: how often each place of the brain was tumor in training, relative to common places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.image import Grid

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Location:
    """Frequency (X, Y, Z) of tumor, 1 where it is common; `affine` (4, 4) maps voxels to the atlas."""

    frequency: npt.NDArray[np.float32]
    affine: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.frequency.ndim != 3 or min(self.frequency.shape) < 2 or self.affine.shape != (4, 4):
            raise ValueError("frequency must be (X, Y, Z) and affine (4, 4)")
        if not (self.frequency.min() >= 0 and self.frequency.max() <= 1):
            raise ValueError("frequency must be between 0 and 1")
        if not (np.isfinite(self.affine).all() and abs(np.linalg.det(self.affine)) > 1e-3):
            raise ValueError("affine must be invertible")


def weigh_location(
    location: Location, grid: Grid, affine: npt.ArrayLike, least: float
) -> npt.NDArray[np.float32]:
    """(X, Y, Z) factor on the prior of tumor: 1 where tumor is common, `least` where there was none.

    `affine` (4, 4) maps world coordinates of the atlas to those of the grid.
    """
    to_map = np.linalg.inv(np.asarray(affine, float) @ location.affine) @ grid.affine
    frequency = ndimage.affine_transform(
        location.frequency, to_map[:3, :3], to_map[:3, 3], output_shape=grid.shape, order=1, mode="nearest"
    )
    return np.asarray(least + (1 - least) * np.clip(frequency, 0, 1), np.float32)
