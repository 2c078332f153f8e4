"""Cut a structure into pieces much finer than its voxels or contours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Image

Array = npt.NDArray[np.float64]

PIECES = 50_000  # minimum per structure
FINEST = 32  # maximum number of pieces along the side of a voxel
CHUNK = 4096  # voxels per step
PLASTIC = 1.2207440846057596  # the root of x⁴ = x + 1, for points evenly spread in a cube


@dataclass(frozen=True, eq=False)
class Pieces:
    """A structure as points (n, 3) in world mm with volumes (n,) in mm³."""

    points: Array
    volumes: Array

    def __post_init__(self) -> None:
        if self.points.shape != (len(self.volumes), 3):
            raise ValueError(f"points must be ({len(self.volumes)}, 3), got {self.points.shape}")


def cut_mask(fraction: Image, least: int = PIECES) -> Pieces:
    """Cut a mask of fractions 0 to 1 into at least `least` pieces.

    A partial voxel keeps its fraction exactly. Its pieces are filled in order of the interpolated mask, so
    that the surface in the voxel follows its neighbors.
    """
    f = np.asarray(fraction.data, np.float64)
    where = np.argwhere(f > 1e-6)
    inside = f[tuple(where.T)]
    if not len(where):
        return Pieces(np.zeros((0, 3)), np.zeros(0))
    sides = _choose_cuts(fraction.grid.spacing, float(inside.sum()) * fraction.grid.voxel_volume, least)
    lattice = np.stack(np.meshgrid(*[np.arange(n) / n for n in sides], indexing="ij"), -1).reshape(-1, 3)
    count = len(lattice)
    points, volumes = [], []
    for start in range(0, len(where), CHUNK):
        number = np.arange(start, min(start + CHUNK, len(where)))
        # Lattices are shifted per voxel; otherwise all pieces of a layer would get the same dose.
        offsets = (lattice + spread_points(number)[:, None, :]) % 1.0 - 0.5
        index = where[number, None, :] + offsets
        share = _fill(f, index, inside[start : start + CHUNK], count)
        at = share > 0
        points.append(fraction.grid.world(index[at]))
        volumes.append(share[at] * fraction.grid.voxel_volume / count)
    return Pieces(np.concatenate(points), np.concatenate(volumes))


def _choose_cuts(spacing: Array, volume: float, least: int) -> Array:
    """(3,) pieces along each side of a voxel."""
    size = (volume / least) ** (1 / 3)
    return np.clip(np.ceil(spacing / size), 1, FINEST).astype(int)


def spread_points(number: npt.NDArray[np.int64]) -> Array:
    """(n, 3) points evenly spread in the unit cube for any n (a Kronecker sequence)."""
    return ((number[:, None] + 0.5) * PLASTIC ** -np.arange(1.0, 4.0)) % 1.0


def _fill(f: Array, index: Array, inside: Array, count: int) -> Array:
    """(n, count) filled fraction of every piece, in order of the interpolated mask."""
    share = np.ones(index.shape[:2])
    partial = np.flatnonzero(inside < 1 - 1e-6)
    if len(partial) and count == 1:
        share[partial] = inside[partial, None]
    elif len(partial):
        points = index[partial].reshape(-1, 3).T
        field = ndi.map_coordinates(f, points, order=1, mode="grid-constant").reshape(len(partial), count)
        rank = np.argsort(np.argsort(-field, axis=1, kind="stable"), axis=1, kind="stable")
        share[partial] = np.clip(inside[partial, None] * count - rank, 0.0, 1.0)
    return share
