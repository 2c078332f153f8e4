"""Algorithm 1 as a program: its start, what it holds, that it goes on as if never interrupted, its votes.

That it draws from the posterior is shown by test_enumeration, test_conditional_ratios, test_geweke, test_sbc.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import reference_voxels as reference
import small_head
import tiny_model as tiny
from scipy.ndimage import maximum_filter
from scipy.signal import lfilter
from tiny_chain import CRBM, ENUMERATED, LABELS, MRF, TinyModel, mixtures

from tumoar.inference import gem, gibbs
from tumoar.inference.schedule import MARGIN, Schedule, find_active_region
from tumoar.inference.tally import Tally, pool_tallies
from tumoar.io.models import default_model
from tumoar.model import joint
from tumoar.model.generative import FULL
from tumoar.model.shape.base import FlatPrior
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.numerics.autocorrelation import effective_size
from tumoar.numerics.voxels import UNUSED, WITH_DATA
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig, Level


def chain(D: np.ndarray, shapes, **held) -> gibbs.Chain:
    return TinyModel(D.shape[1:], shapes, tiny.prior(), **held).chain(D)


def test_first_t_belongs_to_the_first_labels():
    shape = (3, 4, 5)
    rng = np.random.default_rng(2)
    D = rng.standard_normal((tiny.N, *shape)).astype(np.float32)
    c = chain(D, (FlatPrior(0.0), FlatPrior(0.0)))
    z = rng.random(shape) < 0.5
    labels = joint.Labels(
        np.where(z, 1, rng.integers(0, 3, shape)).astype(np.uint8),
        z.astype(np.uint8),
        (z & (rng.random(shape) < 0.5)).astype(np.uint8),
    )
    x = mixtures(labels)
    counts = np.array([(x == m).sum() for m in range(LABELS.X)])
    theta = tiny.theta()
    n = np.array([gibbs.initialize_state(replace(c, seed=s), theta, labels).moments.n for s in range(200)])
    for m in range(LABELS.X):
        assert (n[:, LABELS.component_slice(m)].sum(1) == counts[m]).all()
    first = np.exp(reference.log_components(theta, D.astype(float))[:2])
    share = (first[0] / first.sum(0))[labels.y == 1]
    error = np.sqrt((share * (1 - share)).sum() / 200)
    assert abs(n[:, 0].mean() - share.sum()) < 5 * error


def test_every_sweep_draws_t_anew_for_its_labels():
    model = ENUMERATED["MRF"]
    rng = np.random.default_rng(4)
    theta, labels = model.draw_theta(rng), model.draw_labels(rng)
    c = model.chain(model.simulate(theta, labels, rng)[0])
    state = gibbs.initialize_state(c, theta, labels)
    seen = set()
    for _ in range(10):
        state, _ = gibbs.sweep(c, state)
        x = mixtures(state.labels)
        for m in range(LABELS.X):
            assert state.moments.n[LABELS.component_slice(m)].sum() == (x == m).sum()
        seen.add(tuple(state.moments.n))
    assert len(seen) > 5


def test_held_labels_stay():
    shape = (3, 4, 5)
    D = np.random.default_rng(3).standard_normal((tiny.N, *shape)).astype(np.float32)
    held = np.full(shape, -1, np.int8)
    held[0], held[1] = 1, 0
    c = chain(D, CRBM, fixed_z=held)
    state = gibbs.initialize_state(
        c, tiny.theta(), joint.Labels(*(np.zeros(shape, np.uint8) for _ in range(3)))
    )
    c = replace(c, prior=tiny.prior())
    for _ in range(10):
        state, info = gibbs.sweep(c, replace(state, theta=tiny.theta()))
        assert state.labels.z[0].all()
        assert not state.labels.z[1].any()
        assert info.tumor == state.labels.z.sum()


@pytest.fixture(scope="module")
def prepared():
    """The small head after Algorithm 2, with a random field on tumor shape, whatever is held."""
    case = small_head.case()
    gem_config = GemConfig(levels=(Level(spacing=1, smoothing=0),), outer_iterations=1, deformation_steps=0)
    config = Config(gem=gem_config, gibbs=GibbsConfig(full_every=1))
    fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, gem_config)
    shapes = (FirstOrderMRF(0.3), FirstOrderMRF(0.1))
    return partial(gibbs.initialize_chain, case, fit, shapes, small_head.TUMOR_MM3, config, seed=3)


@pytest.fixture(scope="module")
def small(prepared) -> tuple[gibbs.Chain, gibbs.ChainState]:
    return prepared()


@pytest.mark.parametrize("tau", ["images", 1.0])
def test_shape_priors_follow_the_images_whatever_power_is_set(prepared, tau):
    case, fit, _, volumes, config = prepared.args
    own = default_model()
    config = config.model_copy(update={"gibbs": GibbsConfig(tau=tau)})
    c, _ = gibbs.initialize_chain(case, fit, (own.shape_z, own.shape_y), volumes, config, seed=3)
    told = gibbs.initialize_chain(*prepared.args, seed=3)[0].tau
    assert FULL < told < 1  # noise is independent here, the labels of the start are not all right
    share = (told - FULL) / (1 - FULL)
    strength = 1 - share * (1 - config.soft_z.strength)
    np.testing.assert_allclose(c.shape_z.w, strength * own.shape_z.w, rtol=1e-6)
    assert c.tau == (told if tau == "images" else tau)


def test_where_only_core_is_held_tumor_is_too(prepared):
    held = np.full((small_head.SIZE,) * 3, -1, np.int8)
    held[15:18, 22:25, 22:25] = 1  # healthy white matter
    c, state = prepared(fixed_y=held)
    assert not small_head.truth()[1][held == 1].any()
    assert state.labels.y[held == 1].all()
    state, _ = gibbs.sweep(c, state)
    assert state.labels.y[held == 1].all()


@pytest.mark.parametrize("pace", [(1, 1, 0), (5, 5, 20)], ids=["all", "resting"])
def test_saved_and_loaded_it_continues_exactly(small, pace):
    c, state = small
    c = replace(c, schedule=Schedule(*pace))
    straight = state
    for _ in range(4):
        straight, _ = gibbs.sweep(c, straight)
    for _ in range(2):
        state, _ = gibbs.sweep(c, state)
    state = gibbs.from_arrays({k: v.copy() for k, v in gibbs.to_arrays(state).items()})
    for _ in range(2):
        state, _ = gibbs.sweep(c, state)
    assert (straight.rest is not None) == (pace[1] > 1)
    np.testing.assert_equal(gibbs.to_arrays(straight), gibbs.to_arrays(state))
    other, _ = gibbs.sweep(replace(c, seed=4), state)
    assert (other.labels.l != gibbs.sweep(c, state)[0].labels.l).any()


def test_tumor_and_tissue_are_found_and_forbidden_states_never_drawn(small):
    c, state = small
    l, z, y = small_head.truth()
    tally = Tally(c.labels, c.volume.use)
    config = GibbsConfig(burn_in=5, samples=7)
    for now, info in gibbs.iter_sweeps(c, state, config):
        state = now
        assert (state.labels.y <= state.labels.z).all()
        assert c.labels.in_brain[state.labels.l[state.labels.z == 1]].all()
        assert (c.prior.A @ state.theta.mu.ravel() <= c.prior.b + 1e-9).all()
        if info.sweep > config.burn_in:
            tally.add(state.labels)
    assert tally.samples == 7
    votes = tally.vote()
    assert small_head.dice(votes.z == 1, z == 1) > 0.93
    assert small_head.dice(votes.y == 1, y == 1) > 0.9
    gray = small_head.LABELS.l("gray matter")
    assert small_head.dice((votes.l == gray) & (z == 0), (l == gray) & (z == 0)) > 0.9
    np.testing.assert_allclose(
        tally.fraction(tumor=("core", "edema")).sum() * 7,
        sum(v[-1] + v[-2] for v in tally.volumes),
        rtol=1e-5,
    )


def test_sweeps_between_full_ones_look_only_near_likely_tumor(small):
    c, state = small
    c = replace(c, schedule=Schedule(full_every=3, burn_in=6))
    full, sizes = state, []
    for _ in range(6):
        full, _ = gibbs.sweep(c, full)
        sizes.append((full.active > 0).sum())
        assert not full.labels.z[full.active < 1].any()
        assert not full.labels.y[full.active < 2].any()
    assert sizes[0] == sizes[1] == sizes[2] < c.region.sum()
    assert small_head.dice(full.labels.z == 1, small_head.truth()[1] == 1) > 0.9
    every, _ = gibbs.sweep(replace(c, schedule=Schedule()), state)
    assert np.array_equal(every.active, c.everywhere)


@pytest.mark.slow
def test_the_region_is_fixed_once_samples_are_counted(small):
    c, state = small
    c = replace(c, schedule=Schedule(full_every=3, burn_in=4))
    regions = []
    for _ in range(12):
        state, _ = gibbs.sweep(c, state)
        regions.append(state.active)
    assert regions[3] is not regions[2]  # sweep 4 is full and of the burn-in
    assert all(region is regions[3] for region in regions[4:])
    bare = replace(c, schedule=Schedule(full_every=3, burn_in=0))
    assert np.array_equal(gibbs.sweep(bare, small[1])[0].active, c.everywhere)


@pytest.mark.parametrize("shapes", [CRBM, MRF], ids=["cRBM", "MRF"])
def test_outside_the_region_tumor_is_held_at_its_value(shapes):
    shape = (3, 4, 5)
    rng = np.random.default_rng(3)
    D = rng.standard_normal((tiny.N, *shape)).astype(np.float32)
    c = replace(chain(D, shapes), schedule=Schedule(full_every=2**30))
    level = rng.integers(0, 3, shape).astype(np.uint8)
    z, y = ((level >= n).astype(np.uint8) for n in (1, 2))
    inside = rng.integers(0, 3, shape).astype(np.uint8)
    l = np.full(shape, int(np.flatnonzero(LABELS.in_brain)[0]), np.uint8)
    state = gibbs.initialize_state(c, tiny.theta(), joint.Labels(l, z, y))
    state = replace(state, sweep=1, active=inside)
    drawn = set()
    for _ in range(40):
        state, _ = gibbs.sweep(c, replace(state, theta=tiny.theta()))
        now = state.labels.z + state.labels.y
        assert np.array_equal(now[inside == 0], level[inside == 0])
        assert np.array_equal((now == 2)[inside == 1], (level == 2)[inside == 1])
        drawn.add(now.tobytes())
    assert len(drawn) > 5


@pytest.mark.slow
def test_rows_far_from_tumor_rest_between_their_turns(small):
    c, state = small
    c = replace(c, schedule=Schedule(full_every=6, rest_every=3, burn_in=10))
    held = []
    for sweep in range(1, 15):
        before = state
        state, _ = gibbs.sweep(c, state)
        if state.rest is not None and state.rest is before.rest:
            held.append(sweep)
            far = ~before.active.any(2)
            assert far.any()
            assert np.array_equal(state.labels.l[far], before.labels.l[far])
        x = mixtures(state.labels, c.labels)
        n = np.bincount(x[c.volume.use == WITH_DATA], minlength=c.labels.X)
        for m in range(c.labels.X):  # the t of rows that rest still counts
            assert state.moments.n[c.labels.component_slice(m)].sum() == pytest.approx(n[m])
    # sweeps 1, 7, 13 are full; 2 and 8 follow a full one; 4 and 10 are a third; after 10, samples are counted
    assert held == [3, 5, 6, 9]


def test_margin_around_likely_tumor_is_the_same_as_over_the_whole_volume():
    rng = np.random.default_rng(5)
    corner = np.zeros((20, 17, 23), np.uint8)
    corner[0, 16, 22] = 1
    few = (2 * (rng.random((20, 17, 23)) < 0.001)).astype(np.uint8)
    for level in (corner, few, 0 * few):
        whole = maximum_filter(level, 2 * MARGIN + 1)
        everywhere = np.ones(level.shape, bool)
        np.testing.assert_array_equal(find_active_region(level, 0 * level, everywhere), whole)
        np.testing.assert_array_equal(find_active_region(0 * level, level, everywhere), whole)
    assert not find_active_region(few + 2, few, np.zeros(few.shape, bool)).any()


def labels_of(l: list[int], z: list[int], y: list[int]) -> joint.Labels:
    return joint.Labels(*(np.array(v, np.uint8).reshape(-1, 1, 1) for v in (l, z, y)))


def test_votes_are_strict_and_tumor_is_voted_inside_the_brain():
    tally = Tally(LABELS, np.ones((3, 1, 1), np.uint8))
    # voxel 0: a tie; voxel 1: tumor in 26 of 50 split over two structures, background 24; voxel 2: labels tie
    for i in range(50):
        tumor = i < 26
        tally.add(
            labels_of([1, 1 + i % 2 if tumor else 0, 1 + i % 2], [i % 2, int(tumor), 0], [0, int(i < 25), 0])
        )
    votes = tally.vote()
    assert list(votes.z.ravel()) == [0, 1, 0]
    assert list(votes.y.ravel()) == [0, 0, 0]
    assert list(votes.l.ravel()) == [1, 1, 1]
    np.testing.assert_allclose(tally.fraction(("background",)).ravel(), [0, 24 / 50, 0])
    np.testing.assert_allclose(tally.fraction(tumor=("edema",)).ravel(), [0.5, 1 / 50, 0])


def test_chains_are_pooled_as_if_one_had_drawn_all():
    use = np.array([1, UNUSED, 1, 1], np.uint8).reshape(-1, 1, 1)
    rng = np.random.default_rng(3)
    one, two, both = (Tally(LABELS, use, keep_samples=True) for _ in range(3))
    for i in range(9):
        z = rng.integers(0, 2, 4)
        drawn = labels_of(rng.integers(1, 3, 4).tolist(), z.tolist(), (z * rng.integers(0, 2, 4)).tolist())
        (one if i < 4 else two).add(drawn)
        both.add(drawn)
    found = pool_tallies([one, two])
    assert found.samples == 9
    for name in "lzy":
        np.testing.assert_array_equal(getattr(found, name), getattr(both, name))
        np.testing.assert_array_equal(getattr(found.vote(), name), getattr(both.vote(), name))
    np.testing.assert_array_equal(found.volumes, both.volumes)
    drawn = list(found.iter_samples())
    assert [row[-2] for row in found.volumes] == [int((d.z > d.y).sum()) for d in drawn], (
        "edema is tumor, not core"
    )
    assert [row[-1] for row in found.volumes] == [int(d.y.sum()) for d in drawn]
    core, edema, whole = (found.fraction(tumor=t) for t in (("core",), ("edema",), ("core", "edema")))
    np.testing.assert_allclose(core.ravel()[[0, 2, 3]], both.y / 9)
    np.testing.assert_allclose(core + edema, whole)
    names = tuple(s.name for s in LABELS.structures)
    assert found.fraction(names).ravel().tolist() == [1, 0, 1, 1], "a voxel that is not used has no votes"
    assert found.fraction().max() == 0
    assert [d.z.tolist() for d in found.iter_samples()] == [d.z.tolist() for d in both.iter_samples()]
    assert pool_tallies([one]) is one


def test_votes_are_counted_in_bytes():
    tally = Tally(LABELS, np.ones((1, 1, 1), np.uint8))
    for _ in range(255):
        tally.add(labels_of([1], [1], [1]))
        assert tally.fraction(tumor=("core",)).item() == 1
    assert (tally.samples, tally.z[0], tally.vote().y.item()) == (255, 255, 1)
    with pytest.raises(ValueError, match="255"):
        tally.add(labels_of([1], [1], [1]))


def test_nothing_counted_is_no_share():
    assert Tally(LABELS, np.ones((1, 1, 1), np.uint8)).fraction(("background",)).item() == 0


def test_effective_size_of_a_first_order_process():
    rng = np.random.default_rng(0)
    for rho in (0.0, 0.5, 0.9):
        x = lfilter([1], [1, -rho], rng.standard_normal(400_000))
        assert effective_size(x) == pytest.approx(len(x) * (1 - rho) / (1 + rho), rel=0.15)
    assert effective_size(np.ones(10)) == 10
