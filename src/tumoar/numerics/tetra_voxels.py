"""Vectorized lists of the voxels that tetrahedra own: the same voxels as in `tetra.run`.

Loops run over tetrahedra, rows or voxels without branches or calls, so that the compiler vectorizes them;
uncertain rows are passed to `tetra.run`. Usage in kernels:

    q, G, N, W = scratch(), group(), indices(), values(extra)          # once per thread
    prepare_group(G, nodes, tetrahedra, first, last, shape)            # up to GROUP tetrahedra
    for lane in range(last - first):                                   # if four(G, lane, FIRST)[3] > 0
        for part in range(parts(G, lane)):
            n = list_owned(G, lane, part, q, nodes, tetrahedra[first + lane], shape, N, W)
            for v in range(n):
                ...     # voxel N[AT + v] of the flat grid, at W[X + v], W[Y + v], W[Z + v] of the box

Each tetrahedron is processed in coordinates of its bounding box of voxels: barycentric coordinate w at
(x, y, z) is GRAD_X[w] x + GRAD_Y[w] y + GRAD_Z[w] z + BASE[w]. Few tetrahedra need more than one part.

G, N and W are flat arrays of fields at constant offsets, so that the compiler need not check for overlap.
Lists are padded to a multiple of LANES with undefined positions; fields are long enough for this.
"""

from __future__ import annotations

import numpy as np

from tumoar.numerics.jit import inner
from tumoar.numerics.tetra import GRAIN, run, setup

GROUP = 16
"""Tetrahedra per group; divides `tetra.BLOCK`."""

LIST = 4096
"""Maximum number of voxels in a part, and maximum length of a grid axis."""

LANES = 8
PITCH = LIST + LANES

# Fields of G, four entries each: of corner w, or of the face opposite to it.
_CORNER_X, _CORNER_Y, _CORNER_Z = 0, 4, 8
GRAD_X, GRAD_Y, GRAD_Z, BASE = 12, 16, 20, 24
_SLOPE_X, _SLOPE_Y, _START = 28, 32, 36  # row (x, y) crosses the face at z = slope_x x + slope_y y + start
FIRST = 40  # first voxel i, j, k of the box; 6 volumes of the tetrahedron
_COUNT = 44  # voxels of the box along each axis; error bound of a crossing in single precision
_FIELDS = 48

# Fields of N (int32) and W (float64).
_RUN, _LENGTH, _LOCAL, AT = 0, PITCH, 2 * PITCH, 3 * PITCH
X, Y, Z, MORE = 0, PITCH, 2 * PITCH, 3 * PITCH

_f = np.float32


@inner()
def group():
    """Memory for the geometry of a group of tetrahedra."""
    return np.empty(_FIELDS * GROUP)


@inner()
def indices():
    """Memory for the integers of a list of voxels."""
    return np.empty(4 * PITCH, np.int32)


@inner()
def values(extra):
    """Memory for the coordinates of a list of voxels; `extra` fields of the caller start at MORE."""
    return np.empty((3 + extra) * PITCH)


@inner(forceinline=True)
def four(G, lane, field):
    """The entries of a field for one tetrahedron."""
    at = np.uint64(field * GROUP + lane)
    step = np.uint64(GROUP)
    return G[at], G[at + step], G[at + step + step], G[at + step + step + step]


@inner(forceinline=True)
def _put(G, lane, field, a, b, c, d):
    G[field * GROUP + lane] = a
    G[(field + 1) * GROUP + lane] = b
    G[(field + 2) * GROUP + lane] = c
    G[(field + 3) * GROUP + lane] = d


@inner(forceinline=True)
def _largest(a, b, c, d):
    return max(max(abs(a), abs(b)), max(abs(c), abs(d)))


@inner(error_model="numpy", fastmath={"contract"})
def prepare_group(G, nodes, tetrahedra, first, last, shape):
    """Prepare the geometry of tetrahedra first to last (exclusive)."""
    for lane in range(last - first):
        for w in range(4):
            node = np.uint32(tetrahedra[first + lane, w])
            G[(_CORNER_X + w) * GROUP + lane] = nodes[node, 0]
            G[(_CORNER_Y + w) * GROUP + lane] = nodes[node, 1]
            G[(_CORNER_Z + w) * GROUP + lane] = nodes[node, 2]
    for at in range(12 * GROUP):
        G[at] = np.rint(G[at] * (1.0 / GRAIN)) * GRAIN
    end_i, end_j, end_k = shape[0] - 1.0, shape[1] - 1.0, shape[2] - 1.0
    for lane in range(last - first):
        x0, x1, x2, x3 = four(G, lane, _CORNER_X)
        y0, y1, y2, y3 = four(G, lane, _CORNER_Y)
        z0, z1, z2, z3 = four(G, lane, _CORNER_Z)
        i = np.ceil(max(min(min(x0, x1), min(x2, x3)), 0.0))
        j = np.ceil(max(min(min(y0, y1), min(y2, y3)), 0.0))
        k = np.ceil(max(min(min(z0, z1), min(z2, z3)), 0.0))
        ni = max(np.floor(min(max(max(x0, x1), max(x2, x3)), end_i)) - i + 1.0, 0.0)
        nj = max(np.floor(min(max(max(y0, y1), max(y2, y3)), end_j)) - j + 1.0, 0.0)
        nk = max(np.floor(min(max(max(z0, z1), max(z2, z3)), end_k)) - k + 1.0, 0.0)

        ax, ay, az = x1 - x0, y1 - y0, z1 - z0
        bx, by, bz = x2 - x0, y2 - y0, z2 - z0
        cx, cy, cz = x3 - x0, y3 - y0, z3 - z0
        size = max(_largest(ax, ay, az, bx), max(_largest(by, bz, cx, cy), max(abs(cz), 1.0)))
        g1x, g1y, g1z = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
        g2x, g2y, g2z = cy * az - cz * ay, cz * ax - cx * az, cx * ay - cy * ax
        g3x, g3y, g3z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        det = ax * g1x + ay * g1y + az * g1z
        scale = 1.0 / det
        g1x, g1y, g1z = g1x * scale, g1y * scale, g1z * scale
        g2x, g2y, g2z = g2x * scale, g2y * scale, g2z * scale
        g3x, g3y, g3z = g3x * scale, g3y * scale, g3z * scale
        g0x, g0y, g0z = -(g1x + g2x + g3x), -(g1y + g2y + g3y), -(g1z + g2z + g3z)
        e1 = g1x * (i - x0) + g1y * (j - y0) + g1z * (k - z0)
        e2 = g2x * (i - x0) + g2y * (j - y0) + g2z * (k - z0)
        e3 = g3x * (i - x0) + g3y * (j - y0) + g3z * (k - z0)
        e0 = 1.0 - (e1 + e2 + e3)
        _put(G, lane, GRAD_X, g0x, g1x, g2x, g3x)
        _put(G, lane, GRAD_Y, g0y, g1y, g2y, g3y)
        _put(G, lane, GRAD_Z, g0z, g1z, g2z, g3z)
        _put(G, lane, BASE, e0, e1, e2, e3)

        s0, s1, s2, s3 = -1.0 / g0z, -1.0 / g1z, -1.0 / g2z, -1.0 / g3z
        _put(G, lane, _SLOPE_X, g0x * s0, g1x * s1, g2x * s2, g3x * s3)
        _put(G, lane, _SLOPE_Y, g0y * s0, g1y * s1, g2y * s2, g3y * s3)
        _put(G, lane, _START, e0 * s0, e1 * s1, e2 * s2, e3 * s3)
        # Double precision: fewer than 100 roundings of terms no larger than (2 size)^3, over the normal's
        # last component. Single: fewer than 10 of the terms of a crossing. inf or nan: all rows uncertain.
        terms = (
            _largest(g0x * s0, g1x * s1, g2x * s2, g3x * s3) * ni
            + _largest(g0y * s0, g1y * s1, g2y * s2, g3y * s3) * nj
            + _largest(e0 * s0, e1 * s1, e2 * s2, e3 * s3)
        )
        error = 1e-6 * (terms + nk) + 2e-13 * size * size * size * scale * _largest(s0, s1, s2, s3)
        _put(G, lane, FIRST, i, j, k, det)
        _put(G, lane, _COUNT, ni, nj, nk, error)


@inner(forceinline=True)
def parts(G, lane):
    """Number of lists for the voxels of a tetrahedron."""
    ni, nj, nk, _ = four(G, lane, _COUNT)
    if ni * nj * nk == 0.0:
        return 0
    rows = LIST // int(nk)
    return (int(ni * nj) + rows - 1) // rows


@inner(error_model="numpy", fastmath={"contract"}, forceinline=True)
def list_owned(G, lane, part, q, nodes, corners, shape, N, W):
    """List the voxels that a tetrahedron owns in one part of its box; returns their number."""
    i, j, k, _ = four(G, lane, FIRST)
    ni, nj, nk, error = four(G, lane, _COUNT)
    rows = LIST // int(nk)
    skip = 0.0  # slices of the box before this part
    start = 0.0  # and rows of its first slice
    if part > 0:
        skip = np.floor((part * rows + 0.5) / nj)
        start = part * rows - skip * nj
        rows = min(rows, int(ni * nj) - part * rows)
    else:
        rows = min(rows, int(ni * nj))
    _runs(G, lane, skip, _f(start), _f(nj), _f(nk), _f(error), rows, N)

    # Two voxels are written for every row and excess ones overwritten: most rows have at most two.
    n = np.uint64(_LOCAL)
    fine = False
    for r in range(rows):
        voxel, length = N[_RUN + r], N[_LENGTH + r]
        if np.uint32(length) <= np.uint32(2):
            N[n] = voxel
            N[n + np.uint64(1)] = voxel + 1
        else:
            if length < 0:
                if not fine:
                    setup(q, nodes, corners)
                    fine = True
                row = int(start) + r
                lo, hi = run(q, int(i + skip) + row // int(nj), int(j) + row % int(nj), shape[2])
                voxel = np.int32(r * int(nk) + lo - int(k))
                length = np.int32(max(hi - lo, 0))
            for s in range(np.uint64(length)):
                N[n + s] = np.int32(voxel + s)
        n += np.uint64(length)
    count = np.int64(n) - _LOCAL
    _places(i + skip, j, k, skip, _f(start), _f(nj), _f(nk), shape, count, N, W)
    return count


@inner(error_model="numpy", fastmath={"contract"}, forceinline=True)
def _runs(G, lane, skip, start, nj, nk, error, rows, N):
    """For each row: position of its first voxel in the part, and their number; -1 if uncertain."""
    none, inf = _f(0.0), _f(np.inf)
    x0, x1, x2, x3 = four(G, lane, _SLOPE_X)
    y0, y1, y2, y3 = four(G, lane, _SLOPE_Y)
    c0, c1, c2, c3 = four(G, lane, _START)
    g0, g1, g2, g3 = four(G, lane, GRAD_Z)
    c0, c1, c2, c3 = _f(c0 + x0 * skip), _f(c1 + x1 * skip), _f(c2 + x2 * skip), _f(c3 + x3 * skip)
    x0, x1, x2, x3 = _f(x0), _f(x1), _f(x2), _f(x3)
    y0, y1, y2, y3 = _f(y0), _f(y1), _f(y2), _f(y3)
    # A row enters or leaves through a face; adding ±inf excludes the face from the other comparison.
    in0, in1 = none if g0 > 0.0 else -inf, none if g1 > 0.0 else -inf
    in2, in3 = none if g2 > 0.0 else -inf, none if g3 > 0.0 else -inf
    out0, out1 = inf if g0 > 0.0 else none, inf if g1 > 0.0 else none
    out2, out3 = inf if g2 > 0.0 else none, inf if g3 > 0.0 else none
    per_slice = _f(1.0) / nj
    for r in range((rows + LANES - 1) // LANES * LANES):
        row = _f(np.int32(r))
        x = np.floor((row + start + _f(0.5)) * per_slice)
        y = row + start - x * nj
        z0 = c0 + x * x0 + y * y0
        z1 = c1 + x * x1 + y * y1
        z2 = c2 + x * x2 + y * y2
        z3 = c3 + x * x3 + y * y3
        lo, hi = z0 + in0, z0 + out0
        lo, hi = z1 + in1 if z1 + in1 > lo else lo, z1 + out1 if z1 + out1 < hi else hi
        lo, hi = z2 + in2 if z2 + in2 > lo else lo, z2 + out2 if z2 + out2 < hi else hi
        lo, hi = z3 + in3 if z3 + in3 > lo else lo, z3 + out3 if z3 + out3 < hi else hi
        clear = (abs(lo - np.rint(lo)) > error) & (abs(hi - np.rint(hi)) > error)
        begin = min(max(np.ceil(lo), none), nk)
        length = max(min(np.ceil(hi), nk), none) - begin
        length = length if clear else _f(-1.0)
        length = none if lo - hi > error else length
        N[_RUN + r] = np.int32(row * nk + begin)
        N[_LENGTH + r] = np.int32(length)


@inner(error_model="numpy", fastmath={"contract"}, forceinline=True)
def _places(i, j, k, skip, start, nj, nk, shape, count, N, W):
    """Convert positions in the part to coordinates in the box and indices in the flat grid."""
    per_slice, per_row = _f(1.0) / nj, _f(1.0) / nk
    rows, size = np.int32(shape[1]), np.int32(shape[2])
    first = np.int32((int(i) * shape[1] + int(j)) * shape[2] + int(k))
    for v in range((count + LANES - 1) // LANES * LANES):
        voxel = _f(N[_LOCAL + v])
        row = np.floor((voxel + _f(0.5)) * per_row)
        x = np.floor((row + start + _f(0.5)) * per_slice)
        y = row + start - x * nj
        z = voxel - row * nk
        W[X + v], W[Y + v], W[Z + v] = x + skip, y, z
        row_in_grid = np.int32(np.int32(np.int32(x) * rows) + np.int32(y))
        N[AT + v] = np.int32(np.int32(row_in_grid * size) + np.int32(z)) + first


@inner(fastmath={"contract", "nsz"}, forceinline=True)
def interpolants(G, lane, A, M, B):
    """Convert corner values A (M, 4) to B (M, 4): value m at (x, y, z) is B[m] . (x, y, z, 1)."""
    x0, x1, x2, x3 = four(G, lane, GRAD_X)
    y0, y1, y2, y3 = four(G, lane, GRAD_Y)
    z0, z1, z2, z3 = four(G, lane, GRAD_Z)
    e0, e1, e2, e3 = four(G, lane, BASE)
    for m in range(M):
        a0, a1, a2, a3 = A[m, 0], A[m, 1], A[m, 2], A[m, 3]
        B[m, 0] = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
        B[m, 1] = a0 * y0 + a1 * y1 + a2 * y2 + a3 * y3
        B[m, 2] = a0 * z0 + a1 * z1 + a2 * z2 + a3 * z3
        B[m, 3] = a0 * e0 + a1 * e1 + a2 * e2 + a3 * e3
