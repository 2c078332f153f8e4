"""Counter-based random numbers for kernels: a draw depends on (key, counter) only, never on the thread.

A stream has two 32-bit keys, made once per (seed, sweep, variable, row) by `stream_key`; draw i of the stream
is `bits(k0, k1, i)`. Two keyed rounds ensure that streams are not shifted copies of one sequence.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from tumoar.numerics.jit import kernel

_U32 = np.uint32


@nb.njit(inline="always")
def _mix(x):
    """Bijective 32-bit mixer (Wellons' lowbias32); vectorizes."""
    x = _U32(x)
    x ^= x >> _U32(16)
    x = _U32(x * _U32(0x7FEB352D))
    x ^= x >> _U32(15)
    x = _U32(x * _U32(0x846CA68B))
    x ^= x >> _U32(16)
    return x


@nb.njit(inline="always")
def bits(k0, k1, i):
    """32 random bits: draw number i of the stream (k0, k1)."""
    return _mix(_mix(_U32(_U32(i) + _U32(k0))) ^ _U32(k1))


@nb.njit(inline="always")
def uniform(k0, k1, i):
    """float32 in [0, 1) on a grid of 2^-24: draw number i of the stream (k0, k1)."""
    return np.float32(np.int32(bits(k0, k1, i) >> _U32(8))) * np.float32(5.9604644775390625e-08)


@kernel()
def stream_key(seed, a, b, c):
    """Two 32-bit keys of the stream named by a 64-bit seed and three counters (say sweep, variable, row)."""
    seed = np.uint64(seed)
    low = _U32(seed & np.uint64(0xFFFFFFFF))
    high = _U32(seed >> np.uint64(32))
    k0 = _mix(_mix(_mix(_mix(low + _U32(0x9E3779B9)) ^ _U32(a)) ^ _U32(b)) ^ _U32(c))
    k1 = _mix(_mix(_mix(_mix(high + _U32(0x85EBCA6B)) + _U32(c)) + _U32(a)) + _U32(b))
    return k0, k1
