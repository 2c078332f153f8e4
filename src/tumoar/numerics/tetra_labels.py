"""Kernels for a mesh and integer label maps.

With barycentric coordinates b_w and node values alpha (V, K), the probability of a voxel's value l is
L = (1 - floor) sum_w b_w alpha[w, l] + floor / K; the floor limits the effect of single stray voxels.
Because db_w/dx_v = -b_v grad b_w, the gradient of -log L needs per tetrahedron only the 4x4 moments
sum_i b_v(i) alpha[w, l_i] / L_i. Contributions are written per corner (T, 4, 3) and gathered per node.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.tetra import BLOCK, count_blocks, extent, rows, run, scratch, setup
from tumoar.numerics.threads import run_blocks

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.int32]
Values = npt.NDArray[np.uint8]

_SMALL = 1e-12
_FLAGS = {"contract", "nsz", "arcp"}


def cost_and_gradient(
    nodes: Nodes, tetrahedra: Tetrahedra, alpha: npt.NDArray[np.float32], values: Values, floor: float
) -> tuple[float, npt.NDArray[np.float64]]:
    """-sum log L over all voxels inside the mesh, and its gradient per corner (T, 4, 3); inf if folded."""
    gradient = np.zeros((len(tetrahedra), 4, 3))
    cost = np.zeros(count_blocks(tetrahedra))
    run_blocks(_cost_and_gradient, len(cost), nodes, tetrahedra, alpha, values, floor, cost, gradient)
    return float(cost.sum()), gradient


def curvature(
    nodes: Nodes, tetrahedra: Tetrahedra, alpha: npt.NDArray[np.float32], values: Values, floor: float
) -> npt.NDArray[np.float64]:
    """(T, 4, 3) sums of squared voxel gradients: the diagonal of the empirical Fisher information."""
    out = np.zeros((len(tetrahedra), 4, 3))
    run_blocks(_curvature, count_blocks(tetrahedra), nodes, tetrahedra, alpha, values, floor, out)
    return out


def counts(
    positions: npt.NDArray[np.float64],
    tetrahedra: Tetrahedra,
    alpha: npt.NDArray[np.float32],
    maps: Values,
    floor: float,
) -> tuple[float, npt.NDArray[np.float64]]:
    """E-step over S meshes (S, V, 3) and label maps (S, X, Y, Z): cost, and expected voxels (V, K) per value.

    Voxel i counts for corner w with weight b_w alpha[w, l_i] / L_i.
    """
    S, K = len(positions), alpha.shape[1]
    total = np.zeros((S, len(alpha), K))
    cost = np.zeros(S)
    run_blocks(_counts, S, positions, tetrahedra, alpha, maps, floor, cost, total)
    return float(cost.sum()), total.sum(0)


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _cost_and_gradient(start, stop, nodes, tetrahedra, alpha, values, floor, cost, gradient):
    X, Y, Z = values.shape
    T, K = len(tetrahedra), alpha.shape[1]
    for block in range(start, stop):
        q = scratch()
        b = q[:4]
        A = np.empty((K, 4))
        Q = np.empty((4, 4))
        total = 0.0
        product = 1.0
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                total = np.inf
                continue
            _corner_values(A, alpha, tetrahedra[t], floor)
            Q[:] = 0.0
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    lo, hi = run(q, i, j, Z)
                    if lo >= hi:
                        continue
                    r0 = b[0, 0] * i + b[0, 1] * j + b[0, 3]
                    r1 = b[1, 0] * i + b[1, 1] * j + b[1, 3]
                    r2 = b[2, 0] * i + b[2, 1] * j + b[2, 3]
                    r3 = b[3, 0] * i + b[3, 1] * j + b[3, 3]
                    for k in range(lo, hi):
                        l = values[i, j, k]
                        f0, f1, f2, f3 = A[l, 0], A[l, 1], A[l, 2], A[l, 3]
                        L = (
                            (r0 + b[0, 2] * k) * f0
                            + (r1 + b[1, 2] * k) * f1
                            + (r2 + b[2, 2] * k) * f2
                            + (r3 + b[3, 2] * k) * f3
                        )
                        L = max(L, _SMALL)
                        # One logarithm for many voxels.
                        product *= L
                        if product < 1e-200:
                            total -= np.log(product)
                            product = 1.0
                        if f0 == f1 and f0 == f2 and f0 == f3:
                            continue
                        L = 1.0 / L
                        f0 *= L
                        f1 *= L
                        f2 *= L
                        f3 *= L
                        # Moments with (i, j, k, 1); the coordinates are linear in them.
                        Q[0, 0] += f0 * i
                        Q[0, 1] += f1 * i
                        Q[0, 2] += f2 * i
                        Q[0, 3] += f3 * i
                        Q[1, 0] += f0 * j
                        Q[1, 1] += f1 * j
                        Q[1, 2] += f2 * j
                        Q[1, 3] += f3 * j
                        Q[2, 0] += f0 * k
                        Q[2, 1] += f1 * k
                        Q[2, 2] += f2 * k
                        Q[2, 3] += f3 * k
                        Q[3, 0] += f0
                        Q[3, 1] += f1
                        Q[3, 2] += f2
                        Q[3, 3] += f3
            for v in range(4):
                for w in range(4):
                    m = b[v, 0] * Q[0, w] + b[v, 1] * Q[1, w] + b[v, 2] * Q[2, w] + b[v, 3] * Q[3, w]
                    for d in range(3):
                        gradient[t, v, d] += m * b[w, d]
        cost[block] = total - np.log(product)


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _curvature(start, stop, nodes, tetrahedra, alpha, values, floor, out):
    X, Y, Z = values.shape
    T, K = len(tetrahedra), alpha.shape[1]
    for block in range(start, stop):
        q = scratch()
        b = q[:4]
        A = np.empty((K, 4))
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                continue
            _corner_values(A, alpha, tetrahedra[t], floor)
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    lo, hi = run(q, i, j, Z)
                    for k in range(lo, hi):
                        l = values[i, j, k]
                        f0, f1, f2, f3 = A[l, 0], A[l, 1], A[l, 2], A[l, 3]
                        if f0 == f1 and f0 == f2 and f0 == f3:
                            continue
                        b0 = b[0, 0] * i + b[0, 1] * j + b[0, 2] * k + b[0, 3]
                        b1 = b[1, 0] * i + b[1, 1] * j + b[1, 2] * k + b[1, 3]
                        b2 = b[2, 0] * i + b[2, 1] * j + b[2, 2] * k + b[2, 3]
                        b3 = b[3, 0] * i + b[3, 1] * j + b[3, 2] * k + b[3, 3]
                        r = 1.0 / max(b0 * f0 + b1 * f1 + b2 * f2 + b3 * f3, _SMALL)
                        for d in range(3):
                            s = (f0 * b[0, d] + f1 * b[1, d] + f2 * b[2, d] + f3 * b[3, d]) * r
                            s *= s
                            out[t, 0, d] += s * b0 * b0
                            out[t, 1, d] += s * b1 * b1
                            out[t, 2, d] += s * b2 * b2
                            out[t, 3, d] += s * b3 * b3


@kernel(nogil=True, error_model="numpy", fastmath=_FLAGS)
def _counts(start, stop, positions, tetrahedra, alpha, maps, floor, cost, total):
    _, X, Y, Z = maps.shape
    T, K = len(tetrahedra), alpha.shape[1]
    share = 1.0 - floor
    for s in range(start, stop):
        q = scratch()
        b = q[:4]
        A = np.empty((K, 4))
        N = np.zeros((K, 4))
        sum_s = 0.0
        product = 1.0
        for t in range(T):
            corners = tetrahedra[t]
            if not setup(q, positions[s], corners) > 0.0:
                sum_s = np.inf
                continue
            _corner_values(A, alpha, corners, 0.0)
            N[:] = 0.0
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    lo, hi = run(q, i, j, Z)
                    if lo >= hi:
                        continue
                    r0 = b[0, 0] * i + b[0, 1] * j + b[0, 3]
                    r1 = b[1, 0] * i + b[1, 1] * j + b[1, 3]
                    r2 = b[2, 0] * i + b[2, 1] * j + b[2, 3]
                    r3 = b[3, 0] * i + b[3, 1] * j + b[3, 3]
                    for k in range(lo, hi):
                        l = maps[s, i, j, k]
                        f0 = (r0 + b[0, 2] * k) * A[l, 0]
                        f1 = (r1 + b[1, 2] * k) * A[l, 1]
                        f2 = (r2 + b[2, 2] * k) * A[l, 2]
                        f3 = (r3 + b[3, 2] * k) * A[l, 3]
                        L = max(share * (f0 + f1 + f2 + f3) + floor / K, _SMALL)
                        product *= L
                        if product < 1e-200:
                            sum_s -= np.log(product)
                            product = 1.0
                        r = share / L
                        N[l, 0] += f0 * r
                        N[l, 1] += f1 * r
                        N[l, 2] += f2 * r
                        N[l, 3] += f3 * r
            for l in range(K):
                for w in range(4):
                    total[s, corners[w], l] += N[l, w]
        cost[s] = sum_s - np.log(product)


@inner()
def _corner_values(A, alpha, corners, floor):
    """A (K, 4): probability of each value at the four corners, with the floor mixed in."""
    K = alpha.shape[1]
    for l in range(K):
        for w in range(4):
            A[l, w] = (1.0 - floor) * alpha[corners[w], l] + floor / K
