"""Interpolate node values at voxel centers; see `tetra` for the ownership of voxels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.tetra import (
    BLOCK,
    PLAIN,
    count_blocks,
    plain,
    present_columns,
    require_unfolded,
    scratch,
)
from tumoar.numerics.tetra_voxels import (
    AT,
    FIRST,
    GROUP,
    LANES,
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


def rasterize(
    nodes: npt.NDArray[np.float64],
    tetrahedra: npt.NDArray[np.integer],
    alpha: npt.NDArray[np.float32],
    shape: tuple[int, int, int],
    outside: int = 0,
) -> npt.NDArray[np.float32]:
    """(X, Y, Z, K) node values alpha (V, K) interpolated linearly at every voxel center.

    Values are clamped to the minimum of alpha against rounding. Voxels outside the hull (see `tetra.owners`)
    get 1 in column `outside` and 0 elsewhere.
    """
    alpha = np.require(alpha, np.float32, PLAIN)
    out = np.zeros((*shape, alpha.shape[1]), np.float32)
    covered = np.zeros(shape, np.bool_)
    smallest = float(alpha.min())
    mesh = plain(nodes, tetrahedra)
    fine = np.ones(count_blocks(tetrahedra), np.bool_)
    flat = out.reshape(-1), covered.reshape(-1)
    run_blocks(_rasterize, len(fine), *mesh, alpha, smallest, outside, shape, *flat, fine)
    require_unfolded(bool(fine.all()))
    out[..., outside][~covered] = 1.0
    return out


@kernel(nogil=True, error_model="numpy", fastmath={"contract"})
def _rasterize(start, stop, nodes, tetrahedra, alpha, smallest, outside, shape, out, covered, fine):
    """Write the non-zero columns of the corners, usually few, to `out`, which is flat and zero.

    Tetrahedra that are only `outside` are skipped, because uncovered voxels get this value anyway.
    """
    T, K = len(tetrahedra), alpha.shape[1]
    for block in range(start, stop):
        q, G, N, W = scratch(), group(), indices(), values(K)
        A, B = np.empty((K, 4)), np.empty((K, 4))
        present = np.empty(K, np.int64)
        end = min(T, (block + 1) * BLOCK)
        for first in range(block * BLOCK, end, GROUP):
            last = min(end, first + GROUP)
            prepare_group(G, nodes, tetrahedra, first, last, shape)
            for t in range(first, last):
                lane = t - first
                if not four(G, lane, FIRST)[3] > 0.0:
                    fine[block] = False
                    continue
                M = present_columns(alpha, tetrahedra[t], A, present)
                if M == 1 and present[0] == outside and (A[0] == 1.0).all():
                    continue
                interpolants(G, lane, A, M, B)
                for part in range(parts(G, lane)):
                    n = list_owned(G, lane, part, q, nodes, tetrahedra[t], shape, N, W)
                    _columns(B, M, n, smallest, W)
                    _write(present, M, n, K, N, W, out, covered)


@inner(fastmath={"contract"}, forceinline=True)
def _columns(B, M, n, smallest, W):
    """Values of the listed voxels, column by column."""
    for m in range(M):
        bx, by, bz, b = B[m, 0], B[m, 1], B[m, 2], B[m, 3]
        column = MORE + m * PITCH
        for v in range((n + LANES - 1) // LANES * LANES):
            W[column + v] = max(bx * W[X + v] + by * W[Y + v] + bz * W[Z + v] + b, smallest)


@inner(forceinline=True)
def _write(present, M, n, K, N, W, out, covered):
    """Scatter values voxel by voxel, because the columns of a voxel are contiguous."""
    for v in range(n):
        voxel = np.uint64(N[AT + v])
        covered[voxel] = True
        at = voxel * np.uint64(K)
        for m in range(M):
            out[at + np.uint64(present[m])] = W[MORE + m * PITCH + v]
