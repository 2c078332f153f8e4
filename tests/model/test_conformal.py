"""Conformal intervals cover a new value as often as they promise, whatever its distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tumoar.model.conformal import SHARES, central, least_cases, quantiles

DRAWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "skewed": lambda rng, n: rng.exponential(size=n) + 3,
    "heavy tails": lambda rng, n: rng.standard_t(1.5, n),
}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("n", [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (18, 21))])
@pytest.mark.parametrize("draws", DRAWS.values(), ids=DRAWS.keys())
def test_a_new_value_is_covered_as_promised(draws, n, share):
    rng = np.random.default_rng(0)
    trials, hits = 1500, 0
    for _ in range(trials):
        *known, new = draws(rng, n + 1)
        low, high = central(known, share)
        hits += low <= new <= high
    expected = math.ceil(share * (n + 1) - 1e-9) / (n + 1)  # exact without ties
    assert hits / trials == pytest.approx(
        expected, abs=4 * np.sqrt(expected * (1 - expected) / trials) + 0.002
    )


def test_too_few_values_bound_nothing():
    assert least_cases(0.9) == 9
    assert least_cases(0.5) == 1
    assert central(range(8), 0.9) == (-math.inf, math.inf)
    low, high = central(range(9), 0.9)
    assert low <= 0
    assert high >= 8
    assert math.isfinite(high - low)


def test_intervals_move_and_stretch_with_the_values():
    values = np.random.default_rng(1).standard_normal(21)
    low, high = central(values, 0.9)
    assert central(3 * values + 2, 0.9) == pytest.approx((3 * low + 2, 3 * high + 2), abs=0.02)


def test_quantiles_have_the_conformal_intervals_and_never_fall():
    values = np.random.default_rng(2).standard_t(3, 21)
    for share in SHARES:
        tails = np.array([(1 - share) / 2, (1 + share) / 2])
        assert quantiles(values, tails) == pytest.approx(central(values, share))
    assert quantiles(values, 0.5) == pytest.approx(np.median(values))
    u = np.linspace(0.001, 0.999, 500)
    assert (np.diff(quantiles(values, u)) >= 0).all()


def test_equal_values_leave_no_doubt():
    assert quantiles([0.0] * 12, [0.01, 0.3, 0.99]) == pytest.approx([0, 0, 0], abs=1e-3)
