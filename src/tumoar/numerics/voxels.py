"""Shared parts of all passes over voxels, which process one row at a time in buffers that fit the L1 cache.

A voxel has a vector d of N values and belongs to a mixture x of Gaussian components q. The prior of a mixture
is a weighted sum of columns of `pi`; mixtures of level 1 and 2 may get one or two additive fields. Mixtures
are described by index arrays. Inner loops run along the last axis in float32, sums over rows are float64, and
each slab (first index) has its own outputs, so that results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.threads import run_blocks

Array = npt.NDArray[np.floating]

HARMONICS = 7
"""Cosines per axis; the first FUNCTIONS are the basis functions of the smooth field."""
FUNCTIONS = 4
FLAGS = {"contract", "reassoc", "nsz", "arcp"}
"""Allows reordering of sums, so that loops vectorize; inf and nan are preserved."""

UNUSED, WITH_DATA, WITHOUT_DATA = 0, 1, 2
"""Use of a voxel: none; with its data; prior only."""

LANES = 32
"""Rows are padded to multiples of this many voxels: four vectors of eight floats."""

_f = np.float32


class Volume(NamedTuple):
    """Data shared by all passes over the same images; made by `build_volume`."""

    D: Array  # (N, X, Y, Z) float32, minus the center, 0 where there is no data
    use: npt.NDArray[np.uint8]  # (X, Y, Z)
    begin: npt.NDArray[np.int64]  # (X, Y) first voxel in use of each row
    end: npt.NDArray[np.int64]  # (X, Y) one past the last
    center: Array  # (N,) float32 near the mean, for the precision of sums of squares
    cos_x: Array  # (X, 7) float32
    cos_y: Array  # (Y, 7)
    cos_z: Array  # (7, Z)


class Groups(NamedTuple):
    """Columns of `pi` of each mixture: mixture x consists of entries start[x] to start[x + 1]."""

    x_of_q: npt.NDArray[np.int64]  # (Q,) mixture of each component
    start: npt.NDArray[np.int64]  # (mixtures + 1,)
    column: npt.NDArray[np.int64]  # (entries,)
    weight: Array  # (entries,) float32
    level: npt.NDArray[np.int64]  # (mixtures,) number of fields added
    order: npt.NDArray[np.int64]  # (entries,) by level, then column: the order to break ties


class Gaussians(NamedTuple):
    """Whitened components: (d − Cφ − center) is transformed to L r − c; made by `whiten_gaussians`."""

    L: Array  # (Q, N, N) float32, lower triangular
    c: Array  # (Q, N) float32
    log_norm: Array  # (Q,) float32, log weight minus half the log determinant of 2 pi Σ times the exponent
    log_weight: Array  # (Q,) float32
    C: Array  # (N, 4, 4, 4) float32


class Prior(NamedTuple):
    """A packed prior for repeated passes: non-zero columns of each row; made by `pack`."""

    start: npt.NDArray[np.int64]  # (X, Y) where a row begins in `value`
    seen: npt.NDArray[np.bool_]  # (X, Y, columns) whether a column is above 0 somewhere in the row
    value: Array  # (n,) float32: from the first to the last voxel in use of each row, column by column


class Sums(NamedTuple):
    """Sums of a pass per slab and component; e is the data minus the center."""

    data: Array  # (X, Q, 1 + N + N (N + 1) / 2) float64: 1, e_n, e_m e_n with m <= n
    cos: Array  # (X, Q, 7, 7) products of cosines in y and z
    data_cos: Array  # (X, Q, N, 4, 4) e_n times them


class Row(NamedTuple):
    """Buffers of one row, padded with zeros to a multiple of LANES, so that loops have no remainder."""

    e: Array  # (N, Z) data minus center
    r: Array  # (N, Z) the same minus the smooth field
    p: Array  # (columns, Z) prior, transposed
    P: Array  # (mixtures, Z) prior of each mixture
    on: npt.NDArray[np.bool_]  # (mixtures,) whether it has any prior in this row
    seen: npt.NDArray[np.bool_]  # (columns,) whether a column has any prior in this row
    ll: Array  # (Q, Z) log density of each component
    top: Array  # (Z,) largest of them among those with a prior
    total: Array  # (Z,) sum over components of prior times density relative to top


def build_volume(D: Array, use: npt.NDArray[np.uint8], cosines: tuple[Array, Array, Array]) -> Volume:
    """Check and lay out data; `use` (X, Y, Z) is the use of each voxel, cosines are (n, 7) per axis."""
    if D.dtype != np.float32 or D.ndim != 4 or not D.flags.c_contiguous or D.shape[1:] != use.shape:
        raise ValueError(f"D must be contiguous float32 (N, *{use.shape}), got {D.dtype} {D.shape}")
    seen = D[:, use == WITH_DATA]
    if not np.isfinite(seen).all():
        raise ValueError("D must be finite in all voxels in use")
    any_use = use > 0
    some = any_use.any(2)
    begin = np.where(some, any_use.argmax(2), 0)
    end = np.where(some, use.shape[2] - any_use[:, :, ::-1].argmax(2), 0)
    center = (seen.mean(1, dtype=np.float64) if seen.size else np.zeros(len(D))).astype(np.float32)
    centered = np.zeros_like(D)
    np.subtract(D, center[:, None, None, None], out=centered, where=use == WITH_DATA)
    cos_x, cos_y, cos_z = (np.ascontiguousarray(c, np.float32) for c in cosines)
    return Volume(
        centered,
        np.ascontiguousarray(use, np.uint8),
        begin.astype(np.int64),
        end.astype(np.int64),
        center,
        cos_x,
        cos_y,
        np.ascontiguousarray(cos_z.T),
    )


def pack(v: Volume, pi: npt.NDArray) -> Prior:
    """Pack the prior pi (X, Y, Z, columns) of the voxels in use."""
    seen = np.zeros((*v.use.shape[:2], pi.shape[3]), np.bool_)
    run_blocks(_find_seen, len(pi), v.begin, v.end, pi, seen)
    length = (v.end - v.begin) * seen.sum(2)
    start = np.cumsum(length.ravel()).reshape(length.shape) - length
    out = Prior(start, seen, np.empty(int(length.sum()), np.float32))
    run_blocks(_fill_rows, len(pi), v.begin, v.end, pi, *out)
    return out


@kernel(nogil=True)
def _find_seen(first, last, begin, end, pi, seen):
    for x in range(first, last):
        for y in range(pi.shape[1]):
            for z in range(begin[x, y], end[x, y]):
                for k in range(pi.shape[3]):
                    seen[x, y, k] |= pi[x, y, z, k] > 0


@kernel(nogil=True)
def _fill_rows(first, last, begin, end, pi, start, seen, value):
    for x in range(first, last):
        for y in range(pi.shape[1]):
            _fill_row(pi[x, y, begin[x, y] : end[x, y]], seen[x, y], value[start[x, y] :])


@inner()
def _fill_row(pi, seen, value):
    at = 0
    for k in range(pi.shape[1]):
        if seen[k]:
            for i in range(len(pi)):
                value[at + i] = pi[i, k]
            at += len(pi)


def whiten_gaussians(
    weight: Array, mu: Array, Sigma: Array, C: Array, center: Array, power: float = 1.0
) -> Gaussians:
    """Whiten components with weights (Q,), means (Q, N), covariances (Q, N, N).

    Densities, but not weights, are raised to a `power`.
    """
    L = np.linalg.inv(np.linalg.cholesky(Sigma))
    log_det = np.log(np.einsum("qnn->qn", L)).sum(1)
    L = np.sqrt(power) * L
    log_weight = np.log(np.maximum(weight, np.finfo(float).tiny))
    log_norm = log_weight + power * (log_det - 0.5 * mu.shape[1] * np.log(2 * np.pi))
    c = np.einsum("qmn,qn->qm", L, mu - center.astype(np.float64))
    return Gaussians(*(np.ascontiguousarray(a, np.float32) for a in (L, c, log_norm, log_weight, C)))


def run_over_slabs(kernel: Callable[..., None], v: Volume, *arguments: Any) -> None:
    """Run kernel(first, last, v, channels, *arguments) over blocks of slabs; see `run_blocks`."""
    run_blocks(kernel, v.use.shape[0], v, tuple(v.center), *arguments)


def zero_sums(v: Volume, Q: int) -> Sums:
    """Sums initialized to zero, for a pass over v."""
    X, N = v.use.shape[0], len(v.center)
    return Sums(
        np.zeros((X, Q, 1 + N + N * (N + 1) // 2)),
        np.zeros((X, Q, HARMONICS, HARMONICS)),
        np.zeros((X, Q, N, FUNCTIONS, FUNCTIONS)),
    )


def finish(sums: Sums, v: Volume) -> tuple[Array, Array, Array, Array, Array]:
    """Sum over slabs in fixed order and undo centering: n, d, dd, cos, dcos."""
    N, m = len(v.center), v.center.astype(np.float64)
    cos_x = v.cos_x.astype(np.float64)
    total = sums.data.sum(0)
    n, e = total[:, 0], total[:, 1 : N + 1]
    ee = np.zeros((len(n), N, N))
    upper = np.triu_indices(N)
    ee[:, upper[0], upper[1]] = ee[:, upper[1], upper[0]] = total[:, N + 1 :]
    cross = e[:, :, None] * m
    cos = np.moveaxis(np.tensordot(cos_x, sums.cos, (0, 0)), 0, 1)
    data_cos = np.moveaxis(np.tensordot(cos_x[:, :FUNCTIONS], sums.data_cos, (0, 0)), 0, 2)
    low = cos[:, None, :FUNCTIONS, :FUNCTIONS, :FUNCTIONS]
    return (
        n,
        e + n[:, None] * m,
        ee + cross + np.swapaxes(cross, 1, 2) + n[:, None, None] * np.outer(m, m),
        cos,
        data_cos + m[:, None, None, None] * low,
    )


@inner(constants=True)
def row_buffers(N, columns, mixtures, Q, Z):
    """Buffers for rows of up to Z voxels."""
    f = np.float32
    Z = LANES * ((Z + LANES - 1) // LANES)
    return Row(
        np.zeros((N, Z), f),
        np.zeros((N, Z), f),
        np.zeros((columns, Z), f),
        np.zeros((mixtures, Z), f),
        np.zeros(mixtures, np.bool_),
        np.zeros(columns, np.bool_),
        np.zeros((Q, Z), f),
        np.zeros(Z, f),
        np.zeros(Z, f),
    )


@inner(error_model="numpy", fastmath=FLAGS)
def load_data(v, g, x, y, row):
    """Load data of row (x, y) to row.e and, minus the smooth field, to row.r; first voxel and lengths."""
    b, w = v.begin[x, y], v.end[x, y] - v.begin[x, y]
    if w <= 0:
        return b, 0, 0
    padded = LANES * ((w + LANES - 1) // LANES)
    k0, k1, k2, k3 = v.cos_z[0, b:], v.cos_z[1, b:], v.cos_z[2, b:], v.cos_z[3, b:]
    for n in range(v.D.shape[0]):
        c0, c1, c2, c3 = _line(g.C[n], v.cos_x[x], v.cos_y[y])
        d, e, r = v.D[n, x, y, b:], row.e[n], row.r[n]
        for i in range(w):
            e[i] = d[i]
            r[i] = d[i] - (c0 * k0[i] + c1 * k1[i] + c2 * k2[i] + c3 * k3[i])
        for i in range(w, padded):
            e[i] = r[i] = _f(0)
    return b, w, padded


@inner(error_model="numpy", fastmath=FLAGS)
def _line(C, cos_x, cos_y):
    """The smooth field along one row: coefficients of its four cosines in z."""
    out = (_f(0), _f(0), _f(0), _f(0))
    for a in range(FUNCTIONS):
        for b in range(FUNCTIONS):
            s = cos_x[a] * cos_y[b]
            k = C[a, b]
            out = (out[0] + s * k[0], out[1] + s * k[1], out[2] + s * k[2], out[3] + s * k[3])
    return out


@inner(error_model="numpy", fastmath=FLAGS)
def load_prior(pi, groups, x, y, b, w, padded, row):
    """Load the prior of each mixture along row (x, y) to row.P; mixtures without prior are turned off."""
    K = pi.shape[3]
    source = pi[x, y, b:].reshape(-1)
    for k in range(K):
        p, total = row.p[k], _f(0)
        for i in range(w):
            p[i] = source[i * K + k]
        for i in range(w, padded):
            p[i] = _f(0)
        for i in range(padded):  # separate loop, so that it vectorizes
            total += p[i]
        row.seen[k] = total > 0
    _mix_columns(groups, padded, row)


@inner(error_model="numpy", fastmath=FLAGS)
def load_packed(prior, groups, x, y, w, padded, row):
    """Like `load_prior`, from a packed prior."""
    at = prior.start[x, y]
    for k in range(prior.seen.shape[2]):
        if prior.seen[x, y, k]:
            p, source = row.p[k], prior.value[at : at + w]
            for i in range(w):
                p[i] = source[i]
            for i in range(w, padded):
                p[i] = _f(0)
            at += w
        elif row.seen[k]:  # in the previous row
            row.p[k] = _f(0)
        row.seen[k] = prior.seen[x, y, k]
    _mix_columns(groups, padded, row)


@inner(error_model="numpy", fastmath=FLAGS)
def _mix_columns(groups, padded, row):
    for m in range(len(groups.level)):
        P = row.P[m]
        row.on[m] = False
        for j in range(groups.start[m], groups.start[m + 1]):
            if row.seen[groups.column[j]] and groups.weight[j] > 0:
                weight, p = groups.weight[j], row.p[groups.column[j]]
                if row.on[m]:
                    for i in range(padded):
                        P[i] += weight * p[i]
                else:
                    for i in range(padded):
                        P[i] = weight * p[i]
                row.on[m] = True


@inner(error_model="numpy", fastmath=FLAGS)
def densities(channels, g, x_of_q, use, padded, row):
    """Log density of every component of active mixtures to row.ll; only the weight without data.

    `channels` is any tuple of length N, known at compile time, so that inner loops unroll.
    """
    blind = False
    for i in range(len(use)):
        blind |= use[i] == WITHOUT_DATA
    N = len(channels)
    r = row.r
    for q in range(len(x_of_q)):
        if not row.on[x_of_q[q]]:
            continue
        L, c, log_norm, ll = g.L[q], g.c[q], g.log_norm[q], row.ll[q]
        for i in range(padded):
            distance = _f(0)
            for m in range(N):
                s = -c[m]
                for n in range(m + 1):
                    s += L[m, n] * r[n, i]
                distance += s * s
            ll[i] = log_norm - _f(0.5) * distance
        if blind:
            for i in range(len(use)):
                if use[i] == WITHOUT_DATA:
                    ll[i] = g.log_weight[q]


@inner(error_model="numpy", fastmath=FLAGS)
def find_top(x_of_q, padded, row):
    """Largest log density among components with a prior to row.top."""
    top = row.top
    top[:padded] = _f(-1e30)
    for q in range(len(x_of_q)):
        m = x_of_q[q]
        if row.on[m]:
            ll, P = row.ll[q], row.P[m]
            for i in range(padded):
                value = ll[i] if P[i] > 0 else _f(-1e30)
                top[i] = value if value > top[i] else top[i]


@nb.njit(inline="always", fastmath=FLAGS)
def exp(x):
    """e^x in float32 for x <= 0, to 1e-7 relative; exactly 0 below -87; vectorizes."""
    t = max(x * _f(1.4426950408889634), _f(-126))
    k = np.int32(t - _f(0.5))
    r = t - _f(k)
    p = _f(0.0013333558146428443) + r * _f(0.00015403530393381608)
    p = _f(0.05550410866482158) + r * (_f(0.009618129107628477) + r * p)
    p = _f(1) + r * (_f(0.6931471805599453) + r * (_f(0.2402265069591007) + r * p))
    scale = np.int32(np.int32(k + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * scale if x > _f(-87) else _f(0)
