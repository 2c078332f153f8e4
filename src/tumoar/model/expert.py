"""What an expert would draw, given an outline: its border displaced by a random field.

The displacement has a part that is common to the patient and a smooth local part. The common part `a` decides
the volume: a drawn structure has the volume that the outline has if its border moves by `a` everywhere. The
local part decides where. Its numbers are learned from references (`Learned`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy import sparse
from scipy.special import ndtr, ndtri

from tumoar.geometry.border import Border, crossings
from tumoar.model.conformal import central, quantiles

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float64]

SAMPLES = 100
NODES = 100
"""Quantiles of the common part that stand for its distribution."""
FARTHEST = 12.0
"""Millimeters from the outline beyond which no expert's border runs."""
TAIL = 0.2
"""h of Tukey's h distribution, that of the local part: u exp(h u² / 2) with u normal, much like Student's t
with 3 degrees of freedom."""
TAIL_SD = np.exp(TAIL / 2)
"""Half the range of the central 68 % of that distribution."""
STEP = 3.0
"""Millimeters between the points at which the local part is drawn."""
LARGEST = 8.0
"""Millimeters; when lengths are fitted, a border that is farther from the outline counts as so far."""
LAGS = np.array([1.0, 3.0, 5.0, 7.0, 10.0, 14.0])
"""Distances, mm, between which correlations are averaged."""
PAIRED = 1500
"""Points of a reference whose pairs are compared."""


@dataclass(frozen=True)
class Learned:
    """Numbers of a structure, from the references of several patients.

    `displacements` are the common parts, mm; `roughness` is the median scale of the local part, mm, and
    `variation` the standard deviation of its logarithm between patients; `length` is the distance, mm, at
    which correlations of the local part have fallen to exp(−1/2).
    """

    displacements: tuple[float, ...]
    roughness: float
    variation: float
    length: float

    def interval(self, share: float) -> tuple[float, float]:
        """Displacements that a new patient has with this probability, mm."""
        return central(self.displacements, share)


@dataclass(frozen=True, eq=False)
class Observed:
    """What one reference says: displacement and scale of the local part, mm, and correlations at `LAGS`."""

    displacement: float
    roughness: float
    correlations: Array


def observe(border: Border, reference: Mask, rng: np.random.Generator) -> Observed:
    """Compare a reference on the grid of the outline with the levels of its border."""
    a = border.displacement(int(reference.sum()))
    levels, points = crossings(border, reference)
    if len(levels) < 2:
        return Observed(a, 0.0, np.full(len(LAGS) - 1, np.nan))
    low, high = np.quantile(levels, [0.1587, 0.8413])
    some = rng.choice(len(levels), min(PAIRED, len(levels)), replace=False)
    return Observed(a, float(high - low) / 2 / TAIL_SD, _correlate(levels[some], points[some]))


def _correlate(levels: Array, points: Array) -> Array:
    v = np.clip(levels, -LARGEST, LARGEST)
    v = v - v.mean()
    squares = (points**2).sum(1)
    away = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))
    which = np.digitize(away, LAGS)
    products = np.outer(v, v)
    sums, counts = (np.bincount(which.ravel(), w, len(LAGS) + 1) for w in (products.ravel(), None))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums / counts / max(v.var(), 1e-12))[1:-1]


def learn(observed: Sequence[Observed]) -> Learned:
    """Numbers of a structure from the references of several patients."""
    scales = np.log([max(o.roughness, 1e-3) for o in observed])
    rho = np.nanmean([o.correlations for o in observed], axis=0)
    middle = (LAGS[1:] + LAGS[:-1]) / 2
    lengths = np.linspace(1, 30, 291)
    error = ((np.exp(-((middle / lengths[:, None]) ** 2) / 2) - rho) ** 2).sum(1)
    return Learned(
        tuple(sorted(round(o.displacement, 3) for o in observed)),
        round(float(np.exp(np.median(scales))), 3),
        round(float(scales.std(ddof=1)) if len(scales) > 1 else 0.0, 3),
        round(float(lengths[error.argmin()]), 1),
    )


def chance_inside(learned: Learned, levels: npt.NDArray[np.floating]) -> Field:
    """Probability that an expert's structure contains a voxel, by its level."""
    a = quantiles(learned.displacements, (np.arange(NODES) + 0.5) / NODES)
    scale = learned.roughness * np.exp(learned.variation * ndtri((np.arange(NODES // 4) + 0.5) * 4 / NODES))
    at = np.linspace(-FARTHEST, FARTHEST, 241)
    away = (at[:, None, None] - a[:, None]) / np.maximum(scale, 1e-6)
    u = np.linspace(-8, 8, 1601)
    p = np.interp(away, u * np.exp(TAIL / 2 * u**2), ndtr(-u)).mean((1, 2))
    return np.interp(levels, at, p, left=1, right=0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Part:
    """A structure to draw: levels (X, Y, Z) of its border, its numbers, and the count of voxels by level.

    `parts` (X, Y, Z) numbers separate parts that the outline omits, from 1; each is drawn with probability
    `chance`.
    """

    border: Border
    levels: Field
    learned: Learned
    parts: npt.NDArray[np.int32] | None = None
    chance: float = 0.0


def draw(parts: Sequence[Part], samples: int, rng: np.random.Generator) -> Iterator[tuple[Mask, ...]]:
    """Draw nested structures, the smallest first, `samples` times; masks have the shape of the levels.

    A larger structure contains the smaller ones even if it has to be larger than its common part says. Common
    parts are evenly spread over their distribution, so that few samples represent it; structures of one
    sample share the field of the local part.
    """
    shape = parts[0].levels.shape
    near = np.zeros(shape, bool)
    for part in parts:
        near |= np.abs(part.levels) <= FARTHEST
        if part.parts is not None:
            near |= part.parts > 0
    at = np.flatnonzero(near)
    length = float(np.mean([p.learned.length for p in parts]))
    field = _Interpolated(shape, parts[0].border.spacing, length, at)
    levels = [p.levels.ravel()[at] for p in parts]
    inside = [(p.levels < -FARTHEST) & ~near for p in parts]
    spread = (np.arange(samples) + 0.5) / samples
    common = [rng.permutation(quantiles(p.learned.displacements, spread)) for p in parts]
    for s in range(samples):
        local, scale = field.draw(rng), np.float32(rng.standard_normal())
        drawn = np.zeros(len(at), bool)
        masks = []
        for part, level, deep, a in zip(parts, levels, inside, common):
            learned = part.learned
            moved = level - learned.roughness * np.exp(learned.variation * scale) * local
            if part.parts is not None:
                moved[_drawn_parts(part.parts.ravel()[at], part.chance, rng)] = -np.inf
            moved[drawn] = -np.inf
            count = part.border.count(a[s]) - int(deep.sum())
            drawn = _lowest(moved, max(count, int(drawn.sum())))
            mask = deep.copy()
            mask.ravel()[at[drawn]] = True
            masks.append(mask)
        yield tuple(masks)


def _drawn_parts(parts: npt.NDArray[np.int32], chance: float, rng: np.random.Generator) -> Mask:
    is_in = rng.uniform(size=int(parts.max()) + 1) < chance
    is_in[0] = False
    return np.asarray(is_in[parts])


def _lowest(levels: Field, count: int) -> Mask:
    """Mask of the `count` lowest levels, as far as they are finite or lowest of all."""
    mask = np.zeros(len(levels), bool)
    count = min(count, int((levels < np.inf).sum()))
    if count > 0:
        mask[np.argpartition(levels, count - 1)[:count]] = True
    return mask


class _Interpolated:
    """Random field of unit scale at some voxels of a box, linear between points `STEP` mm apart."""

    def __init__(
        self,
        shape: tuple[int, ...],
        spacing: tuple[float, float, float],
        length: float,
        at: npt.NDArray[np.int64],
    ) -> None:
        self.shape = tuple(int(np.ceil((n - 1) * s / STEP)) + 2 for n, s in zip(shape, spacing))
        self.sigma = length / np.sqrt(2) / STEP
        position = np.stack(np.unravel_index(at, shape), 1) * (np.asarray(spacing) / STEP)
        low = position.astype(np.int64)
        above = (position - low).astype(np.float32)
        columns, weights = [], []
        for corner in np.ndindex(2, 2, 2):
            columns.append(np.ravel_multi_index(tuple((low + corner).T), self.shape))
            weights.append(np.where(corner, above, 1 - above).prod(1))
        rows = np.tile(np.arange(len(at)), 8)
        entries = (np.concatenate(weights), (rows, np.concatenate(columns)))
        self.weights = sparse.csr_matrix(entries, (len(at), int(np.prod(self.shape))))
        impulse = np.zeros(2 * int(4 * self.sigma + 1) + 1)
        impulse[len(impulse) // 2] = 1
        self.norm = float((ndi.gaussian_filter1d(impulse, self.sigma) ** 2).sum() ** 1.5)

    def draw(self, rng: np.random.Generator) -> Field:
        """(n,) values at the voxels."""
        noise = rng.standard_normal(self.shape, np.float32)
        u = ndi.gaussian_filter(noise, self.sigma, mode="wrap") / np.float32(self.norm)
        return self.weights @ (u * np.exp(np.float32(TAIL / 2) * u**2)).ravel()
