"""Slow, obvious twins of the tied-filter kernels."""

from __future__ import annotations

import numpy as np
from scipy.signal import convolve, correlate

U32 = np.uint32


def tied(w):
    """(M, R, R, R) free taps to (M, 2R, 2R, 2R) voxels."""
    return w.astype(float).repeat(2, 1).repeat(2, 2).repeat(2, 3)


def inputs(v, w, b):
    """(M, *J) valid correlation of v with every filter, plus bias."""
    return np.stack([correlate(v.astype(float), f, "valid", "fft") for f in tied(w)]) + b[:, None, None, None]


def project(h, w):
    """(*V,) adjoint of `inputs` without bias."""
    return sum(convolve(x.astype(float), f, "full", "fft") for x, f in zip(h, tied(w)))


def moments(v, w, b):
    """G (M, R, R, R) and p (M,) by the definition."""
    P = 1 / (1 + np.exp(-inputs(v, w, b)))
    G = np.zeros(w.shape)
    for t in np.ndindex(*w.shape[1:]):
        for d in np.ndindex(2, 2, 2):
            part = tuple(slice(2 * t[k] + d[k], 2 * t[k] + d[k] + P.shape[k + 1]) for k in range(3))
            G[(slice(None), *t)] += (P * v[part]).sum((1, 2, 3))
    return G, P.sum((1, 2, 3))


def mix(x):
    x = x.astype(U32)
    x ^= x >> U32(16)
    x *= U32(0x7FEB352D)
    x ^= x >> U32(15)
    x *= U32(0x846CA68B)
    return x ^ (x >> U32(16))


def uniform(k0, k1, i):
    bits = mix(mix(i.astype(U32) + U32(k0)) ^ U32(k1))
    return (bits >> U32(8)).astype(np.float32) * np.float32(2.0**-24)


def odds(c):
    """1 + exp(-c) with the kernel's own float32 steps."""
    one = np.float32(1)
    x = np.clip(c, np.float32(-16), np.float32(16)) * np.float32(-1 / 64)
    e = np.float32(1 / 720) * x + np.float32(1 / 120)
    for coefficient in (1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        e = e * x + np.float32(coefficient)
    for _ in range(6):
        e = e * e
    return one + e


def draws(c, key, origin, stream_key, idle):
    """Hidden units (*J, M) for inputs c (*J, M); the unit at index (0, 0, 0) sits at `origin`.

    At `idle` places (*J) units that are seldom on share a random number, see `idle_units`.
    """
    h = np.zeros(c.shape, bool)
    M = c.shape[-1]
    for i, j, f in np.ndindex(c.shape[0], c.shape[1], 2):
        k = np.arange(c.shape[2]) + origin[2]
        row = np.flatnonzero((k & 1) == f)
        k0, k1 = stream_key(np.uint64(key), i + origin[0], j + origin[1], f)
        u = uniform(k0, k1, ((k[row] >> 1)[:, None] * M + np.arange(M)).astype(np.int64))
        h[i, j, row] = u * odds(c[i, j, row]) < 1
        for x, own in zip(row, u):
            if idle[i, j, x]:
                h[i, j, x] = idle_units(odds(c[i, j, x]), own)
    return h


def idle_units(odds, u, rare_below=0.02):
    """M units from one random number each, but for those seldom on: one number says which is the first on."""
    h = u * odds < 1
    p = 1 / odds.astype(float)
    rare = np.flatnonzero(p < rare_below)
    if len(rare):
        h[rare] = False
        none_so_far = 1.0
        for at, m in enumerate(rare):
            none_so_far *= 1 - p[m]
            if u[rare[0]] < np.float32(1 - none_so_far):
                h[m] = True
                later = rare[at + 1 :]
                h[later] = u[later] * odds[later] < 1
                break
    return h


def is_idle(v):
    """(*J) places whose 14^3 voxels of v are all 0."""
    windows = np.lib.stride_tricks.sliding_window_view(v, (14, 14, 14))
    return ~windows.any((3, 4, 5))
