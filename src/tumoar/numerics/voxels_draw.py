"""Hard passes over voxels: draw a state for each voxel, or find the most probable one.

A state is a column of the prior and a level (0, 1 or 2 of two nested maps). It is drawn jointly with its
component q: first q, which determines mixture and level, then the column in the mixture. This is equivalent
to drawing the state with q summed out and then q, and sums over voxels are computed in the same pass.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.random import stream_key, uniform
from tumoar.numerics.threads import run_blocks
from tumoar.numerics.voxels import (
    FLAGS,
    FUNCTIONS,
    HARMONICS,
    UNUSED,
    WITH_DATA,
    Array,
    Gaussians,
    Groups,
    Prior,
    Volume,
    densities,
    exp,
    find_top,
    finish,
    load_data,
    load_packed,
    load_prior,
    row_buffers,
    run_over_slabs,
    zero_sums,
)
from tumoar.numerics.voxels_em import memberships, require_prior

_f = np.float32
_VARIABLE = 7
"""Identifies the random stream of this pass among others of the same seed."""

LIKELY = 1e-5
"""Probability from which a level counts as likely."""

Mask = npt.NDArray[np.uint8]


def draw(
    v: Volume,
    prior: Prior,
    groups: Groups,
    g: Gaussians,
    fields: tuple[Array, Array],
    active: Mask,
    key: tuple[int, int],
    out: tuple[Mask, Mask, Mask],
    color: int = -1,
    likely: Mask | None = None,
    rows: npt.NDArray[np.bool_] | None = None,
) -> tuple[Array, Array, Array, Array, Array]:
    """Draw to out = (column, level >= 1, level == 2), each (X, Y, Z) uint8; returns n, d, dd, cos, dcos.

    `active` (X, Y, Z) is the highest level to be drawn. `fields` (X, Y, Z) float32 are added to the log prior
    of level >= 1 and of level 2, and read only where these are active; ±inf fixes the level. `key` is a seed
    and a counter of passes. `color` 0 to 7 draws only voxels of that parity of (x, y, z), so that no two
    neighbors are drawn; `rows` (X, Y), if given, restricts the draw to these rows. `likely`, if given, is set
    to the highest level with a probability of at least LIKELY.
    """
    rows = np.ones(v.use.shape[:2], np.bool_) if rows is None else rows
    likely = np.zeros((0, 0, 0), np.uint8) if likely is None else likely
    sums = zero_sums(v, len(groups.x_of_q))
    lost = np.zeros(len(sums.data), np.int64)
    seed, counter = np.uint64(key[0]), np.int64(key[1])
    run_over_slabs(
        _draw, v, prior, groups, g, fields, active, seed, counter, color, rows, out, likely, sums, lost
    )
    require_prior(lost)
    return finish(sums, v)


def find_most_probable(
    v: Volume, pi: Array, groups: Groups, g: Gaussians, out: tuple[Mask, Mask, Mask]
) -> None:
    """Most probable state with its component summed out, to out as in `draw`; ties go to the first."""
    run_over_slabs(_find_most_probable, v, pi, groups, g, out)


def count_labels(
    at: npt.NDArray[np.integer],
    column: Mask,
    one: Mask,
    two: Mask,
    columns: npt.NDArray[np.integer],
    ones: npt.NDArray[np.integer],
    twos: npt.NDArray[np.integer],
) -> npt.NDArray[np.int64]:
    """Add the labels at the indices `at` to columns[column, i], ones[i] and twos[i]; returns totals."""
    totals = np.zeros((64, len(columns) + 2), np.int64)
    run_blocks(_count_labels, len(totals), at, column, one, two, columns, ones, twos, totals)
    return totals.sum(0)


@kernel(nogil=True)
def _count_labels(start, stop, at, column, one, two, columns, ones, twos, totals):
    blocks, K = len(totals), len(columns)
    for block in range(start, stop):
        for i in range(block * len(at) // blocks, (block + 1) * len(at) // blocks):
            k, z, y = column[at[i]], one[at[i]], two[at[i]]
            columns[k, i] += 1
            ones[i] += z
            twos[i] += y
            totals[block, k] += 1
            totals[block, K] += z
            totals[block, K + 1] += y


@kernel(nogil=True, error_model="numpy", fastmath=FLAGS)
def _draw(
    first, last, v, channels, prior, groups, g, fields, active, seed, counter, color, rows, out, likely, sums,
    lost,
):  # fmt: skip
    N, Q, Y, Z = len(channels), len(groups.x_of_q), v.use.shape[1], v.use.shape[2]
    row = row_buffers(N, prior.seen.shape[2], len(groups.level), Q, Z)
    field_1, field_2 = np.zeros(row.e.shape[1], _f), np.zeros(row.e.shape[1], _f)
    threshold = np.zeros(row.e.shape[1], _f)
    chosen = np.zeros(row.e.shape[1], np.int32)
    on = np.zeros(Q, np.int64)
    only = np.zeros(len(groups.level), np.int64)
    cosines = _interleave_cosines(v.cos_z)
    drawn = np.zeros(Q * _line_length(N), _f)
    e = row.e.reshape(-1)
    column, one, two = out
    for at in range((last - first) * Y):
        x, y = first + at // Y, at % Y
        if not rows[x, y] or (color >= 0 and ((x & 1) != color >> 2 or (y & 1) != ((color >> 1) & 1))):
            continue
        b, w, padded = load_data(v, g, x, y, row)
        if w == 0:
            continue
        load_packed(prior, groups, x, y, w, padded, row)
        highest = _load_fields(fields, active[x, y, b : b + w], x, y, b, field_1, field_2)
        for m in range(len(groups.level)):
            row.on[m] &= groups.level[m] <= highest
        densities(channels, g, groups.x_of_q, v.use[x, y, b : b + w], padded, row)
        if highest > 0:
            _add_fields(groups, field_1, field_2, w, row)
        find_top(groups.x_of_q, padded, row)
        memberships(groups.x_of_q, padded, row)
        if likely.size > 0:
            _mark_likely(groups, w, row, threshold, likely[x, y, b:])
        k0, k1 = stream_key(seed, counter, _VARIABLE, x * Y + y)
        for i in range(w):
            threshold[i] = uniform(k0, k1, 2 * (b + i)) * row.total[i]
        count = _choose(groups.x_of_q, padded, row, threshold, chosen, on)
        _only_columns(groups, row.seen, only)
        for i in range(w):
            z = b + i
            if v.use[x, y, z] == UNUSED or (color >= 0 and (z & 1) != (color & 1)):
                continue
            if row.total[i] <= 0:
                lost[x] += 1
                continue
            q = on[min(chosen[i], count - 1)]
            m = groups.x_of_q[q]
            one[x, y, z] = groups.level[m] >= 1
            two[x, y, z] = groups.level[m] == 2
            column[x, y, z] = only[m]
            if only[m] < 0:
                column[x, y, z] = _column(groups, m, row, i, uniform(k0, k1, 2 * z + 1))
            if v.use[x, y, z] == WITH_DATA:
                _add_voxel(N, e, row.e.shape[1], i, cosines, 8 * z, drawn, q * _line_length(N))
        for c in range(count):
            q = on[c]
            line = drawn[q * _line_length(N) : (q + 1) * _line_length(N)]
            if line[0] > 0:
                _add_line(line, v.cos_y[y], N, sums.data[x, q], sums.cos[x, q], sums.data_cos[x, q])
                line[:] = _f(0)


@inner(error_model="numpy")
def _interleave_cosines(cos_z):
    """(8 Z,) cosines by voxel, with a zero after each seven."""
    out = np.zeros(8 * cos_z.shape[1], _f)
    for z in range(cos_z.shape[1]):  # the error message of an assignment of slices brings in numba's strings
        for k in range(HARMONICS):
            out[8 * z + k] = cos_z[k, z]
    return out


@nb.njit(inline="always")
def _line_length(N):
    """Number of sums per component and row: cosines, a zero, e_n cos_k (k < 4), e_m e_n (m <= n)."""
    return HARMONICS + 1 + FUNCTIONS * N + N * (N + 1) // 2


@nb.njit(inline="always", error_model="numpy", fastmath=FLAGS)
def _add_voxel(N, e, Z, i, cosines, c, drawn, at):
    """Add voxel i to the line of its component; four values are loaded before they are stored, because the
    compiler must assume that arrays overlap."""
    Z, i, c, o = np.uint64(Z), np.uint64(i), np.uint64(c), np.uint64(at)
    c0, c1, c2, c3 = cosines[c], cosines[c + 1], cosines[c + 2], cosines[c + 3]
    c4, c5, c6 = cosines[c + 4], cosines[c + 5], cosines[c + 6]
    a0, a1, a2, a3 = drawn[o] + c0, drawn[o + 1] + c1, drawn[o + 2] + c2, drawn[o + 3] + c3
    a4, a5, a6 = drawn[o + 4] + c4, drawn[o + 5] + c5, drawn[o + 6] + c6
    drawn[o], drawn[o + 1], drawn[o + 2], drawn[o + 3] = a0, a1, a2, a3
    drawn[o + 4], drawn[o + 5], drawn[o + 6] = a4, a5, a6
    o += np.uint64(8)
    for n in range(N):
        d = e[np.uint64(n) * Z + i]
        a0, a1 = drawn[o] + d * c0, drawn[o + 1] + d * c1
        a2, a3 = drawn[o + 2] + d * c2, drawn[o + 3] + d * c3
        drawn[o], drawn[o + 1], drawn[o + 2], drawn[o + 3] = a0, a1, a2, a3
        o += np.uint64(4)
    for m in range(N):
        d = e[np.uint64(m) * Z + i]
        for n in range(m, N):
            drawn[o] += d * e[np.uint64(n) * Z + i]
            o += np.uint64(1)


@inner(constants=True, error_model="numpy", fastmath=FLAGS)
def _add_line(line, cos_y, N, data, cos, data_cos):
    """Add the sums of a component along a row to those of its slab."""
    first, squares = HARMONICS + 1, HARMONICS + 1 + FUNCTIONS * N
    data[0] += line[0]
    for n in range(N):
        data[1 + n] += line[first + FUNCTIONS * n]
    for k in range(N * (N + 1) // 2):
        data[1 + N + k] += line[squares + k]
    for b in range(HARMONICS):
        for k in range(HARMONICS):
            cos[b, k] += cos_y[b] * line[k]
    for n in range(N):
        for b in range(FUNCTIONS):
            for k in range(FUNCTIONS):
                data_cos[n, b, k] += cos_y[b] * line[first + FUNCTIONS * n + k]


@inner(error_model="numpy")
def _load_fields(fields, active, x, y, b, field_1, field_2):
    """Load the fields of a row, -inf where a level is not active; returns the highest level possible."""
    most = 0
    for i in range(len(active)):
        most = max(most, active[i])
    if most == 0:
        return 0
    source_1, source_2 = fields[0][x, y, b:], fields[1][x, y, b:]
    highest = 0
    for i in range(len(active)):
        field_1[i] = source_1[i] if active[i] >= 1 else -np.inf
        field_2[i] = source_2[i] if active[i] >= 2 else -np.inf
        if field_1[i] > -np.inf:
            highest = max(highest, 2 if field_2[i] > -np.inf else 1)
    return highest


@inner(error_model="numpy", fastmath=FLAGS)
def _add_fields(groups, field_1, field_2, w, row):
    """Add the first field to level 1 and both to level 2; +inf excludes the level below instead."""
    for q in range(len(groups.x_of_q)):
        m = groups.x_of_q[q]
        if row.on[m]:
            ll = row.ll[q]
            if groups.level[m] == 0:
                for i in range(w):
                    ll[i] = ll[i] if field_1[i] < np.inf else -np.inf
            else:
                for i in range(w):
                    ll[i] += field_1[i] if field_1[i] < np.inf else _f(0)
                if groups.level[m] == 1:
                    for i in range(w):
                        ll[i] = ll[i] if field_2[i] < np.inf else -np.inf
                else:
                    for i in range(w):
                        ll[i] += field_2[i] if field_2[i] < np.inf else _f(0)


@inner(error_model="numpy", fastmath=FLAGS)
def _mark_likely(groups, w, row, mass, likely):
    likely[:w] = 0
    for level in range(1, 3):
        mass[:w] = _f(0)
        for q in range(len(groups.x_of_q)):
            m = groups.x_of_q[q]
            if row.on[m] and groups.level[m] >= level:
                for i in range(w):
                    mass[i] += row.ll[q, i]
        for i in range(w):
            if mass[i] > 0 and mass[i] >= _f(LIKELY) * row.total[i]:
                likely[i] = level


@inner(error_model="numpy", fastmath=FLAGS)
def _choose(x_of_q, padded, row, threshold, chosen, on):
    """Active component of the threshold: the number of cumulative sums at or below it."""
    cumulative = row.top  # no longer needed
    cumulative[:padded] = _f(0)
    chosen[:padded] = 0
    count = 0
    for q in range(len(x_of_q)):
        if row.on[x_of_q[q]]:
            on[count] = q
            count += 1
            ll = row.ll[q]
            for i in range(padded):
                cumulative[i] += ll[i]
                chosen[i] += np.int32(threshold[i] >= cumulative[i])
    return count


@inner(error_model="numpy")
def _only_columns(groups, seen, only):
    """Column of each mixture that has only one in this row; -1 for others."""
    for m in range(len(only)):
        count = 0
        for j in range(groups.start[m], groups.start[m + 1]):
            if seen[groups.column[j]] and groups.weight[j] > 0:
                only[m] = groups.column[j]
                count += 1
        if count != 1:
            only[m] = -1


@inner(error_model="numpy", fastmath=FLAGS)
def _column(groups, m, row, i, u):
    """Draw a column of mixture m in proportion to its prior; never one without prior."""
    j, last = groups.start[m], groups.start[m + 1] - 1
    part = groups.weight[j] * row.p[groups.column[j], i]
    found, rest = j, u * row.P[m, i] - part
    while j < last and (rest >= 0 or part == 0):
        j += 1
        part = groups.weight[j] * row.p[groups.column[j], i]
        rest -= part
        if part > 0:
            found = j
    return groups.column[found]


@kernel(nogil=True, error_model="numpy", fastmath=FLAGS)
def _find_most_probable(first, last, v, channels, pi, groups, g, out):
    Z, X = v.use.shape[2], len(groups.level)
    row = row_buffers(len(channels), pi.shape[3], X, len(groups.x_of_q), Z)
    density = np.zeros((X, row.e.shape[1]), _f)
    mixture = np.zeros(len(groups.column), np.int64)
    for m in range(X):
        mixture[groups.start[m] : groups.start[m + 1]] = m
    column, one, two = out
    for at in range((last - first) * v.use.shape[1]):
        x, y = first + at // v.use.shape[1], at % v.use.shape[1]
        b, w, padded = load_data(v, g, x, y, row)
        if w == 0:
            continue
        load_prior(pi, groups, x, y, b, w, padded, row)
        densities(channels, g, groups.x_of_q, v.use[x, y, b : b + w], padded, row)
        find_top(groups.x_of_q, padded, row)
        density[:] = _f(0)
        for q in range(len(groups.x_of_q)):
            m = groups.x_of_q[q]
            if row.on[m]:
                for i in range(padded):
                    density[m, i] += exp(min(row.ll[q, i] - row.top[i], _f(0)))
        for i in range(w):
            if v.use[x, y, b + i] == UNUSED:
                continue
            best, found = _f(0), -1
            for j in groups.order:
                score = groups.weight[j] * row.p[groups.column[j], i] * density[mixture[j], i]
                if score > best:
                    best, found = score, j
            if found >= 0:
                level = groups.level[mixture[found]]
                column[x, y, b + i] = groups.column[found]
                one[x, y, b + i] = level >= 1
                two[x, y, b + i] = level == 2
