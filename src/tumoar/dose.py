"""Cumulative dose-volume histograms: a structure as small pieces, each with the dose at its place.

A structure is cut into pieces much finer than its voxels or contours, and the dose, interpolated linearly,
is read at every piece; nothing is binned, so that small organs lose nothing to the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.image import Image

Array = npt.NDArray[np.float64]

PIECES = 50_000  # at least so many in a structure
FINEST = 32  # pieces along the side of a voxel, at most
CHUNK = 4096  # voxels cut at once
DOSES = (2.0, 5.0, 50.0, 95.0, 98.0)  # % of the volume, for tables
PLASTIC = 1.2207440846057596  # the root of x⁴ = x + 1, for points evenly spread in a cube
HOT = (0.03, 0.1)  # cm³


@dataclass(frozen=True, eq=False)
class Pieces:
    """A structure as points (n, 3) in world mm with the volume (n,) in mm³ that each stands for."""

    points: Array
    volumes: Array

    def __post_init__(self) -> None:
        if self.points.shape != (len(self.volumes), 3):
            raise ValueError(f"points must be ({len(self.volumes)}, 3), got {self.points.shape}")


@dataclass(frozen=True, eq=False)
class Dvh:
    """Doses (n,) in Gy, highest first, and the volume (n,) in cm³ at each; `outside`: share with no dose."""

    doses: Array
    volumes: Array
    outside: float = 0.0

    @cached_property
    def volume(self) -> float:
        """Volume of the structure, cm³."""
        return float(self.volumes.sum())

    @property
    def mean(self) -> float:
        """Mean dose, Gy."""
        return float(np.average(self.doses, weights=self.volumes)) if self.volume else np.nan

    @property
    def maximum(self) -> float:
        """Highest dose to any piece, Gy."""
        return float(self.doses[0]) if len(self.doses) else np.nan

    @cached_property
    def _middles(self) -> Array:
        """(n,) volume that gets more than each dose, counting half of the piece itself."""
        return np.cumsum(self.volumes) - self.volumes / 2

    def D(self, percent: float) -> float:
        """The least dose to the hottest `percent` of the volume, Gy."""
        return self.D_cc(percent / 100 * self.volume)

    def D_cc(self, volume: float) -> float:
        """The least dose to the hottest `volume` cm³, Gy; NaN if the structure is smaller."""
        if not self.volume or volume > self.volume * (1 + 1e-9):
            return np.nan
        return float(np.interp(volume, self._middles, self.doses))

    def V(self, dose: npt.ArrayLike) -> Array:
        """Share of the volume, in percent, that gets at least `dose` Gy."""
        if not self.volume:
            return np.full(np.shape(dose), np.nan)
        ascending, below = self.doses[::-1], np.concatenate([[0.0], np.cumsum(self.volumes[::-1])])
        share = 1 - below[np.searchsorted(ascending, dose, side="left")] / below[-1]
        return np.asarray(100 * np.maximum(share, 0.0))

    def figures(self) -> dict[str, float]:
        """One row of a table."""
        return {
            "volume_cm3": self.volume,
            "mean_Gy": self.mean,
            "max_Gy": self.maximum,
            **{f"D{p:g}_Gy": self.D(p) for p in DOSES},
            **{f"D{v:g}cc_Gy": self.D_cc(v) for v in HOT},
            "outside_percent": 100 * self.outside,
        }


@dataclass(frozen=True, eq=False)
class Band:
    """The curves of a structure over posterior samples: percent of the volume at each of `doses` (Gy)."""

    doses: Array
    median: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Sampled:
    """The histogram of a structure as outlined, and of its posterior samples where they were kept.

    `notes` are what is to be known of the dose.
    """

    dvh: Dvh
    samples: tuple[Dvh, ...] = ()
    notes: tuple[str, ...] = ()

    def band(self, share: float = 0.90, doses: npt.ArrayLike | None = None) -> Band:
        """Median and central band over the samples."""
        return band(self.samples, share, doses)


def dvh(pieces: Pieces, dose: Image) -> Dvh:
    """The histogram of a structure in a dose (Gy); where there is no dose it counts as 0, and is told."""
    values, is_outside = dose_at(dose, pieces.points)
    order = np.argsort(-values, kind="stable")
    total = float(pieces.volumes.sum())
    outside = float(pieces.volumes[is_outside].sum()) / total if total else 0.0
    return Dvh(values[order], pieces.volumes[order] / 1000, outside)


def thinned(curve: Dvh, most: int = 20_000) -> Dvh:
    """The same histogram in about `most` pieces, for keeping many of them.

    The hottest half of them stays as it is, so that no hot spot is averaged away; behind them, neighbors in
    dose are taken together.
    """
    if len(curve.doses) <= most:
        return curve
    hottest = most // 2
    rest = np.linspace(hottest, len(curve.doses), most - hottest, endpoint=False).astype(int)
    starts = np.concatenate([np.arange(hottest), rest])
    volumes = np.add.reduceat(curve.volumes, starts)
    doses = np.add.reduceat(curve.doses * curve.volumes, starts) / volumes
    return Dvh(doses, volumes, curve.outside)


def dose_at(dose: Image, points: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Dose (n,) by linear interpolation at world points (n, 3), and which lie outside of its voxels."""
    index = dose.grid.index(points).T
    size = np.array(dose.grid.shape)[:, None]
    is_outside: npt.NDArray[np.bool_] = np.asarray(((index < -0.5) | (index > size - 0.5)).any(0))
    values = ndi.map_coordinates(dose.data, index, np.float64, order=1, mode="nearest")
    return np.where(is_outside, 0.0, values), is_outside


def pieces_of_mask(fraction: Image, least: int = PIECES) -> Pieces:
    """A mask of shares 0 to 1, each voxel cut into at least as many pieces as give `least` in all.

    A voxel that is only partly inside keeps its share exactly; its pieces are filled beginning where the
    interpolated mask is highest, so that the surface runs through the voxel where its neighbors say.
    """
    f = np.asarray(fraction.data, np.float64)
    where = np.argwhere(f > 1e-6)
    inside = f[tuple(where.T)]
    if not len(where):
        return Pieces(np.zeros((0, 3)), np.zeros(0))
    sides = _cuts(fraction.grid.spacing, float(inside.sum()) * fraction.grid.voxel_volume, least)
    lattice = np.stack(np.meshgrid(*[np.arange(n) / n for n in sides], indexing="ij"), -1).reshape(-1, 3)
    count = len(lattice)
    points, volumes = [], []
    for start in range(0, len(where), CHUNK):
        number = np.arange(start, min(start + CHUNK, len(where)))
        # Each voxel has its lattice elsewhere, or all pieces of a layer would get one dose, a step in D.
        offsets = (lattice + spread(number)[:, None, :]) % 1.0 - 0.5
        index = where[number, None, :] + offsets
        share = _filled(f, index, inside[start : start + CHUNK], count)
        at = share > 0
        points.append(fraction.grid.world(index[at]))
        volumes.append(share[at] * fraction.grid.voxel_volume / count)
    return Pieces(np.concatenate(points), np.concatenate(volumes))


def band(curves: Sequence[Dvh], share: float = 0.90, doses: npt.ArrayLike | None = None) -> Band:
    """Median and central band, dose by dose, of the curves of several samples."""
    known = [c for c in curves if c.volume]
    if not known:
        raise ValueError("a band needs at least one curve of a structure that is there, got none")
    top = max(c.maximum for c in known)
    at = np.linspace(0, top * 1.02, 256) if doses is None else np.asarray(doses, float)
    values = np.array([c.V(at) for c in known])
    low, median, high = np.quantile(values, [(1 - share) / 2, 0.5, (1 + share) / 2], axis=0)
    return Band(at, median, low, high)


def _cuts(spacing: Array, volume: float, least: int) -> Array:
    """(3,) pieces along each side of a voxel."""
    size = (volume / least) ** (1 / 3)
    return np.clip(np.ceil(spacing / size), 1, FINEST).astype(int)


def spread(number: npt.NDArray[np.int64]) -> Array:
    """(n, 3) points in the unit cube, evenly spread whatever their number (a Kronecker sequence)."""
    return ((number[:, None] + 0.5) * PLASTIC ** -np.arange(1.0, 4.0)) % 1.0


def _filled(f: Array, index: Array, inside: Array, count: int) -> Array:
    """(n, count) share of every piece that is filled: all of them, or the first by the interpolated mask."""
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
