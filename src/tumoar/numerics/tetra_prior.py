"""Elastic energy of a deformed mesh against its reference (Ashburner 2000), and a guard against folding.

Per tetrahedron, with J the linear map from reference to deformed positions and V the reference volume,

    stiffness V (1 + det J) (tr J'J + tr (J'J)^-1 - 6),

+inf where det J <= 0. It is zero for rigid motions and the same when the two meshes change roles.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.tetra import BLOCK, plain

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.integer]
PerCorner = npt.NDArray[np.float64]


def elastic_energy(
    nodes: Nodes,
    reference: Nodes,
    tetrahedra: Tetrahedra,
    stiffness: float,
    onto: PerCorner | None = None,
) -> tuple[float, PerCorner]:
    """Energy and its gradient per corner (T, 4, 3); +inf and a meaningless gradient where folded.

    The gradient is added to the array `onto` if one is given.
    """
    nodes, tetrahedra = plain(nodes, tetrahedra)
    reference, _ = plain(reference, tetrahedra)
    gradient = np.zeros((len(tetrahedra), 4, 3)) if onto is None else onto
    return float(_elastic_energy(nodes, reference, tetrahedra, stiffness, gradient).sum()), gradient


def elastic_curvature(reference: Nodes, tetrahedra: Tetrahedra, stiffness: float) -> PerCorner:
    """(T, 4, 3) diagonal of the energy's Hessian at rest: 8 stiffness V (|g|^2 + g_d^2), g = grad b_w."""
    out = np.empty((len(tetrahedra), 4, 3))
    _elastic_curvature(*plain(reference, tetrahedra), stiffness, out)
    return out


def shorten(nodes: Nodes, step: Nodes, tetrahedra: Tetrahedra, fraction: float, rounds: int = 8) -> Nodes:
    """The step, shortened by halves at nodes of tetrahedra that would keep less than a fraction of volume."""
    nodes, tetrahedra = plain(nodes, tetrahedra)
    scale = np.ones(len(nodes))
    for _ in range(rounds):
        shrunk = _shrunk(nodes, step, scale, tetrahedra, fraction)
        if not shrunk.any():
            break
        scale[tetrahedra[shrunk].ravel()] *= 0.5
    return step * scale[:, None]


@nb.njit(cache=True)
def _edges(nodes, corners, E):
    """E (3, 3): columns are the edges from corner 0; returns the determinant, 6 volumes."""
    for d in range(3):
        for w in range(3):
            E[d, w] = nodes[corners[w + 1], d] - nodes[corners[0], d]
    return _det(E)


@nb.njit(cache=True)
def _det(M):
    return (
        M[0, 0] * (M[1, 1] * M[2, 2] - M[1, 2] * M[2, 1])
        + M[0, 1] * (M[1, 2] * M[2, 0] - M[1, 0] * M[2, 2])
        + M[0, 2] * (M[1, 0] * M[2, 1] - M[1, 1] * M[2, 0])
    )


@nb.njit(cache=True, error_model="numpy")
def _invert(M, det, out):
    """Inverse of a 3x3 matrix with this determinant."""
    scale = 1.0 / det
    for r in range(3):
        for c in range(3):
            r1, r2 = (r + 1) % 3, (r + 2) % 3
            c1, c2 = (c + 1) % 3, (c + 2) % 3
            out[c, r] = (M[r1, c1] * M[r2, c2] - M[r1, c2] * M[r2, c1]) * scale


@nb.njit(cache=True)
def _multiply(A, B, out):
    for r in range(3):
        for c in range(3):
            out[r, c] = A[r, 0] * B[0, c] + A[r, 1] * B[1, c] + A[r, 2] * B[2, c]


@nb.njit(parallel=True, cache=True, error_model="numpy")
def _elastic_energy(nodes, reference, tetrahedra, stiffness, gradient):
    T = len(tetrahedra)
    energy = np.zeros((T + BLOCK - 1) // BLOCK)
    for block in nb.prange(len(energy)):
        E, R, D, J = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
        I, P, G = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            corners = tetrahedra[t]
            rest = _edges(reference, corners, R)
            _invert(R, rest, D)
            _edges(nodes, corners, E)
            _multiply(E, D, J)
            det = _det(J)
            if not (det > 0.0 and rest > 0.0):
                energy[block] = np.inf
                continue
            _invert(J, det, I)
            strain = -6.0
            for r in range(3):
                for c in range(3):
                    strain += J[r, c] ** 2 + I[r, c] ** 2
            weight = stiffness * rest / 6.0
            energy[block] += weight * (1.0 + det) * strain
            # d det / dJ = det I'; d tr (J'J)^-1 / dJ = -2 I' I I'  (with I = J^-1)
            for r in range(3):
                for c in range(3):
                    P[r, c] = I[0, r] * I[0, c] + I[1, r] * I[1, c] + I[2, r] * I[2, c]  # I'I
            for r in range(3):
                for c in range(3):
                    inner = P[r, 0] * I[c, 0] + P[r, 1] * I[c, 1] + P[r, 2] * I[c, 2]
                    G[r, c] = weight * (det * I[c, r] * strain + 2.0 * (1.0 + det) * (J[r, c] - inner))
            for d in range(3):
                for w in range(3):
                    g = G[d, 0] * D[w, 0] + G[d, 1] * D[w, 1] + G[d, 2] * D[w, 2]
                    gradient[t, w + 1, d] += g
                    gradient[t, 0, d] -= g
    return energy


@nb.njit(parallel=True, cache=True, error_model="numpy")
def _elastic_curvature(reference, tetrahedra, stiffness, out):
    T = len(tetrahedra)
    for block in nb.prange((T + BLOCK - 1) // BLOCK):
        R, D = np.empty((3, 3)), np.empty((3, 3))
        g = np.empty((4, 3))
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            rest = _edges(reference, tetrahedra[t], R)
            _invert(R, rest, D)
            for d in range(3):
                g[0, d] = -(D[0, d] + D[1, d] + D[2, d])
                for w in range(3):
                    g[w + 1, d] = D[w, d]
            for w in range(4):
                length = g[w, 0] ** 2 + g[w, 1] ** 2 + g[w, 2] ** 2
                for d in range(3):
                    out[t, w, d] = 8.0 * stiffness * rest / 6.0 * (length + g[w, d] ** 2)


@nb.njit(parallel=True, cache=True)
def _shrunk(nodes, step, scale, tetrahedra, fraction):
    """Which tetrahedra keep less than this fraction of their present volume."""
    T = len(tetrahedra)
    out = np.zeros(T, np.bool_)
    for block in nb.prange((T + BLOCK - 1) // BLOCK):
        E = np.empty((3, 3))
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            corners = tetrahedra[t]
            before = _edges(nodes, corners, E)
            c0 = corners[0]
            for w in range(3):
                c = corners[w + 1]
                for d in range(3):
                    E[d, w] += scale[c] * step[c, d] - scale[c0] * step[c0, d]
            out[t] = not _det(E) >= fraction * before
    return out
