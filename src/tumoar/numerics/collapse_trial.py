"""Trial collapses of mesh edges: change in description length of S label maps if two nodes merge.

The length includes the label maps given the mesh, the deformation prior, a Laplace approximation over node
positions, and the evidence of each node's value distribution under a flat Dirichlet over its values. Only
tetrahedra around the edge change, so a trial is local.
"""

from __future__ import annotations

from collections import namedtuple
from math import lgamma

import numpy as np

from tumoar.numerics.jit import inner
from tumoar.numerics.tetra import extent, run, scratch, setup

MAX_STAR = 96
"""Maximum number of tetrahedra around a node; collapses that would exceed it are not tried."""

_SMALL = 1e-12
_FLAGS = {"contract", "nsz", "arcp"}

Mesh = namedtuple("Mesh", "tetrahedra star degree reference positions alpha counts free maps")
Mesh.__doc__ = """A mesh under collapse, updated in place.

tetrahedra (T, 4), star (V, MAX_STAR) tetrahedra of each node, degree (V,) how many, reference (V, 3),
positions (S, V, 3), alpha (V, K), counts (V, K) expected voxels, free (V, 3), maps (S, X, Y, Z).
"""

Rules = namedtuple("Rules", "floor stiffness kappa screen rounds min_volume min_quality")
Rules.__doc__ = """Parameters of a trial.

floor of the likelihood, stiffness of the prior, Dirichlet kappa of node values, screen: nats above which a
collapse is rejected without refitting, rounds of refitting, minimum 6-fold volume (voxels) and quality.
"""

Trial = namedtuple(
    "Trial",
    "star corner counted reference position alpha counts gradient data rigid "
    "q q_rest p p_rest A four J inverse",
)
Trial.__doc__ = """The merged node of a trial (reference, position, alpha, counts), and working memory."""


@inner()
def workspace(S, K):
    """Memory for `attempt`; one per thread."""
    n = 2 * MAX_STAR
    return Trial(
        np.empty((n, 4), np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.bool_),
        np.empty(3),
        np.empty((S, 3)),
        np.empty(K),
        np.empty(K),
        np.empty(3),
        np.empty((3, 3)),
        np.empty((3, 3)),
        scratch(),
        scratch(),
        np.empty((4, 3)),
        np.empty((4, 3)),
        np.empty((K, 4)),
        np.arange(4),
        np.empty((3, 3)),
        np.empty((3, 3)),
    )


@inner(error_model="numpy", fastmath=_FLAGS)
def _evaluate(mesh, rules, w, n, s, reference, position, alpha, strict, derivatives):
    """Cost of head s over the first n tetrahedra of w.star with corner w.corner replaced; inf if invalid.

    `strict` rejects tetrahedra too small or too flat. With `derivatives` also fills w.gradient, w.data and
    w.rigid (curvature of data and of prior at rest) with respect to the replaced node, and adds its
    expected voxels to w.counts.
    """
    q, b, p, p_rest, A = w.q, w.q[:4], w.p, w.p_rest, w.A
    X, Y, Z = mesh.maps[s].shape
    K = len(alpha)
    share, rest = 1.0 - rules.floor, rules.floor / K
    cost = 0.0
    if derivatives:
        w.gradient[:] = 0.0
        w.data[:] = 0.0
        w.rigid[:] = 0.0
    for it in range(n):
        r = w.corner[it]
        for v in range(4):
            node = w.star[it, v]
            for d in range(3):
                p[v, d] = position[d] if v == r else mesh.positions[s, node, d]
                p_rest[v, d] = reference[d] if v == r else mesh.reference[node, d]
            for l in range(K):
                A[l, v] = share * (alpha[l] if v == r else mesh.alpha[node, l]) + rest
        det = setup(q, p, w.four)
        det_rest = setup(w.q_rest, p_rest, w.four)
        if not (det > 0.0 and det_rest > 0.0):
            return np.inf
        if strict and (
            min(det, det_rest) < rules.min_volume or _quality(p_rest, det_rest) < rules.min_quality
        ):
            return np.inf
        local = _prior(w, r, det, det_rest, rules.stiffness, derivatives)
        product = 1.0
        for i in range(*extent(q, 0, X)):
            for j in range(*extent(q, 1, Y)):
                lo, hi = run(q, i, j, Z)
                for k in range(lo, hi):
                    l = mesh.maps[s, i, j, k]
                    f0, f1, f2, f3 = A[l, 0], A[l, 1], A[l, 2], A[l, 3]
                    L = (
                        (b[0, 0] * i + b[0, 1] * j + b[0, 2] * k + b[0, 3]) * f0
                        + (b[1, 0] * i + b[1, 1] * j + b[1, 2] * k + b[1, 3]) * f1
                        + (b[2, 0] * i + b[2, 1] * j + b[2, 2] * k + b[2, 3]) * f2
                        + (b[3, 0] * i + b[3, 1] * j + b[3, 2] * k + b[3, 3]) * f3
                    )
                    L = max(L, _SMALL)
                    product *= L
                    if product < 1e-200:
                        local -= np.log(product)
                        product = 1.0
                    if derivatives:
                        m = (b[r, 0] * i + b[r, 1] * j + b[r, 2] * k + b[r, 3]) / L
                        w.counts[l] += m * share * alpha[l]
                        if f0 == f1 and f0 == f2 and f0 == f3:
                            continue
                        gx = m * (f0 * b[0, 0] + f1 * b[1, 0] + f2 * b[2, 0] + f3 * b[3, 0])
                        gy = m * (f0 * b[0, 1] + f1 * b[1, 1] + f2 * b[2, 1] + f3 * b[3, 1])
                        gz = m * (f0 * b[0, 2] + f1 * b[1, 2] + f2 * b[2, 2] + f3 * b[3, 2])
                        w.gradient[0] += gx
                        w.gradient[1] += gy
                        w.gradient[2] += gz
                        w.data[0, 0] += gx * gx
                        w.data[1, 1] += gy * gy
                        w.data[2, 2] += gz * gz
                        w.data[0, 1] += gx * gy
                        w.data[0, 2] += gx * gz
                        w.data[1, 2] += gy * gz
        local -= np.log(product)
        if w.counted[it]:
            cost += local
    w.data[1, 0], w.data[2, 0], w.data[2, 1] = w.data[0, 1], w.data[0, 2], w.data[1, 2]
    return cost


@inner(error_model="numpy", fastmath=_FLAGS)
def _prior(w, r, det, det_rest, stiffness, derivatives):
    """Prior of one tetrahedron, K V (1 + |J|) (tr J'J + tr (J'J)^-1 - 6); its derivatives for corner r."""
    J, inverse = w.J, w.inverse
    energy = -6.0
    for a in range(3):
        for c in range(3):
            u = 0.0
            t = 0.0
            for v in range(4):
                u += w.p[v, a] * w.q_rest[v, c]
                t += w.p_rest[v, a] * w.q[v, c]
            J[a, c] = u
            inverse[a, c] = t
            energy += u * u + t * t
    ratio = det / det_rest
    scale = stiffness * det_rest / 6.0
    if derivatives:
        g = w.q_rest[r]
        square = g[0] * g[0] + g[1] * g[1] + g[2] * g[2]
        for a in range(3):
            slope = 0.0
            for c in range(3):
                back = 0.0
                for m in range(3):
                    S = (
                        inverse[m, 0] * inverse[c, 0]
                        + inverse[m, 1] * inverse[c, 1]
                        + inverse[m, 2] * inverse[c, 2]
                    )
                    back += inverse[m, a] * S
                slope += (ratio * inverse[c, a] * energy + 2.0 * (1.0 + ratio) * (J[a, c] - back)) * g[c]
                w.rigid[a, c] += 8.0 * scale * g[a] * g[c]
            w.gradient[a] += scale * slope
            w.rigid[a, a] += 8.0 * scale * square
    return scale * (1.0 + ratio) * energy


@inner()
def _quality(p, det):
    """1 for a regular tetrahedron, 0 for a flat one."""
    square = 0.0
    for v in range(4):
        for u in range(v):
            for d in range(3):
                square += (p[v, d] - p[u, d]) ** 2
    return np.sqrt(2.0) * det / (square / 6.0) ** 1.5


@inner()
def _evidence(counts):
    """Cost of a node's values beyond their likelihood: flat Dirichlet, and which values are present."""
    total = 0.0
    present = 0
    for c in counts:
        if c > 0.5:
            total += c
            present += 1
    if present == 0:
        return 0.0
    K = len(counts)
    cost = lgamma(total + present) - lgamma(float(present))
    cost += lgamma(K + 1.0) - lgamma(present + 1.0) - lgamma(K - present + 1.0)
    for c in counts:
        if c > 0.5:
            cost += c * np.log(c / total) - lgamma(c + 1.0)
    return cost


@inner()
def _det(M):
    return (
        M[0, 0] * (M[1, 1] * M[2, 2] - M[1, 2] * M[2, 1])
        - M[0, 1] * (M[1, 0] * M[2, 2] - M[1, 2] * M[2, 0])
        + M[0, 2] * (M[1, 0] * M[2, 1] - M[1, 1] * M[2, 0])
    )


@inner()
def _occam(w):
    """Occam factor: half the log ratio of posterior to prior precision of a node's position."""
    before = _det(w.rigid)
    after = _det(w.rigid + w.data)
    return 0.5 * np.log(after / before) if before > 0.0 and after > before else 0.0


@inner()
def _gather(mesh, w, node, without, n, skip):
    """Append the tetrahedra of a node to w.star from n on; those with `without` uncounted or skipped."""
    for i in range(mesh.degree[node]):
        t = mesh.star[node, i]
        shared = False
        for v in range(4):
            shared |= mesh.tetrahedra[t, v] == without
        if shared and skip:
            continue
        for v in range(4):
            w.star[n, v] = mesh.tetrahedra[t, v]
            if mesh.tetrahedra[t, v] == node:
                w.corner[n] = v
        w.counted[n] = not shared
        n += 1
    return n


@inner()
def _distribution(counts, kappa, out):
    total = counts.sum() + kappa * len(counts)
    for l in range(len(counts)):
        out[l] = (counts[l] + kappa) / total


@inner()
def _step(mesh, rules, w, n, s, fixed, cost):
    """One guarded Gauss-Newton step of the merged node in head s, from w.gradient, w.data and w.rigid."""
    M = w.rigid + w.data
    g = w.gradient.copy()
    for d in range(3):
        if fixed[d]:
            M[d, :] = 0.0
            M[:, d] = 0.0
            M[d, d] = 1.0
            g[d] = 0.0
    if _det(M) <= 0.0:
        return
    u = np.linalg.solve(M, g)
    x = np.empty(3)
    length = 1.0
    for _ in range(3):
        for d in range(3):
            x[d] = w.position[s, d] - length * u[d]
        if _evaluate(mesh, rules, w, n, s, w.reference, x, w.alpha, True, False) < cost:
            for d in range(3):
                w.position[s, d] = x[d]
            return
        length *= 0.35


@inner()
def attempt(mesh, rules, w, a, b):
    """Change in description length if nodes a and b merge, inf if invalid; writes the merged node to w."""
    S = len(mesh.positions)
    # Nodes on a face of the box stay there: if only one is fixed, the merged node takes its coordinates.
    a_keeps = b_keeps = True
    fixed = np.empty(3, np.bool_)
    for d in range(3):
        fixed[d] = not (mesh.free[a, d] and mesh.free[b, d])
        if mesh.free[a, d] and not mesh.free[b, d]:
            a_keeps = False
        if mesh.free[b, d] and not mesh.free[a, d]:
            b_keeps = False
    if not (a_keeps or b_keeps):
        return np.inf

    n = _gather(mesh, w, b, a, _gather(mesh, w, a, b, 0, True), True)
    if n > MAX_STAR:
        return np.inf
    w.counted[:n] = True
    best, weight = np.inf, -1.0
    merged = mesh.counts[a] + mesh.counts[b]
    _distribution(merged, rules.kappa, w.alpha)
    reference, position = np.empty(3), np.empty(3)
    for c in (0.5, 0.0, 1.0):
        if (c < 1.0 and not a_keeps) or (c > 0.0 and not b_keeps):
            continue
        for d in range(3):
            reference[d] = (1.0 - c) * mesh.reference[a, d] + c * mesh.reference[b, d]
        total = 0.0
        for s in range(S):
            for d in range(3):
                position[d] = (1.0 - c) * mesh.positions[s, a, d] + c * mesh.positions[s, b, d]
            total += _evaluate(mesh, rules, w, n, s, reference, position, w.alpha, True, False)
            if total > best:
                break
        if total < best:
            best, weight = total, c
    if weight < 0.0 or not _fills(mesh, w, n, a, b, weight):
        return np.inf

    before = _before(mesh, rules, w, a, b)
    if best - before > rules.screen:
        return np.inf

    n = _gather(mesh, w, b, a, _gather(mesh, w, a, b, 0, True), True)
    w.counted[:n] = True
    _distribution(merged, rules.kappa, w.alpha)
    for d in range(3):
        w.reference[d] = (1.0 - weight) * mesh.reference[a, d] + weight * mesh.reference[b, d]
        for s in range(S):
            w.position[s, d] = (1.0 - weight) * mesh.positions[s, a, d] + weight * mesh.positions[s, b, d]
    after = np.inf
    for it in range(rules.rounds + 1):
        w.counts[:] = 0.0
        after = 0.0
        for s in range(S):
            cost = _evaluate(mesh, rules, w, n, s, w.reference, w.position[s], w.alpha, True, True)
            after += cost + _occam(w)
            if it < rules.rounds:
                _step(mesh, rules, w, n, s, fixed, cost)
        if it < rules.rounds:
            _distribution(w.counts, rules.kappa, w.alpha)
    return after + _evidence(w.counts) - before


@inner()
def _fills(mesh, w, n, a, b, weight):
    """Whether the tetrahedra around the merged node fill the previous volume without overlap or gap."""
    q, p = w.q_rest, w.p_rest
    new = 0.0
    for it in range(n):
        for v in range(4):
            for d in range(3):
                p[v, d] = mesh.reference[w.star[it, v], d]
                if v == w.corner[it]:
                    p[v, d] = (1.0 - weight) * mesh.reference[a, d] + weight * mesh.reference[b, d]
        new += setup(q, p, w.four)
    old = 0.0
    for i in range(mesh.degree[a]):
        old += setup(q, mesh.reference, mesh.tetrahedra[mesh.star[a, i]])
    for it in range(n):
        if w.star[it, w.corner[it]] == b:
            old += setup(q, mesh.reference, w.star[it])
    return abs(new - old) <= 1e-9 * old


@inner()
def _before(mesh, rules, w, a, b):
    """Description length around an edge before the collapse."""
    total = 0.0
    for first in (True, False):
        node, other = (a, b) if first else (b, a)
        n = _gather(mesh, w, node, other, 0, False)
        if first:
            w.counted[:n] = True
        w.counts[:] = 0.0
        for s in range(len(mesh.positions)):
            total += _evaluate(
                mesh,
                rules,
                w,
                n,
                s,
                mesh.reference[node],
                mesh.positions[s, node],
                mesh.alpha[node],
                False,
                True,
            )
            total += _occam(w)
        total += _evidence(w.counts)
    return total
