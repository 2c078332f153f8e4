"""The cRBM against enumeration on models small enough to sum over every state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tumoar.model.shape.base import FlatPrior, select_color
from tumoar.model.shape.crbm import CRBM, find_surface_filters, soften, sparsify

SHAPE = (2, 2, 4)  # with filters of 2x2x2 voxels (one free tap): 3 hidden units per group, 16 voxels


def tiny(M=2, seed=0):
    rng = np.random.default_rng(seed)
    return CRBM(rng.normal(0, 0.5, (M, 1, 1, 1)), rng.normal(0, 0.5, M), 0.3)


def states(n):
    return np.array(list(itertools.product((0, 1), repeat=n)), bool)


def some_maps(n=20, shape=SHAPE, seed=1):
    return np.random.default_rng(seed).random((n, *shape)) < 0.5


def test_free_energy_sums_over_all_hidden_states():
    model = tiny()
    for v in some_maps():
        hidden = states(2 * 3).reshape(-1, 2, 1, 1, 3)
        total = -np.logaddexp.reduce([-model.energy(v, h) for h in hidden])
        assert model.free_energy(v) == pytest.approx(total, abs=1e-9)


def test_hidden_units_are_independent_given_v_with_the_stated_probability():
    model = tiny()
    v = some_maps(1)[0]
    hidden = states(6).reshape(-1, 2, 1, 1, 3)
    weight = np.exp([-model.energy(v, h) for h in hidden])
    weight /= weight.sum()
    p = model.hidden_probability(v)
    expected = np.prod(np.where(hidden, p, 1 - p), axis=(1, 2, 3, 4))
    np.testing.assert_allclose(weight, expected, atol=1e-9)


def test_visible_input_is_the_log_odds_of_each_voxel():
    model = tiny()
    rng = np.random.default_rng(3)
    h = rng.random((2, 1, 1, 3)) < 0.5
    v = some_maps(1)[0]
    log_odds = model.visible_input(h)
    for i in np.ndindex(*SHAPE):
        on, off = v.copy(), v.copy()
        on[i], off[i] = True, False
        assert log_odds[i] == pytest.approx(model.energy(off, h) - model.energy(on, h), abs=1e-6)


def test_softened_has_its_energy_times_the_strength_and_its_level_per_voxel():
    model = tiny()
    soft = soften(model, 0.8, -0.2, 0)
    h = np.random.default_rng(3).random((2, 1, 1, 3)) < 0.5
    for v in some_maps():
        assert soft.energy(v, h) == pytest.approx(0.8 * model.energy(v, h) + 0.2 * v.sum(), abs=1e-6)
    assert soften(model, 1, 0, 0) is model


def test_of_filters_of_all_kinds_only_surfaces_get_their_bias():
    ramp = np.arange(3.0) - 1
    kinds = np.zeros((4, 3, 3, 3))
    kinds[0], kinds[1], kinds[2, 1, 1, 1] = ramp[:, None, None], ramp + 0.1, 1
    kinds[3] = -kinds[0]
    model = CRBM(kinds, np.full(4, -2.0), 0.3)
    assert find_surface_filters(model).tolist() == [True, False, False, True]
    np.testing.assert_allclose(soften(model, 0.5, 0, -0.3).b, [-1.3, -1, -1, -1.3], rtol=1e-6)


@pytest.mark.parametrize("surface", [-0.5, 0.5])
def test_the_lower_their_bias_the_more_a_surface_costs(surface):
    """In free energy, half full against empty; the balance of full and empty is as before."""
    ahead = np.zeros((4, 4, 4)) + (np.arange(4.0) - 1.5)[:, None, None]
    model = CRBM(np.stack([ahead, -ahead]), [-3, -3], 0.0)
    other = soften(model, 1, 0, surface)
    empty, full, half = (np.zeros((24, 12, 12), bool) for _ in range(3))
    full[:], half[:12] = True, True
    cost = [m.free_energy(half) - m.free_energy(empty) for m in (model, other)]
    assert (cost[1] > cost[0]) == (surface < 0)
    assert other.free_energy(full) == pytest.approx(other.free_energy(empty), abs=1e-6)


def test_forward_and_backward_are_adjoint():
    """<w ⋆ v, h> = <v, w̃ ∗ h>, with real-valued v and h."""
    rng = np.random.default_rng(4)
    model = CRBM(rng.normal(size=(3, 2, 2, 2)), np.zeros(3), 0.0)
    v = rng.normal(size=(6, 5, 7))
    h = rng.normal(size=(3, 3, 2, 4))
    assert (h * model.hidden_input(v)).sum() == pytest.approx((v * model.visible_input(h)).sum(), rel=1e-12)


def test_tied_filters_repeat_in_blocks():
    model = CRBM(np.arange(8.0).reshape(1, 2, 2, 2), np.zeros(1), 0.0)
    for t in np.ndindex(4, 4, 4):
        assert model.full[(0, *t)] == model.w[(0, *(k // 2 for k in t))]


def test_field_gives_every_voxel_its_full_complement():
    """With certain hidden units the field is a + Σ w everywhere, border and corners included."""
    w = np.full((2, 1, 1, 1), 0.5)
    model = CRBM(w, np.full(2, 50.0), -1.0)
    field = model.field(np.zeros(SHAPE, bool), np.ones(SHAPE, bool), 1)
    np.testing.assert_allclose(field, -1.0 + 2 * 8 * 0.5, rtol=1e-6)


def test_gibbs_sweeps_reach_the_enumerated_distribution():
    """Alternating draws of h and v visit every map as often as exp(−free energy) says."""
    shape = (1, 2, 3)
    model = tiny(seed=5)
    maps = states(6).reshape(-1, *shape)
    weight = np.exp([-model.free_energy(np.pad(v, model.reach)) for v in maps])
    weight /= weight.sum()
    rng = np.random.default_rng(6)
    count = np.zeros(len(maps))
    v, region = np.zeros(shape, bool), np.ones(shape, bool)
    sweeps = 3000
    for _ in range(sweeps):
        log_odds = model.field(v, region, int(rng.integers(2**63)))
        v = rng.random(shape) < 1 / (1 + np.exp(-log_odds))
        count[int("".join(str(int(x)) for x in v.ravel()), 2)] += 1
    for feature in (
        maps.reshape(-1, 6).astype(float),
        (maps.reshape(-1, 6)[:, :1] == maps.reshape(-1, 6)) * 1.0,
    ):
        np.testing.assert_allclose(count @ feature / sweeps, weight @ feature, atol=0.06)


def test_the_fast_path_agrees_with_the_plain_one():
    rng = np.random.default_rng(7)
    model = CRBM(rng.normal(0, 0.01, (40, 7, 7, 7)), rng.normal(-2, 1, 40), -0.5)
    v = rng.random((18, 15, 16)) < 0.3
    assert model.fast
    expected = np.stack([_correlate(v, f) for f in model.full]) + model.b[:, None, None, None]
    np.testing.assert_allclose(model.hidden_input(v), expected, atol=1e-4)
    total = -np.logaddexp(0, expected).sum() - model.a * v.sum()
    assert model.free_energy(v) == pytest.approx(total, rel=1e-5)


def _correlate(v, f):
    from scipy.signal import correlate

    return correlate(v.astype(float), f, "valid", "fft")


def test_rise_of_the_empty_map_is_zero():
    assert tiny().free_energy_rise(np.zeros(SHAPE, bool)) == pytest.approx(0, abs=1e-9)


def test_values_are_checked_and_frozen():
    with pytest.raises(ValueError, match=r"w must be \(M, r, r, r\)"):
        CRBM(np.zeros((2, 3, 3, 4)), np.zeros(2), 0.0)
    with pytest.raises(ValueError, match="finite"):
        CRBM(np.full((1, 1, 1, 1), np.nan), np.zeros(1), 0.0)
    with pytest.raises(ValueError, match="read-only"):
        tiny().w[0] = 1


def test_flat_prior_is_flat():
    region = np.zeros(SHAPE, bool)
    region[0, 1] = True
    np.testing.assert_array_equal(
        FlatPrior(-2.5).field(np.ones(SHAPE, bool), region, 0), np.where(region, np.float32(-2.5), 0)
    )


@pytest.mark.parametrize("colors", [1, 8])
def test_colors_split_the_region(colors):
    region = np.random.default_rng(8).random((5, 6, 7)) < 0.7
    parts = np.array([select_color(region, c, colors) for c in range(colors)])
    np.testing.assert_array_equal(parts.sum(0), region)


def test_complemented_hidden_units_leave_the_distribution_as_it_is():
    model = CRBM(np.random.default_rng(9).normal(0, 0.5, (3, 1, 1, 1)), np.array([1.5, -0.5, 0.3]), 0.1)
    other = sparsify(model)
    assert other.b.max() <= 0
    for v in some_maps():
        assert other.free_energy_rise(v) == pytest.approx(model.free_energy_rise(v), abs=1e-5)
