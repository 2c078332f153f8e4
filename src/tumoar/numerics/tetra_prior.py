"""Elastic energy of a deformed mesh relative to its reference (Ashburner 2000), and a guard against folding.

Per tetrahedron, with J the linear map from reference to deformed positions and V the reference volume,

    stiffness V (1 + det J) (tr J'J + tr (J'J)^-1 - 6),

+inf where det J <= 0. It is zero for rigid motions and symmetric in the two meshes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.tetra import BLOCK, count_blocks, plain
from tumoar.numerics.threads import run_blocks

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.integer]
PerCorner = npt.NDArray[np.float64]

_GROUP = 32
"""Tetrahedra processed at once by vector instructions; divides `BLOCK`."""


def elastic_energy(
    nodes: Nodes,
    reference: Nodes,
    tetrahedra: Tetrahedra,
    stiffness: float,
    onto: PerCorner | None = None,
) -> tuple[float, PerCorner]:
    """Energy and its gradient per corner (T, 4, 3); +inf and an undefined gradient if folded.

    The gradient is added to the array `onto`, if given.
    """
    nodes, tetrahedra = plain(nodes, tetrahedra)
    reference, _ = plain(reference, tetrahedra)
    gradient = np.zeros((len(tetrahedra), 4, 3)) if onto is None else onto
    energy = np.zeros(count_blocks(tetrahedra))
    run_blocks(_elastic_energy, len(energy), nodes, reference, tetrahedra, stiffness, gradient, energy)
    return float(energy.sum()), gradient


def elastic_energies(
    nodes: Nodes, reference: Nodes, tetrahedra: Tetrahedra, stiffness: float
) -> npt.NDArray[np.float64]:
    """(T,) energy of each tetrahedron, which may be some of a mesh; +inf if folded."""
    nodes, tetrahedra = plain(nodes, tetrahedra)
    reference, _ = plain(reference, tetrahedra)
    out = np.empty(len(tetrahedra))
    run_blocks(_elastic_energies, count_blocks(tetrahedra), nodes, reference, tetrahedra, stiffness, out)
    return out


def elastic_curvature(reference: Nodes, tetrahedra: Tetrahedra, stiffness: float) -> PerCorner:
    """(T, 4, 3) diagonal of the energy's Hessian at rest: 8 stiffness V (|g|^2 + g_d^2), g = grad b_w."""
    out = np.empty((len(tetrahedra), 4, 3))
    run_blocks(_elastic_curvature, count_blocks(tetrahedra), *plain(reference, tetrahedra), stiffness, out)
    return out


def shorten(nodes: Nodes, step: Nodes, tetrahedra: Tetrahedra, fraction: float, rounds: int = 8) -> Nodes:
    """Halve the step at nodes of tetrahedra that would keep less than a fraction of their volume."""
    nodes, tetrahedra = plain(nodes, tetrahedra)
    scale = np.ones(len(nodes))
    shrunk = np.zeros(len(tetrahedra), np.bool_)
    for _ in range(rounds):
        run_blocks(_find_shrunk, count_blocks(tetrahedra), nodes, step, scale, tetrahedra, fraction, shrunk)
        if not shrunk.any():
            break
        scale[tetrahedra[shrunk].ravel()] *= 0.5
    return step * scale[:, None]


# ---- 3x3 matrices as tuples in row order: loops over them vectorize ----------------------------------------


@inner(forceinline=True)
def _edges(nodes, corners):
    """The edges from corner 0, as columns."""
    o, a, b, c = corners[0], corners[1], corners[2], corners[3]
    x, y, z = nodes[o, 0], nodes[o, 1], nodes[o, 2]
    return (
        nodes[a, 0] - x, nodes[b, 0] - x, nodes[c, 0] - x,
        nodes[a, 1] - y, nodes[b, 1] - y, nodes[c, 1] - y,
        nodes[a, 2] - z, nodes[b, 2] - z, nodes[c, 2] - z,
    )  # fmt: skip


@inner(fastmath={"contract"}, forceinline=True)
def _det(M):
    a, b, c, d, e, f, g, h, i = M
    return a * (e * i - f * h) + b * (f * g - d * i) + c * (d * h - e * g)


@inner(error_model="numpy", fastmath={"contract"}, forceinline=True)
def _inverse(M, det):
    a, b, c, d, e, f, g, h, i = M
    s = 1.0 / det
    return (
        (e * i - f * h) * s, (c * h - b * i) * s, (b * f - c * e) * s,
        (f * g - d * i) * s, (a * i - c * g) * s, (c * d - a * f) * s,
        (d * h - e * g) * s, (b * g - a * h) * s, (a * e - b * d) * s,
    )  # fmt: skip


@inner(fastmath={"contract"}, forceinline=True)
def _product(M, N):
    a, b, c, d, e, f, g, h, i = M
    j, k, l, m, n, o, p, q, r = N
    return (
        a * j + b * m + c * p, a * k + b * n + c * q, a * l + b * o + c * r,
        d * j + e * m + f * p, d * k + e * n + f * q, d * l + e * o + f * r,
        g * j + h * m + i * p, g * k + h * n + i * q, g * l + h * o + i * r,
    )  # fmt: skip


@inner(forceinline=True)
def _transpose(M):
    a, b, c, d, e, f, g, h, i = M
    return a, d, g, b, e, h, c, f, i


@inner(fastmath={"contract"}, forceinline=True)
def _combine(s, M, t, N, u, O):
    """s M + t N + u O."""
    a, b, c, d, e, f, g, h, i = M
    j, k, l, m, n, o, p, q, r = N
    A, B, C, D, E, F, G, H, I = O
    return (
        s * a + t * j + u * A, s * b + t * k + u * B, s * c + t * l + u * C,
        s * d + t * m + u * D, s * e + t * n + u * E, s * f + t * o + u * F,
        s * g + t * p + u * G, s * h + t * q + u * H, s * i + t * r + u * I,
    )  # fmt: skip


@inner(fastmath={"contract"}, forceinline=True)
def _squares(M):
    a, b, c, d, e, f, g, h, i = M
    return a * a + b * b + c * c + d * d + e * e + f * f + g * g + h * h + i * i


@inner(forceinline=True)
def _get(G, lane):
    g = _GROUP
    return (
        G[lane], G[lane + g], G[lane + 2 * g],
        G[lane + 3 * g], G[lane + 4 * g], G[lane + 5 * g],
        G[lane + 6 * g], G[lane + 7 * g], G[lane + 8 * g],
    )  # fmt: skip


@inner(forceinline=True)
def _put(G, lane, M):
    for entry in range(9):
        G[entry * _GROUP + lane] = M[entry]


# ---- kernels -----------------------------------------------------------------------------------------------


@kernel(nogil=True, error_model="numpy", fastmath={"contract"})
def _elastic_energy(start, stop, nodes, reference, tetrahedra, stiffness, gradient, energy):
    T = len(tetrahedra)
    for block in range(start, stop):
        E, R, each = np.empty(9 * _GROUP), np.empty(9 * _GROUP), np.empty(_GROUP)
        end = min(T, (block + 1) * BLOCK)
        for first in range(block * BLOCK, end, _GROUP):
            count = min(_GROUP, end - first)
            for lane in range(count):
                _put(E, lane, _edges(nodes, tetrahedra[first + lane]))
                _put(R, lane, _edges(reference, tetrahedra[first + lane]))
            _energies(E, R, stiffness, each)
            for lane in range(count):
                energy[block] += each[lane]
                share = gradient[first + lane]
                for d in range(3):
                    at = 3 * d * _GROUP + lane
                    g1, g2, g3 = E[at], E[at + _GROUP], E[at + 2 * _GROUP]
                    share[0, d] -= g1 + g2 + g3
                    share[1, d] += g1
                    share[2, d] += g2
                    share[3, d] += g3


@inner(error_model="numpy", fastmath={"contract"})
def _energies(E, R, stiffness, each):
    """Energies of a group; edges E are overwritten by the gradient in them."""
    for lane in range(_GROUP):
        rest = _det(_get(R, lane))
        D = _inverse(_get(R, lane), rest)
        J = _product(_get(E, lane), D)
        det = _det(J)
        I = _inverse(J, det)
        K = _transpose(I)
        strain = _squares(J) + _squares(I) - 6.0
        weight = stiffness * rest / 6.0
        each[lane] = weight * (1.0 + det) * strain if det > 0.0 and rest > 0.0 else np.inf
        # d det / dJ = det I'; d tr (J'J)^-1 / dJ = -2 I' I I'  (with I = J^-1)
        pull = 2.0 * weight * (1.0 + det)
        slope = _combine(weight * det * strain, K, pull, J, -pull, _product(_product(K, I), K))
        _put(E, lane, _product(slope, _transpose(D)))


@kernel(nogil=True, error_model="numpy", fastmath={"contract"})
def _elastic_energies(start, stop, nodes, reference, tetrahedra, stiffness, out):
    T = len(tetrahedra)
    for block in range(start, stop):
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            edges = _edges(reference, tetrahedra[t])
            rest = _det(edges)
            J = _product(_edges(nodes, tetrahedra[t]), _inverse(edges, rest))
            det = _det(J)
            strain = _squares(J) + _squares(_inverse(J, det)) - 6.0
            fine = det > 0.0 and rest > 0.0
            out[t] = stiffness * rest / 6.0 * (1.0 + det) * strain if fine else np.inf


@kernel(nogil=True, error_model="numpy")
def _elastic_curvature(start, stop, reference, tetrahedra, stiffness, out):
    T = len(tetrahedra)
    for block in range(start, stop):
        g = np.empty((4, 3))
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            edges = _edges(reference, tetrahedra[t])
            rest = _det(edges)
            D = _inverse(edges, rest)
            for d in range(3):
                g[0, d] = -(D[d] + D[3 + d] + D[6 + d])
                for w in range(3):
                    g[w + 1, d] = D[3 * w + d]
            for w in range(4):
                length = g[w, 0] ** 2 + g[w, 1] ** 2 + g[w, 2] ** 2
                for d in range(3):
                    out[t, w, d] = 8.0 * stiffness * rest / 6.0 * (length + g[w, d] ** 2)


@kernel(nogil=True)
def _find_shrunk(start, stop, nodes, step, scale, tetrahedra, fraction, out):
    """Find tetrahedra that keep less than this fraction of their present volume."""
    T = len(tetrahedra)
    for block in range(start, stop):
        moved = np.empty((4, 3))
        own = np.arange(4)
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            corners = tetrahedra[t]
            for w in range(4):
                c = corners[w]
                for d in range(3):
                    moved[w, d] = nodes[c, d] + scale[c] * step[c, d]
            out[t] = not _det(_edges(moved, own)) >= fraction * _det(_edges(nodes, corners))
