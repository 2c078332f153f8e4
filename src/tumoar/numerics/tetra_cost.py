"""Data term of a mesh: -sum_i log sum_c L_i(c) pi_i(c), its gradient and Fisher information in the nodes.

pi_i(c) interpolates the node values alpha (V, C) linearly, as in `tetra_raster`; L (X, Y, Z, C) float32
holds each voxel's likelihoods up to a factor per voxel (`likelihood_ratios`). Voxels whose row of L is all
zero are ignored. If the row is not zero but the sum is, the voxel is impossible and the cost is +inf.

Inside a tetrahedron pi_i(c) is linear in the voxel's position. With barycentric coordinates b_w and
S_i = sum_c L_i(c) pi_i(c), moving corner v of the owning tetrahedron changes b_w by -b_v grad b_w, hence

    d(-log S_i) / d x_v = b_v(i) sum_c L_i(c) / S_i grad pi(c),

and a tetrahedron needs only the moments of L(c) / S with (x, y, z, 1), four for each class of its corners.
Contributions are written per corner (T, 4, 3) and gathered per node: threads never write to the same place,
and the order of summation is fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.tetra import (
    BLOCK,
    PLAIN,
    count_blocks,
    extent,
    plain,
    present_columns,
    rows,
    run,
    scratch,
    setup,
)
from tumoar.numerics.tetra_voxels import (
    AT,
    BASE,
    FIRST,
    GRAD_X,
    GRAD_Y,
    GRAD_Z,
    GROUP,
    LIST,
    MORE,
    PITCH,
    X,
    Y,
    Z,
    four,
    group,
    indices,
    interpolants,
    list_owned,
    parts,
    prepare_group,
    values,
)
from tumoar.numerics.threads import run_blocks

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.integer]
PerCorner = npt.NDArray[np.float64]

LIMIT = 80.0
"""Nats by which a likelihood may differ from the reference class: range of float32 with margin for sums."""

# Fields of W: S or its inverse; likelihoods of each class of the corners.
_SUM, _LIKELIHOOD = MORE, MORE + PITCH

# nan and inf keep their meaning; sums may be contracted.
_FLAGS = {"contract", "nsz"}


class Incidence(NamedTuple):
    """Corners at each node: corner[start[v] : start[v + 1]], numbered 4 t + w."""

    start: npt.NDArray[np.int64]
    corner: npt.NDArray[np.int64]


def build_incidence(tetrahedra: Tetrahedra, V: int) -> Incidence:
    """The corners at each of V nodes, in the order of the tetrahedra."""
    flat = tetrahedra.ravel()
    start = np.zeros(V + 1, np.int64)
    np.cumsum(np.bincount(flat, minlength=V), out=start[1:])
    return Incidence(start, np.argsort(flat, kind="stable"))


def gather(per_corner: PerCorner, at: Incidence) -> npt.NDArray[np.float64]:
    """(V, 3) sum of the contributions (T, 4, 3) of all corners at each node."""
    out = np.empty((len(at.start) - 1, 3))
    run_blocks(_gather, len(out), per_corner.reshape(-1, 3), at.start, at.corner, out)
    return out


def merge_labels(alpha: npt.NDArray[np.float32], into: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """(V, C) node values summed over the columns of each class; `into` (K,) is the class of a column."""
    out = np.zeros((len(alpha), int(into.max()) + 1), np.float32)
    for k, c in enumerate(into):
        out[:, c] += alpha[:, k]
    return out


def likelihood_ratios(
    log_likelihood: npt.NDArray[np.floating], reference: int = 0, mask: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float32]:
    """L (..., C) from log-likelihoods: relative to the reference class, limited to `LIMIT` nats either way.

    The limit does not change the order of a class and the reference, and that of two classes only if both
    exceed it on the same side. Voxels outside the mask get a row of zeros.
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
    """Cost and its gradient per corner (T, 4, 3); +inf if a tetrahedron is folded or a voxel impossible.

    If L is relative to the class `reference`, tetrahedra of this class only cost nothing and are skipped.
    """
    alpha, L = _classes(alpha, L)
    _require_listable(L)
    gradient = np.zeros((len(tetrahedra), 4, 3))
    cost = np.empty(count_blocks(tetrahedra))
    mesh = plain(nodes, tetrahedra)
    run_blocks(_data_cost, len(cost), *mesh, alpha, L.reshape(-1), L.shape[:3], reference, gradient, cost)
    return float(cost.sum()), gradient


def data_costs(
    nodes: Nodes,
    tetrahedra: Tetrahedra,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
) -> npt.NDArray[np.float64]:
    """(T,) cost of each tetrahedron, which may be some of a mesh; +inf if folded or a voxel is impossible."""
    alpha, L = _classes(alpha, L)
    _require_listable(L)
    out = np.zeros(len(tetrahedra))
    mesh = plain(nodes, tetrahedra)
    run_blocks(_data_costs, count_blocks(tetrahedra), *mesh, alpha, L.reshape(-1), L.shape[:3], out)
    return out


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
    run_blocks(_data_fisher, count_blocks(tetrahedra), *plain(nodes, tetrahedra), alpha, L, reference, out)
    return out


def _classes(
    alpha: npt.NDArray[np.float32], L: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Check alpha and L and convert them for the kernels."""
    if L.ndim != 4 or L.shape[3] != alpha.shape[1]:
        raise ValueError(f"L must be (X, Y, Z, {alpha.shape[1]}) for these node values, got {L.shape}")
    return np.require(alpha, np.float32, PLAIN), np.require(L, np.float32, PLAIN)


def _require_listable(L: npt.NDArray[np.float32]) -> None:
    if max(L.shape[:3]) > LIST or L[..., 0].size >= 2**31:
        raise ValueError(
            f"a grid must have axes of at most {LIST} and fewer than 2^31 voxels, got {L.shape[:3]}"
        )


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _data_cost(start, stop, nodes, tetrahedra, alpha, L, shape, reference, gradient, cost):
    """L is flat. Loops over voxels are short and simple, so that they vectorize."""
    T, C = len(tetrahedra), alpha.shape[1]
    for block in range(start, stop):
        q, G, N, W = scratch(), group(), indices(), values(1 + C)
        A, B, Q = np.empty((C, 4)), np.empty((C, 4)), np.empty((C, 4))
        present = np.empty(C, np.int64)
        total = 0.0
        product = 1.0
        end = min(T, (block + 1) * BLOCK)
        for first in range(block * BLOCK, end, GROUP):
            last = min(end, first + GROUP)
            prepare_group(G, nodes, tetrahedra, first, last, shape)
            for t in range(first, last):
                lane = t - first
                if not four(G, lane, FIRST)[3] > 0.0:
                    total = np.inf
                    continue
                M = present_columns(alpha, tetrahedra[t], A, present)
                if M == 1 and present[0] == reference:
                    continue
                interpolants(G, lane, A, M, B)
                Q[:M] = 0.0
                for part in range(parts(G, lane)):
                    n = list_owned(G, lane, part, q, nodes, tetrahedra[t], shape, N, W)
                    _sums(L, C, present, M, B, n, N, W)
                    for v in range(n):
                        S = W[_SUM + v]
                        if S == 0.0 and _is_masked(L, np.int64(N[AT + v]) * C, C):
                            continue
                        product *= S
                        if not 1e-200 < product < 1e200:  # one logarithm for many voxels
                            total -= np.log(product)
                            product = 1.0
                    _moments(M, n, W, Q)
                _shares(G, lane, M, B, Q, gradient[t])
        cost[block] = total - np.log(product)


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _data_costs(start, stop, nodes, tetrahedra, alpha, L, shape, out):
    """Like `_data_cost`, without gradient; one class alone costs something too."""
    T, C = len(tetrahedra), alpha.shape[1]
    for block in range(start, stop):
        q, G, N, W = scratch(), group(), indices(), values(1 + C)
        A, B = np.empty((C, 4)), np.empty((C, 4))
        present = np.empty(C, np.int64)
        end = min(T, (block + 1) * BLOCK)
        for first in range(block * BLOCK, end, GROUP):
            last = min(end, first + GROUP)
            prepare_group(G, nodes, tetrahedra, first, last, shape)
            for t in range(first, last):
                lane = t - first
                if not four(G, lane, FIRST)[3] > 0.0:
                    out[t] = np.inf
                    continue
                M = present_columns(alpha, tetrahedra[t], A, present)
                interpolants(G, lane, A, M, B)
                total = 0.0
                product = 1.0
                for part in range(parts(G, lane)):
                    n = list_owned(G, lane, part, q, nodes, tetrahedra[t], shape, N, W)
                    _sums(L, C, present, M, B, n, N, W)
                    for v in range(n):
                        S = W[_SUM + v]
                        if S == 0.0 and _is_masked(L, np.int64(N[AT + v]) * C, C):
                            continue
                        product *= S
                        if not 1e-200 < product < 1e200:
                            total -= np.log(product)
                            product = 1.0
                out[t] = total - np.log(product)


@inner()
def _is_masked(L, at, C):
    return not np.any(L[at : at + C])


@inner(fastmath=_FLAGS, forceinline=True)
def _sums(L, C, present, M, B, n, N, W):
    """S of each listed voxel; stores the likelihoods it needs."""
    padded = (n + 3) // 4 * 4
    for v in range(padded):
        W[_SUM + v] = 0.0
    for m in range(M):
        column = _LIKELIHOOD + m * PITCH
        # Gather from L in a separate loop, because it does not vectorize.
        for v in range(n):
            W[column + v] = L[np.uint64(np.int64(N[AT + v]) * C + present[m])]
        for v in range(n, n + 3):
            W[column + v] = 0.0
        bx, by, bz, b = B[m, 0], B[m, 1], B[m, 2], B[m, 3]
        for v in range(padded):
            # A center on a face may be outside by a rounding error.
            pi = max(bx * W[X + v] + by * W[Y + v] + bz * W[Z + v] + b, 0.0)
            W[_SUM + v] += W[column + v] * pi


@inner(error_model="numpy", fastmath=_FLAGS | {"reassoc"}, forceinline=True)
def _moments(M, n, W, Q):
    """Add to Q (M, 4) the sums of L / S (x, y, z, 1); S is overwritten by its inverse, 0 where masked."""
    padded = (n + 3) // 4 * 4
    for v in range(padded):
        S = W[_SUM + v]
        W[_SUM + v] = 1.0 / S if S > 0.0 else 0.0
    for m in range(M):
        column = _LIKELIHOOD + m * PITCH
        x = y = z = s = 0.0
        for v in range(padded):
            ratio = W[column + v] * W[_SUM + v]
            x += ratio * W[X + v]
            y += ratio * W[Y + v]
            z += ratio * W[Z + v]
            s += ratio
        Q[m, 0] += x
        Q[m, 1] += y
        Q[m, 2] += z
        Q[m, 3] += s


@inner(fastmath=_FLAGS, forceinline=True)
def _shares(G, lane, M, B, Q, gradient):
    """The gradient (4, 3) at each corner v: sum over classes of (b_v . Q[m]) grad pi_m."""
    bx, by, bz, b = four(G, lane, GRAD_X), four(G, lane, GRAD_Y), four(G, lane, GRAD_Z), four(G, lane, BASE)
    for v in range(4):
        x = y = z = 0.0
        for m in range(M):
            weight = bx[v] * Q[m, 0] + by[v] * Q[m, 1] + bz[v] * Q[m, 2] + b[v] * Q[m, 3]
            x += weight * B[m, 0]
            y += weight * B[m, 1]
            z += weight * B[m, 2]
        gradient[v, 0], gradient[v, 1], gradient[v, 2] = x, y, z


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _data_fisher(start, stop, nodes, tetrahedra, alpha, L, reference, out):
    X, Y, Z, C = L.shape
    T = len(tetrahedra)
    for block in range(start, stop):
        q = scratch()
        A = np.empty((C, 4))
        present = np.empty(C, np.int64)
        b = np.empty(4)
        f = np.empty(4)
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                continue
            M = present_columns(alpha, tetrahedra[t], A, present)
            if M == 1:  # one class only: no gradient
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


@kernel(nogil=True)
def _gather(start, stop, shares, first, corner, out):
    for v in range(start, stop):
        x = y = z = 0.0
        for c in range(first[v], first[v + 1]):
            x += shares[corner[c], 0]
            y += shares[corner[c], 1]
            z += shares[corner[c], 2]
        out[v, 0], out[v, 1], out[v, 2] = x, y, z
