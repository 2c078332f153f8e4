"""Hard passes over the voxels: a state drawn for each, or its most probable one.

A state is a column of the prior and a level (0, 1 or 2 of two nested maps). It is drawn together with its
component q: first q, which fixes mixture and level, then the column within the mixture. That is the same
joint as drawing the state with q summed out and q afterwards, and the sums over voxels come in the same pass.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.random import stream_key, uniform
from tumoar.numerics.voxels import (
    FLAGS,
    UNUSED,
    WITH_DATA,
    Array,
    Gaussians,
    Groups,
    Volume,
    densities,
    exp,
    find_top,
    finish,
    load_data,
    load_prior,
    no_sums,
    over_slabs,
    row_buffers,
)
from tumoar.numerics.voxels_em import (
    add_row,
    feature_lines,
    features,
    memberships,
    products,
    require_prior,
)

_f = np.float32
_VARIABLE = 7
"""Names the stream of random numbers of this pass among others of the same seed."""

LIKELY = 1e-5
"""Probability from which a level counts as likely."""

Mask = npt.NDArray[np.uint8]


def draw(
    v: Volume,
    pi: Array,
    groups: Groups,
    g: Gaussians,
    fields: tuple[Array, Array],
    key: tuple[int, int],
    out: tuple[Mask, Mask, Mask],
    color: int = -1,
    likely: Mask | None = None,
) -> tuple[Array, Array, Array, Array, Array]:
    """Draws into out = (column, level >= 1, level == 2), each (X, Y, Z) uint8; returns n, d, dd, cos, dcos.

    `fields` (X, Y, Z) float32 are added to the log prior of level >= 1 and of level 2; either infinity
    decides. `key` is a seed and a counter of passes. `color` 0 to 7 draws only voxels of that parity of (x,
    y, z), so that neighbors rest.
    `likely`, if given, is set to the highest level that was reached with a probability of at least LIKELY.
    """
    likely = np.zeros((0, 0, 0), np.uint8) if likely is None else likely
    sums = no_sums(v, len(groups.x_of_q))
    lost = np.zeros(len(sums.data), np.int64)
    seed, counter = np.uint64(key[0]), np.int64(key[1])
    over_slabs(_draw, v, pi, groups, g, fields, seed, counter, color, out, likely, sums, lost)
    require_prior(lost)
    return finish(sums, v)


def most_probable(v: Volume, pi: Array, groups: Groups, g: Gaussians, out: tuple[Mask, Mask, Mask]) -> None:
    """The most probable state with its component summed out, into out as in `draw`; ties go to the first."""
    over_slabs(_most_probable, v, pi, groups, g, out)


@nb.njit(cache=True, nogil=True, error_model="numpy", fastmath=FLAGS)
def _draw(first, last, v, channels, pi, groups, g, fields, seed, counter, color, out, likely, sums, lost):
    N, Q, Y, Z = len(channels), len(groups.x_of_q), v.use.shape[1], v.use.shape[2]
    row = row_buffers(N, pi.shape[3], len(groups.level), Q, Z)
    threshold = np.zeros(row.e.shape[1], _f)
    chosen = np.zeros(row.e.shape[1], np.int32)
    active = np.zeros(Q, np.int64)
    seen = np.zeros(row.e.shape[1], _f)
    lines = feature_lines(N, row.e.shape[1])
    product = np.zeros(len(lines), _f)
    column, one, two = out
    for at in range((last - first) * Y):
        x, y = first + at // Y, at % Y
        if color >= 0 and ((x & 1) != color >> 2 or (y & 1) != ((color >> 1) & 1)):
            continue
        b, w, padded = load_data(v, g, x, y, row)
        if w == 0:
            continue
        load_prior(pi, groups, x, y, b, w, padded, row)
        field_1, field_2 = fields[0][x, y, b : b + w], fields[1][x, y, b : b + w]
        _switch_off(groups, field_1, field_2, row)
        densities(channels, g, groups.x_of_q, v.use[x, y, b : b + w], padded, row)
        _add_fields(groups, field_1, field_2, w, row)
        find_top(groups.x_of_q, padded, row)
        memberships(groups.x_of_q, padded, row)
        if likely.size > 0:
            _mark_likely(groups, w, row, threshold, likely[x, y, b:])
        k0, k1 = stream_key(seed, counter, _VARIABLE, x * Y + y)
        for i in range(w):
            threshold[i] = uniform(k0, k1, 2 * (b + i)) * row.total[i]
        count = _choose(groups.x_of_q, padded, row, threshold, chosen, active)
        seen[:padded] = _f(0)
        for i in range(w):
            z = b + i
            if v.use[x, y, z] == UNUSED or (color >= 0 and (z & 1) != (color & 1)):
                continue
            if row.total[i] <= 0:
                lost[x] += 1
                continue
            chosen[i] = min(chosen[i], count - 1)
            m = groups.x_of_q[active[chosen[i]]]
            one[x, y, z] = groups.level[m] >= 1
            two[x, y, z] = groups.level[m] == 2
            column[x, y, z] = _column(groups, m, row, i, uniform(k0, k1, 2 * z + 1))
            seen[i] = _f(v.use[x, y, z] == WITH_DATA)
        features(v.cos_z, row.e, N, b, w, lines)
        for c in range(count):
            q = active[c]
            if _indicate(chosen, c, seen, padded, row.ll[q]):
                products(row.ll[q], seen, lines, padded, product)
                add_row(product, v.cos_y[y], N, sums.data[x, q], sums.cos[x, q], sums.data_cos[x, q])


@nb.njit(cache=True, error_model="numpy", fastmath=FLAGS)
def _indicate(chosen, c, seen, padded, out):
    """Which voxels of a row chose c, into out; whether any with data did."""
    some = _f(0)
    for i in range(padded):
        out[i] = _f(chosen[i] == c)
        some += out[i] * seen[i]
    return some > 0


@nb.njit(cache=True, error_model="numpy")
def _switch_off(groups, field_1, field_2, row):
    """Levels that their fields forbid in all of the row need not be looked at."""
    some_1 = some_2 = False
    for i in range(len(field_1)):
        some_1 |= field_1[i] > -np.inf
        some_2 |= field_2[i] > -np.inf
    for m in range(len(groups.level)):
        if (groups.level[m] >= 1 and not some_1) or (groups.level[m] == 2 and not some_2):
            row.on[m] = False


@nb.njit(cache=True, error_model="numpy", fastmath=FLAGS)
def _add_fields(groups, field_1, field_2, w, row):
    """Level 1 gets the first field, level 2 both; +inf takes the level below out instead."""
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


@nb.njit(cache=True, error_model="numpy", fastmath=FLAGS)
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


@nb.njit(cache=True, error_model="numpy", fastmath=FLAGS)
def _choose(x_of_q, padded, row, threshold, chosen, active):
    """Which active component the threshold falls in: the number of cumulative sums at or below it."""
    cumulative = row.top  # no longer needed
    cumulative[:padded] = _f(0)
    chosen[:padded] = 0
    count = 0
    for q in range(len(x_of_q)):
        if row.on[x_of_q[q]]:
            active[count] = q
            count += 1
            ll = row.ll[q]
            for i in range(padded):
                cumulative[i] += ll[i]
                chosen[i] += np.int32(threshold[i] >= cumulative[i])
    return count


@nb.njit(cache=True, error_model="numpy")
def _column(groups, m, row, i, u):
    """A column of mixture m, drawn by its share of the prior; never one without prior."""
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


@nb.njit(cache=True, nogil=True, error_model="numpy", fastmath=FLAGS)
def _most_probable(first, last, v, channels, pi, groups, g, out):
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
