"""Training of the shape prior: gradients against enumeration, windows, and exact resumption."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import reference_convolve as reference

from tumoar.model.shape.base import sample_shape
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH
from tumoar.train import shape as training
from tumoar.train.shape import Difference, ShapeTraining, centered_gradient, uncenter
from tumoar.train.shape_data import Shape, crop, crop_shape, draw_flips, draw_window, split_by_patient
from tumoar.train.shape_start import (
    BALLS,
    DIRECTIONS,
    SURFACE,
    Family,
    Parameters,
    cube_symmetries,
    find_rotation,
    invariant_basis,
    rotate,
    stabilizer,
    surface,
)
from tumoar.vocabulary.errors import FitError

MAPS = np.array(list(itertools.product((0, 1), repeat=6)), float).reshape(-1, 1, 2, 3)
WEIGHT = np.random.default_rng(0).dirichlet(np.ones(len(MAPS)))  # a data distribution over all maps


def log_likelihood(p):
    """Exact mean log-likelihood of a tiny model (2x2x2 filters) with zeros around the map."""
    F = np.array([_free_energy(v, p) for v in MAPS])
    return float(-WEIGHT @ F - np.logaddexp.reduce(-F))


def _free_energy(v, p):
    c = reference.inputs(np.pad(v, 1), p.w, p.b)
    return -np.logaddexp(0, c).sum() - p.a * v.sum()


def exact_difference(p):
    F = np.array([_free_energy(v, p) for v in MAPS])
    model = np.exp(-F - np.logaddexp.reduce(-F))
    wh, h, v = 0.0, 0.0, 0.0
    for x, weight in zip(MAPS, WEIGHT - model):
        G, q = reference.moments(np.pad(x, 1), p.w, p.b)
        wh, h, v = wh + weight * G, h + weight * q, v + weight * x.sum()
    return Difference(wh, h, float(v))


def tiny(seed=1):
    rng = np.random.default_rng(seed)
    return Parameters(rng.normal(0, 0.4, (2, 1, 1, 1)), rng.normal(0, 0.4, 2), 0.2)


def along(p, direction, t):
    return Parameters(p.w + t * direction.w, p.b + t * direction.b, p.a + t * direction.a)


def slope(p, direction, e=1e-5):
    return (log_likelihood(along(p, direction, e)) - log_likelihood(along(p, direction, -e))) / (2 * e)


def directions(n=6):
    rng = np.random.default_rng(2)
    return [
        Parameters(rng.normal(size=(2, 1, 1, 1)), rng.normal(size=2), float(rng.normal())) for _ in range(n)
    ]


def inner(g, d):
    return float((g.w * d.w).sum() + (g.b * d.b).sum() + g.a * d.a)


def test_moment_differences_are_the_gradient_of_the_log_likelihood():
    p = tiny()
    gradient = Parameters(*exact_difference(p))
    for d in directions():
        assert slope(p, d) == pytest.approx(inner(gradient, d), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("mu", "lam"), [(0.0, (0.0, 0.0)), (0.3, (0.2, 0.7))])
def test_centered_gradient_is_the_gradient_in_centered_parameters(mu, lam):
    p, lam = tiny(), np.array(lam)
    gradient = centered_gradient(exact_difference(p), mu, lam)
    for d in directions():
        assert slope(p, uncenter(d, mu, lam)) == pytest.approx(inner(gradient, d), rel=1e-6, abs=1e-9)


def test_enhanced_gradient_is_the_difference_of_covariances():
    """With offsets halfway between data and model, <(v−μ)(h−λ)>_d − <(v−μ)(h−λ)>_m = Cov_d − Cov_m."""
    rng = np.random.default_rng(3)
    v, h = (rng.random((2, 500)) for _ in range(2))
    v[1] = np.sqrt(v[1])
    mu, lam = v.mean() * np.ones(1), h.mean()
    wh, dh, dv = ((v * h)[0] - (v * h)[1]).mean(), h[0].mean() - h[1].mean(), v[0].mean() - v[1].mean()
    d = Difference(np.full((1, 1, 1, 1), 8 * wh), np.array([dh]), dv)  # 8 voxels in a tied block
    covariance = np.cov(v[0], h[0], bias=True)[0, 1] - np.cov(v[1], h[1], bias=True)[0, 1]
    assert centered_gradient(d, float(mu[0]), np.array([lam])).w.item() / 8 == pytest.approx(covariance)


def test_flipping_visible_units_flips_the_enhanced_gradient():
    """v → 1 − v with μ → 1 − μ: the centered filter gradient changes its sign and nothing else."""
    rng = np.random.default_rng(4)
    v, h = rng.random((2, 500)), rng.random((2, 500))

    def gradient(v, mu):
        dv = v[0].mean() - v[1].mean()
        wh = ((v * h)[0] - (v * h)[1]).mean()
        d = Difference(np.full((1, 1, 1, 1), 8 * wh), np.array([h[0].mean() - h[1].mean()]), dv)
        return centered_gradient(d, mu, np.array([0.4]))

    here, flipped = gradient(v, 0.3), gradient(1 - v, 0.7)
    np.testing.assert_allclose(flipped.w, -here.w, atol=1e-12)
    np.testing.assert_allclose(flipped.b, here.b, atol=1e-12)
    assert flipped.a == pytest.approx(-here.a)


def ball(radius, name="ball-000"):
    x = np.indices((2 * radius + 1,) * 3) - radius
    return crop_shape(name, (x**2).sum(0) <= radius**2)


SHAPES = (ball(9), ball(12, "other-000"))
QUICK = ShapeTraining(steps=6, batch=2, pool=4, window=16, margin=4, life=2.0, life_free=3.0)


@cache
def first(config=QUICK):
    """The state before training; a value, so that tests can share it."""
    return training.initialize(SHAPES, config, 7)


def run(state, config, steps):
    for _ in range(steps):
        state, _ = training.advance(SHAPES, config, state)
    return state


def stored(state):
    file = io.BytesIO()
    np.savez(file, **training.to_arrays(state))
    file.seek(0)
    return training.from_arrays(dict(np.load(file)))


def test_resuming_gives_the_same_bits():
    straight = run(first(), QUICK, 6)
    resumed = run(stored(run(first(), QUICK, 3)), QUICK, 3)
    for name, x in training.to_arrays(straight).items():
        np.testing.assert_array_equal(training.to_arrays(resumed)[name], x, err_msg=name)


@pytest.mark.slow
def test_resumed_after_every_one_of_twenty_steps(record_property):
    config = replace(QUICK, steps=20)
    state = first(config)
    for _ in range(20):
        state = stored(run(state, config, 1))
    straight = run(first(config), config, 20)
    for name, x in training.to_arrays(straight).items():
        np.testing.assert_array_equal(training.to_arrays(state)[name], x, err_msg=name)
    record_property("tried", 20)


def test_a_state_is_a_value():
    """A step leaves the state it starts from as it was."""
    state = run(first(), QUICK, 2)
    before = {k: x.copy() for k, x in training.to_arrays(state).items()}
    run(state, QUICK, 2)
    for name, x in training.to_arrays(state).items():
        np.testing.assert_array_equal(x, before[name], err_msg=name)


@pytest.mark.long
def test_training_raises_the_shapes_above_their_surroundings():
    """A short run on balls: the field learned inside is above the field outside."""
    config = replace(QUICK, steps=40)
    *_, (state, info) = training.train(SHAPES, config, training.initialize(SHAPES, config, 7))
    assert info.step == 40
    v = np.pad(SHAPES[1].v, 8).astype(bool)
    field = state.model.field(v, np.ones(v.shape, bool), 1)
    assert field[v].mean() > field[~v].mean() + 2


def test_divergence_is_a_refusal():
    config = replace(QUICK, largest_norm=0.1)
    with pytest.raises(FitError, match="diverged"):
        run(first(), config, 3)
    with pytest.raises(FitError, match="everywhere"):
        training._require_bounded(-3.0)


def test_model_of_a_state_is_a_crbm():
    model = first().model
    assert isinstance(model, CRBM)
    assert model.fast


def test_windows_hold_the_shape_and_zeros():
    rng = np.random.default_rng(5)
    one = (SHAPES[0],)
    volumes = [int(draw_window(one, 24, 0, rng).sum()) for _ in range(20)]
    assert max(volumes) <= SHAPES[0].volume
    assert max(volumes) > 0.9 * SHAPES[0].volume
    assert draw_window(one, 24, 0, rng).shape == (24 + 2 * REACH,) * 3


def test_cut_matches_padding():
    v = np.random.default_rng(6).integers(0, 2, (5, 6, 7), np.uint8)
    padded = np.pad(v, 20)
    for corner in ((-3, 2, -7), (4, 4, 4), (9, 0, 0), (-19, -19, -19)):
        part = padded[tuple(slice(20 + c, 20 + c + 10) for c in corner)]
        np.testing.assert_array_equal(crop(v, np.array(corner), 10), part)


@pytest.mark.parametrize("grain", [0.0, 2.0])
def test_flips_have_their_rate(grain):
    rng = np.random.default_rng(7)
    share = np.mean([draw_flips((30, 30, 30), 0.2, grain, rng).mean() for _ in range(20)])
    assert share == pytest.approx(0.2, abs=0.02)


BIASES = [bias for *_, biases in BALLS for bias in biases]
VOTES = len(BALLS[0][2])


def test_first_model_is_the_table():
    w, b, _ = first().parameters
    strengths = [strength for _, strength, biases in BALLS for _ in biases]
    np.testing.assert_allclose(8 * w[: len(BIASES)].sum((1, 2, 3)), strengths)
    np.testing.assert_allclose(b[: len(BIASES)], BIASES)
    np.testing.assert_allclose(8 * np.abs(w[len(BIASES) :]).sum((1, 2, 3)), SURFACE[1])
    np.testing.assert_allclose(b[len(BIASES) :], SURFACE[2])
    assert len(w) == len(BIASES) + len(DIRECTIONS)


def test_first_model_has_empty_and_full_surroundings_equally_probable():
    model = first().model
    empty = np.zeros((15,) * 3)  # one hidden unit of each filter for each of 8 voxels
    inside = (slice(7, 9),) * 3
    free = [-np.logaddexp(0, model.hidden_input(v)[:, 0, 0, 0]).sum() - model.a * v[inside].mean()
            for v in (empty, empty + 1)]  # fmt: skip
    assert free[0] == pytest.approx(free[1], abs=1e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_surfaces_see_one_that_faces_them_and_not_its_opposite(direction):
    ahead = np.tensordot(direction, np.indices((7,) * 3) - 3, 1)
    half = np.where(ahead > 0, 1.0, np.where(ahead < 0, 0.0, 0.5)).ravel()
    w = surface(direction, SURFACE[0])
    assert 8 * w @ half == pytest.approx(0.5)
    assert 8 * w @ (1 - half) == pytest.approx(-0.5)
    assert w.sum() == pytest.approx(0, abs=1e-12)


def test_votes_act_like_a_random_field_of_neighbors():
    """Among 2x2x2 boxes their free energy, less its slope, is nearly the square of (number on − 4)."""
    w, b, _ = first().parameters
    on = np.arange(9)
    F = -np.logaddexp(0, w[:VOTES, 3, 3, 3][:, None] * on + b[:VOTES, None]).sum(0)
    F -= (F[-1] - F[0]) / 8 * on
    square = np.polynomial.Polynomial.fit(on - 4, F, 2)
    assert np.abs(square(on - 4) - F).max() < 0.1 * np.ptp(F)
    assert F[4] == F.max()


def test_the_cube_has_48_symmetries_and_they_are_a_group():
    found = {g.tobytes() for g in cube_symmetries()}
    assert len(found) == 48
    assert all((g @ h).tobytes() in found for g in cube_symmetries() for h in cube_symmetries())


@pytest.mark.parametrize("direction", [(1, 0, 0), (0, 1, -1), (-1, 1, 1)])
def test_filters_that_face_a_direction_are_what_its_symmetries_leave(direction):
    """As many as the mean trace says (the dimension of what a group leaves), each of them left as it is."""
    symmetries = stabilizer(direction)
    basis = invariant_basis(symmetries)
    x = np.arange(343.0)
    traces = [s * np.count_nonzero(rotate(x, g) == x) for g, s in symmetries]
    assert len(basis) == np.mean(traces)
    assert np.linalg.matrix_rank(basis) == len(basis)
    for e, (g, s) in itertools.product(basis, symmetries):
        np.testing.assert_array_equal(rotate(e, g), s * e)


def test_surfaces_of_a_class_are_turns_of_each_other():
    source = (0, 1, 1)
    for target in (d for d in DIRECTIONS if np.count_nonzero(d) == 2):
        there = rotate(surface(source, 2.5), find_rotation(source, target))
        np.testing.assert_allclose(there, surface(target, 2.5), atol=1e-15)


def test_training_keeps_the_symmetry_of_the_filters():
    """Any turn or mirror of all filters is an exchange of filters, before training and after."""
    for state in (first(), run(first(), QUICK, 2)):
        w, b, _ = state.parameters
        filters = np.column_stack([w.reshape(len(w), -1), b])
        for g in cube_symmetries():
            moved = np.column_stack([[rotate(x, g) for x in w.reshape(len(w), -1)], b])
            gaps = np.abs(moved[:, None] - filters).max(2)
            assert sorted(gaps.argmin(1)[len(BIASES) :]) == list(range(len(BIASES), len(w)))
            assert gaps.min(1).max() < 1e-9


def test_filters_share_sixteen_sums():
    w, b, _ = run(first(), QUICK, 2).parameters
    assert len(CRBM(w, b, 0.0).filters.up) // 7**3 == 16


def test_derivatives_along_a_family_are_those_of_its_steps():
    family = first().family
    rng = np.random.default_rng(9)
    g = Parameters(rng.normal(size=(40, 7, 7, 7)), rng.normal(size=40), 0.3)
    move = rng.normal(size=family.size)
    assert inner(g, family.step(move)) == pytest.approx(float(family.along(g) @ move))


def few(n=5):
    """A state with a family of few directions, and gradients."""
    family = first().family
    state = replace(
        first(), step=10, family=Family(family.w[:n], family.b[:n]), fisher=np.zeros((n + 1,) * 2)
    )
    rng = np.random.default_rng(10)
    differences = [
        Difference(rng.normal(size=(40, 7, 7, 7)), rng.normal(size=40), float(rng.normal())) for _ in range(9)
    ]
    return state, differences, rng


def test_natural_steps_do_not_depend_on_the_units_of_the_parameters():
    """Twice the direction: half the coordinate, the same step, but for the damping."""
    state, differences, rng = few()
    units = rng.uniform(0.5, 2, len(state.family.w))
    other = replace(state.family, w=state.family.w * units[:, None, None], b=state.family.b * units[:, None])
    free = replace(QUICK, damping=0.0)
    _, here = training.natural_step(differences, state, free)
    _, there = training.natural_step(differences, replace(state, family=other), free)
    np.testing.assert_allclose(there.w, here.w, rtol=1e-6, atol=1e-12)
    assert there.a == pytest.approx(here.a)


def test_natural_steps_are_bounded():
    """However large the gradient, a step moves no farther than it may by the Fisher information."""
    state, differences, _ = few()
    config = replace(QUICK, largest_move=1e-4, damping=0.0)
    fisher, step = training.natural_step(differences, state, config)
    directions = np.array([np.append(x.ravel(), y) for x, y in zip(state.family.w, state.family.b)])
    flat = np.append(step.w.ravel(), step.b)
    move = np.append(np.linalg.lstsq(directions.T, flat, rcond=None)[0], step.a)
    assert move @ fisher @ move <= config.step**2 * 1e-4 * (1 + 1e-6)


def test_free_chains_change_their_box_alone():
    state = run(first(), replace(QUICK, free_share=1.0), 4)
    c = state.chains
    assert not c.log_odds.any()
    for data, now, (begin, end) in zip(c.data, c.state, c.box):
        assert ((end - begin) >= 10).all()
        outside = np.ones(data.shape, bool)
        outside[tuple(slice(*x) for x in zip(begin, end))] = False
        np.testing.assert_array_equal(now[outside], data[outside])
    assert (c.data != c.state).any()


def test_the_empty_map_stays_empty():
    empty = np.zeros((30, 30, 30), bool)
    assert not sample_shape(first().model, empty, 20, np.random.default_rng(0)).any()


def test_model_is_the_average_of_the_last_steps():
    config = replace(QUICK, average_memory=0.5)
    a = first()
    b = run(a, config, 1)
    np.testing.assert_allclose(b.model.b, 0.5 * (a.parameters.b + b.parameters.b), rtol=1e-6)


def test_free_energy_gap_is_zero_between_equal_shapes():
    model = first().model
    assert training.free_energy_gap(model, SHAPES[:1], SHAPES[:1]) == 0
    assert training.free_energy_gap(model, SHAPES[1:], SHAPES[:1]) > 0  # more surface per voxel


def test_time_points_of_a_patient_stay_together():
    shapes = [replace(SHAPES[0], name=f"p{i}-00{t}", patient=f"p{i}") for i in range(9) for t in range(2)]
    train, held = split_by_patient(shapes, 3, 1)
    assert not {s.patient for s in train} & {s.patient for s in held}
    assert len(held) == 6
    assert crop_shape("BraTS-GLI-00012-001", np.ones((2, 2, 2))).patient == "BraTS-GLI-00012"


def test_an_empty_mask_is_no_shape():
    assert crop_shape("x", np.zeros((4, 4, 4))) is None
    assert isinstance(crop_shape("x", np.ones((4, 4, 4))), Shape)
