"""Tetrahedra on a voxel grid: the voxels that each tetrahedron owns.

A mesh is `nodes` (V, 3) float64 in voxel coordinates (voxel centers at integers, axes as in the array) and
`tetrahedra` (T, 4) integer, positively oriented: det [p1-p0, p2-p0, p3-p0] > 0. Kernels visit a tetrahedron
row by row, a row being the voxels (i, j, :) along the last, contiguous axis:

    q = scratch()                                      # once per thread
    det = setup(q, nodes, tetrahedra[t])               # 6 volumes; must be > 0 for the following
    for i in range(*extent(q, 0, X)):
        for j in range(*rows(q, i, Y)):
            lo, hi = run(q, i, j, Z)                   # the owned voxels of this row: lo <= k < hi
            for k in range(lo, hi):
                ...                                    # barycentric coordinate w is q[w] . (i, j, k, 1)

Ownership. Every voxel center inside the hull belongs to exactly one tetrahedron, so tetrahedra can be
visited in any order and on any thread. A center x belongs to the tetrahedron that contains x shifted by an
infinitesimal (e1, e2, e3) with 0 < e1 << e2 << e3: no shifted center lies on a face, hence the owner is
unique, and the hull is closed at its lower faces and open at its upper ones. The side of a face on which x
lies is the sign of a 3x3 determinant. It is computed in floating point where rounding cannot change it, and
exactly otherwise, so that both tetrahedra of a face agree. Two provisions make exactness cheap:

* Nodes are rounded to multiples of 2^-40 voxel: differences of coordinates are exact (below 4096 voxels).
* On a coarse dyadic lattice (multiples of 1/256), where ties are common, floating point is already exact.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tumoar.numerics.exact import compare_products, sign_of_det
from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.threads import run_blocks

BLOCK = 256
"""Tetrahedra per parallel unit of work; fixed, so that results do not depend on the number of threads."""

PLAIN: tuple[Literal["C_CONTIGUOUS", "WRITEABLE"], ...] = ("C_CONTIGUOUS", "WRITEABLE")
"""Requirements of kernels on arrays, so that they are compiled once."""

GRAIN = 2.0**-40
"""Nodes are rounded to multiples of this."""
_COARSE = 2.0**-8

# Rows of the scratch array q after the first four; columns are the corners w, or the faces opposite to them.
_NORMAL = 4  # three rows: inward normal n of the face, twice its area long
_OFFSET = 7  # n . (x - p0) + offset is 6 volumes times the barycentric coordinate w of x
_STEP = 8  # -1 / n[2]
_ENTER = 9  # 0 where a row enters through the face, -inf where it leaves
_LEAVE = 10  # 0 where a row leaves through the face, +inf where it enters
_CORNER = 11  # three rows: positions of the corners
_ROUNDING = (
    14  # bounds: of n . (x - p0) + offset; of where a face crosses a row; of where an edge crosses a slice
)
_SLOPE = 15  # two rows: change of the second coordinate with the first along the edges 01 02 03 12 13 23


# ---- geometry of one tetrahedron, for use inside kernels ---------------------------------------------------


@inner()
def scratch():
    """Working memory for one tetrahedron; after `setup`, rows q[:4] are the barycentric coefficients."""
    return np.empty((17, 4))


@inner(error_model="numpy", fastmath={"contract"})
def setup(q, nodes, corners):
    """Prepare q for the tetrahedron with these four nodes; returns 6 times its signed volume."""
    size = 1.0
    coarse = True
    for w in range(4):
        for d in range(3):
            x = np.rint(nodes[corners[w], d] * (1.0 / GRAIN)) * GRAIN
            q[_CORNER + d, w] = x
            size = max(size, abs(x - q[_CORNER + d, 0]))
            coarse = coarse and x * (1.0 / _COARSE) == np.rint(x * (1.0 / _COARSE))
    size *= (
        2.0  # bounds all differences between corners, and between a corner and a voxel in the box around them
    )

    x, y, z = q[_CORNER, 0], q[_CORNER + 1, 0], q[_CORNER + 2, 0]
    ax, ay, az = q[_CORNER, 1] - x, q[_CORNER + 1, 1] - y, q[_CORNER + 2, 1] - z
    bx, by, bz = q[_CORNER, 2] - x, q[_CORNER + 1, 2] - y, q[_CORNER + 2, 2] - z
    cx, cy, cz = q[_CORNER, 3] - x, q[_CORNER + 1, 3] - y, q[_CORNER + 2, 3] - z
    q[_NORMAL, 1], q[_NORMAL + 1, 1], q[_NORMAL + 2, 1] = (
        by * cz - bz * cy,
        bz * cx - bx * cz,
        bx * cy - by * cx,
    )
    q[_NORMAL, 2], q[_NORMAL + 1, 2], q[_NORMAL + 2, 2] = (
        cy * az - cz * ay,
        cz * ax - cx * az,
        cx * ay - cy * ax,
    )
    q[_NORMAL, 3], q[_NORMAL + 1, 3], q[_NORMAL + 2, 3] = (
        ay * bz - az * by,
        az * bx - ax * bz,
        ax * by - ay * bx,
    )
    for d in range(3):
        q[_NORMAL + d, 0] = -(q[_NORMAL + d, 1] + q[_NORMAL + d, 2] + q[_NORMAL + d, 3])
    det = ax * q[_NORMAL, 1] + ay * q[_NORMAL + 1, 1] + az * q[_NORMAL + 2, 1]

    steepest = 0.0
    inverse = 1.0 / det
    for w in range(4):
        enters = q[_NORMAL + 2, w] > 0.0
        q[_OFFSET, w] = det if w == 0 else 0.0
        q[_STEP, w] = -1.0 / q[_NORMAL + 2, w]
        q[_ENTER, w] = 0.0 if enters else -np.inf
        q[_LEAVE, w] = np.inf if enters else 0.0
        steepest = max(steepest, abs(q[_STEP, w]))
        for d in range(3):
            q[w, d] = q[_NORMAL + d, w] * inverse
        q[w, 3] = (1.0 if w == 0 else 0.0) - (q[w, 0] * x + q[w, 1] * y + q[w, 2] * z)
    # Fewer than 100 roundings of terms no larger than size^3; and those of a coordinate below 4096.
    rounding = 1e-14 * size**3
    q[_ROUNDING, 0] = 0.0 if coarse and size <= 256.0 else rounding
    q[_ROUNDING, 1] = 2.0 * (rounding * steepest + 1e-12)
    q[_ROUNDING, 2] = 1e-9 * size
    q[_SLOPE, 0], q[_SLOPE, 1], q[_SLOPE, 2] = ay / ax, by / bx, cy / cx
    q[_SLOPE, 3] = (by - ay) / (bx - ax)
    q[_SLOPE + 1, 0], q[_SLOPE + 1, 1] = (cy - ay) / (cx - ax), (cy - by) / (cx - bx)
    return det


@inner()
def extent(q, axis, size):
    """First and one past the last index along an axis of this size that the tetrahedron can reach."""
    p = q[_CORNER + axis]
    low = min(min(p[0], p[1]), min(p[2], p[3]))
    high = max(max(p[0], p[1]), max(p[2], p[3]))
    # Clamped as floats: a node far away must not overflow the integer.
    return int(np.ceil(max(low, 0.0))), int(np.floor(min(high, size - 1.0))) + 1


@inner(fastmath={"contract"}, forceinline=True)
def rows(q, i, size):
    """First and one past the last j for which row (i, j) can intersect the tetrahedron; nearly tight."""
    low, high = _widen(q, i, 0, 1, q[_SLOPE, 0], np.inf, -np.inf)
    low, high = _widen(q, i, 0, 2, q[_SLOPE, 1], low, high)
    low, high = _widen(q, i, 0, 3, q[_SLOPE, 2], low, high)
    low, high = _widen(q, i, 1, 2, q[_SLOPE, 3], low, high)
    low, high = _widen(q, i, 1, 3, q[_SLOPE + 1, 0], low, high)
    low, high = _widen(q, i, 2, 3, q[_SLOPE + 1, 1], low, high)
    low -= q[_ROUNDING, 2]
    high += q[_ROUNDING, 2]
    return int(np.ceil(min(max(low, 0.0), size))), int(np.floor(max(min(high, size - 1.0), -1.0))) + 1


@inner(fastmath={"contract"}, forceinline=True)
def _widen(q, i, a, b, slope, low, high):
    """Extend the range low to high to where edge ab crosses slice i; ignores edges in the slice (nan)."""
    x, other = q[_CORNER, a], q[_CORNER, b]
    j = q[_CORNER + 1, a] + (i - x) * slope
    crosses = (i - x) * (i - other) <= 0.0
    low = j if crosses and j < low else low
    high = j if crosses and j > high else high
    return low, high


@inner(error_model="numpy", fastmath={"contract"}, forceinline=True)
def run(q, i, j, size):
    """The voxels lo <= k < hi that the tetrahedron owns in row (i, j) of `size` voxels."""
    di = i - q[_CORNER, 0]
    dj = j - q[_CORNER + 1, 0]
    lo = -np.inf
    hi = np.inf
    for w in range(4):
        # Where the plane of the face crosses the row; nan or inf if they are parallel.
        k = (q[_NORMAL, w] * di + q[_NORMAL + 1, w] * dj + q[_OFFSET, w]) * q[_STEP, w] + q[_CORNER + 2, 0]
        enter = k + q[_ENTER, w]
        leave = k + q[_LEAVE, w]
        lo = enter if enter > lo else lo
        hi = leave if leave < hi else hi
    rounding = q[_ROUNDING, 1]
    if lo - hi > rounding:
        return 0, 0
    if abs(lo - np.rint(lo)) > rounding and abs(hi - np.rint(hi)) > rounding:
        return int(np.ceil(min(max(lo, 0.0), size))), int(np.ceil(max(min(hi, size), 0.0)))
    return _run_exactly(q, i, j, size)


@inner()
def _run_exactly(q, i, j, size):
    """Like `run`, voxel by voxel, if a face is too close to a center or parallel to the row."""
    lo, hi = extent(q, 2, size)
    for w in range(4):
        while lo < hi and not _owns(q, w, i, j, lo):
            lo += 1
        while lo < hi and not _owns(q, w, i, j, hi - 1):
            hi -= 1
    return lo, hi


@inner()
def _owns(q, w, i, j, k):
    """Whether the shifted voxel center lies on the inner side of the face opposite to corner w."""
    x, y, z = i - q[_CORNER, 0], j - q[_CORNER + 1, 0], k - q[_CORNER + 2, 0]
    s = q[_NORMAL, w] * x + q[_NORMAL + 1, w] * y + q[_NORMAL + 2, w] * z + q[_OFFSET, w]
    if abs(s) > q[_ROUNDING, 0]:
        return s > 0.0
    return _exact_side(q, w, float(i), float(j), float(k)) > 0.0


@inner()
def _exact_side(q, w, x, y, z):
    """Sign of the barycentric coordinate w of the point (x, y, z), shifted infinitesimally; exact, never 0.

    With a, b, c the other corners in order it is (-1)^(w+1) det [b-a, c-a, x-a].
    """
    a = 1 if w == 0 else 0
    b = 2 if w <= 1 else 1
    c = 2 if w == 3 else 3
    flip = 1.0 if w % 2 else -1.0
    p = q[_CORNER : _CORNER + 3]
    u0, u1, u2 = p[0, b] - p[0, a], p[1, b] - p[1, a], p[2, b] - p[2, a]
    v0, v1, v2 = p[0, c] - p[0, a], p[1, c] - p[1, a], p[2, c] - p[2, a]
    x -= p[0, a]
    y -= p[1, a]
    z -= p[2, a]
    s = sign_of_det(u0, u1, u2, v0, v1, v2, x, y, z)
    if s == 0.0:  # decided by the shift: components of the normal, last axis first
        s = compare_products(u0, v1, u1, v0)
    if s == 0.0:
        s = compare_products(u2, v0, u0, v2)
    if s == 0.0:
        s = compare_products(u1, v2, u2, v1)
    return flip * s


# ---- whole meshes ------------------------------------------------------------------------------------------


def plain(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """Mesh arrays as required by kernels, which are then compiled once: read-only arrays are copied."""
    return np.require(nodes, np.float64, PLAIN), np.require(tetrahedra, np.int32, PLAIN)


def count_blocks(tetrahedra: npt.NDArray[np.integer]) -> int:
    """Number of blocks of BLOCK tetrahedra."""
    return -(-len(tetrahedra) // BLOCK)


def volumes(nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """(T,) signed volumes in cubic voxels."""
    p = nodes[tetrahedra]
    return np.linalg.det(p[:, 1:] - p[:, :1]) / 6.0


def spatial_order(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """(T,) Morton order: neighbors share cache lines, which halves run times."""
    center = nodes[tetrahedra].mean(1)
    cell = ((center - center.min(0)) / 4.0).astype(np.int64)
    code = np.zeros(len(cell), np.int64)
    for bit in range(20):
        for axis in range(3):
            code |= (cell[:, axis] >> bit & 1) << (3 * bit + 2 - axis)
    return np.argsort(code, kind="stable")


def owners(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> npt.NDArray[np.int32]:
    """(X, Y, Z) owning tetrahedron of each voxel, -1 outside the hull."""
    return _owners_and_counts(nodes, tetrahedra, shape)[0]


def voxel_counts(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """(T,) number of voxels of each tetrahedron."""
    return _owners_and_counts(nodes, tetrahedra, shape)[1]


def _owners_and_counts(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer], shape: tuple[int, int, int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    out = np.full(shape, -1, np.int32)
    counts = np.zeros(len(tetrahedra), np.int64)
    fine = np.ones(count_blocks(tetrahedra), np.bool_)
    run_blocks(_owners, len(fine), *plain(nodes, tetrahedra), out, counts, fine)
    require_unfolded(bool(fine.all()))
    return out, counts


def require_unfolded(fine: bool) -> None:
    """Raise ValueError for folded meshes."""
    if not fine:
        raise ValueError("tetrahedra must have positive volume; one is folded or flat")


@kernel(nogil=True)
def _owners(start, stop, nodes, tetrahedra, out, counts, fine):
    X, Y, Z = out.shape
    T = len(tetrahedra)
    for block in range(start, stop):
        q = scratch()
        for t in range(block * BLOCK, min(T, (block + 1) * BLOCK)):
            if not setup(q, nodes, tetrahedra[t]) > 0.0:
                fine[block] = False
                continue
            for i in range(*extent(q, 0, X)):
                for j in range(*rows(q, i, Y)):
                    lo, hi = run(q, i, j, Z)
                    counts[t] += hi - lo
                    for k in range(lo, hi):
                        out[i, j, k] = t


@inner()
def present_columns(alpha, corners, A, present):
    """Write non-zero columns of alpha to `present` and values to A (column, corner); returns the number."""
    # Unsigned, because numba checks signed indices for negative values.
    n0, n1 = np.uint32(corners[0]), np.uint32(corners[1])
    n2, n3 = np.uint32(corners[2]), np.uint32(corners[3])
    M = np.uint64(0)
    for c in range(alpha.shape[1]):
        a0, a1, a2, a3 = alpha[n0, c], alpha[n1, c], alpha[n2, c], alpha[n3, c]
        # Always written, kept if non-zero: avoids branch mispredictions.
        present[M] = c
        A[M, 0], A[M, 1], A[M, 2], A[M, 3] = a0, a1, a2, a3
        M += np.uint64((a0 != 0.0) | (a1 != 0.0) | (a2 != 0.0) | (a3 != 0.0))
    return np.int64(M)
