"""Edge collapses of a mesh: edges with disjoint neighborhoods are tried in parallel.

Batches depend only on the order of edges, so results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.collapse_trial import MAX_STAR, Mesh, Rules, attempt, workspace
from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.threads import run_blocks

BATCH = 256
"""Maximum number of edges per batch."""


def new_mesh(
    tetrahedra: npt.NDArray[np.int32],
    reference: npt.NDArray[np.float64],
    positions: npt.NDArray[np.float64],
    alpha: npt.NDArray[np.float32],
    counts: npt.NDArray[np.float64],
    free: npt.NDArray[np.bool_],
    maps: npt.NDArray[np.uint8],
) -> Mesh:
    """Create a mesh to collapse from copies of these arrays (label maps are shared)."""
    order = np.argsort(tetrahedra, axis=None, kind="stable")
    nodes = tetrahedra.ravel()[order]
    degree = np.bincount(nodes, minlength=len(reference))
    if degree.max() > MAX_STAR:
        raise ValueError(f"a node may have at most {MAX_STAR} tetrahedra, got {degree.max()}")
    star = np.zeros((len(reference), MAX_STAR), np.int64)
    star[nodes, np.arange(len(nodes)) - np.repeat(np.cumsum(degree) - degree, degree)] = order // 4
    return Mesh(
        tetrahedra.astype(np.int64),
        star,
        degree,
        reference.copy(),
        positions.copy(),
        alpha.astype(np.float64),
        counts.copy(),
        free.copy(),
        maps,
    )


def collapse_edges(mesh: Mesh, edges: npt.NDArray[np.int64], rules: Rules) -> npt.NDArray[np.bool_]:
    """Try edges (E, 2) in order and collapse, in place, those that reduce the description length.

    Returns (V,) mask of remaining nodes; removed tetrahedra are -1.
    """
    S, V, K = len(mesh.positions), len(mesh.reference), mesh.alpha.shape[1]
    alive = np.ones(V, np.bool_)
    merged = (np.empty((BATCH, 3)), np.empty((BATCH, S, 3)), np.empty((BATCH, K)), np.empty((BATCH, K)))
    pending = edges.astype(np.int64)
    mark = np.zeros(V, np.int64)
    turn = 0
    while len(pending):
        turn += 1
        batch, deferred, seen = _select(mesh, pending, alive, mark, turn)
        change = np.empty(len(batch))
        run_blocks(_attempt, len(batch), mesh, rules, batch, change, *merged)
        _apply(mesh, batch, change, alive, *merged)
        pending = np.concatenate([deferred, pending[seen:]])
    return alive


@kernel()
def _select(mesh, pending, alive, mark, turn):
    """Next batch of edges with disjoint neighborhoods, deferred edges, and number of edges examined."""
    batch = np.empty((BATCH, 2), np.int64)
    deferred = np.empty((4 * BATCH, 2), np.int64)
    taken = passed = seen = 0
    while seen < len(pending) and taken < BATCH and passed < len(deferred):
        a, b = pending[seen, 0], pending[seen, 1]
        seen += 1
        if not (alive[a] and alive[b] and _are_joined(mesh, a, b)):
            continue
        if _touches(mesh, a, mark, turn) or _touches(mesh, b, mark, turn):
            deferred[passed, 0], deferred[passed, 1] = a, b
            passed += 1
            continue
        _mark(mesh, a, mark, turn)
        _mark(mesh, b, mark, turn)
        batch[taken, 0], batch[taken, 1] = a, b
        taken += 1
    return batch[:taken], deferred[:passed], seen


@inner()
def _are_joined(mesh, a, b):
    for i in range(mesh.degree[a]):
        for v in range(4):
            if mesh.tetrahedra[mesh.star[a, i], v] == b:
                return True
    return False


@inner()
def _touches(mesh, node, mark, turn):
    for i in range(mesh.degree[node]):
        for v in range(4):
            if mark[mesh.tetrahedra[mesh.star[node, i], v]] == turn:
                return True
    return False


@inner()
def _mark(mesh, node, mark, turn):
    for i in range(mesh.degree[node]):
        for v in range(4):
            mark[mesh.tetrahedra[mesh.star[node, i], v]] = turn


@kernel(nogil=True)
def _attempt(first, last, mesh, rules, batch, change, reference, position, alpha, counts):
    S, K = len(mesh.positions), mesh.alpha.shape[1]
    for e in range(first, last):
        w = workspace(S, K)
        change[e] = attempt(mesh, rules, w, batch[e, 0], batch[e, 1])
        _copy(w.reference, reference[e])
        for s in range(S):
            _copy(w.position[s], position[e, s])
        _copy(w.alpha, alpha[e])
        _copy(w.counts, counts[e])


@inner()
def _copy(values, out):
    """Copy a row; the error message of an assignment brings in numba's strings."""
    for i in range(len(out)):
        out[i] = values[i]


@kernel()
def _apply(mesh, batch, change, alive, reference, position, alpha, counts):
    """Merge the second node of each successful edge into the first."""
    for e in range(len(batch)):
        if not change[e] < 0.0:
            continue
        a, b = batch[e, 0], batch[e, 1]
        _copy(reference[e], mesh.reference[a])
        _copy(alpha[e], mesh.alpha[a])
        _copy(counts[e], mesh.counts[a])
        for s in range(len(mesh.positions)):
            _copy(position[e, s], mesh.positions[s, a])
        for d in range(3):
            mesh.free[a, d] = mesh.free[a, d] and mesh.free[b, d]
        alive[b] = False
        kept = 0
        for i in range(mesh.degree[a]):
            t = mesh.star[a, i]
            if _has_corner(mesh.tetrahedra[t], b):
                for v in range(4):
                    if mesh.tetrahedra[t, v] != a and mesh.tetrahedra[t, v] != b:
                        _remove(mesh, mesh.tetrahedra[t, v], t)
            else:
                mesh.star[a, kept] = t
                kept += 1
        for i in range(mesh.degree[b]):
            t = mesh.star[b, i]
            if _has_corner(mesh.tetrahedra[t], a):
                mesh.tetrahedra[t, :] = -1
                continue
            for v in range(4):
                if mesh.tetrahedra[t, v] == b:
                    mesh.tetrahedra[t, v] = a
            mesh.star[a, kept] = t
            kept += 1
        mesh.degree[a] = kept
        mesh.degree[b] = 0


@inner()
def _has_corner(corners, node):
    return corners[0] == node or corners[1] == node or corners[2] == node or corners[3] == node


@inner()
def _remove(mesh, node, t):
    last = mesh.degree[node] - 1
    for i in range(mesh.degree[node]):
        if mesh.star[node, i] == t:
            mesh.star[node, i] = mesh.star[node, last]
            mesh.degree[node] = last
            return
