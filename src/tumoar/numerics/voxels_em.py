"""Soft passes over voxels: sums of expected memberships, and class densities.

`expect` does not store memberships: those of a row are multiplied by a small table of its features (1, d,
d dᵀ, cosines, d times cosines), and only the products are kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.voxels import (
    FLAGS,
    FUNCTIONS,
    HARMONICS,
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
    row_buffers,
    run_over_slabs,
    zero_sums,
)

LIMIT = 80.0
"""Nats by which the density of a class may be below the largest: range of float32 with margin for sums."""

_f = np.float32


def expect(
    v: Volume, pi: Array, groups: Groups, g: Gaussians
) -> tuple[tuple[Array, Array, Array, Array, Array], float]:
    """Sums n, d, dd, cos, dcos of expected memberships given the prior pi (X, Y, Z, columns); Σ log p(d)."""
    sums = zero_sums(v, len(groups.x_of_q))
    log_evidence, lost = np.zeros(len(sums.data)), np.zeros(len(sums.data), np.int64)
    run_over_slabs(_expect, v, pi, groups, g, sums, log_evidence, lost)
    require_prior(lost)
    return finish(sums, v), float(log_evidence.sum())


def class_densities(v: Volume, groups: Groups, g: Gaussians, out: Array, reference: int) -> float:
    """Write the density of d for every column, relative to the reference, to out (X, Y, Z, columns).

    The density of a column is the weighted sum over its mixtures, and at least e^-LIMIT of the voxel's
    largest, so that ratios fit into float32 and none is zero. All are zero where there is no data. Returns
    Σ log density of the reference.
    """
    logs = np.zeros(v.use.shape[0])
    run_over_slabs(_class_densities, v, groups, g, out, reference, logs)
    return float(logs.sum())


def require_prior(lost: npt.NDArray[np.int64]) -> None:
    """Raise ValueError if a voxel has no mixture with a positive prior."""
    if lost.any():
        raise ValueError(f"pi must be positive somewhere in every voxel in use, but {lost.sum()} have none")


@kernel(nogil=True, error_model="numpy", fastmath=FLAGS)
def _expect(first, last, v, channels, pi, groups, g, sums, log_evidence, lost):
    N, Q, Z = len(channels), len(groups.x_of_q), v.use.shape[2]
    row = row_buffers(N, pi.shape[3], len(groups.level), Q, Z)
    lines = feature_lines(N, row.e.shape[1])
    product = np.zeros(len(lines), _f)
    scale = np.zeros(row.e.shape[1], _f)
    for at in range((last - first) * v.use.shape[1]):
        x, y = first + at // v.use.shape[1], at % v.use.shape[1]
        b, w, padded = load_data(v, g, x, y, row)
        if w == 0:
            continue
        load_prior(pi, groups, x, y, b, w, padded, row)
        densities(channels, g, groups.x_of_q, v.use[x, y, b : b + w], padded, row)
        find_top(groups.x_of_q, padded, row)
        memberships(groups.x_of_q, padded, row)
        use, top, total = v.use[x, y, b:], row.top, row.total
        running = 1.0
        scale[:padded] = _f(0)
        for i in range(w):
            if use[i] == WITH_DATA:
                if total[i] <= 0:
                    lost[x] += 1
                    continue
                scale[i] = _f(1) / total[i]
                log_evidence[x] += top[i]
                running *= total[i]
                if running < 1e-200:
                    log_evidence[x] += np.log(running)
                    running = 1.0
        log_evidence[x] += np.log(running)
        features(v.cos_z, row.e, N, b, w, lines)
        for q in range(Q):
            if row.on[groups.x_of_q[q]]:
                products(row.ll[q], scale, lines, padded, product)
                add_row(product, v.cos_y[y], N, sums.data[x, q], sums.cos[x, q], sums.data_cos[x, q])


@inner(error_model="numpy", fastmath=FLAGS)
def memberships(x_of_q, padded, row):
    """Prior times density relative to row.top of every component to row.ll, their sum to row.total."""
    top, total = row.top, row.total
    total[:padded] = _f(0)
    for q in range(len(x_of_q)):
        m = x_of_q[q]
        if row.on[m]:
            ll, P = row.ll[q], row.P[m]
            for i in range(padded):
                value = P[i] * exp(min(ll[i] - top[i], _f(0)))
                total[i] += value
                ll[i] = value


@inner(constants=True, error_model="numpy")
def feature_lines(N, Z):
    """Buffer for the features of a row of Z voxels; a multiple of four lines."""
    count = 1 + N + N * (N + 1) // 2 + (HARMONICS - 1) + (FUNCTIONS - 1) * N
    return np.zeros((4 * ((count + 3) // 4), Z), _f)


@inner(constants=True, error_model="numpy", fastmath=FLAGS)
def features(cos_z, e, N, b, w, lines):
    """1, e_n, e_m e_n (m <= n), cosines 1 to 6, e_n times cosines 1 to 3: one line each."""
    at = 1 + N
    for m in range(N):
        for i in range(w):
            lines[0, i] = _f(1)
            lines[1 + m, i] = e[m, i]
        for n in range(m, N):
            for i in range(w):
                lines[at, i] = e[m, i] * e[n, i]
            at += 1
    for k in range(1, HARMONICS):
        for i in range(w):
            lines[at, i] = cos_z[k, b + i]
        at += 1
    for n in range(N):
        for k in range(1, FUNCTIONS):
            for i in range(w):
                lines[at, i] = e[n, i] * cos_z[k, b + i]
            at += 1


@inner(error_model="numpy", fastmath=FLAGS)
def products(value, scale, lines, padded, product):
    """Sum over the row of membership times feature, four features at a time."""
    for i in range(padded):
        value[i] *= scale[i]
    for f in range(0, len(lines), 4):
        f0, f1, f2, f3 = lines[f], lines[f + 1], lines[f + 2], lines[f + 3]
        s0 = s1 = s2 = s3 = _f(0)
        for i in range(padded):
            p = value[i]
            s0 += p * f0[i]
            s1 += p * f1[i]
            s2 += p * f2[i]
            s3 += p * f3[i]
        product[f], product[f + 1], product[f + 2], product[f + 3] = s0, s1, s2, s3


@inner(constants=True, error_model="numpy", fastmath=FLAGS)
def add_row(product, cos_y, N, data, cos, data_cos):
    """Add the sums of a row, laid out like `features`, to those of its slab."""
    squares = N * (N + 1) // 2
    for k in range(len(data)):
        data[k] += product[k]
    at = N + squares  # cosine k is at `at + k` for k > 0
    for b in range(HARMONICS):
        cos[b, 0] += cos_y[b] * product[0]
        for k in range(1, HARMONICS):
            cos[b, k] += cos_y[b] * product[at + k]
    at += HARMONICS - 1
    for n in range(N):
        for b in range(FUNCTIONS):
            data_cos[n, b, 0] += cos_y[b] * product[1 + n]
            for k in range(1, FUNCTIONS):
                data_cos[n, b, k] += cos_y[b] * product[at + k]
        at += FUNCTIONS - 1


@kernel(nogil=True, error_model="numpy", fastmath=FLAGS)
def _class_densities(first, last, v, channels, groups, g, out, reference, logs):
    Z = v.use.shape[2]
    row = row_buffers(len(channels), out.shape[3], len(groups.level), len(groups.x_of_q), Z)
    row.on[:] = True
    row.P[:] = _f(1)
    density = np.zeros((len(groups.level), row.e.shape[1]), _f)
    out[first:last] = _f(0)
    least = np.exp(-_f(LIMIT))
    for at in range((last - first) * v.use.shape[1]):
        x, y = first + at // v.use.shape[1], at % v.use.shape[1]
        b, w, padded = load_data(v, g, x, y, row)
        if w == 0:
            continue
        densities(channels, g, groups.x_of_q, v.use[x, y, b : b + w], padded, row)
        find_top(groups.x_of_q, padded, row)
        memberships(groups.x_of_q, padded, row)
        mixture_densities(groups.x_of_q, padded, row, density)
        p = row.p
        p[:] = _f(0)
        for m in range(len(groups.level)):
            for j in range(groups.start[m], groups.start[m + 1]):
                column, weight = p[groups.column[j]], groups.weight[j]
                for i in range(w):
                    column[i] += weight * density[m, i]
        for i in range(w):
            if v.use[x, y, b + i] != WITH_DATA:
                continue
            largest = _f(0)
            for k in range(p.shape[0]):
                largest = max(largest, p[k, i])
            base = max(p[reference, i], largest * least)
            logs[x] += row.top[i] + np.log(np.float64(base))
            for k in range(p.shape[0]):
                out[x, y, b + i, k] = max(p[k, i], largest * least) / base
            out[x, y, b + i, reference] = _f(1)


@inner(error_model="numpy", fastmath=FLAGS)
def mixture_densities(x_of_q, padded, row, density):
    """Sum of the components of each mixture; expects row.P = 1."""
    density[:] = _f(0)
    for q in range(len(x_of_q)):
        out, ll = density[x_of_q[q]], row.ll[q]
        for i in range(padded):
            out[i] += ll[i]
