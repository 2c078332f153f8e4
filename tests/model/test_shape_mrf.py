"""The first-order random field against its definition and against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tumoar.model.shape.base import FlatPrior, sample_shape, select_color
from tumoar.model.shape.mrf import FirstOrderMRF


def slow_energy(v, beta):
    x = np.pad(v, 1)
    voxels = list(np.ndindex(*x.shape))
    pairs = sum(
        x[p] != x[q]
        for p, q in itertools.combinations(voxels, 2)
        if max(abs(a - b) for a, b in zip(p, q)) == 1
    )
    return beta * pairs


def some_map(shape=(3, 4, 2), seed=0):
    return np.random.default_rng(seed).random(shape) < 0.5


def test_energy_counts_unequal_neighbors():
    for seed in range(5):
        v = some_map(seed=seed)
        assert FirstOrderMRF(0.7).energy(v) == pytest.approx(slow_energy(v, 0.7))


@pytest.mark.parametrize("level", [0.0, -1.5])
def test_field_is_the_difference_of_energies(level):
    model, v = FirstOrderMRF(0.4, level), some_map()
    field = model.field(v, np.ones(v.shape, bool), 0)
    for i in np.ndindex(*v.shape):
        on, off = v.copy(), v.copy()
        on[i], off[i] = True, False
        assert field[i] == pytest.approx(model.energy(off) - model.energy(on), abs=1e-4)


def test_voxels_of_one_color_do_not_see_each_other():
    v, everywhere = some_map((6, 6, 6)), np.ones((6, 6, 6), bool)
    model = FirstOrderMRF(1.0)
    for color in range(8):
        own = select_color(everywhere, color, model.colors)
        changed = v ^ (own & some_map((6, 6, 6), seed=3))
        np.testing.assert_array_equal(model.field(v, own, 0), model.field(changed, own, 0))


@pytest.mark.long
def test_colored_sweeps_reach_the_enumerated_distribution():
    shape, model = (2, 2, 2), FirstOrderMRF(0.15)
    maps = np.array(list(itertools.product((0, 1), repeat=8)), bool).reshape(-1, *shape)
    data = np.linspace(1.5, 4.5, 8).reshape(shape)  # a data term, so that the map is not simply empty
    weight = np.exp([(data * v).sum() - model.energy(v) for v in maps])
    weight /= weight.sum()
    rng = np.random.default_rng(1)
    mean, both = np.zeros(8), np.zeros((8, 8))
    v, region, sweeps = np.zeros(shape, bool), np.ones(shape, bool), 1500
    for _ in range(sweeps):
        for color in range(8):
            own = select_color(region, color, model.colors)
            log_odds = model.field(v, own, 0) + data
            v = np.where(own, rng.random(shape) < 1 / (1 + np.exp(-log_odds)), v)
        x = v.ravel().astype(float)
        mean += x / sweeps
        both += np.outer(x, x) / sweeps
    flat = maps.reshape(-1, 8).astype(float)
    np.testing.assert_allclose(mean, weight @ flat, atol=0.06)
    np.testing.assert_allclose(both, np.einsum("s,si,sj->ij", weight, flat, flat), atol=0.06)


def test_region_bounds_the_field():
    v, region = some_map(), some_map(seed=9)
    assert not FirstOrderMRF(1.0).field(v, region, 0)[~region].any()


def test_negative_beta_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        FirstOrderMRF(-1.0)


def test_free_sweeps_leave_a_flat_prior_at_its_probability():
    v = sample_shape(FlatPrior(np.log(0.3 / 0.7)), np.zeros((30, 30, 30), bool), 1, np.random.default_rng(1))
    assert v.mean() == pytest.approx(0.3, abs=0.01)


def test_free_sweeps_draw_every_color():
    v = sample_shape(FirstOrderMRF(0.0), np.zeros((30, 30, 30), bool), 1, np.random.default_rng(1))
    shares = [v[select_color(np.ones(v.shape, bool), color, 8)].mean() for color in range(8)]
    np.testing.assert_allclose(shares, 0.5, atol=0.04)
