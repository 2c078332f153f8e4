"""Images in memory: grid, image, and a patient's co-registered images.

Arrays are indexed [i, j, k] in the axis order of the grid. On a canonical grid, i increases to the right, j
to the front and k upward (RAS). World coordinates are RAS in millimeters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.vocabulary.contrasts import Contrast
from tumoar.vocabulary.notes import Note

FloatArray = npt.NDArray[np.floating]

HOUNSFIELD_RANGE = (-1024.0, 3071.0)
HOUNSFIELD_UNIT = 100.0  # HU per unit of D: scales CT like the log of MR
CANONICAL_SPACING, SPACING_TOLERANCE = 1.0, 0.01  # mm; the tumor shape filters are defined at 1 mm


@dataclass(frozen=True)
class Grid:
    """Voxel centers in world space: shape, 4x4 RAS affine, and frame of reference, if known."""

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
            raise ValueError("affine is singular")
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
        return hash((self.shape, self.frame, (self.affine + 0.0).tobytes()))  # -0.0 equals 0.0

    @cached_property
    def spacing(self) -> npt.NDArray[np.float64]:
        """(3,) voxel size in mm along each array axis."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @cached_property
    def inverse(self) -> npt.NDArray[np.float64]:
        """4x4 matrix from world coordinates to voxel indices."""
        return np.asarray(np.linalg.inv(self.affine), np.float64)

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


def frame_digest(frame: str | None) -> str:
    """Digest of a frame of reference, to compare frames without storing their identifiers."""
    return hashlib.sha256(frame.encode()).hexdigest()[:16] if frame else ""


@dataclass(frozen=True, eq=False)
class Image:
    """Voxel values on their grid, in stored axis order; `source` is a file name without path.

    `notes` are remarks from reading the file.
    """

    data: npt.NDArray[np.generic]
    grid: Grid
    source: str = ""
    notes: tuple[Note, ...] = ()

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


@dataclass(frozen=True, eq=False)
class Input:
    """An input image: its original grid and its alignment with the case.

    `name` is its contrast, `grid` its original grid, `orientation` its axis codes ("LPS"). `to_reference`
    (4x4) maps its world coordinates to those of the case; `figures` are quality measures of registration.
    """

    name: str
    source: str
    grid: Grid
    orientation: str
    to_reference: npt.NDArray[np.float64]
    is_interpolated: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        matrix = np.array(self.to_reference, np.float64)
        R = matrix[:3, :3]
        is_rigid = np.allclose(R @ R.T, np.eye(3), atol=1e-5) and np.linalg.det(R) > 0
        if matrix.shape != (4, 4) or not is_rigid:
            raise ValueError(f"to_reference must be a rigid 4x4 matrix, got {matrix.tolist()}")
        matrix.flags.writeable = False
        object.__setattr__(self, "to_reference", matrix)
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))


@dataclass(frozen=True, eq=False)
class Case:
    """A patient's images on one canonical 1 mm grid around the head.

    `D` (N, X, Y, Z) holds transformed intensities: natural log of MR, Hounsfield units of CT divided by
    `HOUNSFIELD_UNIT`; NaN where an image has no data. `inputs` describe the original images; `notes` are for
    the reviewer; `excluded` voxels are not used.
    """

    D: npt.NDArray[np.float32]
    contrasts: tuple[Contrast, ...]
    grid: Grid
    reference: str
    inputs: tuple[Input, ...]
    skull_stripped: bool
    notes: tuple[Note, ...] = ()
    excluded: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        D = np.ascontiguousarray(self.D).view()
        if D.dtype != np.float32 or D.shape != (len(self.contrasts), *self.grid.shape) or len(D) == 0:
            raise ValueError(
                f"D must be float32 of shape {(len(self.contrasts), *self.grid.shape)}, "
                f"got {D.dtype} of shape {D.shape}"
            )
        if np.isinf(D).any():
            raise ValueError("D must be finite, or NaN where there is no data; got infinities")
        if not is_canonical(self.grid):
            raise ValueError(f"grid must be 1 mm with axes to the right, front and up, got {self.grid}")
        if self.excluded is not None and self.excluded.shape != self.grid.shape:
            raise ValueError(f"excluded must have shape {self.grid.shape}, got {self.excluded.shape}")
        if self.reference not in [i.name for i in self.inputs]:
            raise ValueError(f"reference must be one of the inputs, got '{self.reference}'")
        D.flags.writeable = False
        object.__setattr__(self, "D", D)

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """(N, X, Y, Z) True where a contrast has data."""
        return ~np.isnan(self.D)

    def select_channels(self, channels: Sequence[int]) -> Case:
        """Case with these channels only."""
        contrasts = tuple(self.contrasts[c] for c in channels)
        return replace(self, D=self.D[list(channels)], contrasts=contrasts)

    def input(self, name: str) -> Input:
        """An input by its contrast."""
        for given in self.inputs:
            if given.name == name:
                return given
        raise KeyError(f"no input '{name}'; there are: {', '.join(i.name for i in self.inputs)}")


def is_canonical(grid: Grid) -> bool:
    """Whether voxels are 1 mm cubes with axes closest to right, front and up."""
    cosines = grid.affine[:3, :3] / grid.spacing
    is_near = np.all(np.abs(grid.spacing - CANONICAL_SPACING) <= SPACING_TOLERANCE)
    return bool(is_near and np.linalg.det(cosines) > 0 and np.all(np.diagonal(cosines) > 0.5))


def is_valid(values: npt.NDArray[Any], contrast: Contrast) -> npt.NDArray[np.bool_]:
    """Where an image has data: MR finite and positive, CT finite and above its padding."""
    return np.isfinite(values) & (values > (0 if contrast.is_mr else HOUNSFIELD_RANGE[0]))


def transform_intensities(values: FloatArray, contrast: Contrast) -> npt.NDArray[np.float32]:
    """Transform valid intensities: natural log of MR, clipped and scaled Hounsfield units of CT."""
    if contrast.is_mr:
        return np.log(values, dtype=np.float32)
    return (np.clip(values, *HOUNSFIELD_RANGE) / HOUNSFIELD_UNIT).astype(np.float32)
