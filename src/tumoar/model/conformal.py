"""Conformal prediction of one number from earlier ones.

A new value lies in the interval with at least the stated probability if it is exchangeable with the earlier
ones, whatever their distribution (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Array = npt.NDArray[np.float64]

SHARES = (0.5, 0.9)
"""Probabilities of the intervals that are reported."""
STEPS = 4001
"""Candidates that are tried for an interval."""


def least_cases(share: float) -> int:
    """Fewest earlier values that can bound a new one with this probability.

    The new value is the most unusual of n + 1 with probability 1 / (n + 1), and nothing can be said about
    how far it then lies.
    """
    return math.ceil(share / (1 - share) - 1e-9)


def central(values: Sequence[float], share: float) -> tuple[float, float]:
    """Interval around the median for the next value; infinite if there are too few values.

    Full conformal prediction: a candidate belongs to the interval unless it lies farther from the median of
    all values, itself included, than `share` of them.
    """
    known = np.sort(np.asarray(values, np.float64))
    n = len(known)
    if n < least_cases(share):
        return -math.inf, math.inf
    rank = math.ceil(share * (n + 1) - 1e-9)
    reach = 2 * (known[-1] - known[0]) + 1e-6
    grid = np.linspace(known[0] - reach, known[-1] + reach, STEPS)
    candidates = np.unique(np.concatenate([known, grid]))
    every = np.column_stack([np.tile(known, (len(candidates), 1)), candidates])
    score = np.abs(every - np.median(every, axis=1, keepdims=True))
    is_in = (score[:, :-1] < score[:, -1:] - 1e-12).sum(1) < rank
    inside = candidates[is_in]
    return float(inside[0]), float(inside[-1])


def quantiles(values: Sequence[float], u: npt.ArrayLike) -> Array:
    """Quantiles of a distribution with the median and the conformal intervals of the values.

    Between them, and beyond the widest, normal scores are mapped linearly.
    """
    tails = [(1 - share) / 2 for share in SHARES[::-1]]
    bounds = [central(values, share) for share in SHARES[::-1]]
    at = ndtri([*tails, 0.5, *(1 - t for t in tails[::-1])])
    knots = np.array([*(low for low, _ in bounds), np.median(values), *(high for _, high in bounds[::-1])])
    z = ndtri(np.asarray(u, np.float64))
    out = np.interp(z, at, knots)
    for end, inner in ((0, 1), (-1, -2)):
        slope = (knots[inner] - knots[end]) / (at[inner] - at[end])
        beyond = z < at[0] if end == 0 else z > at[-1]
        out = np.where(beyond, knots[end] + slope * (z - at[end]), out)
    return out
