"""Draw hidden units and back-project them in one pass, without storing them.

    h_m[j] ~ Bernoulli(sigmoid(c_m[j]))                      see `convolve`, `convolve_draw`
    u[q]   = sum of w_m[t] h_m[q - 2t]
    f[i]   = a + sum of u[i - d], d in {0,1}^3               field on the voxels

The 40 units of a place are 8 groups of 5 bits. A table per group holds the sums of the active filters, so
that 8 additions replace 40, or fewer if groups are all off; places are listed by the number they need. Draws
are keyed by the place in the caller's grid, and sums are exact integers: the field on part of the grid equals
that part of the whole field bit for bit, on any number of threads.
"""

from __future__ import annotations

from functools import reduce

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
    R,
    encode_events,
)
from tumoar.numerics.convolve_draw import allocate_row, draw_row, idle_units
from tumoar.numerics.convolve_vectors import add_rows
from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.threads import run_blocks

_PLANES = 8  # planes of hidden units per parallel unit; at least R - 1, so that units two apart are disjoint
LISTS = 5  # lists of places, by the number of table rows they sum
_TABLE = GROUPS * (1 << BITS) * _SPAN
_FAR = 1 << 20


def draw_field(
    v: npt.NDArray[np.bool_ | np.uint8],
    region: npt.NDArray[np.bool_],
    filters: Filters,
    a: float,
    key: int,
    pad: int = REACH,
) -> npt.NDArray[np.float32]:
    """Draw all hidden units that reach `region`, and return the field in it, 0 elsewhere.

    v is zero outside its grid. `key` (64 bits) determines the draws; `pad` only sets the size of the buffers.
    """
    if v.shape != region.shape:
        raise ValueError(f"v and region must have the same shape, got {v.shape} and {region.shape}")
    if pad < REACH:
        raise ValueError(f"pad must be at least {REACH}, got {pad}")
    out = np.zeros(v.shape, np.float32)
    first, last = np.full(region.shape[:2], _FAR), np.full(region.shape[:2], -_FAR)
    run_blocks(_row_ends, len(region), region, first, last)
    box = _bounding_box(first, last)
    if box is None:
        return out
    origin = np.array([s.start - pad for s in box])
    first, last = (x[box[:2]] - origin[2] for x in (first, last))
    e = encode_events(_pad(v, box, pad))
    lo, hi = _find_wanted_units(first, last, pad, box[2].stop - box[2].start + 2 * pad - REACH)
    u = np.zeros((8, *e.shape), np.int32)
    idle = idle_units(filters)
    blocks = ((lo.shape[0] + 1) // 2 + _PLANES - 1) // _PLANES
    for parity in range(2):  # a unit of work writes R - 1 planes beyond its own
        run_blocks(
            _draw_and_project, 8 * ((blocks - parity + 1) // 2), parity,
            e.start, e.at, e.value, e.steps, e.first, e.last, filters, idle, lo, hi, origin,
            np.uint64(key), u,
        )  # fmt: skip
    inside = out[box]
    run_blocks(
        _gather, len(inside), u, region[box], first - pad, last - pad, filters.down_scale, a, pad, inside
    )
    return out


@kernel(nogil=True)
def _row_ends(begin, end, region, first, last):
    """First voxel of `region` in each row, and one past the last; empty rows are left."""
    _, n1, n2 = region.shape
    for i in range(begin, end):
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


def _pad(x: npt.NDArray, box: tuple[slice, ...], pad: int) -> npt.NDArray[np.uint8]:
    """Crop x to the box expanded by pad voxels; zero outside its grid."""
    out = np.zeros([s.stop - s.start + 2 * pad for s in box], np.uint8)
    source = tuple(slice(max(0, s.start - pad), min(n, s.stop + pad)) for s, n in zip(box, x.shape))
    out[tuple(slice(t.start - s.start + pad, t.stop - s.start + pad) for t, s in zip(source, box))] = x[
        source
    ]
    return out


def _find_wanted_units(
    first: npt.NDArray[np.int64], last: npt.NDArray[np.int64], pad: int, n2: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Range lo <= j2 < hi of hidden units in each row (j0, j1) that reaches the region; may be empty."""
    first, last = np.pad(first, pad, constant_values=_FAR), np.pad(last, pad, constant_values=-_FAR)
    for _ in range(2):  # the other axis after each
        n = len(first) - REACH
        first = reduce(np.minimum, (first[d : d + n] for d in range(REACH + 1))).T
        last = reduce(np.maximum, (last[d : d + n] for d in range(REACH + 1))).T
    return np.maximum(first - REACH, 0).astype(np.int32, "C"), np.minimum(last, n2).astype(np.int32, "C")


@inner()
def _list(digits, n, place, entries, places, count):
    """Add n places from `place` on to the lists of places with 1, 2, up to 4, 6, 8 non-zero digits."""
    found = np.zeros(GROUPS + 1, np.uint8)
    for x in range(n):
        used = 0
        for g in range(GROUPS):
            digit = digits[g, x]
            found[used] = (g << BITS) + digit
            used += digit != 0
        if used == 0:
            continue
        found[used] = 0  # the empty pattern of the first group: zeros
        which = (used + 1) >> 1 if used > 1 else 0
        k = count[which]
        count[which] += 1
        places[which, k] = place + x
        for g in range(used + 1 & -2):
            entries[which, k, g] = found[g]


@nb.njit(inline="always")
def _row(entry):
    """Offset of a table entry."""
    return np.uint64(entry) * np.uint64(_SPAN)


@nb.njit(inline="always")
def _pair(e, k):
    return _row(e[k]), _row(e[k + 1])


@inner()
def _project(entries, places, count, table, cells, shift):
    """cells[(place + shift) CELL ...] += table sums of each listed place, for one tap of the middle axis."""
    for which in range(LISTS):
        for k in range(count[which]):
            at, e = np.uint64((places[which, k] + shift) * CELL), entries[which, k]
            if which == 0:
                add_rows(cells, at, table, (_row(e[0]),))
            elif which == 1:
                add_rows(cells, at, table, _pair(e, 0))
            elif which == 2:
                add_rows(cells, at, table, _pair(e, 0) + _pair(e, 2))
            elif which == 3:
                add_rows(cells, at, table, _pair(e, 0) + _pair(e, 2) + _pair(e, 4))
            else:
                add_rows(cells, at, table, _pair(e, 0) + _pair(e, 2) + _pair(e, 4) + _pair(e, 6))


@kernel(nogil=True)
def _draw_and_project(
    begin, end, parity, start, at, value, steps, first, last, filters, idle, lo, hi, origin, key, u
):  # fmt: skip
    """u[phase] += back-projection of freshly drawn hidden units.

    A unit of work is one phase and _PLANES planes of hidden units, every other in turn.
    """
    units = (((lo.shape[0] + 1) // 2 + _PLANES - 1) // _PLANES - parity + 1) // 2
    for unit in range(begin, end):
        phase = unit // units
        _planes(
            start[phase], at[phase], value[phase], steps[phase], first[phase], last[phase], phase,
            2 * (unit % units) + parity, filters, idle, lo, hi, origin, key, u[phase],
        )  # fmt: skip


@inner()
def _planes(
    start, at, value, steps, first, last, phase, block, filters, idle, lo, hi, origin, key, u
):  # fmt: skip
    """One parallel unit. Within a plane, `cells` [place 1, place 2, tap 0] gathers all hidden units, so that
    the inner loop runs over R x CELL contiguous integers. A whole plane is drawn before it is projected: the
    table of one tap of the middle axis then stays in the nearest caches."""
    p1, p2 = u.shape[1:]
    n0, n1 = lo.shape
    f0, f1, f2 = phase >> 2, (phase >> 1) & 1, phase & 1
    buffers = allocate_row(p2, filters)
    digits = np.zeros_like(buffers.drawn)
    entries = np.empty((LISTS, p1 * p2, GROUPS), np.uint8)
    places = np.empty((LISTS, p1 * p2), np.int64)
    count = np.empty(LISTS, np.int64)
    cells = np.zeros(p1 * p2 * CELL, np.int32)
    for i in range(block * _PLANES, min((block + 1) * _PLANES, (n0 - f0 + 1) // 2)):
        top, bottom, left, right = p1, 0, p2, 0
        count[:] = 0
        for j in range((n1 - f1 + 1) // 2):
            x0 = np.int64((max(lo[2 * i + f0, 2 * j + f1] - f2, 0) + 1) >> 1)
            x1 = np.int64((hi[2 * i + f0, 2 * j + f1] - f2 + 1) >> 1)
            if x0 >= x1:
                continue
            draw_row(
                start, at, value, steps, first, last, p1, phase, i, j, x0, x1, filters, idle, key, origin,
                buffers, digits,
            )  # fmt: skip
            _list(digits, x1 - x0, j * p2 + x0, entries, places, count)
            top, bottom, left, right = min(top, j), j + R, min(left, x0), max(right, x1 + R - 1)
        if top < bottom:
            for b in range(R):
                table = filters.down[b * _TABLE : (b + 1) * _TABLE]
                _project(entries, places, count, table, cells, b * p2)
            _settle(cells, u, i, top, bottom, left, right)


@inner()
def _settle(cells, u, i, j0, j1, x0, x1):
    """Move the cells of one plane of hidden units to the R planes they belong to, and clear them."""
    p2 = u.shape[2]
    for j in range(j0, j1):
        for a in range(R):
            row = u[i + a, j]
            for x in range(x0, x1):
                row[x] = np.int32(row[x] + cells[(j * p2 + x) * CELL + a])
        cells[(j * p2 + x0) * CELL : (j * p2 + x1) * CELL] = 0


@kernel(nogil=True)
def _gather(start, stop, u, region, first, last, scale, a, pad, out):
    """out = a + scale * 2x2x2 box sum of u on the voxels of the region; they lie in first <= k < last."""
    scale, a = np.float32(scale), np.float32(a)
    total = np.empty(out.shape[2] + 1, np.int64)
    for i in range(start, stop):
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
