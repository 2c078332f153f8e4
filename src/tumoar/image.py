"""Images in memory: one grid type, an image on its grid, and a patient's co-registered images.

Arrays are indexed [i, j, k] in the grid's own axis order; a canonical grid has i to the right, j to the front,
k up (RAS), so that left has the smaller i. World coordinates are RAS millimeters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Grid:
    """Voxel centers in world space: shape, 4x4 RAS affine, and the frame of reference if it is known."""

    shape: tuple[int, int, int]
    affine: npt.NDArray[np.float64]
    frame: str | None = None

    def __post_init__(self) -> None:
        affine = np.array(self.affine, np.float64)
        if (
            affine.shape != (4, 4)
            or not np.isfinite(affine).all()
            or not np.array_equal(affine[3], [0, 0, 0, 1])
        ):
            raise ValueError(f"affine must be a finite 4x4 matrix ending in 0 0 0 1, got {affine.tolist()}")
        if abs(np.linalg.det(affine[:3, :3])) < 1e-12:
            raise ValueError("affine is singular: its axes are not independent")
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ValueError(f"shape must be three positive sizes, got {self.shape}")
        affine.flags.writeable = False
        object.__setattr__(self, "affine", affine)
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Grid)
            and self.shape == other.shape
            and self.frame == other.frame
            and np.array_equal(self.affine, other.affine)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.frame, self.affine.tobytes()))

    @cached_property
    def spacing(self) -> npt.NDArray[np.float64]:
        """(3,) voxel size in mm along each array axis."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @cached_property
    def inverse(self) -> npt.NDArray[np.float64]:
        """World to voxel index, 4x4."""
        return np.linalg.inv(self.affine)

    @property
    def voxel_volume(self) -> float:
        """mm³ per voxel."""
        return float(abs(np.linalg.det(self.affine[:3, :3])))

    def world(self, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """World coordinates (..., 3) of voxel indices (..., 3)."""
        return np.asarray(index, float) @ self.affine[:3, :3].T + self.affine[:3, 3]

    def index(self, world: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Fractional voxel indices (..., 3) of world coordinates (..., 3)."""
        return np.asarray(world, float) @ self.inverse[:3, :3].T + self.inverse[:3, 3]


@dataclass(frozen=True, eq=False)
class Image:
    """Voxel values on their own grid, in the axis order they were stored in; `source` is a name without a path."""

    data: npt.NDArray[np.generic]
    grid: Grid
    source: str = ""

    def __post_init__(self) -> None:
        data = np.asarray(self.data).view()
        if data.shape != self.grid.shape:
            raise ValueError(f"data must have the grid's shape {self.grid.shape}, got {data.shape}")
        if not (np.issubdtype(data.dtype, np.integer) or np.issubdtype(data.dtype, np.floating)):
            raise ValueError(f"data must be integer or floating point, got {data.dtype}")
        if "/" in self.source or "\\" in self.source:
            raise ValueError("source must be a name without a path")
        data.flags.writeable = False
        object.__setattr__(self, "data", data)
