"""Draw the hidden units of one row of places; see `convolve` for their inputs c.

    h_m[j] ~ Bernoulli(sigmoid(c_m[j]))

Sums are first transposed from "kernels of a place" to "places of a kernel": a unit's sign, bias and bit are
then scalars, and loops over places vectorize without lookups. The output is one digit per place and group of
BITS units, the index of the back-projection tables.

Most places have no active voxel in their receptive field ("idle"): their units have fixed probabilities, and
rare ones share one random number. Draws are keyed by the place in the caller's grid.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import (
    _VECTOR,
    BITS,
    GROUPS,
    Filters,
    M,
    R,
    find_nonempty,
    row_buffers,
    row_sums,
)
from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.random import bits, stream_key, uniform

RARE = 0.02  # probability below which units of an idle place share one random number


class Idle(NamedTuple):
    """The units of an idle place; made by `idle_units`."""

    odds: npt.NDArray[np.float32]  # (M,) inverse probability to be on
    frequent: npt.NDArray[np.int64]  # units that are drawn individually
    rare: npt.NDArray[np.int64]  # the others
    some: npt.NDArray[np.float32]  # probability that one of the rare units up to this one is on


def idle_units(filters: Filters) -> Idle:
    """Probabilities of idle units, from their biases."""
    odds = np.empty(M, np.float32)
    odds_row(filters.bias, M, filters, odds)
    p = 1 / odds.astype(float)
    frequent, rare = np.flatnonzero(p >= RARE), np.flatnonzero(p < RARE)
    return Idle(odds, frequent, rare, (1 - np.cumprod(1 - p[rare])).astype(np.float32))


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


@kernel()
def odds_row(c, n, filters, out):
    """Inverse probability of units with inputs c in fixed point."""
    scale = np.float32(filters.up_scale)
    for t in range(n):
        out[t] = _odds(np.float32(c[t]) * scale)


@nb.njit(inline="always")
def _is_on(k0, k1, i, odds):
    """True with probability 1 / odds: u < 1 / odds for draw number i, a multiple u of 2^-24."""
    return np.float32(np.int32(bits(k0, k1, i) >> np.uint32(8))) * odds < np.float32(1 << 24)


@nb.njit(inline="always")
def _whole(n):
    """n rounded up to whole vectors: cheaper than a scalar loop over the remainder."""
    return (n + _VECTOR - 1) // _VECTOR * _VECTOR


class RowMemory(NamedTuple):
    """Buffers for the draw of one row; made by `allocate_row`."""

    plain: npt.NDArray[np.int32]  # sums of the kernels of each place
    run: npt.NDArray[np.int32]  # running sums, see `row_sums`
    sums: npt.NDArray[np.int32]  # (B, places) sums by kernel
    seen: npt.NDArray[np.int32]  # (places,) non-zero where any sum is
    drawn: npt.NDArray[np.int32]  # (GROUPS, places) digits as if no place were idle
    odds: npt.NDArray[np.float32]  # (places,)
    steps: npt.NDArray[np.uint32]  # (places,) draws of one unit are M numbers apart


@inner()
def allocate_row(p2, filters):
    """Allocate buffers for rows of up to p2 places."""
    plain, run, _ = row_buffers(p2, filters)
    n = _whole(p2) + _VECTOR
    sums = np.zeros((len(filters.up) // R**3, n), np.int32)
    drawn = np.empty((GROUPS, n), np.int32)
    steps = (np.arange(n) * M).astype(np.uint32)
    return RowMemory(plain, run, sums, np.empty(n, np.int32), drawn, np.empty(n, np.float32), steps)


@inner()
def _by_kernel(plain, a, n, sums, seen):
    """Transpose the sums of n places from a on to rows by kernel; sets `seen` where any is non-zero."""
    B = len(sums)
    for k in range(B):
        row = sums[k, :n]
        for x in range(n):
            row[x] = plain[np.uint64((a + R - 1 + x) * B + k)]
        for x in range(n):
            seen[x] |= row[x]


@nb.njit(inline="always")
def _odds_of_unit(row, sign, bias, scale, out):
    """Inverse probability of a unit, from the sums of its kernel."""
    turn = np.int32(-1 if sign < 0 else 0)
    bias = np.int32(bias - turn)
    for x in range(len(row)):  # bias + sign * row[x]
        out[x] = _odds(np.float32(np.int32(bias + np.int32(row[x] ^ turn))) * scale)


@nb.njit(inline="always")
def _draw_unit(odds, first, steps, k0, k1, bit, digit):
    """Set a bit of the digits where the unit is on; draws are numbered first + steps[x]."""
    first, bit = np.uint32(first), np.int32(bit)
    for x in range(len(digit)):
        on = _is_on(k0, k1, np.uint32(first + steps[x]), odds[x])
        digit[x] |= bit if on else np.int32(0)


@inner()
def _draw_seen(n, filters, k0, k1, counter, room):
    """Digits of n places from the sums of their kernels."""
    n, scale = _whole(n), np.float32(filters.up_scale)
    room.drawn[:, :n] = 0
    odds, steps = room.odds[:n], room.steps[:n]
    for m in range(M):
        if filters.sign[m] == 0:
            continue  # a filter of zeros has no effect
        _odds_of_unit(room.sums[filters.kernel[m], :n], filters.sign[m], filters.bias[m], scale, odds)
        _draw_unit(odds, counter + m, steps, k0, k1, 1 << m % BITS, room.drawn[m // BITS, :n])


@inner()
def _draw_idle(idle, n, k0, k1, counter, room, digits, at):
    """Digits of n idle places to digits[:, at ...]; overwrites the rest of the last vector."""
    whole = _whole(n)
    digits[:, at : at + whole] = 0
    odds, steps = room.odds[:whole], room.steps[:whole]
    for m in idle.frequent:
        odds[:] = idle.odds[m]
        _draw_unit(odds, counter + m, steps, k0, k1, 1 << m % BITS, digits[m // BITS, at : at + whole])
    count = len(idle.rare)
    if count == 0:
        return
    first, some = np.uint32(counter + idle.rare[0]), idle.some[count - 1]
    shared = odds
    for x in range(whole):
        shared[x] = uniform(k0, k1, np.uint32(first + steps[x]))
    for x in range(n):
        if shared[x] < some:  # this number also determines the first unit that is on
            r = 0
            while shared[x] >= idle.some[r]:
                r += 1
            m = idle.rare[r]
            digits[m // BITS, at + x] |= np.int32(1 << m % BITS)
            for m in idle.rare[r + 1 :]:
                on = _is_on(k0, k1, counter + x * M + m, idle.odds[m])
                digits[m // BITS, at + x] |= np.int32(on << m % BITS)


@nb.njit(inline="always")
def _row_stream(key, i, j, f2, lo, origin):
    """Keys and first counter of a row's draws; depend only on places in the caller's grid."""
    k = 2 * lo + f2 + origin[2]
    k0, k1 = stream_key(key, i + origin[0], j + origin[1], k & 1)
    return k0, k1, (k >> 1) * M


@inner()
def draw_row(
    start, at, value, steps, first, last, p1, phase, i, j, lo, hi, filters, idle, key, origin, room, digits
):  # fmt: skip
    """Hidden units of the row (i, j) of a phase, lo <= x < hi, into digits[group, x - lo]."""
    f0, f1, f2 = phase >> 2, (phase >> 1) & 1, phase & 1
    k0, k1, counter = _row_stream(key, 2 * i + f0, 2 * j + f1, f2, lo, origin)
    n = hi - lo
    seen = room.seen[:n]
    seen[:] = 0
    a, b = find_nonempty(first, last, p1, i, j, lo, hi)
    if a < b:
        row_sums(start, at, value, steps, p1, i, j, a, b, filters.up, room.plain, room.run)
        _by_kernel(room.plain, a, b - a, room.sums, seen[a - lo : b - lo])
        _draw_seen(b - a, filters, k0, k1, counter + (a - lo) * M, room)
    x = 0
    while x < n:
        end = x
        while end < n and seen[end] == 0:
            end += 1
        if x < end:
            _draw_idle(idle, end - x, k0, k1, counter + x * M, room, digits, x)
        x = end + 1
    if a < b:
        _replace(digits, a - lo, room.drawn, seen[a - lo : b - lo])


@inner()
def _replace(digits, at, drawn, seen):
    """Overwrite the digits of places that are not idle.

    A place is idle according to its own sums, not to how the volume is cropped.
    """
    n = len(seen)
    for g in range(GROUPS):
        digit, other = digits[g, at : at + n], drawn[g, :n]
        for x in range(n):
            digit[x] = other[x] if seen[x] != 0 else digit[x]
