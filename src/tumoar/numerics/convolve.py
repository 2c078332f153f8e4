"""Filters tied in 2x2x2 blocks, correlated with binary volumes.

A filter of (2R)^3 voxels whose weights are tied in 2x2x2 blocks is a 2x2x2 box sum followed by an R^3 filter
of dilation 2, and dilation 2 splits a volume into 8 independent polyphase grids with a dense R^3 filter each:

    s[p]   = sum of v[p + d], d in {0,1}^3                   box sum
    c_m[j] = b_m + sum of w_m[t] s[j + 2t], t in R^3         input of hidden unit (m, j), "valid" positions

Binary volumes are sparse in s or, inside solid shapes, in the steps of s along a row. Each row of s is stored
as the shorter of the two lists ("events"); steps are undone by one running sum per row of hidden units.
Filters that differ only in sign or bias share one sum. Sums are exact 32-bit fixed point, so results do not
depend on the order of summation, the encoding, cropping or the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import inner, kernel
from tumoar.numerics.threads import run_blocks

R = 7  # free taps per axis: filters of 14^3 voxels
M = 40  # filters: 8 groups of 5, see `build_tables`
REACH = 2 * R - 1  # a unit at j is connected to the voxels j ... j + REACH
GROUPS, BITS = 8, 5
CELL = 8  # a cell of back-projection: the R taps along the first axis, padded to one vector
_SPAN = R * CELL
_VECTOR = 8  # integers
_LINE = 16  # integers to a cache line


class Filters(NamedTuple):
    """A filter bank in the layouts of the kernels; made by `pack`."""

    up: npt.NDArray[np.int32]  # (R*R*R*B,) weights of B kernels for the correlation, last taps reversed
    kernel: npt.NDArray[np.int32]  # (M,) kernel of each filter
    sign: npt.NDArray[np.int32]  # (M,) its sign, 0 for a filter of zeros
    up_scale: float
    bias: npt.NDArray[np.int32]  # (M,) in units of up_scale
    down: npt.NDArray[np.int32]  # (R*GROUPS*2^BITS*R*CELL,) partial sums of weights for the back-projection
    down_scale: float


class Events(NamedTuple):
    """Non-zero entries of the 8 polyphase grids of a box-summed volume, row by row."""

    start: npt.NDArray[np.int32]  # (8, P0*P1 + 1) where the events of a row begin
    at: npt.NDArray[np.int16]  # (8, capacity) place in the row
    value: npt.NDArray[np.int8]  # (8, capacity) s, or its step from the place before
    steps: npt.NDArray[np.bool_]  # (8, P0*P1) True where a row is given by its steps
    first: npt.NDArray[np.int16]  # (8, P0*P1) first non-zero place of s
    last: npt.NDArray[np.int16]  # (8, P0*P1) last non-zero place of s, -1 for an empty row
    shape: tuple[int, int, int]  # P0, P1, P2


def pack(w: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Filters:
    """Lay out filters w (M, R, R, R) with biases b (M,) for the kernels."""
    if w.shape != (M, R, R, R) or b.shape != (M,):
        raise ValueError(f"w must be ({M}, {R}, {R}, {R}) and b ({M},), got {w.shape} and {b.shape}")
    w, b = np.asarray(w, float), np.asarray(b, float)
    magnitude = np.abs(w).sum((1, 2, 3))
    up_scale = _fixed_point(np.max(8 * magnitude + np.abs(b)))
    up, kernel, sign = _kernels(np.rint(w / up_scale).astype(np.int32))
    down_scale = _fixed_point(magnitude.sum())
    down = build_tables(np.rint(w / down_scale).astype(np.int32))
    return Filters(
        _align(up.transpose(1, 2, 3, 0)[:, :, ::-1]),
        kernel,
        sign,
        up_scale,
        np.rint(b / up_scale).astype(np.int32),
        _align(down),
        down_scale,
    )


def _kernels(
    w: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """B distinct filters up to sign, padded to whole vectors; kernel and sign of each filter."""
    found: list[npt.NDArray[np.int32]] = []
    kernel, sign = np.zeros(len(w), np.int32), np.zeros(len(w), np.int32)
    for m, f in enumerate(w):
        if not f.any():
            continue
        for s in (1, -1):
            same = [k for k, known in enumerate(found) if np.array_equal(f, s * known)]
            if same:
                kernel[m], sign[m] = same[0], s
        if sign[m] == 0:
            kernel[m], sign[m] = len(found), 1
            found.append(f)
    out = np.zeros((max(_VECTOR, -(-len(found) // _VECTOR) * _VECTOR), *w.shape[1:]), np.int32)
    out[: len(found)] = found
    return out, kernel, sign


def build_tables(w: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """(R, GROUPS, 2^BITS, R, CELL) sums of the active filters for each pattern of a group's BITS units.

    Filter m is bit m % BITS of group m // BITS: neighbors, which are often active together, share a group.
    Axes: tap 1, group, pattern, tap 2, tap 0 padded to CELL.
    """
    out = np.zeros((R, GROUPS, 1 << BITS, R, CELL), np.int32)
    taps = w.reshape(GROUPS, BITS, R, R, R).transpose(1, 3, 0, 4, 2)  # bit, tap 1, group, tap 2, tap 0
    for pattern in range(1 << BITS):
        for bit in range(BITS):
            if pattern >> bit & 1:
                out[:, :, pattern, :, :R] += taps[bit]
    return out


def _fixed_point(largest: float) -> float:
    """Power of two so that `largest` becomes less than 2^30 units."""
    return float(2.0 ** (np.ceil(np.log2(max(largest, 1e-6))) - 30))


def _align(x: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Copy x to a flat array aligned to a cache line: vectors across two lines are slower to read."""
    room = np.empty(x.size + _LINE, np.int32)
    begin = -room.ctypes.data // room.itemsize % _LINE
    out = room[begin : begin + x.size]
    out[:] = x.ravel()
    return out


def encode_events(v: npt.NDArray[np.uint8]) -> Events:
    """Box sums of v as events; v has values 0 and 1 and at least 2R voxels per axis."""
    if min(v.shape) <= REACH:
        raise ValueError(f"volume must have at least {REACH + 1} voxels per axis, got {v.shape}")
    shape = tuple(n // 2 for n in v.shape)
    s = np.zeros((8, *shape), np.uint8)
    run_blocks(_box_sums, len(v) - 1, v, s)
    rows = shape[0] * shape[1]
    out = Events(
        np.zeros((8, rows + 1), np.int32),
        np.empty((8, rows * shape[2]), np.int16),
        np.empty((8, rows * shape[2]), np.int8),
        np.zeros((8, rows), np.bool_),
        np.zeros((8, rows), np.int16),
        np.full((8, rows), -1, np.int16),
        shape,
    )
    run_blocks(_encode, len(s), s, out.start, out.at, out.value, out.steps, out.first, out.last)
    return out


@kernel(nogil=True)
def _box_sums(begin, end, v, s):
    """s[phase, p] = 2x2x2 box sum of v at 2p + phase; 0 beyond the volume."""
    _, n1, n2 = v.shape
    row = np.empty(n2, np.uint8)
    for i in range(begin, end):
        for j in range(n1 - 1):
            a, b, c, d = v[i, j], v[i, j + 1], v[i + 1, j], v[i + 1, j + 1]
            for k in range(n2):
                row[k] = a[k] + b[k] + c[k] + d[k]
            phase = (i & 1) * 4 + (j & 1) * 2
            even, odd = s[phase, i >> 1, j >> 1], s[phase + 1, i >> 1, j >> 1]
            for k in range(n2 // 2):
                even[k] = row[2 * k] + row[2 * k + 1]
            for k in range((n2 - 1) // 2):
                odd[k] = row[2 * k + 1] + row[2 * k + 2]


@kernel(nogil=True)
def _encode(begin, end, s, start, at, value, steps, first, last):
    p0, p1, p2 = s.shape[1:]
    for phase in range(begin, end):
        n = 0
        for r in range(p0 * p1):
            start[phase, r] = n
            row = s[phase, r // p1, r % p1]
            lo, hi, filled, jumps, before = p2, -1, 0, 0, 0
            for k in range(p2):
                x = np.int64(row[k])
                if x != 0:
                    filled += 1
                    hi = k
                    lo = min(lo, k)
                jumps += x != before
                before = x
            first[phase, r] = lo
            last[phase, r] = hi
            if hi < 0:
                continue
            steps[phase, r] = jumps < filled
            before = 0
            for k in range(lo, min(hi + 2, p2)):
                x = np.int64(row[k])
                e = x - before if jumps < filled else x
                if e != 0:
                    at[phase, n] = k
                    value[phase, n] = e
                    n += 1
                before = x
        start[phase, p0 * p1] = n


@nb.njit(inline="always")
def _axpy(y, yo, x, xo, n, s):
    """y[yo:] += s x[xo:] over n integers, one row of taps."""
    y, x = y[yo : yo + n], x[xo : xo + n]
    for t in range(n):
        y[t] = np.int32(y[t] + np.int32(s * x[t]))


@inner()
def row_sums(start, at, value, steps, p1, i, j, lo, hi, up, plain, run):
    """Sums of the B kernels at the hidden row (i, j), places lo <= x < hi, into plain[(x + R - 1) B + k].

    `plain` and `run` have at least (P2 + 2R) B integers; `run` must be zero and is zero on return.
    """
    B = len(up) // R**3
    n = R * B
    plain[(lo + R - 1) * B : (hi + R - 1) * B] = 0
    leftmost = hi
    for a in range(R):
        for b in range(R):
            r = (i + a) * p1 + j + b
            w = (a * R + b) * n
            if steps[r]:
                leftmost = min(leftmost, np.int64(at[start[r]]) - (R - 1))
                for e in range(start[r], start[r + 1]):
                    x = np.int64(at[e])
                    if x - (R - 1) >= hi:
                        break
                    _axpy(run, x * B, up, w, n, np.int32(value[e]))
            else:
                for e in range(start[r], start[r + 1]):
                    x = np.int64(at[e])
                    if x - (R - 1) >= hi:
                        break
                    if x >= lo:
                        _axpy(plain, x * B, up, w, n, np.int32(value[e]))
    if leftmost < hi:
        _undo_steps(run, (leftmost + R - 1) * B, (hi + R - 1) * B, B, plain, (lo + R - 1) * B)
        run[(leftmost + R - 1) * B : (hi + 2 * R) * B] = 0


@inner()
def _undo_steps(run, begin, end, B, plain, lo):
    """Running sum of `run` over places, added to `plain` from lo on."""
    for o in range(begin + B, end, B):
        here, before = run[o : o + B], run[o - B : o]
        for m in range(B):
            here[m] = np.int32(here[m] + before[m])
    begin = max(begin, lo)
    c, d = plain[begin:end], run[begin:end]
    for t in range(c.size):
        c[t] = np.int32(c[t] + d[t])


@inner()
def row_buffers(p2, filters):
    """Buffers for the sums and running sums of one row of kernels, and for the inputs of its units."""
    n = (p2 + 2 * R) * (len(filters.up) // R**3)
    return np.zeros(n, np.int32), np.zeros(n, np.int32), np.empty(p2 * M, np.int32)


@inner()
def unit_inputs(plain, lo, n, filters, c):
    """Inputs of the units of n places from lo on, from the sums of their kernels, into c[x M + m]."""
    B = len(filters.up) // R**3
    kernel, sign, bias = filters.kernel, filters.sign, filters.bias
    for x in range(n):
        here = plain[(lo + x + R - 1) * B : (lo + x + R) * B]
        out = c[x * M : (x + 1) * M]
        for m in range(M):
            out[m] = np.int32(bias[m] + np.int32(sign[m] * here[kernel[m]]))


@inner()
def find_nonempty(first, last, p1, i, j, lo, hi):
    """Places of the hidden row (i, j) in [lo, hi) whose receptive field may be non-empty."""
    a, b = np.int64(32767), np.int64(-1)
    for k in range(R):
        for r in range((i + k) * p1 + j, (i + k) * p1 + j + R):
            a = min(a, np.int64(first[r]))
            b = max(b, np.int64(last[r]))
    return max(lo, a - (R - 1)), min(hi, b + 1)


def inputs(v: npt.NDArray[np.uint8], filters: Filters) -> npt.NDArray[np.float32]:
    """(*J, M) inputs c of all hidden units at the "valid" positions J = V - 13 of the volume v."""
    e = encode_events(np.ascontiguousarray(v, np.uint8))
    out = np.empty((*(n - REACH for n in v.shape), M), np.float32)
    run_blocks(_inputs, len(out), e.start, e.at, e.value, e.steps, e.shape, filters, out)
    return out


@kernel(nogil=True)
def _inputs(begin, end, start, at, value, steps, shape, filters, out):
    scale = np.float32(filters.up_scale)
    plain, run, c = row_buffers(shape[2], filters)
    for i in range(begin, end):
        for j in range(out.shape[1]):
            for f in range(2):
                phase = (i & 1) * 4 + (j & 1) * 2 + f
                n = (out.shape[2] - f + 1) // 2
                row_sums(
                    start[phase], at[phase], value[phase], steps[phase], shape[1], i >> 1, j >> 1, 0, n,
                    filters.up, plain, run,
                )  # fmt: skip
                unit_inputs(plain, 0, n, filters, c)
                for x in range(n):
                    for m in range(M):
                        out[i, j, 2 * x + f, m] = np.float32(c[x * M + m]) * scale
