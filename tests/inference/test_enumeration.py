"""Algorithm 1 with θ fixed against the sum over every state of models small enough for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import reference_voxels as reference
import tiny_chain
import tiny_model as tiny
from scipy.special import logsumexp
from tiny_chain import ENUMERATED, LABELS, MRF, SHIPPED_SIZE, TinyModel

from tumoar.inference import gibbs
from tumoar.inference.schedule import Schedule
from tumoar.model import joint
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.voxels import UNUSED, WITH_DATA

Split = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Marginals:
    """Probabilities of each state of each voxel, of two neighbors both tumor, and share of each component.

    state (3 levels, K, voxels); both (voxels,) z_i and z_{i+1}; component (Q,) of all voxels with data.
    """

    state: np.ndarray
    both: np.ndarray
    component: np.ndarray

    def distance(self, other: Marginals) -> float:
        return max(float(np.abs(a - b).max()) for a, b in zip(vars(self).values(), vars(other).values()))


def data(model: TinyModel) -> np.ndarray:
    """Intensities that leave open what they are; a strong random field needs some that speak for tumor."""
    theta = tiny.theta()
    q = [LABELS.component_slice(LABELS.x_named(name)).start for name in ("core", "edema", "GWM")]
    noise = np.random.default_rng(5).standard_normal((tiny.N, *model.shape))
    toward = theta.mu[q[1]] - theta.mu[q[2]] if model.shapes == MRF else 0.0
    D = (theta.mu[q].mean(0) + toward)[:, None, None, None] + 0.8 * noise
    return np.where(model.in_use == WITH_DATA, D, np.nan).astype(np.float32)


def exact(model: TinyModel, D: np.ndarray) -> Marginals:
    """Every map (z, y), the hidden units summed out; l and t are independent given it."""
    theta = tiny.theta()
    seen = (model.in_use == WITH_DATA).ravel()
    log_density = model.mixture_densities(theta, D)
    log_p = model.log_maps(log_density)
    p = np.exp(log_p)
    level = np.array([p @ (model.maps == v) for v in tiny_chain.LEVELS])
    states = model.log_states(log_density)
    within = np.exp(states - logsumexp(states, axis=1, keepdims=True)).reshape(3, LABELS.K, -1)
    state = level[:, None] * within
    state[:, :, (model.in_use == UNUSED).ravel()] = 0
    z = model.maps > 0
    x = np.array([LABELS.x_of_l, [LABELS.edema] * LABELS.K, [LABELS.core] * LABELS.K])
    mixture = np.array([state[x == m].sum(0) for m in range(LABELS.X)])
    components = reference.log_components(theta, D.astype(float))
    share = np.exp(components - log_density[LABELS.x_of_component]).reshape(LABELS.Q, -1)
    component = (mixture[LABELS.x_of_component] * share)[:, seen].mean(1)
    return Marginals(state, p @ (z & np.roll(z, 1, 1)), component)


def repeated(model: TinyModel, D: np.ndarray, copies: int) -> tuple[gibbs.Chain, Split]:
    """A chain on copies³ of the problem, and how to tell them apart.

    They share neither neighbors nor hidden units: as many independent chains.
    """
    gap = max([1, *(s.reach for s in model.shapes if isinstance(s, CRBM))])

    def many(a: np.ndarray, value: float) -> np.ndarray:
        grid = [(0, 0)] * (a.ndim - 3) + [(0, gap)] * 3
        return np.tile(np.pad(a, grid, constant_values=value), (copies,) * 3)

    def split(v: np.ndarray) -> np.ndarray:
        x, y, z = (n + gap for n in model.shape)
        blocks = v.reshape(copies, x, copies, y, copies, z).transpose(0, 2, 4, 1, 3, 5)
        return blocks[..., :-gap, :-gap, :-gap].reshape(copies**3, -1)

    use = many(model.in_use, UNUSED)
    pi = np.moveaxis(many(np.moveaxis(model.pi, -1, 0), 0), 0, -1)
    volume = joint.build_volume(many(D, np.nan), use)
    chain = replace(
        model.chain(D),
        volume=volume,
        pi=joint.pack_prior(volume, pi),
        region=use != UNUSED,
        fixed_z=None if model.fixed_z is None else many(model.fixed_z, 0),
        fixed_y=None if model.fixed_y is None else many(model.fixed_y, 0),
        location=None if model.location is None else many(model.location, 0),
    )
    return chain, split


def drawn(chain: gibbs.Chain, sweeps: int) -> Iterator[gibbs.ChainState]:
    """The chain as it is used, from no tumor at all, but with θ fixed."""
    theta = tiny.theta()
    state = gibbs.initialize_state(
        chain, theta, joint.Labels(*(np.zeros_like(chain.volume.use) for _ in range(3)))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gibbs, "update_theta", lambda *rest: theta)
        for _ in range(sweeps):
            state, _ = gibbs.sweep(chain, state)
            yield state


def sampled(model: TinyModel, D: np.ndarray, copies: int, sweeps: int, full_every: int = 1) -> Marginals:
    """Over the last nine tenths of the sweeps of copies³ chains."""
    chain, split = repeated(model, D, copies)
    burn_in = sweeps // 10
    chain = replace(chain, schedule=Schedule(full_every=full_every, burn_in=burn_in))
    state = np.zeros((3, LABELS.K, int(np.prod(model.shape))))
    both, component = np.zeros(state.shape[-1]), np.zeros(LABELS.Q)
    for i, now in enumerate(drawn(chain, sweeps)):
        labels, moments = now.labels, now.moments
        if i < burn_in:
            continue
        l, z, y = (split(v) for v in (labels.l, labels.z, labels.y))
        for level, k in np.ndindex(3, LABELS.K):
            state[level, k] += ((z + y == level) & (l == k)).mean(0)
        both += (z & np.roll(z, 1, 1)).mean(0)
        component += moments.n / moments.n.sum()
    n = sweeps - burn_in
    state[:, :, (model.in_use == UNUSED).ravel()] = 0
    return Marginals(state / n, both / n, component / n)


def test_marginals_sum_to_one():
    for model in ENUMERATED.values():
        used = (model.in_use != UNUSED).ravel()
        found = exact(model, data(model))
        np.testing.assert_allclose(found.state.sum((0, 1)), used)
        assert found.component.sum() == pytest.approx(1)
        tumor = found.state[1:].sum((0, 1))[used]
        assert 0.05 < np.median(tumor) < 0.95  # nothing is proved where the answer is clear


@pytest.mark.parametrize(
    "name",
    ["cRBM", "cRBM in a row", pytest.param("MRF", marks=pytest.mark.slow), "held, unseen, unused", "flat"],
)
def test_sampler_agrees_with_enumeration(name):
    model = ENUMERATED[name]
    D = data(model)
    assert sampled(model, D, copies=6, sweeps=80).distance(exact(model, D)) < 0.025


def only_where_it_is(likely, drawn, allowed):
    """The region that depends most on the chain: tumor where it is now, and nowhere else."""
    return np.where(allowed & (drawn > 0), np.uint8(2), np.uint8(0))


@pytest.mark.parametrize(
    "name", ["cRBM", "held, unseen, unused", pytest.param("MRF", marks=pytest.mark.slow)]
)
def test_a_region_that_was_found_in_the_burn_in_changes_no_probability(name, monkeypatch):
    """Two of three sweeps draw tumor only where it was when the burn-in ended, and hold it elsewhere."""
    monkeypatch.setattr(gibbs, "find_active_region", only_where_it_is)
    model = ENUMERATED[name]
    D = data(model)
    assert sampled(model, D, copies=6, sweeps=240, full_every=3).distance(exact(model, D)) < 0.025


def test_a_region_that_followed_the_chain_to_its_end_would_change_them(monkeypatch):
    monkeypatch.setattr(gibbs, "find_active_region", only_where_it_is)
    monkeypatch.setattr(Schedule, "finds_region", Schedule.is_full)
    model = ENUMERATED["cRBM"]
    D = data(model)
    assert sampled(model, D, copies=6, sweeps=240, full_every=3).distance(exact(model, D)) > 0.05


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ENUMERATED)
def test_sampler_agrees_with_enumeration_to_3_in_a_thousand(name):
    model = ENUMERATED[name]
    D = data(model)
    assert sampled(model, D, copies=10, sweeps=400).distance(exact(model, D)) < 0.003


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kernels_for_forty_filters_of_14_cubed_agree_with_enumeration():
    assert all(crbm.fast for crbm in SHIPPED_SIZE.shapes)
    D = data(SHIPPED_SIZE)
    assert sampled(SHIPPED_SIZE, D, copies=6, sweeps=300).distance(exact(SHIPPED_SIZE, D)) < 0.01
