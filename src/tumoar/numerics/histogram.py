"""Joint histograms of discretized signals and soft classes under an affine transform.

Samples at positions q have one bin per channel. An affine matrix M maps q to a class volume P, which is
interpolated trilinearly: sample i belongs to class c with probability π_i(c). Single-threaded, because a pass
takes only milliseconds.
"""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import kernel

MISSING = 255
"""Bin of a sample without data in a channel."""

_FAST = {"contract", "nsz", "reassoc"}


@nb.njit(inline="always")
def _cell(u, size):
    """Lower corner and fraction of a coordinate, clamped to the volume; `inside` is 0 if clamped."""
    if not u > 0.0:
        return 0, np.float32(0.0), np.float32(0.0)
    if u >= size - 1:
        return size - 2, np.float32(1.0), np.float32(0.0)
    lower = int(u)
    return lower, np.float32(u - lower), np.float32(1.0)


@nb.njit(inline="always")
def _map_point(M, q, i, r):
    return M[r, 0] * q[i, 0] + M[r, 1] * q[i, 1] + M[r, 2] * q[i, 2] + M[r, 3]


@kernel(error_model="numpy", fastmath=_FAST)
def _count(q, bins, M, flat, shape, n_bins):
    n, N = bins.shape
    X, Y, Z, C = shape
    out = np.zeros((N, n_bins, C))
    for i in range(n):
        i0, f0, _ = _cell(_map_point(M, q, i, 0), X)
        i1, f1, _ = _cell(_map_point(M, q, i, 1), Y)
        i2, f2, _ = _cell(_map_point(M, q, i, 2), Z)
        a = ((i0 * Y + i1) * Z + i2) * C
        b, c, d = a + Z * C, a + Y * Z * C, a + (Y + 1) * Z * C
        for k in range(C):
            va = flat[a + k] + f2 * (flat[a + C + k] - flat[a + k])
            vb = flat[b + k] + f2 * (flat[b + C + k] - flat[b + k])
            vc = flat[c + k] + f2 * (flat[c + C + k] - flat[c + k])
            vd = flat[d + k] + f2 * (flat[d + C + k] - flat[d + k])
            low = va + f1 * (vb - va)
            pi = low + f0 * (vc + f1 * (vd - vc) - low)
            for channel in range(N):
                bin_ = bins[i, channel]
                if bin_ != MISSING:
                    out[channel, bin_, k] += pi
    return out


def joint_counts(q, bins, M, P, n_bins) -> npt.NDArray[np.float64]:
    """(N, B, C) counts Σ_i [bin_i = b] π_i(c) of samples q (n, 3) with bins (n, N) under M (3, 4)."""
    return _count(q, bins, M, P.reshape(-1), P.shape, n_bins)


@kernel(error_model="numpy", fastmath=_FAST)
def _score(q, bins, M, flat, shape, ratio):
    n, N = bins.shape
    X, Y, Z, C = shape
    gain = 0.0
    slope = np.zeros(12)
    fisher = np.zeros((12, 12))
    counts = np.zeros((N, ratio.shape[1], C))
    like = np.empty(C, np.float32)
    step = np.empty(12)
    for i in range(n):
        u0, u1, u2 = _map_point(M, q, i, 0), _map_point(M, q, i, 1), _map_point(M, q, i, 2)
        i0, f0, in0 = _cell(u0, X)
        i1, f1, in1 = _cell(u1, Y)
        i2, f2, in2 = _cell(u2, Z)
        for k in range(C):
            like[k] = 1.0
        for channel in range(N):
            bin_ = bins[i, channel]
            if bin_ != MISSING:
                for k in range(C):
                    like[k] *= ratio[channel, bin_, k]
        a = ((i0 * Y + i1) * Z + i2) * C
        b, c, d = a + Z * C, a + Y * Z * C, a + (Y + 1) * Z * C
        mix = g0 = g1 = g2 = np.float32(0.0)
        for k in range(C):
            sa, sb = flat[a + C + k] - flat[a + k], flat[b + C + k] - flat[b + k]
            sc, sd = flat[c + C + k] - flat[c + k], flat[d + C + k] - flat[d + k]
            va, vb = flat[a + k] + f2 * sa, flat[b + k] + f2 * sb
            vc, vd = flat[c + k] + f2 * sc, flat[d + k] + f2 * sd
            low, high = va + f1 * (vb - va), vc + f1 * (vd - vc)
            s_low, s_high = sa + f1 * (sb - sa), sc + f1 * (sd - sc)
            t_low, t_high = vb - va, vd - vc
            g0 += like[k] * (high - low)
            g1 += like[k] * (t_low + f0 * (t_high - t_low))
            g2 += like[k] * (s_low + f0 * (s_high - s_low))
            like[k] *= low + f0 * (high - low)
            mix += like[k]
        gain += np.log(mix)
        for channel in range(N):
            bin_ = bins[i, channel]
            if bin_ != MISSING:
                for k in range(C):
                    counts[channel, bin_, k] += like[k] / mix
        g0, g1, g2 = g0 * in0 / mix, g1 * in1 / mix, g2 * in2 / mix
        if g0 != 0.0 or g1 != 0.0 or g2 != 0.0:
            step[0], step[1], step[2], step[3] = g0 * u0, g0 * u1, g0 * u2, g0
            step[4], step[5], step[6], step[7] = g1 * u0, g1 * u1, g1 * u2, g1
            step[8], step[9], step[10], step[11] = g2 * u0, g2 * u1, g2 * u2, g2
            for r in range(12):
                slope[r] += step[r]
                for s in range(12):
                    fisher[r, s] += step[r] * step[s]
    return gain, slope, fisher, counts


def mixture_score(
    q, bins, M, P, ratio
) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Log-likelihood Σ_i log Σ_c π_i(c) Π_n ratio[n, bin_in, c], its derivatives, and expected counts.

    Returns the sum; its gradient (12,) and empirical Fisher matrix (12, 12) with respect to a small affine
    motion A of mapped positions, u → u + A (u, 1), in row order; counts (N, B, C) weighted by the posterior
    of c.
    """
    return _score(q, bins, M, P.reshape(-1), P.shape, ratio)
