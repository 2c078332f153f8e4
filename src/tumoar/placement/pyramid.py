"""A patient's images reduced for placement: block means at a few mm, cut into bins of equal count.

Bins of equal count make all that follows independent of the scale of intensities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import HOUNSFIELD_UNIT, Case
from tumoar.numerics.histogram import MISSING
from tumoar.placement.fading import estimate_fading, fading_at

Volume = npt.NDArray[np.float32]
Means = npt.NDArray[np.floating]

BINS = 32
AROUND = 32.0
"""mm around a skull-stripped brain where it matters that there is nothing."""
RIM = 4.5
"""mm around it that say nothing: how much fluid is left there is up to the tool that stripped."""
BODY_HU = -300.0
CUT = 0.2
"""Part of its largest plane that a head fills where it is cut off by the edge of an image."""


@dataclass(frozen=True, eq=False)
class Signal:
    """Samples of one resolution: world positions q (n, 3), bins (n, N), whether each lies in the head (n,).

    Bin 0 is the nothing around a skull-stripped brain, or around a head in an image whose air was cleared;
    MISSING is a channel that does not reach there, or the rim of the nothing around a stripped brain.
    """

    q: npt.NDArray[np.float64]
    bins: npt.NDArray[np.uint8]
    in_head: npt.NDArray[np.bool_]
    mm: float

    @property
    def head_volume(self) -> float:
        """mm³."""
        return float(self.in_head.sum() * self.mm**3)

    def restricted(self, keep: npt.NDArray[np.bool_]) -> Signal:
        """These samples alone."""
        return Signal(self.q[keep], self.bins[keep], self.in_head[keep], self.mm)


def pyramid(case: Case, sizes: tuple[int, ...]) -> tuple[Signal, ...]:
    """Signals with blocks of the given sizes in mm, ascending and each a multiple of the one before."""
    valid, low = case.valid, np.zeros(3)
    total, weight = np.where(valid, case.D, np.float32(0)), valid.astype(np.float32)
    if case.skull_stripped:
        # Where the brain does not touch the edge of the image, nothing goes on beyond it.
        told = valid.any(0)
        widths = [
            tuple(0 if told.take(end, axis).any() else int(AROUND) for end in (0, -1)) for axis in range(3)
        ]
        total, weight = (np.pad(v, [(0, 0), *widths]) for v in (total, weight))
        low -= [before for before, _ in widths]
    signals, reached = [], 1
    for size in sizes:
        total, weight = (_block_means(v, size // reached) for v in (total, weight))
        if reached == 1 and not case.skull_stripped:
            total = _without_fading(case, total, weight, size)
        signals.append(_binned(case, total, weight, size, low))
        reached = size
    return tuple(signals)


def _block_means(volumes: Means, factor: int) -> Means:
    """Means (N, ...) over cubes; a part of a cube at the far end is filled up with nothing.

    In double precision, so that cubes of equal values stay equal: bins go by rank.
    """
    if factor == 1:
        return volumes
    widths = [(0, 0), *((0, -n % factor) for n in volumes.shape[1:])]
    out = np.pad(volumes, widths)
    for axis in (3, 2, 1):
        shape = (*out.shape[:axis], out.shape[axis] // factor, factor, *out.shape[axis + 1 :])
        out = out.reshape(shape).mean(axis + 1, dtype=np.float64)
    return out


def _without_fading(case: Case, total: Means, weight: Means, size: int) -> Means:
    """Means of log intensities (N, ...) less the fading of each MR contrast, found on blocks twice as large.

    Skull-stripped images come without it: what strips them corrects them first.
    """
    out = total.copy()
    where = (np.argwhere(np.ones(total.shape[1:], bool)) * size).astype(np.float64)
    for contrast, t, w, o in zip(case.contrasts, total, weight, out):
        coarse, part = (_block_means(v[None], 2)[0] for v in (t, w))
        ok = part > 0.5
        if not (contrast.is_mr and ok.any()):
            continue
        values = np.divide(coarse, part, out=np.zeros_like(coarse), where=ok).astype(np.float64)
        body = ok & (values > _darkest_tissue(values, ok))
        if body.any():
            at = (np.argwhere(body) * 2.0 * size + size / 2).astype(np.float64)
            o -= w * fading_at(where, *estimate_fading(values[body], at)).reshape(w.shape)
    return out


def _darkest_tissue(values: Means, ok: npt.NDArray[np.bool_]) -> float:
    """The log intensity that best divides an image in two (Otsu); where there is nothing, it is dark."""
    low = np.quantile(values[ok], 0.01)
    counts, edges = np.histogram(np.where(ok, np.maximum(values, low), low), 128)
    centers, part = (edges[1:] + edges[:-1]) / 2, np.cumsum(counts) / counts.sum()
    mean = np.cumsum(counts * centers) / counts.sum()
    between = (mean[-1] * part - mean) ** 2 / np.maximum(part * (1 - part), 1e-9)
    return float(centers[between.argmax()])


def _cleared(told: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where images that say nothing (X, Y, Z) show air: beside the head, not where they end.

    Images that end in the middle of a head end in a large plane of it, a head that ends by itself in a small
    one.
    """
    out = np.ones(told.shape, bool)
    for axis in range(3):
        areas = told.sum(tuple(a for a in range(3) if a != axis))
        first, last = np.flatnonzero(areas)[[0, -1]]
        planes = np.moveaxis(out, axis, 0)
        if areas[first] > CUT * areas.max():
            planes[:first] = False
        if areas[last] > CUT * areas.max():
            planes[last + 1 :] = False
    return out & ~told


def _binned(case: Case, total: Means, weight: Means, size: int, low: npt.NDArray[np.float64]) -> Signal:
    told = weight > 0.5
    values = np.divide(total, weight, out=np.zeros_like(total), where=told).astype(np.float32)
    bins = np.full(total.shape, 0 if case.skull_stripped else MISSING, np.uint8)
    for channel, (v, ok) in enumerate(zip(values, told)):
        if ok.any():
            edges = np.quantile(v[ok], np.linspace(0, 1, BINS + 1)[1:-1])
            bins[channel][ok] = 1 + np.searchsorted(edges, v[ok], side="right")
    keep = np.asarray(told.any(0))
    if not case.skull_stripped and keep.any():
        # One channel tells it: that all were cleared is no news.
        bins[0, _cleared(keep)] = 0
        keep = (bins != MISSING).any(0)
    if case.skull_stripped and keep.any():
        distance = ndi.distance_transform_edt(~keep, sampling=size)
        bins[:, (distance > 0) & (distance <= RIM)] = MISSING
        keep = distance <= AROUND
    return Signal(
        q=np.ascontiguousarray(case.grid.world(np.argwhere(keep) * size + (size - 1) / 2 + low)),
        bins=np.ascontiguousarray(bins[:, keep].T),
        in_head=_in_head(case, values, told)[keep],
        mm=float(size),
    )


def _in_head(case: Case, values: Volume, told: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where most channels are brighter than air and bone (MR) or denser than air (CT), and all within."""
    if case.skull_stripped:
        return np.asarray(told.any(0))
    votes = np.zeros(values.shape[1:])
    for contrast, v, ok in zip(case.contrasts, values, told):
        if not ok.any():
            continue
        if contrast.is_mr:
            votes += ok & (v > _darkest_tissue(v, ok))
        else:
            votes += ok & (v > BODY_HU / HOUNSFIELD_UNIT)
    head = np.asarray(2 * votes > len(values))
    for axis in range(3):
        planes = np.moveaxis(head, axis, 0)
        planes[:] = [ndi.binary_fill_holes(plane) for plane in planes]
    return head
