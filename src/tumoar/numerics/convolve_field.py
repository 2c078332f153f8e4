"""Draws of hidden units and their back-projection, fused: the hidden units are never stored.

    h_m[j] ~ Bernoulli(sigmoid(c_m[j]))                      see `convolve` for c
    u[q]   = sum of w_m[t] h_m[q - 2t]
    f[i]   = a + sum of u[i - d], d in {0,1}^3               field on the voxels

The 40 units of a place are 8 groups of 5 bits; a table per group holds the sums of the filters switched on,
so that 8 additions replace 40. Most places see no voxel that is on ("idle"): their units are on with fixed
probabilities, and those that seldom are share one random number. Draws are keyed by the place in the caller's
grid, sums are exact integers: a field wanted on part of the grid equals that part of the whole field, bit by
bit, on any number of threads.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import (
    _SPAN,
    BITS,
    CELL,
    GROUPS,
    REACH,
    Filters,
    M,
    R,
    events,
    nonempty,
    row_buffers,
    row_sums,
    unit_inputs,
)
from tumoar.numerics.random import stream_key, uniform

_PLANES = 8  # planes of hidden units per parallel unit; at least R - 1, so that units two apart never meet
_SPAN_U = np.uint64(_SPAN)  # unsigned indices: numba wraps signed ones, and then does not vectorize
_TABLE = GROUPS * (1 << BITS) * _SPAN
_FAR = 1 << 20
RARE = 0.02  # probability below which units of an idle place share one random number


class Idle(NamedTuple):
    """The units of a place that sees no voxel on; made by `idle_units`."""

    odds: npt.NDArray[np.float32]  # (M,) one over the probability to be on
    frequent: npt.NDArray[np.int64]  # units that are drawn one by one
    rare: npt.NDArray[np.int64]  # the others
    some: npt.NDArray[np.float32]  # probability that one of the rare units up to this one is on


def draw_field(
    v: npt.NDArray[np.bool_ | np.uint8],
    region: npt.NDArray[np.bool_],
    filters: Filters,
    a: float,
    key: int,
    pad: int = REACH,
) -> npt.NDArray[np.float32]:
    """Field on the voxels of `region`, 0 elsewhere, after drawing all hidden units that reach them.

    v is zero outside its grid. `key` (64 bits) names the draws; `pad` only sets the size of the work space.
    """
    if v.shape != region.shape:
        raise ValueError(f"v and region must have one shape, got {v.shape} and {region.shape}")
    if pad < REACH:
        raise ValueError(f"pad must be at least {REACH}, got {pad}")
    out = np.zeros(v.shape, np.float32)
    first, last = _row_ends(region)
    box = _bounding_box(first, last)
    if box is None:
        return out
    origin = np.array([s.start - pad for s in box])
    first, last = (x[box[:2]] - origin[2] for x in (first, last))
    e = events(_padded(v, box, pad))
    lo, hi = _wanted_units(first, last, pad, box[2].stop - box[2].start + 2 * pad - REACH)
    u = np.zeros((8, *e.shape), np.int32)
    _draw_and_project(
        e.start, e.at, e.value, e.steps, e.first, e.last, filters, idle_units(filters), lo, hi, origin,
        np.uint64(key), u,
    )  # fmt: skip
    _gather(u, region[box], first - pad, last - pad, filters.down_scale, a, pad, out[box])
    return out


def idle_units(filters: Filters) -> Idle:
    """What the biases alone say of the units."""
    odds = np.empty(M, np.float32)
    odds_row(filters.bias, M, filters, odds)
    p = 1 / odds.astype(float)
    frequent, rare = np.flatnonzero(p >= RARE), np.flatnonzero(p < RARE)
    return Idle(odds, frequent, rare, (1 - np.cumprod(1 - p[rare])).astype(np.float32))


@nb.njit(parallel=True, cache=True)
def _row_ends(region):
    """First wanted voxel of each row and one past its last; far beyond each other where there is none."""
    n0, n1, n2 = region.shape
    first, last = np.full((n0, n1), _FAR), np.full((n0, n1), -_FAR)
    for i in nb.prange(n0):
        for j in range(n1):
            row = region[i, j]
            k = 0
            while k < n2 and not row[k]:
                k += 1
            if k < n2:
                first[i, j] = k
                k = n2
                while not row[k - 1]:
                    k -= 1
                last[i, j] = k
    return first, last


def _bounding_box(
    first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> tuple[slice, slice, slice] | None:
    some = first < last
    if not some.any():
        return None
    i, j = (np.flatnonzero(some.any(axis)) for axis in (1, 0))
    return (
        slice(int(i[0]), int(i[-1]) + 1),
        slice(int(j[0]), int(j[-1]) + 1),
        slice(int(first.min()), int(last.max())),
    )


def _padded(x: npt.NDArray, box: tuple[slice, ...], pad: int) -> npt.NDArray[np.uint8]:
    """x on the box grown by pad voxels, zero outside its grid."""
    out = np.zeros([s.stop - s.start + 2 * pad for s in box], np.uint8)
    source = tuple(slice(max(0, s.start - pad), min(n, s.stop + pad)) for s, n in zip(box, x.shape))
    out[tuple(slice(t.start - s.start + pad, t.stop - s.start + pad) for t, s in zip(source, box))] = x[
        source
    ]
    return out


def _wanted_units(
    first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], pad: int, n2: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Per row (j0, j1) of hidden units the range lo <= j2 < hi that reaches a wanted voxel, empty if none."""
    first, last = np.pad(first, pad, constant_values=_FAR), np.pad(last, pad, constant_values=-_FAR)
    for _ in range(2):  # the other axis after each
        n = len(first) - REACH
        first = reduce(np.minimum, (first[d : d + n] for d in range(REACH + 1))).T
        last = reduce(np.maximum, (last[d : d + n] for d in range(REACH + 1))).T
    return np.maximum(first - REACH, 0).astype(np.int32, "C"), np.minimum(last, n2).astype(np.int32, "C")


@nb.njit(inline="always")
def _odds(c):
    """1 + exp(-c) = 1 / sigmoid(c) in float32 for |c| <= 16, by six squarings; vectorizes."""
    x = min(max(c, np.float32(-16.0)), np.float32(16.0)) * np.float32(-1 / 64)
    e = np.float32(1 / 720) * x + np.float32(1 / 120)
    e = e * x + np.float32(1 / 24)
    e = e * x + np.float32(1 / 6)
    e = e * x + np.float32(0.5)
    e = e * x + np.float32(1.0)
    e = e * x + np.float32(1.0)
    e *= e
    e *= e
    e *= e
    e *= e
    e *= e
    e *= e
    return np.float32(1.0) + e


@nb.njit(cache=True)
def odds_row(c, n, filters, out):
    """One over the probability of units with inputs c, in fixed point."""
    scale = np.float32(filters.up_scale)
    for t in range(n):
        out[t] = _odds(np.float32(c[t]) * scale)


@nb.njit(cache=True)
def _bernoulli_row(odds, n, k0, k1, counter, h):
    """h[t] = 1 with probability 1 / odds[t]."""
    h = h[:n]
    for t in range(n):
        h[t] = np.uint8(uniform(k0, k1, np.uint32(counter + t)) * odds[t] < np.float32(1.0))


@nb.njit(inline="always")
def _bit(m):
    """Place of unit m = 8 q + g in a pattern: byte g holds the bits q of its group."""
    return np.uint64(8 * (m % GROUPS) + m // GROUPS)


@nb.njit(cache=True)
def _idle_row(idle, n, k0, k1, counter, u, patterns):
    """Units of n idle places."""
    patterns = patterns[:n]
    patterns[:] = 0
    for m in idle.frequent:
        odds, bit = idle.odds[m], _bit(m)
        for x in range(n):
            on = uniform(k0, k1, np.uint32(counter + x * M + m)) * odds < np.float32(1.0)
            patterns[x] |= np.uint64(on) << bit
    count = len(idle.rare)
    if count == 0:
        return
    first, some = idle.rare[0], idle.some[count - 1]
    u = u[:n]
    for x in range(n):
        u[x] = uniform(k0, k1, np.uint32(counter + x * M + first))
    for x in range(n):
        if u[x] < some:  # this number also says which is the first that is on
            r = 0
            while u[x] >= idle.some[r]:
                r += 1
            patterns[x] |= np.uint64(1) << _bit(idle.rare[r])
            for m in idle.rare[r + 1 :]:
                on = uniform(k0, k1, np.uint32(counter + x * M + m)) * idle.odds[m] < np.float32(1.0)
                patterns[x] |= np.uint64(on) << _bit(m)


@nb.njit(cache=True)
def _draw_row(
    start, at, value, steps, first, last, p1, i, j, lo, hi, filters, idle, k0, k1, counter, plain, run, c,
    odds, h, patterns,
):  # fmt: skip
    """Hidden units of the row (i, j), lo <= x < hi, as patterns[x - lo]."""
    _idle_row(idle, hi - lo, k0, k1, counter, odds, patterns)
    a, b = nonempty(first, last, p1, i, j, lo, hi)
    if a >= b:
        return
    row_sums(start, at, value, steps, p1, i, j, a, b, filters.up, plain, run)
    unit_inputs(plain, a, b - a, filters, c)
    odds_row(c, (b - a) * M, filters, odds)
    _bernoulli_row(odds, (b - a) * M, k0, k1, counter + (a - lo) * M, h)
    words = h.view(np.uint64)
    B = len(filters.up) // R**3
    for x in range(a, b):
        # whether a place is idle must not depend on how much of the volume is seen here
        if plain[(x + R - 1) * B : (x + R) * B].any():
            word = BITS * (x - a)
            pattern = words[word]
            for q in range(1, BITS):
                pattern |= words[word + q] << np.uint64(q)
            patterns[x - lo] = pattern


@nb.njit(inline="always")
def _row_stream(key, i, j, f2, lo, origin):
    """Keys and first counter of a row's draws; they depend on places in the caller's grid only."""
    k = 2 * lo + f2 + origin[2]
    k0, k1 = stream_key(key, i + origin[0], j + origin[1], k & 1)
    return k0, k1, (k >> 1) * M


@nb.njit(cache=True)
def _look_up(patterns, n, offsets, places, count):
    """Table offsets of the non-empty groups of n places, sorted in buckets by their number (2, 4, 6, 8)."""
    count[:] = 0
    for x in range(n):
        pattern = patterns[x]
        if pattern == 0:
            continue
        used = 0
        for g in range(GROUPS):
            p = np.int64((pattern >> np.uint64(8 * g)) & np.uint64(31))
            offsets[x, used] = np.uint64(((g << BITS) + p) * _SPAN)
            used += p != 0
        for g in range(used, GROUPS):
            offsets[x, g] = 0  # the empty pattern of the first group: zeros
        bucket = (used - 1) >> 1
        places[bucket, count[bucket]] = x
        count[bucket] += 1


@nb.njit(cache=True)
def _project_row(offsets, places, count, table, cells, base):
    """cells[base + x CELL ...] += table sums of each place x, for one tap of the middle axis."""
    for q in range(count[0]):
        x = places[0, q]
        o0, o1 = offsets[x, 0], offsets[x, 1]
        c = np.uint64(base + x * CELL)
        for t in range(_SPAN_U):
            cells[c + t] = np.int32(cells[c + t] + np.int32(table[o0 + t] + table[o1 + t]))
    for q in range(count[1]):
        x = places[1, q]
        o0, o1, o2, o3 = offsets[x, 0], offsets[x, 1], offsets[x, 2], offsets[x, 3]
        c = np.uint64(base + x * CELL)
        for t in range(_SPAN_U):
            s = np.int32(table[o0 + t] + table[o1 + t]) + np.int32(table[o2 + t] + table[o3 + t])
            cells[c + t] = np.int32(cells[c + t] + np.int32(s))
    for bucket in range(2, 4):
        for q in range(count[bucket]):
            x = places[bucket, q]
            o0, o1, o2, o3 = offsets[x, 0], offsets[x, 1], offsets[x, 2], offsets[x, 3]
            o4, o5, o6, o7 = offsets[x, 4], offsets[x, 5], offsets[x, 6], offsets[x, 7]
            c = np.uint64(base + x * CELL)
            for t in range(_SPAN_U):
                s = np.int32(table[o0 + t] + table[o1 + t]) + np.int32(table[o2 + t] + table[o3 + t])
                r = np.int32(table[o4 + t] + table[o5 + t]) + np.int32(table[o6 + t] + table[o7 + t])
                cells[c + t] = np.int32(cells[c + t] + np.int32(np.int32(s) + np.int32(r)))


@nb.njit(parallel=True, cache=True)
def _draw_and_project(
    start, at, value, steps, first, last, filters, idle, lo, hi, origin, key, u
):  # fmt: skip
    """u[phase] += back-projection of freshly drawn hidden units.

    A parallel unit is one phase and _PLANES planes of hidden units; even units first, then odd ones, because
    a unit writes R - 1 planes beyond its own.
    """
    blocks = ((lo.shape[0] + 1) // 2 + _PLANES - 1) // _PLANES
    for parity in range(2):
        units = (blocks - parity + 1) // 2
        for unit in nb.prange(8 * units):
            phase = unit // units
            _planes(
                start[phase], at[phase], value[phase], steps[phase], first[phase], last[phase], phase,
                2 * (unit % units) + parity, filters, idle, lo, hi, origin, key, u[phase],
            )  # fmt: skip


@nb.njit(cache=True)
def _planes(
    start, at, value, steps, first, last, phase, block, filters, idle, lo, hi, origin, key, u
):  # fmt: skip
    """One parallel unit. Within a plane, `cells` [place 1, place 2, tap 0] gathers all hidden units, so that
    the inner loop runs over R x CELL contiguous integers."""
    p1, p2 = u.shape[1:]
    n0, n1 = lo.shape
    f0, f1, f2 = phase >> 2, (phase >> 1) & 1, phase & 1
    plain, run, c = row_buffers(p2, filters)
    odds = np.empty(p2 * M, np.float32)
    h = np.empty(p2 * M, np.uint8)
    patterns = np.empty(p2, np.uint64)
    offsets = np.empty((p2, GROUPS), np.uint64)
    places = np.empty((4, p2), np.int64)
    count = np.empty(4, np.int64)
    cells = np.zeros(p1 * p2 * CELL, np.int32)
    for i in range(block * _PLANES, min((block + 1) * _PLANES, (n0 - f0 + 1) // 2)):
        top, bottom, left, right = p1, 0, p2, 0
        for j in range((n1 - f1 + 1) // 2):
            x0 = np.int64((max(lo[2 * i + f0, 2 * j + f1] - f2, 0) + 1) >> 1)
            x1 = np.int64((hi[2 * i + f0, 2 * j + f1] - f2 + 1) >> 1)
            if x0 >= x1:
                continue
            k0, k1, counter = _row_stream(key, 2 * i + f0, 2 * j + f1, f2, x0, origin)
            _draw_row(
                start, at, value, steps, first, last, p1, i, j, x0, x1, filters, idle, k0, k1, counter,
                plain, run, c, odds, h, patterns,
            )  # fmt: skip
            _look_up(patterns, x1 - x0, offsets, places, count)
            for b in range(R):
                table = filters.down[b * _TABLE : (b + 1) * _TABLE]
                _project_row(offsets, places, count, table, cells, ((j + b) * p2 + x0) * CELL)
            top, bottom, left, right = min(top, j), j + R, min(left, x0), max(right, x1 + R - 1)
        if top < bottom:
            _settle(cells, u, i, top, bottom, left, right)


@nb.njit(cache=True)
def _settle(cells, u, i, j0, j1, x0, x1):
    """Move the cells of one plane of hidden units to the R planes they belong to, and clear them."""
    p2 = u.shape[2]
    for j in range(j0, j1):
        for a in range(R):
            row = u[i + a, j]
            for x in range(x0, x1):
                row[x] = np.int32(row[x] + cells[(j * p2 + x) * CELL + a])
        cells[(j * p2 + x0) * CELL : (j * p2 + x1) * CELL] = 0


@nb.njit(parallel=True, cache=True)
def _gather(u, region, first, last, scale, a, pad, out):
    """out = a + scale * 2x2x2 box sum of u on the voxels of the region; they lie in first <= k < last."""
    scale, a = np.float32(scale), np.float32(a)
    for i in nb.prange(out.shape[0]):
        total = np.empty(out.shape[2] + 1, np.int64)
        for j in range(out.shape[1]):
            begin, end = first[i, j], last[i, j]
            if begin >= end:
                continue
            total[begin : end + 1] = 0
            for d in range(4):
                q0, q1 = i + pad - (d >> 1), j + pad - (d & 1)
                phase = (q0 & 1) * 4 + (q1 & 1) * 2
                for f in range(2):
                    row = u[phase + f, q0 >> 1, q1 >> 1]
                    # total[k] belongs to the place k + pad - 1 of the padded row
                    for k in range(begin + ((begin + pad - 1 - f) & 1), end + 1, 2):
                        total[k] += row[(k + pad - 1) >> 1]
            for k in range(begin, end):
                if region[i, j, k]:
                    out[i, j, k] = a + scale * np.float32(total[k] + total[k + 1])
