"""The field of a map as a change of the field of an empty map, both drawn with the same random numbers.

    h_m[j]  = [U_m[j] < sigmoid(c_m[j])]                     see `convolve` for c
    e_m[j]  = [U_m[j] < sigmoid(b_m)]                        hidden units of the empty map
    f[i]    = a + back-projection of e + back-projection of h - e

U repeats with a period in each axis, and with it the field of the empty map, of which one period is drawn for
all maps. A map then costs what differs: places that see no active voxel are not visited, and units on in both
maps or off in both are not projected. Every field has the distribution of `convolve_field`, provided that the
period is longer than what a term depends on; fields of two maps are not independent.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import (
    BITS,
    CELL,
    GROUPS,
    REACH,
    Filters,
    M,
    R,
    encode_events,
    find_nonempty,
    row_sums,
)
from tumoar.numerics.convolve_draw import (
    _by_kernel,
    _odds_of_unit,
    _whole,
    allocate_row,
    idle_units,
)
from tumoar.numerics.convolve_field import _PLANES, _TABLE, LISTS, _gather, _list, _project, _settle
from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.random import bits, stream_key
from tumoar.numerics.threads import run_blocks

SHORTEST = 4 * REACH  # a period that no two units of a term of the gradient, of all voxels and units, share


def draw_empty(filters: Filters, period: int, key: int) -> npt.NDArray[np.float32]:
    """(period,)³ one period of the field of the empty map, without the visible bias."""
    nothing = np.zeros((period + 2 * REACH,) * 3, np.uint8)
    return _draw(nothing, filters, period, (-REACH,) * 3, key, True)


def draw_change(
    v: npt.NDArray[np.uint8], filters: Filters, period: int, origin: tuple[int, int, int], key: int
) -> npt.NDArray[np.float32]:
    """Field of v minus that of the empty map, on the grid of v padded by REACH; it is zero elsewhere.

    The first voxel of v is at the place `origin` of the random numbers.
    """
    corner = (origin[0] - 2 * REACH, origin[1] - 2 * REACH, origin[2] - 2 * REACH)
    return _draw(np.pad(v, 2 * REACH), filters, period, corner, key, False)


def _draw(
    v: npt.NDArray[np.uint8],
    filters: Filters,
    period: int,
    corner: tuple[int, int, int],
    key: int,
    is_all: bool,
) -> npt.NDArray[np.float32]:
    """Back-projection of h - e, or of e if `is_all`, inside a margin of REACH of the grid of v."""
    if period % 2 or period < SHORTEST:
        raise ValueError(f"period must be even and at least {SHORTEST}, got {period}")
    e = encode_events(v)
    u = np.zeros((8, *e.shape), np.int32)
    units = np.array([n - REACH for n in v.shape])
    blocks = ((int(units[0]) + 1) // 2 + _PLANES - 1) // _PLANES
    idle, lost = idle_units(filters).odds, -filters.down
    start = np.array(corner) % period
    for parity in range(2):  # a unit of work writes R - 1 planes beyond its own
        run_blocks(
            _change, 8 * ((blocks - parity + 1) // 2), parity, blocks,
            e.start, e.at, e.value, e.steps, e.first, e.last, filters, lost, idle, units, start, period,
            np.uint64(key), is_all, u,
        )  # fmt: skip
    out = np.empty(tuple(n - 2 * REACH for n in v.shape), np.float32)
    first, last = np.zeros(out.shape[:2], np.int64), np.full(out.shape[:2], out.shape[2])
    everywhere = np.ones(out.shape, np.bool_)
    run_blocks(_gather, len(out), u, everywhere, first, last, filters.down_scale, 0.0, REACH, out)
    return out


@kernel(nogil=True)
def _change(
    begin, end, parity, blocks, start, at, value, steps, first, last, filters, lost, idle, units, corner,
    period, key, is_all, u,
):  # fmt: skip
    """u[phase] += back-projection of the units that change.

    A unit of work is one phase and _PLANES planes of hidden units, every other in turn.
    """
    each = (blocks - parity + 1) // 2
    for unit in range(begin, end):
        p = unit // each
        _planes(
            start[p], at[p], value[p], steps[p], first[p], last[p], p, 2 * (unit % each) + parity,
            filters, lost, idle, units, corner, period, key, is_all, u[p],
        )  # fmt: skip


@inner()
def _planes(
    start, at, value, steps, first, last, phase, block, filters, lost, idle, units, corner, period, key,
    is_all, u,
):  # fmt: skip
    """One parallel unit, like that of `convolve_field`, with a list of units gained and one of units lost."""
    p1, p2 = u.shape[1:]
    f0, f1, f2 = phase >> 2, (phase >> 1) & 1, phase & 1
    n0, n1, n2 = (units[0] - f0 + 1) // 2, (units[1] - f1 + 1) // 2, (units[2] - f2 + 1) // 2
    room = allocate_row(p2, filters)
    counters = np.empty(len(room.seen), np.uint32)
    on, off = np.zeros_like(room.drawn), np.zeros_like(room.drawn)
    entries = np.empty((2, LISTS, p1 * p2, GROUPS), np.uint8)
    places = np.empty((2, LISTS, p1 * p2), np.int64)
    count = np.empty((2, LISTS), np.int64)
    cells = np.zeros(p1 * p2 * CELL, np.int32)
    for i in range(block * _PLANES, min((block + 1) * _PLANES, n0)):
        top, bottom, left, right = p1, 0, p2, 0
        count[:] = 0
        for j in range(n1):
            a, b = (0, n2) if is_all else find_nonempty(first, last, p1, i, j, 0, n2)
            if a >= b:
                continue
            n = b - a
            room.seen[:n] = 0
            if is_all:
                room.sums[:, : _whole(n)] = 0
            else:
                row_sums(start, at, value, steps, p1, i, j, a, b, filters.up, room.plain, room.run)
                _by_kernel(room.plain, a, n, room.sums, room.seen[:n])
            k2 = 2 * a + f2 + corner[2]
            k0, k1 = stream_key(
                key, (2 * i + f0 + corner[0]) % period, (2 * j + f1 + corner[1]) % period, k2 & 1
            )
            for x in range(_whole(n)):
                counters[x] = np.uint32(((k2 >> 1) + x) % (period >> 1) * M)
            _draw_both(_whole(n), filters, idle, k0, k1, counters, room.sums, room.odds, on, off)
            if not is_all:
                _keep_changes(_whole(n), on, off)
                _list(off, n, j * p2 + a, entries[1], places[1], count[1])
            _list(on, n, j * p2 + a, entries[0], places[0], count[0])
            top, bottom, left, right = min(top, j), j + R, min(left, a), max(right, b + R - 1)
        if top < bottom:
            for t in range(R):
                part = slice(t * _TABLE, (t + 1) * _TABLE)
                _project(entries[0], places[0], count[0], filters.down[part], cells, t * p2)
                _project(entries[1], places[1], count[1], lost[part], cells, t * p2)
            _settle(cells, u, i, top, bottom, left, right)


@inner()
def _draw_both(n, filters, idle, k0, k1, counters, sums, odds, on, off):
    """Digits of the units of n places that are on in the map, and of those on in the empty map."""
    on[:, :n] = 0
    off[:, :n] = 0
    scale = np.float32(filters.up_scale)
    for m in range(M):
        if filters.sign[m] == 0:
            continue  # a filter of zeros has no effect
        _odds_of_unit(sums[filters.kernel[m], :n], filters.sign[m], filters.bias[m], scale, odds[:n])
        g = m // BITS
        _draw_unit(odds[:n], idle[m], counters[:n], m, k0, k1, 1 << m % BITS, on[g, :n], off[g, :n])


@nb.njit(inline="always")
def _draw_unit(odds, idle, counters, m, k0, k1, bit, on, off):
    """Set a bit of the digits where the unit is on; a unit is on with probability 1 / odds."""
    m, bit, zero, most = np.uint32(m), np.int32(bit), np.int32(0), np.float32(1 << 24)
    for x in range(len(on)):
        u = np.float32(np.int32(bits(k0, k1, np.uint32(counters[x] + m)) >> np.uint32(8)))
        on[x] |= bit if u * odds[x] < most else zero
        off[x] |= bit if u * idle < most else zero


@inner()
def _keep_changes(n, on, off):
    """Leave the units gained in `on`, and the units lost in `off`."""
    for g in range(GROUPS):
        new, old = on[g, :n], off[g, :n]
        for x in range(n):
            same = new[x] & old[x]
            new[x] ^= same
            old[x] ^= same
