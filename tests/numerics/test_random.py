"""Statistical sanity of the counter-based random numbers."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest

from tumoar.numerics.random import stream_key, uniform

N = 200_000


@nb.njit
def fill(k0, k1, out):
    for i in range(out.size):
        out[i] = uniform(k0, k1, np.uint32(i))


def stream(*name):
    out = np.empty(N, np.float32)
    fill(*stream_key(np.uint64(name[0]), *name[1:]), out)
    return out.astype(float)


NAMES = [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0), (2**63 + 5, 7, -3, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_uniform(name):
    u = stream(*name)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi2 = ((counts - N / 256) ** 2 / (N / 256)).sum()
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lag", [1, 2, 8, 40, 64])
def test_draws_do_not_follow_each_other(name, lag):
    u = stream(*name) - 0.5
    r = 12 * (u[lag:] * u[:-lag]).mean()
    assert abs(r) < 5 / np.sqrt(N - lag)


def test_streams_are_unrelated_at_any_shift():
    """No stream is a shifted copy of another: cross-correlation at all shifts, by FFT."""
    spectra = [np.fft.rfft(stream(*name) - 0.5, 2 * N) for name in NAMES]
    for i in range(len(NAMES)):
        for j in range(i):
            r = 12 * np.fft.irfft(spectra[i] * spectra[j].conj()) / N
            assert np.abs(r).max() < 7 / np.sqrt(N)


def test_neighboring_streams_are_uncorrelated():
    """First draws of 64 x 64 neighboring rows: no pattern along either axis."""
    first = np.array(
        [[fill_one(*stream_key(np.uint64(9), i, j, 0)) for j in range(-32, 32)] for i in range(-32, 32)]
    )
    first = first - 0.5
    for a, b in ((first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert abs(12 * (a * b).mean()) < 5 / np.sqrt(a.size)
    assert abs(first.mean()) < 5 / np.sqrt(12 * first.size)


def fill_one(k0, k1):
    out = np.empty(1, np.float32)
    fill(k0, k1, out)
    return float(out[0])


def test_same_name_same_draws():
    np.testing.assert_array_equal(stream(3, 1, 2, 0), stream(3, 1, 2, 0))
