"""The data term of a mesh: -sum_i log sum_c L_i(c) pi_i(c), its gradient and Fisher information in the nodes.

pi_i(c) interpolates the node values alpha (V, C) linearly, as in `tetra.rasterize`; L (X, Y, Z, C) float32
holds each voxel's likelihoods up to a factor per voxel (`likelihood_ratios`). A voxel whose row of L is all
zero is not looked at. A voxel whose row is not, but for which the sum is zero, is impossible: the cost is
+inf; no floor hides it.

With barycentric coordinates b_w, f_w(i) = sum_c L_i(c) alpha[w, c] and S_i = sum_w b_w(i) f_w(i), moving
corner v of the owning tetrahedron changes b_w by -b_v grad b_w, hence

    d(-log S_i) / d x_v = b_v(i) sum_w f_w(i) / S_i grad b_w,

and a tetrahedron needs only the 4x4 moments of f_w / S with (i, j, k, 1). Shares are written per corner
(T, 4, 3) and gathered per node: no two threads write to one place, and sums have one order.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.tetra import BLOCK, PLAIN, extent, plain, present_columns, rows, run, scratch, setup

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.integer]
PerCorner = npt.NDArray[np.float64]

LIMIT = 80.0
"""Nats by which a likelihood may differ from the reference class: what float32 holds with room for sums."""

# nan and inf keep their meaning; sums may be contracted.
_FLAGS = {"contract", "nsz"}


class Incidence(NamedTuple):
    """Which corners meet at each node: corner[start[v] : start[v + 1]], numbered 4 t + w."""

    start: npt.NDArray[np.int64]
    corner: npt.NDArray[np.int64]


def incidence(tetrahedra: Tetrahedra, V: int) -> Incidence:
    """The corners at each of V nodes, in the order of the tetrahedra."""
    flat = tetrahedra.ravel()
    start = np.zeros(V + 1, np.int64)
    np.cumsum(np.bincount(flat, minlength=V), out=start[1:])
    return Incidence(start, np.argsort(flat, kind="stable"))


def gather(per_corner: PerCorner, at: Incidence) -> npt.NDArray[np.float64]:
    """(V, 3) sum of the shares (T, 4, 3) of all corners at each node."""
    out = np.empty((len(at.start) - 1, 3))
    _gather(per_corner.reshape(-1, 3), at.start, at.corner, out)
    return out


def merge_labels(alpha: npt.NDArray[np.float32], into: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """(V, C) node values with the columns of each class added up; `into` (K,) is the class of a column."""
    out = np.zeros((len(alpha), int(into.max()) + 1), np.float32)
    for k, c in enumerate(into):
        out[:, c] += alpha[:, k]
    return out


def likelihood_ratios(
    log_likelihood: npt.NDArray[np.floating], reference: int = 0, mask: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float32]:
    """L (..., C) from log-likelihoods: relative to the reference class, limited to `LIMIT` nats either way.

    The limit changes no preference between a class and the reference. It hides one between two classes only
    where both lie beyond it on the same side. Voxels outside the mask get a row of zeros.
    """
    ratio = log_likelihood - log_likelihood[..., reference, None]
    out = np.exp(np.clip(ratio, -LIMIT, LIMIT, out=ratio)).astype(np.float32)
    if mask is not None:
        out[~mask] = 0.0
    return out


def data_cost(
    nodes: Nodes,
    tetrahedra: Tetrahedra,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
    reference: int = -1,
) -> tuple[float, PerCorner]:
    """Cost and its gradient per corner (T, 4, 3); +inf where a tetrahedron is folded or a voxel impossible.

    If `reference` is a class and L relative to it, tetrahedra certain of it cost nothing and are skipped.
    """
    alpha, L = _classes(alpha, L)
    gradient = np.zeros((len(tetrahedra), 4, 3))
    cost = _data_cost(*plain(nodes, tetrahedra), alpha, L.reshape(-1), L.shape[:3], reference, gradient)
    return float(cost.sum()), gradient


def data_fisher(
    nodes: Nodes,
    tetrahedra: Tetrahedra,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
    reference: int = -1,
) -> PerCorner:
    """(T, 4, 3) sums over voxels of the squared gradient: the diagonal of the empirical Fisher matrix."""
    alpha, L = _classes(alpha, L)
    out = np.zeros((len(tetrahedra), 4, 3))
    _data_fisher(*plain(nodes, tetrahedra), alpha, L, reference, out)
    return out


def _classes(
    alpha: npt.NDArray[np.float32], L: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Both as the kernels take them."""
    if L.ndim != 4 or L.shape[3] != alpha.shape[1]:
        raise ValueError(f"L must be (X, Y, Z, {alpha.shape[1]}) for these node values, got {L.shape}")
    return np.require(alpha, np.float32, PLAIN), np.require(L, np.float32, PLAIN)


@nb.njit(cache=True)
def _masked(row):
    return not np.any(row)


@nb.njit(parallel=True, cache=True, error_model="numpy", fastmath=_FLAGS)
def _data_cost(nodes, tetrahedra, alpha, L, shape, reference, gradient):
    """L is flat: one index costs less to check than four."""
    X, Y, Z = shape
    T, C = len(tetrahedra), alpha.shape[1]
    cost = np.zeros((T + BLOCK - 1) // BLOCK)
    for block in nb.prange(len(cost)):
        q = scratch()
        A = np.empty((C, 4))
        present = np.empty(C, np.int64)
        Q = np.empty((4, 4))
        total = 0.0
        product = 1.0
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                total = np.inf
                continue
            M = present_columns(alpha, tetrahedra[t], A, present)
            if M == 1 and present[0] == reference:
                continue
            Q[:] = 0.0
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    lo, hi = run(q, i, j, Z)
                    if lo >= hi:
                        continue
                    r0 = q[0, 0] * i + q[0, 1] * j + q[0, 3]
                    r1 = q[1, 0] * i + q[1, 1] * j + q[1, 3]
                    r2 = q[2, 0] * i + q[2, 1] * j + q[2, 3]
                    r3 = q[3, 0] * i + q[3, 1] * j + q[3, 3]
                    g0, g1, g2, g3 = q[0, 2], q[1, 2], q[2, 2], q[3, 2]
                    s0 = s1 = s2 = s3 = 0.0
                    m0 = m1 = m2 = m3 = 0.0
                    for k in range(lo, hi):
                        at = ((i * Y + j) * Z + k) * C
                        f0 = f1 = f2 = f3 = 0.0
                        for m in range(M):
                            l = np.float64(L[at + present[m]])
                            f0 += l * A[m, 0]
                            f1 += l * A[m, 1]
                            f2 += l * A[m, 2]
                            f3 += l * A[m, 3]
                        # A center on a face may come out a rounding error outside.
                        S = (
                            max(r0 + g0 * k, 0.0) * f0
                            + max(r1 + g1 * k, 0.0) * f1
                            + max(r2 + g2 * k, 0.0) * f2
                            + max(r3 + g3 * k, 0.0) * f3
                        )
                        if S == 0.0 and _masked(L[at : at + C]):
                            continue
                        product *= S
                        if not 1e-200 < product < 1e200:  # one logarithm for many voxels
                            total -= np.log(product)
                            product = 1.0
                        S = 1.0 / S
                        f0 *= S
                        f1 *= S
                        f2 *= S
                        f3 *= S
                        s0 += f0
                        s1 += f1
                        s2 += f2
                        s3 += f3
                        m0 += f0 * k
                        m1 += f1 * k
                        m2 += f2 * k
                        m3 += f3 * k
                    for w, s, m in ((0, s0, m0), (1, s1, m1), (2, s2, m2), (3, s3, m3)):
                        Q[w, 0] += s * i
                        Q[w, 1] += s * j
                        Q[w, 2] += m
                        Q[w, 3] += s
            for v in range(4):
                x = y = z = 0.0
                for w in range(4):
                    m = q[v, 0] * Q[w, 0] + q[v, 1] * Q[w, 1] + q[v, 2] * Q[w, 2] + q[v, 3] * Q[w, 3]
                    x += m * q[w, 0]
                    y += m * q[w, 1]
                    z += m * q[w, 2]
                gradient[t, v, 0], gradient[t, v, 1], gradient[t, v, 2] = x, y, z
        cost[block] = total - np.log(product)
    return cost


@nb.njit(parallel=True, cache=True, error_model="numpy", fastmath=_FLAGS)
def _data_fisher(nodes, tetrahedra, alpha, L, reference, out):
    X, Y, Z, C = L.shape
    T = len(tetrahedra)
    for block in nb.prange((T + BLOCK - 1) // BLOCK):
        q = scratch()
        A = np.empty((C, 4))
        present = np.empty(C, np.int64)
        b = np.empty(4)
        f = np.empty(4)
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                continue
            M = present_columns(alpha, tetrahedra[t], A, present)
            if M == 1:  # certain of one class: no gradient
                continue
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    for k in range(*run(q, i, j, Z)):
                        S = 0.0
                        for w in range(4):
                            f[w] = 0.0
                            for m in range(M):
                                f[w] += L[i, j, k, present[m]] * A[m, w]
                            b[w] = max(q[w, 0] * i + q[w, 1] * j + q[w, 2] * k + q[w, 3], 0.0)
                            S += b[w] * f[w]
                        if S == 0.0:
                            continue
                        for d in range(3):
                            g = (f[0] * q[0, d] + f[1] * q[1, d] + f[2] * q[2, d] + f[3] * q[3, d]) / S
                            for w in range(4):
                                out[t, w, d] += (b[w] * g) ** 2


@nb.njit(parallel=True, cache=True)
def _gather(shares, start, corner, out):
    for v in nb.prange(len(out)):
        x = y = z = 0.0
        for c in range(start[v], start[v + 1]):
            x += shares[corner[c], 0]
            y += shares[corner[c], 1]
            z += shares[corner[c], 2]
        out[v, 0], out[v, 1], out[v, 2] = x, y, z
