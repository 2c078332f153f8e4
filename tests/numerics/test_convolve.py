"""Tied-filter kernels against their definition, and the promises made about draws."""

from __future__ import annotations

import numba as nb
import numpy as np
import pytest
import reference_convolve as reference
from scipy.ndimage import gaussian_filter

from tumoar.numerics.convolve import CELL, REACH, M, R, inputs, pack
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.convolve_moments import moments
from tumoar.numerics.convolve_vectors import add_rows
from tumoar.numerics.random import stream_key

SHAPE = (17, 20, 23)


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


def test_related_filters_share_their_sums(bank):
    w, _, filters = bank
    different = {min(f.tobytes(), (-f).tobytes()) for f in w if f.any()}
    assert len(filters.up) // R**3 - 8 < len(different) <= len(filters.up) // R**3


def volume(kind, shape=SHAPE):
    rng = np.random.default_rng(1)
    if kind == "empty":
        return np.zeros(shape, np.uint8)
    if kind == "full":
        return np.ones(shape, np.uint8)
    if kind == "speckle":
        return (rng.random(shape) < 0.05).astype(np.uint8)
    return (gaussian_filter(rng.standard_normal(shape), 3) > 0.0).astype(np.uint8)


@pytest.mark.parametrize("kind", ["empty", "full", "speckle", "solid"])
@pytest.mark.parametrize("shape", [SHAPE, (14, 14, 14), (15, 16, 31)])
def test_inputs_are_the_correlation_with_the_tied_filter(bank, kind, shape):
    w, b, filters = bank
    v = volume(kind, shape)
    np.testing.assert_allclose(np.moveaxis(inputs(v, filters), -1, 0), reference.inputs(v, w, b), atol=1e-4)


def test_reference_pair_is_adjoint(bank):
    w, b, _ = bank
    rng = np.random.default_rng(2)
    v = rng.random(SHAPE)
    h = rng.random((M, *(n - REACH for n in SHAPE)))
    forward = (h * reference.inputs(v, w, 0 * b)).sum()
    assert forward == pytest.approx((v * reference.project(h, w)).sum(), rel=1e-12)


@pytest.mark.parametrize("kind", ["empty", "full", "speckle", "solid"])
def test_field_is_the_projection_of_the_drawn_units(bank, kind):
    w, _, filters = bank
    v = volume(kind)
    field = draw_field(v, np.ones(SHAPE, bool), filters, -0.7, 11)
    c = inputs(np.pad(v, REACH), filters)
    h = reference.draws(c, 11, (-REACH,) * 3, stream_key, reference.is_idle(np.pad(v, REACH)))
    inner = (slice(REACH, -REACH),) * 3
    expected = reference.project(np.moveaxis(h, -1, 0), w)[inner] - 0.7
    np.testing.assert_allclose(field, expected, atol=1e-4)


def test_odds_are_accurate():
    c = np.linspace(-15, 15, 10001, dtype=np.float32)
    np.testing.assert_allclose(1 / reference.odds(c), 1 / (1 + np.exp(-c.astype(float))), rtol=2e-5)


@pytest.mark.slow
def test_units_are_on_with_their_probability(bank):
    _, _, filters = bank
    v = np.pad(volume("solid", (9, 10, 12)), REACH)
    c = inputs(v, filters)
    p = 1 / (1 + np.exp(-c.astype(float)))
    n = 40
    idle = reference.is_idle(v)
    count = sum(reference.draws(c, key, (0, 0, 0), stream_key, idle).astype(int) for key in range(n))
    score = (count - n * p) / np.sqrt(n * p * (1 - p))
    assert abs(score.mean()) < 5 / np.sqrt(score.size)
    assert score.var() == pytest.approx(1, abs=0.02)
    for m in range(M):
        spread = np.sqrt((n * p[..., m] * (1 - p[..., m])).sum())
        assert abs((count[..., m] - n * p[..., m]).sum()) < 5 * spread


def test_idle_units_are_on_with_their_probability_and_independent():
    rng = np.random.default_rng(5)
    p = np.concatenate([rng.uniform(0.05, 0.5, 4), rng.uniform(0.001, 0.019, 8)])
    n = 200_000
    u = rng.random((n, len(p)), np.float32)
    h = np.array([reference.idle_units((1 / p).astype(np.float32), row) for row in u]).astype(float)
    assert (np.abs(h.mean(0) - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
    both = h.T @ h / n
    pairs = np.triu_indices(len(p), 1)
    expected = np.outer(p, p)
    assert (np.abs(both - expected)[pairs] < 5 * np.sqrt(expected / n)[pairs]).all()


@pytest.mark.parametrize("pad", [20, 27, 40])
def test_padding_changes_nothing(bank, pad):
    filters = bank[2]
    v, region = volume("solid"), np.ones(SHAPE, bool)
    np.testing.assert_array_equal(
        draw_field(v, region, filters, 0.3, 5, pad), draw_field(v, region, filters, 0.3, 5)
    )


def test_part_of_a_field_is_the_field_of_the_part(bank):
    filters = bank[2]
    v = volume("solid")
    whole = draw_field(v, np.ones(SHAPE, bool), filters, 0.3, 5)
    for density in (0.5, 0.002):
        region = np.random.default_rng(3).random(SHAPE) < density
        np.testing.assert_array_equal(draw_field(v, region, filters, 0.3, 5), np.where(region, whole, 0))


def test_empty_region_gives_an_empty_field(bank):
    assert not draw_field(volume("solid"), np.zeros(SHAPE, bool), bank[2], 0.3, 5).any()


def test_draws_follow_the_grid_not_the_array(bank):
    """Moving shape and region together moves the draws to other places: the field must change."""
    filters = bank[2]
    v, region = np.zeros((40, 30, 30), np.uint8), np.zeros((40, 30, 30), bool)
    v[5:15, 5:20, 5:20], region[5:15, 5:20, 5:20] = 1, True
    here = draw_field(v, region, filters, 0.3, 5)[5:15, 5:20, 5:20]
    there = draw_field(np.roll(v, 9, 0), np.roll(region, 9, 0), filters, 0.3, 5)[14:24, 5:20, 5:20]
    assert not np.array_equal(here, there)


def test_threads_change_nothing(bank):
    filters = bank[2]
    shape = (60, 40, 40)
    v, region = volume("solid", shape), np.ones(shape, bool)
    before = nb.get_num_threads()
    try:
        fields = []
        for n in (1, min(2, nb.config.NUMBA_NUM_THREADS)):
            nb.set_num_threads(n)
            fields.append(draw_field(v, region, filters, 0.3, 5))
    finally:
        nb.set_num_threads(before)
    np.testing.assert_array_equal(*fields)


@pytest.mark.parametrize("kind", ["empty", "full", "speckle", "solid"])
def test_moments_match_their_definition(bank, kind):
    w, b, filters = bank
    v = volume(kind)
    G, p, places = moments(v, filters)
    expected_G, expected_p = reference.moments(v, w, b)
    np.testing.assert_allclose(G, expected_G, rtol=2e-5, atol=1e-3)
    np.testing.assert_allclose(p, expected_p, rtol=2e-5)
    assert places == np.prod([n - REACH for n in SHAPE])


def test_phases_add_up(bank):
    filters = bank[2]
    v = volume("solid")
    parts = [moments(v, filters, (phase,)) for phase in range(8)]
    G, p, places = moments(v, filters)
    np.testing.assert_allclose(sum(q[0] for q in parts), G, rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(sum(q[1] for q in parts), p, rtol=1e-6)
    assert sum(q[2] for q in parts) == places


def test_units_without_weights_change_nothing(bank):
    """Whatever their biases, and whether they are drawn or not."""
    w, v, region = bank[0].copy(), volume("speckle"), np.ones(SHAPE, bool)
    w[[0, 7, 39]] = 0
    b, other = np.full(M, -1.0), np.full(M, -1.0)
    other[[0, 7, 39]] = 0.5
    np.testing.assert_array_equal(*(draw_field(v, region, pack(w, x), 0.3, 5) for x in (b, other)))


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_rows_of_a_table_are_added(count):
    rng = np.random.default_rng(4)
    y, table = (rng.integers(-(2**20), 2**20, n).astype(np.int32) for n in (200, 900))
    rows = tuple(np.uint64(r) for r in rng.integers(0, 900 - R * CELL, count))

    @nb.njit
    def add(y, table, rows):
        add_rows(y, np.uint64(77), table, rows)

    expected = y.copy()
    for r in rows:
        expected[77 : 77 + R * CELL] += table[int(r) : int(r) + R * CELL]
    add(y, table, rows)
    np.testing.assert_array_equal(y, expected)


def test_wrong_sizes_are_refused(bank):
    with pytest.raises(ValueError, match="14 voxels"):
        inputs(np.zeros((13, 20, 20), np.uint8), bank[2])
    with pytest.raises(ValueError, match=r"w must be \(40, 7, 7, 7\)"):
        pack(np.zeros((3, 7, 7, 7)), np.zeros(3))
    with pytest.raises(ValueError, match="pad must be at least 13"):
        draw_field(volume("solid"), np.ones(SHAPE, bool), bank[2], 0.0, 1, 5)
