"""Moments of hidden-unit probabilities and box sums, for gradients with respect to the filters.

    P_m[j]  = sigmoid(c_m[j])                                see `convolve` for c
    G_m[t]  = sum over j of (P_m[j] - o_m) s[j + 2t]         (M, R, R, R), o_m an offset, usually 0
    p_m     = sum over j of P_m[j]                           (M,)

For rows of s stored as steps d: sum_x P[x] s[x + t] = sum_y d[y] Q[y - t], with Q[x] = sum of P from x on.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import (
    REACH,
    Filters,
    M,
    R,
    encode_events,
    find_nonempty,
    row_buffers,
    row_sums,
    unit_inputs,
)
from tumoar.numerics.convolve_draw import idle_units, odds_row
from tumoar.numerics.jit import kernel

_ROW = R * M


def moments(
    v: npt.NDArray[np.uint8],
    filters: Filters,
    phases: tuple[int, ...] = tuple(range(8)),
    every: int = 1,
    first: tuple[int, int] = (0, 0),
    offset: npt.NDArray[np.floating] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """G (M, R, R, R), p (M,) and the number of places, over the hidden units of the given polyphase grids.

    Of each grid, only every n-th plane and row is visited, from the given ones on.
    """
    e = encode_events(np.ascontiguousarray(v, np.uint8))
    G, p = np.zeros(R * R * _ROW), np.zeros(M)
    o = np.zeros(M, np.float32) if offset is None else offset.astype(np.float32)
    places = 0
    for phase in phases:
        shape = np.array([(n - REACH - (phase >> k & 1) + 1) // 2 for n, k in zip(v.shape, (2, 1, 0))])
        _moments(
            e.start[phase], e.at[phase], e.value[phase], e.steps[phase], e.first[phase], e.last[phase],
            e.shape[1], e.shape[2], shape, filters, 1 / idle_units(filters).odds, every, first, o, G, p,
        )  # fmt: skip
        visited = [len(range(k, int(n), every)) for k, n in zip(first, shape)]
        places += visited[0] * visited[1] * int(shape[2])
    return G.reshape(R, R, R, M)[:, :, ::-1].transpose(3, 0, 1, 2), p, places


@nb.njit(inline="always")
def _add_scaled(y, x, s):
    for t in range(_ROW):
        y[t] += s * x[t]


@kernel()
def _moments(start, at, value, steps, first, last, p1, p2, shape, filters, idle, every, begin, offset, G, p):
    plain, run, c = row_buffers(p2, filters)
    odds = np.empty(p2 * M, np.float32)
    probability = np.zeros((p2 + 2 * R) * M, np.float32)  # hidden place x at (x + R - 1) M
    beyond = np.zeros((p2 + 2 * R) * M, np.float32)
    n = shape[2]
    for i in range(begin[0], shape[0], every):
        partial = np.zeros(R * R * _ROW, np.float32)
        for j in range(begin[1], shape[1], every):
            a, b = find_nonempty(first, last, p1, i, j, 0, n)
            if a >= b:
                for m in range(M):
                    p[m] += n * np.float64(idle[m])
                continue
            row_sums(start, at, value, steps, p1, i, j, a, b, filters.up, plain, run)
            unit_inputs(plain, a, b - a, filters, c)
            odds_row(c, (b - a) * M, filters, odds)
            for x in range(n):
                here = probability[(x + R - 1) * M : (x + R) * M]
                if a <= x < b:
                    there = odds[(x - a) * M : (x - a + 1) * M]
                    for m in range(M):
                        here[m] = np.float32(1.0) / there[m] - offset[m]
                else:
                    for m in range(M):
                        here[m] = idle[m] - offset[m]
            beyond[(n + R - 1) * M : (n + R) * M] = 0
            for x in range(n + R - 2, -1, -1):
                here, after, q = (
                    beyond[x * M : (x + 1) * M],
                    beyond[(x + 1) * M : (x + 2) * M],
                    probability[x * M : (x + 1) * M],
                )
                for m in range(M):
                    here[m] = after[m] + q[m]
            for m in range(M):
                p[m] += np.float64(beyond[m]) + n * np.float64(offset[m])
            for k in range(R):
                for l in range(R):
                    r = (i + k) * p1 + j + l
                    source = beyond if steps[r] else probability
                    g = partial[(k * R + l) * _ROW : (k * R + l + 1) * _ROW]
                    for e in range(start[r], start[r + 1]):
                        o = np.int64(at[e]) * M
                        _add_scaled(g, source[o : o + _ROW], np.float32(value[e]))
        for t in range(G.size):
            G[t] += partial[t]
