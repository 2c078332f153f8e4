"""Effective sample size of a Markov chain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def effective_size(series: npt.ArrayLike) -> float:
    """Effective sample size of a series, by Geyer's initial monotone sequence."""
    x = np.asarray(series, float)
    n = len(x)
    x = x - x.mean()
    variance = float(x @ x) / n
    if n < 4 or variance == 0:
        return float(n)
    spectrum = np.abs(np.fft.rfft(x, 2 * n)) ** 2
    correlation = np.fft.irfft(spectrum)[:n] / (n * variance)
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(1)
    positive = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    pairs = np.minimum.accumulate(pairs[: max(positive, 1)])
    return float(n / max(2 * pairs.sum() - 1, 1 / n))
