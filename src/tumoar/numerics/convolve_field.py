"""Draws of hidden units and their back-projection, fused: the hidden units are never stored.

    h_m[j] ~ Bernoulli(sigmoid(c_m[j]))                      see `convolve` for c
    u[q]   = sum of w_m[t] h_m[q - 2t]
    f[i]   = a + sum of u[i - d], d in {0,1}^3               field on the voxels

The 40 units of a place are 8 groups of 5 bits; a table per group holds the sums of the filters switched on,
so that 8 additions replace 40. Draws are keyed by the place in the caller's grid, sums are exact integers: a
field wanted on part of the grid equals that part of the whole field, bit by bit, on any number of threads.
"""

from __future__ import annotations

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
    row_input,
)
from tumoar.numerics.random import stream_key, uniform

_PLANES = 8  # planes of hidden units per parallel unit; at least R - 1, so that units two apart never meet
_SPAN_U = np.uint64(_SPAN)  # unsigned indices: numba wraps signed ones, and then does not vectorize
_TABLE = GROUPS * (1 << BITS) * _SPAN


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
    box = _bounding_box(region)
    if box is None:
        return out
    origin = np.array([s.start - pad for s in box])
    crop, wanted = _padded(v, box, pad), _padded(region, box, pad)
    e = events(crop)
    lo, hi = _wanted_units(wanted)
    u = np.zeros((8, *e.shape), np.int32)
    _draw_and_project(
        e.start, e.at, e.value, e.steps, e.first, e.last, e.shape, filters.up, filters.bias,
        np.float32(filters.up_scale), filters.down, lo, hi, origin, np.uint64(key), u,
    )  # fmt: skip
    _gather(u, wanted, np.float32(filters.down_scale), np.float32(a), pad, out[box])
    return out


def _bounding_box(region: npt.NDArray[np.bool_]) -> tuple[slice, slice, slice] | None:
    axes = [np.asarray(region.any(other)) for other in ((1, 2), (0, 2), (0, 1))]
    if not axes[0].any():
        return None
    i, j, k = (slice(int(x.argmax()), int(x.size - x[::-1].argmax())) for x in axes)
    return i, j, k


def _padded(x: npt.NDArray, box: tuple[slice, ...], pad: int) -> npt.NDArray[np.uint8]:
    """x on the box grown by pad voxels, zero outside its grid."""
    out = np.zeros([s.stop - s.start + 2 * pad for s in box], np.uint8)
    source = tuple(slice(max(0, s.start - pad), min(n, s.stop + pad)) for s, n in zip(box, x.shape))
    out[tuple(slice(t.start - s.start + pad, t.stop - s.start + pad) for t, s in zip(source, box))] = x[
        source
    ]
    return out


def _wanted_units(wanted: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Per row (j0, j1) of hidden units the range lo <= j2 < hi that reaches a wanted voxel, empty if none."""
    n0, n1, n2 = (n - REACH for n in wanted.shape)
    some = wanted.any(2)
    first = np.where(some, wanted.argmax(2), 1 << 20)
    final = np.where(some, wanted.shape[2] - 1 - wanted[:, :, ::-1].argmax(2), -(1 << 20))
    for axis, n in ((0, n0), (1, n1)):
        first = np.min([np.take(first, range(d, d + n), axis) for d in range(REACH + 1)], axis=0)
        final = np.max([np.take(final, range(d, d + n), axis) for d in range(REACH + 1)], axis=0)
    return np.maximum(first - REACH, 0).astype(np.int32), np.minimum(final + 1, n2).astype(np.int32)


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
def _odds_row(c, begin, n, scale, out):
    c = c[begin : begin + n]
    for t in range(n):
        out[t] = _odds(np.float32(c[t]) * scale)


@nb.njit(cache=True)
def _bernoulli_row(odds, n, k0, k1, counter, h, at):
    """h[at + t] = 1 with probability 1 / odds[t]."""
    h = h[at : at + n]
    for t in range(n):
        h[t] = np.uint8(uniform(k0, k1, np.uint32(counter + t)) * odds[t] < np.float32(1.0))


@nb.njit(cache=True)
def draw_row(
    start, at, value, steps, first, last, p1, i, j, lo, hi, up, bias, scale, idle, k0, k1, counter,
    plain, run, odds, h,
):  # fmt: skip
    """Hidden units of the row (i, j), lo <= x < hi, into h[(x - lo) M + m]; `idle`: odds of empty places."""
    a, b = nonempty(first, last, p1, i, j, lo, hi)
    if a >= b:
        _bernoulli_row(idle, (hi - lo) * M, k0, k1, counter, h, 0)
        return
    row_input(start, at, value, steps, p1, i, j, a, b, up, bias, plain, run)
    _odds_row(plain, (a + R - 1) * M, (b - a) * M, scale, odds)
    _bernoulli_row(idle, (a - lo) * M, k0, k1, counter, h, 0)
    _bernoulli_row(odds, (b - a) * M, k0, k1, counter + (a - lo) * M, h, (a - lo) * M)
    _bernoulli_row(idle, (hi - b) * M, k0, k1, counter + (b - lo) * M, h, (b - lo) * M)


@nb.njit(inline="always")
def _row_stream(key, i, j, f2, lo, origin):
    """Keys and first counter of a row's draws; they depend on places in the caller's grid only."""
    k = 2 * lo + f2 + origin[2]
    k0, k1 = stream_key(key, i + origin[0], j + origin[1], k & 1)
    return k0, k1, (k >> 1) * M


@nb.njit(cache=True)
def _look_up(h, n, offsets, places, count):
    """Table offsets of the non-empty groups of n places, sorted in buckets by their number (2, 4, 6, 8)."""
    count[:] = 0
    words = h[: n * M].view(np.uint64)
    for x in range(n):
        # 8 groups side by side: byte g collects bit q from unit 8 q + g
        pattern = words[BITS * x]
        for q in range(1, BITS):
            pattern |= words[BITS * x + q] << np.uint64(q)
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
    start, at, value, steps, first, last, shape, up, bias, scale, down, lo, hi, origin, key, u
):  # fmt: skip
    """u[phase] += back-projection of freshly drawn hidden units.

    A parallel unit is one phase and _PLANES planes of hidden units; even units first, then odd ones, because
    a unit writes R - 1 planes beyond its own.
    """
    blocks = ((lo.shape[0] + 1) // 2 + _PLANES - 1) // _PLANES
    idle = np.empty(shape[2] * M, np.float32)
    for t in range(idle.size):
        idle[t] = _odds(np.float32(bias[t % M]) * scale)
    for parity in range(2):
        units = (blocks - parity + 1) // 2
        for unit in nb.prange(8 * units):
            phase = unit // units
            _planes(
                start[phase], at[phase], value[phase], steps[phase], first[phase], last[phase], phase,
                2 * (unit % units) + parity, up, bias, scale, idle, down, lo, hi, origin, key, u[phase],
            )  # fmt: skip


@nb.njit(cache=True)
def _planes(
    start, at, value, steps, first, last, phase, block, up, bias, scale, idle, down, lo, hi, origin, key, u
):  # fmt: skip
    """One parallel unit. Within a plane, `cells` [place 1, place 2, tap 0] gathers all hidden units, so that
    the inner loop runs over R x CELL contiguous integers."""
    p1, p2 = u.shape[1:]
    n0, n1 = lo.shape
    f0, f1, f2 = phase >> 2, (phase >> 1) & 1, phase & 1
    plain = np.empty((p2 + 2 * R) * M, np.int32)
    run = np.zeros((p2 + 2 * R) * M, np.int32)
    odds = np.empty(p2 * M, np.float32)
    h = np.empty(p2 * M, np.uint8)
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
            draw_row(
                start, at, value, steps, first, last, p1, i, j, x0, x1, up, bias, scale, idle, k0, k1,
                counter, plain, run, odds, h,
            )  # fmt: skip
            _look_up(h, x1 - x0, offsets, places, count)
            for b in range(R):
                table = down[b * _TABLE : (b + 1) * _TABLE]
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
def _gather(u, wanted, scale, a, pad, out):
    """out = a + scale * 2x2x2 box sum of u on the wanted voxels of the padded grid."""
    n0, n1, n2 = out.shape
    for i in nb.prange(n0):
        total = np.empty(n2 + 1, np.int64)
        for j in range(n1):
            total[:] = 0
            for d in range(4):
                q0, q1 = i + pad - (d >> 1), j + pad - (d & 1)
                phase = (q0 & 1) * 4 + (q1 & 1) * 2
                even, odd = u[phase, q0 >> 1, q1 >> 1], u[phase + 1, q0 >> 1, q1 >> 1]
                for k in range(n2 + 1):
                    q2 = k + pad - 1
                    total[k] += odd[q2 >> 1] if q2 & 1 else even[q2 >> 1]
            for k in range(n2):
                if wanted[i + pad, j + pad, k + pad]:
                    out[i, j, k] = a + scale * np.float32(total[k] + total[k + 1])
