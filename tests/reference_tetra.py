"""Slow, obvious versions of the tetrahedron kernels, and meshes to try them on."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from scipy.spatial import Delaunay

# ---- meshes ------------------------------------------------------------------------------------------------


def oriented(nodes, tetrahedra):
    """The mesh with every tetrahedron positive; flat ones are dropped."""
    nodes = np.asarray(nodes, np.float64)
    tetrahedra = np.array(tetrahedra, np.int32)
    det = np.linalg.det(nodes[tetrahedra[:, 1:]] - nodes[tetrahedra[:, :1]])
    tetrahedra[det < 0] = tetrahedra[det < 0][:, [0, 2, 1, 3]]
    return nodes, tetrahedra[np.abs(det) > 1e-9]


def lattice(cells, spacing=1.0, origin=0.0):
    """Corner positions of a box of cells, and their indices as a 3-D array."""
    axes = [np.arange(n + 1.0) for n in cells]
    corner = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    index = np.arange(corner[..., 0].size).reshape(corner.shape[:3])
    return corner.reshape(-1, 3) * spacing + origin, index


def kuhn(cells, spacing=1.0, origin=0.0):
    """Each cube cut into six tetrahedra along its diagonal: one per order of the axes."""
    nodes, index = lattice(cells, spacing, origin)
    tetrahedra = []
    for cube in product(*map(range, cells)):
        for order in permutations(range(3)):
            corner = list(cube)
            path = [index[tuple(corner)]]
            for axis in order:
                corner[axis] += 1
                path.append(index[tuple(corner)])
            tetrahedra.append(path)
    return oriented(nodes, tetrahedra)


def five(cells, spacing=1.0, origin=0.0):
    """Each cube cut into five tetrahedra, alternating so that faces match."""
    nodes, index = lattice(cells, spacing, origin)
    parts = ["000 100 010 001", "110 100 010 111", "101 100 001 111", "011 010 001 111", "100 010 001 111"]
    tetrahedra = []
    for cube in product(*map(range, cells)):
        odd = sum(cube) % 2
        for part in parts:
            corners = [np.array([int(c) for c in word]) for word in part.split()]
            corners = [np.array([1 - c[0], c[1], c[2]]) if odd else c for c in corners]
            tetrahedra.append([index[tuple(cube + c)] for c in corners])
    return oriented(nodes, tetrahedra)


def body_centered(cells, spacing=1.0, origin=0.0):
    """Cube corners and centers; four tetrahedra around each inner face, two under each outer one."""
    nodes, index = lattice(cells, spacing, origin)
    centers = np.stack(np.meshgrid(*[np.arange(n) + 0.5 for n in cells], indexing="ij"), -1)
    center = np.arange(centers[..., 0].size).reshape(centers.shape[:3]) + len(nodes)
    tetrahedra = []
    for axis in range(3):
        one, two = (np.eye(3, dtype=int)[a] for a in range(3) if a != axis)
        step = np.eye(3, dtype=int)[axis]
        sizes = [n + (a == axis) for a, n in enumerate(cells)]
        for face in product(*map(range, sizes)):
            ring = [index[tuple(face + d)] for d in (0 * one, one, one + two, two)]
            below = center[tuple(face - step)] if face[axis] > 0 else None
            above = center[tuple(face)] if face[axis] < cells[axis] else None
            if below is None or above is None:
                tip = above if below is None else below
                cut = (ring[:3], [ring[0], *ring[2:]]) if sum(face) % 2 else (ring[1:], [ring[3], *ring[:2]])
                tetrahedra += [[tip, *triangle] for triangle in cut]
            else:
                tetrahedra += [[below, above, ring[m], ring[(m + 1) % 4]] for m in range(4)]
    nodes = np.concatenate([nodes, centers.reshape(-1, 3) * spacing + origin])
    return oriented(nodes, tetrahedra)


def random_delaunay(n, size, rng):
    """Delaunay mesh of random points and the corners of a box a little larger than the grid."""
    corners = np.array(list(product((-1.3, size + 0.7), repeat=3)))
    points = np.concatenate([corners, rng.uniform(-0.9, size, (n, 3))])
    return oriented(points, Delaunay(points).simplices)


def jittered(nodes, tetrahedra, amount, rng):
    """Inner nodes moved at random by up to `amount`; the hull stays."""
    inner = ((nodes > nodes.min(0)) & (nodes < nodes.max(0))).all(1)
    return nodes + inner[:, None] * rng.uniform(-amount, amount, nodes.shape), tetrahedra


def tied_meshes():
    """Meshes whose nodes, edges and faces run through voxel centers, and near misses of that."""
    rng = np.random.default_rng(1)
    cells = (2, 2, 3)
    for name, make in (("kuhn", kuhn), ("five", five), ("body-centered", body_centered)):
        yield f"{name}-integer", make(cells, 2.0)
        yield f"{name}-half", make(cells, 2.5, -0.5)
        yield f"{name}-thirds", make(cells, 7 / 3, -1 / 3)
        yield f"{name}-tenths", make(cells, 2.2, -0.1)
        yield f"{name}-jittered", jittered(*make(cells, 2.0), 0.3, rng)
        yield f"{name}-hair", jittered(*make(cells, 2.0), 1e-13, rng)
    yield "delaunay", random_delaunay(25, 6, rng)
    nodes, tetrahedra = random_delaunay(25, 6, rng)
    yield "delaunay-rounded", oriented(np.rint(nodes * 8) / 8, tetrahedra)


# ---- ownership in exact integer arithmetic -----------------------------------------------------------------

GRAIN = 2**40
"""Nodes are multiples of 1 / GRAIN voxel, so integers count in it."""


def _cross(u, v):
    return u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]


def exact_owners(nodes, tetrahedra, shape):
    """(X, Y, Z) lists of all tetrahedra that contain the center shifted by (e^3, e^2, e), e infinitesimal."""
    points = [[round(x * GRAIN) for x in node] for node in nodes.tolist()]
    found = np.empty(shape, object)
    for x in np.ndindex(shape):
        found[x] = []
    for t, corners in enumerate(tetrahedra):
        p = [points[c] for c in corners]
        faces = []
        for w in range(4):
            a, b, c = (p[v] for v in range(4) if v != w)
            normal = _cross([b[d] - a[d] for d in range(3)], [c[d] - a[d] for d in range(3)])
            faces.append((a, [n if w % 2 else -n for n in normal]))
        ranges = [
            range(max(0, min(c[d] for c in p) // GRAIN), min(shape[d], max(c[d] for c in p) // GRAIN + 1))
            for d in range(3)
        ]
        for x in product(*ranges):
            for a, n in faces:
                side = sum(n[d] * (x[d] * GRAIN - a[d]) for d in range(3))
                if not next((s for s in (side, n[2], n[1], n[0]) if s != 0), 0) > 0:
                    break
            else:
                found[x].append(t)
    return found


# ---- interpolation and the data term, one voxel at a time --------------------------------------------------


def barycentric(corners, x):
    """The four weights of x in the tetrahedron with these corners (4, 3)."""
    return np.linalg.solve(np.vstack([corners.T, np.ones(4)]), np.append(x, 1.0))


def interpolate(nodes, tetrahedra, values, owner):
    """(X, Y, Z, K) values (V, K) at every owned voxel; nan elsewhere."""
    out = np.full((*owner.shape, values.shape[1]), np.nan)
    for x in zip(*np.nonzero(owner >= 0)):
        corners = tetrahedra[owner[x]]
        out[x] = barycentric(nodes[corners], np.array(x)) @ values[corners]
    return out


def data_cost(nodes, tetrahedra, alpha, L):
    """-sum log sum_c L(c) pi(c) over owned voxels whose row of L is not all zero."""
    owner = np.array([v[0] if v else -1 for v in exact_owners(nodes, tetrahedra, L.shape[:3]).ravel()])
    pi = interpolate(nodes, tetrahedra, alpha.astype(float), owner.reshape(L.shape[:3]))
    seen = ~np.isnan(pi[..., 0]) & (L != 0).any(-1)
    with np.errstate(divide="ignore"):
        return -np.log(np.sum(np.maximum(pi, 0) * L, -1)[seen]).sum()


# ---- the elastic energy, one tetrahedron at a time ---------------------------------------------------------


def elastic_energy(nodes, reference, tetrahedra, stiffness):
    """Sum over tetrahedra of stiffness V (1 + det J) (tr J'J + tr (J'J)^-1 - 6)."""
    total = 0.0
    for corners in tetrahedra:
        E = (nodes[corners[1:]] - nodes[corners[0]]).T
        R = (reference[corners[1:]] - reference[corners[0]]).T
        J = E @ np.linalg.inv(R)
        if np.linalg.det(J) <= 0:
            return np.inf
        C = J.T @ J
        strain = np.trace(C) + np.trace(np.linalg.inv(C)) - 6
        total += stiffness * np.linalg.det(R) / 6 * (1 + np.linalg.det(J)) * strain
    return total


def central_difference(f, x, direction, h):
    """Directional derivative of f at x, fourth order in h."""
    one = f(x + h * direction) - f(x - h * direction)
    two = f(x + 2 * h * direction) - f(x - 2 * h * direction)
    return (8 * one - two) / (12 * h)
