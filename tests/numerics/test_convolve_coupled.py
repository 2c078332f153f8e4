"""The field of a map as a change of the field of an empty map, against both drawn in full."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest
import reference_convolve as reference

from tumoar.numerics.convolve import REACH, M, R, inputs, pack
from tumoar.numerics.convolve_coupled import SHORTEST, draw_change, draw_empty
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.random import stream_key

PERIOD = SHORTEST
KEY = 11


@pytest.fixture(scope="module", params=["all different", "related"])
def bank(request):
    """Filters without relation; or some equal, opposite or zero, and units that are seldom on."""
    rng = np.random.default_rng(0)
    w = rng.normal(0, 0.01, (M, R, R, R)).astype(np.float32)
    b = rng.normal(-2, 0.7, M).astype(np.float32)
    if request.param == "related":
        w[5:9], w[20:25], w[33] = w[4], -w[10:15], 0
        b[10:30] = rng.uniform(-9, -4, 20)
    return w, b, pack(w, b)


def units(c, corner):
    """Hidden units (*J, M) for inputs c (*J, M), by random numbers that repeat with the period."""
    u = np.empty(c.shape, np.float32)
    third = (np.arange(c.shape[2]) + corner[2]) % PERIOD
    for i, j in np.ndindex(*c.shape[:2]):
        for f in (0, 1):
            own = third % 2 == f
            k0, k1 = stream_key(np.uint64(KEY), (i + corner[0]) % PERIOD, (j + corner[1]) % PERIOD, f)
            numbers = (third[own] // 2)[:, None] * M + np.arange(M)
            u[i, j, own] = reference.uniform(k0, k1, numbers)
    return u * reference.odds(c) < 1


def project(h, w):
    return reference.project(np.moveaxis(h, -1, 0).astype(float), w)


@pytest.mark.parametrize("origin", [(0, 0, 0), (3, 50, 41)])
def test_the_change_is_that_of_two_maps_drawn_with_the_same_numbers(bank, origin):
    w, _, filters = bank
    v = (np.random.default_rng(1).random((5, 9, 7)) < 0.7).astype(np.uint8)
    corner = tuple(o - 2 * REACH for o in origin)
    whole = np.pad(v, 2 * REACH)
    h, e = (units(inputs(x, filters), corner) for x in (whole, 0 * whole))
    inner = (slice(REACH, -REACH),) * 3
    expected = (project(h, w) - project(e, w))[inner]
    change = draw_change(v, filters, PERIOD, origin, KEY)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(change, expected, atol=1e-4)


def test_the_empty_map_is_drawn_for_one_period(bank):
    w, _, filters = bank
    grid = np.zeros((PERIOD + 2 * REACH,) * 3, np.uint8)
    h = units(inputs(grid, filters), (-REACH,) * 3)
    expected = project(h, w)[(slice(REACH, -REACH),) * 3]
    np.testing.assert_allclose(draw_empty(filters, PERIOD, KEY), expected, atol=1e-4)


def test_a_map_and_its_surroundings_fit_together(bank):
    """An empty map changes nothing, and the field of a map has the mean and spread of an independent draw."""
    filters = bank[2]
    assert not draw_change(np.zeros((4, 5, 6), np.uint8), filters, PERIOD, (1, 2, 3), KEY).any()
    v = np.ones((20, 20, 20), np.uint8)
    at = np.ix_(*(np.arange(-REACH, 20 + REACH) % PERIOD,) * 3)
    coupled = np.array([
        draw_empty(filters, PERIOD, key)[at] + draw_change(v, filters, PERIOD, (0, 0, 0), key)
        for key in range(20)
    ])  # fmt: skip
    padded = np.pad(v, REACH)
    free = np.array([draw_field(padded, padded >= 0, filters, 0.0, 100 + key) for key in range(20)])
    error = np.sqrt((coupled.var(0) + free.var(0)) / 20)
    assert np.abs((coupled.mean(0) - free.mean(0)) / error).mean() == pytest.approx(0.8, abs=0.15)
    assert coupled.var(0).mean() == pytest.approx(free.var(0).mean(), rel=0.05)


def test_threads_change_nothing(bank):
    filters, v = bank[2], np.ones((30, 12, 12), np.uint8)
    before = nb.get_num_threads()
    try:
        changes = []
        for n in (1, min(2, nb.config.NUMBA_NUM_THREADS)):
            nb.set_num_threads(n)
            changes.append(draw_change(v, filters, PERIOD, (0, 0, 0), KEY))
    finally:
        nb.set_num_threads(before)
    np.testing.assert_array_equal(*changes)


@pytest.mark.parametrize("period", [SHORTEST - 2, SHORTEST + 1])
def test_periods_that_are_short_or_odd_are_refused(bank, period):
    with pytest.raises(ValueError, match="even and at least"):
        draw_empty(bank[2], period, KEY)
