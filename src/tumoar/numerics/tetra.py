"""Tetrahedra on a voxel grid: which voxels each one owns, and linear interpolation inside it.

A mesh is `nodes` (V, 3) float64 in voxel coordinates (voxel centers at integers, same axis order as the array) and
`tetrahedra` (T, 4) integer, positively oriented: det [p1-p0, p2-p0, p3-p0] > 0. Kernels visit a tetrahedron row by
row, a row being the voxels (i, j, :) along the last, contiguous axis:

    q = scratch()
    det = setup(q, nodes, tetrahedra[t])              # 6 volumes; nothing below is defined if it is <= 0
    for i in range(*extent(q, 0, X)):
        for j in range(*extent(q, 1, Y)):
            lo, hi = run(q, i, j, Z)                   # the owned voxels k of this row, lo <= k < hi
            for k in range(lo, hi):                    # barycentric coordinate of corner w:
                ...                                    # q.b[w, 0] i + q.b[w, 1] j + q.b[w, 2] k + q.b[w, 3]

Ownership. Every voxel center inside the hull belongs to exactly one tetrahedron, so tetrahedra can be visited in any
order and on any thread. A center x belongs to the tetrahedron that contains x shifted by an infinitesimal
(e1, e2, e3) with 0 < e1 << e2 << e3: no shifted center lies on a face, hence the owner is unique, and the hull is
closed at its lower faces and open at its upper ones. The side of a face on which x lies is the sign of a 3x3
determinant. It is taken from floating point where the rounding error cannot matter, and computed exactly otherwise;
being exact, it is the same seen from both tetrahedra of the face. Two provisions make exactness cheap:

* Nodes are rounded to multiples of 2^-40 voxel, so that differences of coordinates are exact (below 4096 voxels).
* Tetrahedra on a coarse dyadic lattice (multiples of 1/256), where ties abound, have exact floating point anyway.
"""

from __future__ import annotations

from collections import namedtuple

import numba as nb
import numpy as np
import numpy.typing as npt

BLOCK = 256
"""Tetrahedra per parallel unit of work; fixed, so that results do not depend on the number of threads."""

_GRAIN = 2.0**-40
_COARSE = 256.0

Scratch = namedtuple("Scratch", "p n at_zero step slack error b")
Scratch.__doc__ = """Working memory of one tetrahedron, filled by `setup`.

p (4, 3)     corners
n (4, 3)     inward face normals, n[w] opposite to corner w, of length 2 areas
at_zero (4,) n[w] . (x - p0) + at_zero[w] is 6 volumes times the barycentric coordinate w of x
step (4,)    -1 / n[w, 2]
slack (4,)   how near an integer a face may cross a row before the voxel there is looked at closely
error (1,)   bound on the rounding error of the expression in `at_zero`
b (4, 4)     barycentric coordinate w of (i, j, k) is b[w] . (i, j, k, 1)
"""


# ---- geometry of one tetrahedron, for use inside kernels -----------------------------------------------------


@nb.njit(cache=True)
def scratch():
    """Working memory for `setup`; one per thread."""
    return Scratch(
        np.empty((4, 3)),
        np.empty((4, 3)),
        np.zeros(4),
        np.empty(4),
        np.empty(4),
        np.empty(1),
        np.empty((4, 4)),
    )


@nb.njit(cache=True, error_model="numpy")
def setup(q, nodes, corners):
    """Prepare q for the tetrahedron with these four nodes; returns 6 times its signed volume."""
    p, n, b = q.p, q.n, q.b
    size = 1.0
    coarse = True
    for w in range(4):
        for d in range(3):
            x = np.rint(nodes[corners[w], d] * (1.0 / _GRAIN)) * _GRAIN
            p[w, d] = x
            size = max(size, abs(x - p[0, d]))
            coarse = coarse and x * _COARSE == np.rint(x * _COARSE)
    size *= 2.0  # bounds the distance along any axis between corners, and from a corner to a voxel in the box

    ax, ay, az = p[1, 0] - p[0, 0], p[1, 1] - p[0, 1], p[1, 2] - p[0, 2]
    bx, by, bz = p[2, 0] - p[0, 0], p[2, 1] - p[0, 1], p[2, 2] - p[0, 2]
    cx, cy, cz = p[3, 0] - p[0, 0], p[3, 1] - p[0, 1], p[3, 2] - p[0, 2]
    n[1, 0], n[1, 1], n[1, 2] = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
    n[2, 0], n[2, 1], n[2, 2] = cy * az - cz * ay, cz * ax - cx * az, cx * ay - cy * ax
    n[3, 0], n[3, 1], n[3, 2] = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    det = ax * n[1, 0] + ay * n[1, 1] + az * n[1, 2]
    q.at_zero[0] = det
    for d in range(3):
        n[0, d] = -(n[1, d] + n[2, d] + n[3, d])

    # Fewer than 100 roundings of terms that are no larger than size^3.
    error = 1e-14 * size**3
    inverse = 1.0 / det
    for w in range(4):
        q.step[w] = -1.0 / n[w, 2]
        q.slack[w] = error * abs(q.step[w]) + 1e-12
        b[w, 3] = 1.0 if w == 0 else 0.0
        for d in range(3):
            b[w, d] = n[w, d] * inverse
            b[w, 3] -= b[w, d] * p[0, d]
    q.error[0] = 0.0 if coarse and size <= 256.0 else error
    return det


@nb.njit(cache=True)
def extent(q, axis, size):
    """First and one past the last index along an axis that the tetrahedron can reach in a grid of this size."""
    p = q.p
    low = min(min(p[0, axis], p[1, axis]), min(p[2, axis], p[3, axis]))
    high = max(max(p[0, axis], p[1, axis]), max(p[2, axis], p[3, axis]))
    # Clamped as floats: a node far away must not overflow the integer.
    return int(np.ceil(max(low, 0.0))), int(np.floor(min(high, size - 1.0))) + 1


@nb.njit(cache=True, error_model="numpy")
def run(q, i, j, size):
    """Voxels lo <= k < hi of row (i, j) of a grid with `size` voxels along the last axis that the tetrahedron owns."""
    n = q.n
    lo, hi = extent(q, 2, size)
    di = i - q.p[0, 0]
    dj = j - q.p[0, 1]
    z0 = q.p[0, 2]
    for w in range(4):
        # Where the plane of the face crosses the row; nan or inf when it is parallel to it.
        k = (n[w, 0] * di + n[w, 1] * dj + q.at_zero[w]) * q.step[w] + z0
        if abs(k - np.rint(k)) > q.slack[w]:
            if n[w, 2] > 0.0:
                lo = int(np.ceil(min(max(k, lo), hi)))
            else:
                hi = int(np.ceil(max(min(k, hi), lo)))
        else:
            while lo < hi and not _owns(q, w, i, j, lo):
                lo += 1
            while lo < hi and not _owns(q, w, i, j, hi - 1):
                hi -= 1
        if lo >= hi:
            break
    return lo, hi


@nb.njit(cache=True)
def _owns(q, w, i, j, k):
    """Whether the shifted voxel center lies on the inner side of the face opposite to corner w."""
    p, n = q.p, q.n
    s = n[w, 0] * (i - p[0, 0]) + n[w, 1] * (j - p[0, 1]) + n[w, 2] * (k - p[0, 2]) + q.at_zero[w]
    if abs(s) > q.error[0]:
        return s > 0.0
    return _exact_side(p, w, float(i), float(j), float(k)) > 0.0


@nb.njit(cache=True)
def _exact_side(p, w, x, y, z):
    """Sign of the barycentric coordinate w of the point (x, y, z), shifted infinitesimally; exact, never 0.

    With a, b, c the other corners in order it is (-1)^(w+1) det [b-a, c-a, x-a].
    """
    a = 1 if w == 0 else 0
    b = 2 if w <= 1 else 1
    c = 2 if w == 3 else 3
    flip = 1.0 if w % 2 else -1.0
    u0, u1, u2 = p[b, 0] - p[a, 0], p[b, 1] - p[a, 1], p[b, 2] - p[a, 2]
    v0, v1, v2 = p[c, 0] - p[a, 0], p[c, 1] - p[a, 1], p[c, 2] - p[a, 2]
    terms = np.empty(24)
    _triple_product(u1, v2, x - p[a, 0], terms, 0)
    _triple_product(-u2, v1, x - p[a, 0], terms, 4)
    _triple_product(u2, v0, y - p[a, 1], terms, 8)
    _triple_product(-u0, v2, y - p[a, 1], terms, 12)
    _triple_product(u0, v1, z - p[a, 2], terms, 16)
    _triple_product(-u1, v0, z - p[a, 2], terms, 20)
    s = _sign_of_sum(terms)
    if s == 0.0:  # the shift decides: the normal's components, last axis first
        s = _compare_products(u0, v1, u1, v0)
    if s == 0.0:
        s = _compare_products(u2, v0, u0, v2)
    if s == 0.0:
        s = _compare_products(u1, v2, u2, v1)
    return flip * s


# ---- exact arithmetic on doubles (Dekker 1971, Shewchuk 1997); must not be compiled with fastmath ---------------


@nb.njit(cache=True)
def _two_sum(a, b):
    """Sum s and e with a + b = s + e exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@nb.njit(cache=True)
def _two_product(a, b):
    """Product p and e with a b = p + e exactly."""
    p = a * b
    t = 134217729.0 * a
    ah = t - (t - a)
    al = a - ah
    t = 134217729.0 * b
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@nb.njit(cache=True)
def _triple_product(a, b, c, out, at):
    """Write a b c as an exact sum of four doubles."""
    high, low = _two_product(a, b)
    out[at], out[at + 1] = _two_product(high, c)
    out[at + 2], out[at + 3] = _two_product(low, c)


@nb.njit(cache=True)
def _sign_of_sum(terms):
    """Sign of the exact sum; the terms are overwritten by a non-overlapping expansion of it."""
    for m in range(1, len(terms)):
        carry = terms[m]
        for l in range(m):
            carry, terms[l] = _two_sum(carry, terms[l])
        terms[m] = carry
    for m in range(len(terms) - 1, -1, -1):  # the last non-zero component outweighs all before it
        if terms[m] != 0.0:
            return np.sign(terms[m])
    return 0.0


@nb.njit(cache=True)
def _compare_products(a, b, c, d):
    """Sign of a b - c d, exact."""
    p, ep = _two_product(a, b)
    q, eq = _two_product(c, d)
    return np.sign(p - q) if p != q else np.sign(ep - eq)


# ---- whole meshes ------------------------------------------------------------------------------------------------


def volumes(nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """(T,) signed volumes in cubic voxels."""
    p = nodes[tetrahedra]
    return np.linalg.det(p[:, 1:] - p[:, :1]) / 6.0


def owners(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> npt.NDArray[np.int32]:
    """(X, Y, Z) the tetrahedron that owns each voxel, -1 outside the hull."""
    return _owners_and_counts(nodes, tetrahedra, shape)[0]


def voxel_counts(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """(T,) how many voxels of the grid each tetrahedron owns."""
    return _owners_and_counts(nodes, tetrahedra, shape)[1]


def _owners_and_counts(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    out = np.full(shape, -1, np.int32)
    counts = np.zeros(len(tetrahedra), np.int64)
    _require_unfolded(_owners(nodes, tetrahedra, out, counts))
    return out, counts


def rasterize(
    nodes: npt.NDArray[np.float64],
    tetrahedra: npt.NDArray[np.integer],
    alpha: npt.NDArray[np.float32],
    shape: tuple[int, int, int],
    outside: int = 0,
) -> npt.NDArray[np.float32]:
    """(X, Y, Z, K) node values alpha (V, K) interpolated linearly at every voxel center.

    Negative rounding residues are cut to 0. Voxels outside the hull get 1 in column `outside` and 0 elsewhere;
    `owners` tells which they are.
    """
    out = np.empty((*shape, alpha.shape[1]), np.float32)
    covered = np.zeros(shape, np.bool_)
    _require_unfolded(_rasterize(nodes, tetrahedra, alpha, out, covered))
    _fill_outside(out, covered, outside)
    return out


def _require_unfolded(fine: bool) -> None:
    if not fine:
        raise ValueError("tetrahedra must have positive volume, got a folded or flat one")


@nb.njit(parallel=True, cache=True)
def _owners(nodes, tetrahedra, out, counts):
    X, Y, Z = out.shape
    T = len(tetrahedra)
    fine = np.ones((T + BLOCK - 1) // BLOCK, np.bool_)
    for block in nb.prange(len(fine)):
        q = scratch()
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                fine[block] = False
                continue
            for i in range(*extent(q, 0, X)):
                for j in range(*extent(q, 1, Y)):
                    lo, hi = run(q, i, j, Z)
                    counts[t] += hi - lo
                    for k in range(lo, hi):
                        out[i, j, k] = t
    return fine.all()


@nb.njit(parallel=True, cache=True, fastmath={"contract"})
def _rasterize(nodes, tetrahedra, alpha, out, covered):
    X, Y, Z, K = out.shape
    T = len(tetrahedra)
    fine = np.ones((T + BLOCK - 1) // BLOCK, np.bool_)
    for block in nb.prange(len(fine)):
        q = scratch()
        b = q.b
        start = np.empty(K, np.float32)
        slope = np.empty(K, np.float32)
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                fine[block] = False
                continue
            a0, a1, a2, a3 = (
                alpha[tetrahedra[t, 0]],
                alpha[tetrahedra[t, 1]],
                alpha[tetrahedra[t, 2]],
                alpha[tetrahedra[t, 3]],
            )
            g0, g1, g2, g3 = (
                np.float32(b[0, 2]),
                np.float32(b[1, 2]),
                np.float32(b[2, 2]),
                np.float32(b[3, 2]),
            )
            for l in range(K):
                slope[l] = g0 * a0[l] + g1 * a1[l] + g2 * a2[l] + g3 * a3[l]
            for i in range(*extent(q, 0, X)):
                for j in range(*extent(q, 1, Y)):
                    lo, hi = run(q, i, j, Z)
                    if lo >= hi:
                        continue
                    b0 = np.float32(b[0, 0] * i + b[0, 1] * j + b[0, 2] * lo + b[0, 3])
                    b1 = np.float32(b[1, 0] * i + b[1, 1] * j + b[1, 2] * lo + b[1, 3])
                    b2 = np.float32(b[2, 0] * i + b[2, 1] * j + b[2, 2] * lo + b[2, 3])
                    b3 = np.float32(b[3, 0] * i + b[3, 1] * j + b[3, 2] * lo + b[3, 3])
                    for l in range(K):
                        start[l] = b0 * a0[l] + b1 * a1[l] + b2 * a2[l] + b3 * a3[l]
                    for k in range(lo, hi):
                        covered[i, j, k] = True
                        step = np.float32(k - lo)
                        for l in range(K):
                            out[i, j, k, l] = max(start[l] + step * slope[l], np.float32(0.0))
    return fine.all()


@nb.njit(parallel=True, cache=True)
def _fill_outside(out, covered, outside):
    X, Y, Z, K = out.shape
    for i in nb.prange(X):
        for j in range(Y):
            for k in range(Z):
                if not covered[i, j, k]:
                    for l in range(K):
                        out[i, j, k, l] = 0.0
                    out[i, j, k, outside] = 1.0
