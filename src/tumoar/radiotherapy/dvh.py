"""Cumulative dose-volume histograms from the linearly interpolated dose at small pieces of a structure.

Doses are not binned, so that small organs are resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Image
from tumoar.geometry.pieces import Pieces

Array = npt.NDArray[np.float64]

DOSES = (2.0, 5.0, 50.0, 95.0, 98.0)  # % of the volume, for tables
HOT = (0.03, 0.1)  # cm³
ROUNDING = 1e-4  # Gy, of stored doses


@dataclass(frozen=True, eq=False)
class Dvh:
    """Doses (n,) in Gy, highest first, and volumes (n,) in cm³; `outside` is the fraction without dose."""

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
        """(n,) volume that receives more than each dose, counting half of the piece itself."""
        return np.cumsum(self.volumes) - self.volumes / 2

    def D(self, percent: float) -> float:
        """Minimum dose to the hottest `percent` of the volume, Gy."""
        return self.D_cc(percent / 100 * self.volume)

    def D_cc(self, volume: float) -> float:
        """Minimum dose to the hottest `volume` cm³, Gy; NaN if the structure is smaller."""
        if not self.volume or volume > self.volume * (1 + 1e-9):
            return np.nan
        return float(np.interp(volume, self._middles, self.doses))

    def V(self, dose: npt.ArrayLike) -> Array:
        """Percentage of the volume that receives at least `dose` Gy, allowing for rounded stored doses."""
        if not self.volume:
            return np.full(np.shape(dose), np.nan)
        ascending, below = self.doses[::-1], np.concatenate([[0.0], np.cumsum(self.volumes[::-1])])
        share = 1 - below[np.searchsorted(ascending, np.asarray(dose) - ROUNDING, side="left")] / below[-1]
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
    """Curves over samples: percentage of the volume at each of `doses` (Gy)."""

    doses: Array
    median: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Sampled:
    """Histogram of a structure as outlined, and of its samples.

    Samples are structures that an expert may draw if the structure is calibrated, on what `calibrated_on`
    says; else posterior samples, if they were kept. `notes` describe the dose.
    """

    dvh: Dvh
    samples: tuple[Dvh, ...] = ()
    notes: tuple[str, ...] = ()
    calibrated_on: str = ""

    def band(self, share: float = 0.90, doses: npt.ArrayLike | None = None) -> Band:
        """Median and central band over the samples."""
        return band(self.samples, share, doses)


def dvh(pieces: Pieces, dose: Image) -> Dvh:
    """Histogram of a structure in a dose (Gy); pieces outside the dose count as 0 and are reported."""
    values, is_outside = dose_at(dose, pieces.points)
    order = np.argsort(-values, kind="stable")
    total = float(pieces.volumes.sum())
    outside = float(pieces.volumes[is_outside].sum()) / total if total else 0.0
    return Dvh(values[order], pieces.volumes[order] / 1000, outside)


def thin_dvh(curve: Dvh, most: int = 20_000) -> Dvh:
    """Reduce a histogram to about `most` pieces, to save memory.

    The hottest half of the pieces is kept, so that no hot spot is averaged away; the others are merged with
    their neighbors in dose.
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
    """Dose (n,) by linear interpolation at world points (n, 3), and which points lie outside its voxels."""
    index = dose.grid.index(points).T
    size = np.array(dose.grid.shape)[:, None]
    is_outside: npt.NDArray[np.bool_] = np.asarray(((index < -0.5) | (index > size - 0.5)).any(0))
    values = ndi.map_coordinates(dose.data, index, np.float64, order=1, mode="nearest")
    return np.where(is_outside, 0.0, values), is_outside


def band(curves: Sequence[Dvh], share: float = 0.90, doses: npt.ArrayLike | None = None) -> Band:
    """Median and central band of the curves of several samples at each dose."""
    known = [c for c in curves if c.volume]
    if not known:
        raise ValueError("a band needs at least one curve of a nonempty structure, got none")
    top = max(c.maximum for c in known)
    at = np.linspace(0, top * 1.02, 256) if doses is None else np.asarray(doses, float)
    values = np.array([c.V(at) for c in known])
    low, median, high = np.quantile(values, [(1 - share) / 2, 0.5, (1 + share) / 2], axis=0)
    return Band(at, median, low, high)
