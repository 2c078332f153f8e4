"""Algorithm 1: exact on models that can be enumerated, and the same whenever it is interrupted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference_voxels as reference
import small_head
import tiny_model as tiny
from scipy.signal import lfilter
from scipy.special import logsumexp

from tumoar.config import GemConfig, GibbsConfig, Level
from tumoar.inference import gem, gibbs
from tumoar.model import joint
from tumoar.model.conditionals import sampler, update_theta
from tumoar.model.gmm import Theta
from tumoar.model.shape.base import FlatPrior
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.numerics.autocorrelation import effective_size
from tumoar.numerics.distributions import Dirichlet, InverseWishart

LABELS = tiny.LABELS


def energy(shape_prior):
    """Of a map on its grid, zeros around it."""
    if isinstance(shape_prior, FirstOrderMRF):
        return shape_prior.energy
    if isinstance(shape_prior, FlatPrior):
        return lambda v: -shape_prior.a * v.sum()
    return lambda v: shape_prior.free_energy(np.pad(v, shape_prior.reach).astype(float))


def chain(D: np.ndarray, shapes, seed: int = 0, **held) -> gibbs.Chain:
    shape = D.shape[1:]
    return gibbs.Chain(
        LABELS,
        joint.volume(np.ascontiguousarray(D, np.float32), np.ones(shape, np.uint8)),
        tiny.pi(shape),
        tiny.prior(),
        *shapes,
        np.ones(shape, bool),
        seed,
        **held,
    )


def exact(c: gibbs.Chain, theta: Theta, D: np.ndarray, shape) -> tuple[np.ndarray, np.ndarray]:
    """All maps (z, y), and their posterior with l, t and the hidden units summed out."""
    groups = joint.compile_groups(LABELS)
    components = reference.log_components(theta, D)
    mixture = np.array([logsumexp(components[groups.x_of_q == x], axis=0) for x in range(LABELS.X)])
    log_pi = np.log(c.pi.astype(float))
    weight = np.stack(
        [
            logsumexp([log_pi[..., l] + mixture[LABELS.x_of_l[l]] for l in range(LABELS.K)], axis=0),
            logsumexp(log_pi[..., LABELS.in_brain], axis=-1) + mixture[LABELS.edema],
            logsumexp(log_pi[..., LABELS.in_brain], axis=-1) + mixture[LABELS.core],
        ]
    ).reshape(3, -1)
    maps = tiny.configurations(weight.shape[1])
    level = maps.sum(1)
    log_p = tiny.log_shape(maps, shape, energy(c.shape_z), energy(c.shape_y))
    log_p = log_p + np.take_along_axis(weight[:, None], level[None], 0)[0].sum(1)
    return maps, np.exp(log_p - logsumexp(log_p))


SHAPES = {
    "cRBM": ((2, 2, 2), (tiny.crbm(1), tiny.crbm(2))),
    "cRBM in a row": ((1, 1, 6), (tiny.crbm(3), tiny.crbm(4))),
    "MRF": ((2, 2, 2), (FirstOrderMRF(0.12), FirstOrderMRF(0.05))),
    "flat": ((2, 1, 2), (FlatPrior(-0.5), FlatPrior(0.2))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_sampler_agrees_with_enumeration(name):
    """Copies of one tiny problem side by side, too far apart to touch, are as many independent chains."""
    (X, Y, Z), shapes = SHAPES[name]
    copies, sweeps, burn_in = 150, 60, 12
    theta = tiny.theta()
    D = np.random.default_rng(5).standard_normal((tiny.N, X, Y, Z)).astype(np.float32)
    c = chain(D, shapes)
    maps, p = exact(c, theta, D.astype(float), (X, Y, Z))
    functions = np.concatenate([maps[:, 0], maps[:, 1], maps[:, 0] & np.roll(maps[:, 0], 1, -1)], -1)
    expected = p @ functions

    apart = [(0, 0)] * 2 + [(0, 1)]
    use = np.tile(np.pad(np.ones((X, Y, Z), np.uint8), apart), copies)
    many = replace(
        c,
        volume=joint.volume(np.tile(np.pad(D, [(0, 0), *apart]), copies), use),
        pi=np.tile(np.pad(c.pi, [*apart, (0, 0)]), (1, 1, copies, 1)),
        region=use == 1,
    )
    rng = np.random.default_rng(1)
    labels = joint.Labels(*(np.zeros_like(use) for _ in range(3)))
    total = np.zeros((copies, functions.shape[1]))
    for i in range(sweeps):
        labels, _ = gibbs.draw_labels(many, theta, labels, many.region, i, rng)
        if i >= burn_in:
            z, y = (
                v.reshape(X, Y, copies, Z + 1)[..., :Z].transpose(2, 0, 1, 3).reshape(copies, -1)
                for v in (labels.z, labels.y)
            )
            total += np.concatenate([z, y, z & np.roll(z, 1, -1)], -1)
    mean = total / (sweeps - burn_in)
    error = mean.std(0, ddof=1) / np.sqrt(copies) + 1e-4
    assert (np.abs(mean.mean(0) - expected) < 5 * error).all()
    assert np.abs(mean.mean(0) - expected).max() < 0.03


def draw_prior_theta(rng: np.random.Generator) -> Theta:
    """θ from the tiny prior: the means by rejection."""
    prior = tiny.prior()
    while True:
        mu = prior.mu0 + rng.standard_normal((LABELS.Q, tiny.N)) / np.sqrt(prior.precision)
        if (prior.A @ mu.ravel() <= prior.b).all():
            break
    C = rng.standard_normal((tiny.N, 4, 4, 4)) / np.sqrt(prior.precision)[:, None, None, None]
    C[~prior.has_bias] = 0
    C[:, 0, 0, 0] = 0
    gamma = Dirichlet(np.full(LABELS.Q, prior.alpha0), prior.group).sample(rng)
    return Theta(gamma, mu, InverseWishart(prior.nu0, prior.S0).sample(rng), C)


def simulate(theta: Theta, labels: joint.Labels, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """D and t given θ and the labels."""
    x = LABELS.x_of_l[labels.l]
    x[labels.z == 1], x[labels.y == 1] = LABELS.edema, LABELS.core
    shape = x.shape
    t = np.zeros((LABELS.Q, *shape))
    D = np.tensordot(theta.C, reference.basis(shape), axes=3)
    for i in np.ndindex(shape):
        s = LABELS.component_slice(x[i])
        q = s.start + rng.choice(s.stop - s.start, p=theta.gamma[s])
        t[(q, *i)] = 1
        D[(slice(None), *i)] += rng.multivariate_normal(theta.mu[q], theta.Sigma[q])
    return D.astype(np.float32), t


def functionals(theta: Theta, labels: joint.Labels, D: np.ndarray) -> np.ndarray:
    prior = tiny.prior()
    return np.array(
        [
            *theta.mu.ravel(),
            *(theta.mu**2).sum(1),
            theta.gamma[0],
            theta.gamma[0] ** 2,
            *np.log(np.linalg.det(theta.Sigma)),
            theta.Sigma[0, 0, 1],
            theta.C[0, 0, 0, 1],
            theta.C[0, 1, 1, 0] ** 2,
            (prior.b - prior.A @ theta.mu.ravel()).min(),
            labels.z.sum(),
            labels.y.sum(),
            labels.z.sum() ** 2,
            (labels.l == 0).sum(),
            labels.z.ravel()[0] * labels.z.ravel()[1],
            *D.mean((1, 2, 3)),
            (D[0] * D[1]).mean(),
            theta.mu[1, 0] * labels.z.sum(),
        ]
    )


def geweke(draws: int, shape=(2, 2, 2)) -> np.ndarray:
    """z-scores between drawing everything from the prior, and the sampler with data drawn anew each sweep."""
    rng = np.random.default_rng(0)
    shapes = SHAPES["cRBM"][1]
    empty = chain(np.zeros((tiny.N, *shape)), shapes)
    maps = tiny.configurations(int(np.prod(shape)))
    in_brain = empty.pi[..., LABELS.in_brain].sum(-1).ravel().astype(float)
    log_p = tiny.log_shape(maps, shape, energy(shapes[0]), energy(shapes[1]))
    log_p = log_p + (maps[:, 0] * np.log(in_brain)).sum(1)
    p = np.exp(log_p - logsumexp(log_p))

    def draw_prior_labels() -> joint.Labels:
        z, y = (v.reshape(shape) for v in maps[rng.choice(len(maps), p=p / p.sum())])
        weight = empty.pi * (~z[..., None] | LABELS.in_brain)
        cumulative = np.cumsum(weight / weight.sum(-1, keepdims=True), -1)
        l = (rng.random(shape)[..., None] > cumulative).sum(-1)
        return joint.Labels(l.astype(np.uint8), z.astype(np.uint8), y.astype(np.uint8))

    forward = []
    for _ in range(draws):
        theta, labels = draw_prior_theta(rng), draw_prior_labels()
        forward.append(functionals(theta, labels, simulate(theta, labels, rng)[0]))
    theta, labels = draw_prior_theta(rng), draw_prior_labels()
    successive = []
    for i in range(draws):
        D, t = simulate(theta, labels, rng)
        theta = update_theta(theta, reference.moments(D.astype(float), t), tiny.prior(), sampler(rng))
        c = chain(D, shapes)
        labels, _ = gibbs.draw_labels(c, theta, labels, c.region, i, rng)
        successive.append(functionals(theta, labels, D))
    a, b = np.array(forward), np.array(successive)
    batches = b.reshape(50, -1, b.shape[1]).mean(1)
    return (a.mean(0) - b.mean(0)) / np.sqrt(a.var(0) / draws + batches.var(0, ddof=1) / 50)


def test_joint_distribution():
    z = geweke(600)
    assert len(z) >= 30
    assert np.abs(z).max() < 4.5


@pytest.mark.slow
def test_joint_distribution_at_length():
    z = geweke(30_000)
    assert np.abs(z).max() < 4.0
    assert (np.abs(z) > 2.6).sum() <= 2


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
    x = LABELS.x_of_l[labels.l]
    x[labels.z == 1], x[labels.y == 1] = LABELS.edema, LABELS.core
    counts = np.array([(x == m).sum() for m in range(LABELS.X)])
    theta = tiny.theta()
    n = np.array([gibbs.start(replace(c, seed=s), theta, labels).moments.n for s in range(200)])
    for m in range(LABELS.X):
        assert (n[:, LABELS.component_slice(m)].sum(1) == counts[m]).all()
    first = np.exp(reference.log_components(theta, D.astype(float))[:2])
    share = (first[0] / first.sum(0))[labels.y == 1]
    error = np.sqrt((share * (1 - share)).sum() / 200)
    assert abs(n[:, 0].mean() - share.sum()) < 5 * error


def test_held_labels_stay():
    shape = (3, 4, 5)
    D = np.random.default_rng(3).standard_normal((tiny.N, *shape)).astype(np.float32)
    held = np.full(shape, -1, np.int8)
    held[0], held[1] = 1, 0
    c = chain(D, (tiny.crbm(1), tiny.crbm(2)), held_z=held)
    state = gibbs.start(c, tiny.theta(), joint.Labels(*(np.zeros(shape, np.uint8) for _ in range(3))))
    c = replace(c, prior=tiny.prior())
    for _ in range(10):
        state, info = gibbs.sweep(c, replace(state, theta=tiny.theta()))
        assert state.labels.z[0].all()
        assert not state.labels.z[1].any()
        assert info.tumor == state.labels.z.sum()


@pytest.fixture(scope="module")
def small() -> tuple[gibbs.Chain, gibbs.State]:
    """The small head after Algorithm 2, with a random field on tumor shape."""
    case = small_head.case()
    config = GemConfig(levels=(Level(spacing=1, smoothing=0),), outer_iterations=1, deformation_steps=0)
    fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, config)
    shapes = (FirstOrderMRF(0.3), FirstOrderMRF(0.1))
    return gibbs.prepare(case, fit, shapes, small_head.TUMOR_MM3, config, seed=3)


def test_saved_and_loaded_it_continues_exactly(small):
    c, state = small
    straight = state
    for _ in range(4):
        straight, _ = gibbs.sweep(c, straight)
    for _ in range(2):
        state, _ = gibbs.sweep(c, state)
    state = gibbs.from_arrays({k: v.copy() for k, v in gibbs.to_arrays(state).items()})
    for _ in range(2):
        state, _ = gibbs.sweep(c, state)
    for a, b in zip(gibbs.to_arrays(straight).values(), gibbs.to_arrays(state).values()):
        np.testing.assert_array_equal(a, b)
    other, _ = gibbs.sweep(replace(c, seed=4), state)
    assert (other.labels.l != gibbs.sweep(c, state)[0].labels.l).any()


def test_tumor_and_tissue_are_found_and_forbidden_states_never_drawn(small):
    c, state = small
    l, z, y = small_head.truth()
    tally = gibbs.Tally(c.labels, c.volume.use)
    config = GibbsConfig(burn_in=5, samples=7)
    for now, info in gibbs.sweeps(c, state, config):
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
    c = replace(c, full_every=3)
    full, sizes = state, []
    for _ in range(6):
        full, _ = gibbs.sweep(c, full)
        sizes.append(full.active.sum())
        assert not full.labels.z[~full.active].any()
    assert sizes[0] == sizes[1] == sizes[2] < c.region.sum()
    assert small_head.dice(full.labels.z == 1, small_head.truth()[1] == 1) > 0.9
    every, _ = gibbs.sweep(replace(c, full_every=1), state)
    assert every.active is c.region


def labels_of(l: list[int], z: list[int], y: list[int]) -> joint.Labels:
    return joint.Labels(*(np.array(v, np.uint8).reshape(-1, 1, 1) for v in (l, z, y)))


def test_votes_are_strict_and_tumor_is_voted_inside_the_brain():
    tally = gibbs.Tally(LABELS, np.ones((3, 1, 1), np.uint8))
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


def test_effective_size_of_a_first_order_process():
    rng = np.random.default_rng(0)
    for rho in (0.0, 0.5, 0.9):
        x = lfilter([1], [1, -rho], rng.standard_normal(400_000))
        assert effective_size(x) == pytest.approx(len(x) * (1 - rho) / (1 + rho), rel=0.15)
    assert effective_size(np.ones(10)) == 10
