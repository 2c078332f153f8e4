"""The voxel passes against their slow twins, and what no pass may ever do."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import pytest
import reference_voxels as reference

from tumoar.model import joint
from tumoar.model.gmm import Moments, Theta
from tumoar.numerics.voxels import UNUSED, WITH_DATA, WITHOUT_DATA
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
SHAPE = (5, 7, 39)
SUMS = ("n", "d", "dd", "cos", "dcos")


@dataclass(frozen=True)
class Scene:
    D: np.ndarray
    use: np.ndarray
    pi: np.ndarray
    theta: Theta

    @property
    def volume(self) -> joint.Volume:
        return joint.build_volume(self.D, self.use)

    @property
    def prior(self) -> joint.Prior:
        return joint.pack_prior(self.volume, self.pi)

    @property
    def seen(self) -> np.ndarray:
        return self.use == WITH_DATA


def scene(N: int = 2, seed: int = 0, blind: bool = False) -> Scene:
    rng = np.random.default_rng(seed)
    use = (rng.random(SHAPE) < 0.85).astype(np.uint8)
    use[2, 3] = UNUSED
    use[3, :, 5:20] = UNUSED
    if blind:
        use[(use == WITH_DATA) & (rng.random(SHAPE) < 0.2)] = WITHOUT_DATA
    pi = rng.dirichlet(np.full(LABELS.K, 0.3), SHAPE).astype(np.float32)
    pi[..., 8:] *= (
        np.linspace(0, 1, SHAPE[0])[:, None, None, None] > 0.5
    )  # some mixtures absent from whole rows
    pi[rng.random(pi.shape) < 0.2] = 0
    pi[..., 0] += 1e-3
    pi /= pi.sum(-1, keepdims=True)
    Q = LABELS.Q
    a = rng.standard_normal((Q, N, N + 1)) * 0.4
    C = 0.1 * rng.standard_normal((N, 4, 4, 4))
    C[:, 0, 0, 0] = 0
    gamma = np.concatenate([rng.dirichlet(np.full(g, 3.0)) for g in LABELS.G])
    theta = Theta(gamma, 6 + rng.standard_normal((Q, N)), a @ a.swapaxes(1, 2) + 0.1 * np.eye(N), C)
    D = (6 + 1.2 * rng.standard_normal((N, *SHAPE))).astype(np.float32)
    D[:, use != WITH_DATA] = np.nan
    return Scene(D, use, pi.astype(np.float32), theta)


def blank() -> joint.Labels:
    return joint.Labels(*(np.zeros(SHAPE, np.uint8) for _ in range(3)))


def assert_close(fast: Moments, slow: Moments, rtol: float) -> None:
    for name in SUMS:
        a, b = getattr(fast, name), getattr(slow, name)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize("N", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 4, 7))])
def test_expected_moments_and_likelihood_equal_the_naive_ones(N):
    s = scene(N)
    groups = joint.compile_groups(LABELS, flat=joint.Flat())
    moments, log_likelihood = joint.expect(s.volume, s.pi, groups, s.theta)
    P = reference.mixture_prior(s.pi, groups)[groups.x_of_q]
    D = np.where(s.seen, s.D, 0.0)
    t, evidence = reference.expectation(s.theta, D, P, s.seen)
    assert log_likelihood == pytest.approx(evidence, rel=1e-6)
    assert_close(moments, reference.moments(D, t), 2e-5)


def test_flat_prior_sums_to_one():
    s = scene()
    prior = reference.mixture_prior(s.pi, joint.compile_groups(LABELS, flat=joint.Flat(0.1, 0.5)))
    np.testing.assert_allclose(prior.sum(0), 1, atol=1e-6)
    brain = s.pi[..., LABELS.in_brain].sum(-1)
    np.testing.assert_allclose(prior[LABELS.core], 0.05 * brain, atol=1e-6)
    np.testing.assert_allclose(prior[LABELS.edema], 0.05 * brain, atol=1e-6)


def test_classes_of_one_intensity_give_the_same_moments_as_all_structures():
    s = scene()
    columns = joint.assign_columns(LABELS)
    assert columns.max() + 1 == 11
    merged = np.zeros((*SHAPE, 11), np.float32)
    for l, c in enumerate(columns):
        merged[..., c] += s.pi[..., l]
    full = joint.expect(s.volume, s.pi, joint.compile_groups(LABELS, flat=joint.Flat()), s.theta)
    few = joint.expect(s.volume, merged, joint.compile_groups(LABELS, columns, joint.Flat()), s.theta)
    assert few[1] == pytest.approx(full[1], rel=1e-6)
    assert_close(few[0], full[0], 1e-5)


def test_class_likelihoods_reproduce_the_log_likelihood_of_any_prior():
    s = scene(blind=True)
    groups = joint.compile_groups(LABELS, flat=joint.Flat())
    f = np.full((*SHAPE, LABELS.K), np.nan, np.float32)
    logs = joint.class_likelihoods(s.volume, groups, s.theta, f)
    assert not f[~s.seen].any()
    assert (f[s.seen] > 0).all()
    assert np.isfinite(f).all()
    assert (f[s.seen][:, 0] == 1).all()
    total = np.log((s.pi[s.seen].astype(float) * f[s.seen]).sum(-1)).sum() + logs
    assert total == pytest.approx(joint.expect(s.volume, s.pi, groups, s.theta)[1], rel=1e-6)


def test_most_probable_state_is_the_best_of_all():
    s = scene(blind=True)
    groups = joint.compile_groups(LABELS, flat=joint.Flat(0.4, 0.6))
    D = np.where(s.seen, s.D, 0.0)
    posterior = reference.state_posterior(s.theta, D, s.pi, groups)
    states = reference.states(groups)
    assert len(states) == len(LABELS.states)
    prior = np.array([w * s.pi[..., c] for c, _, w in states])
    posterior = np.where(s.seen, posterior, prior)
    labels = joint.find_most_probable(s.volume, s.pi, groups, s.theta)
    level = labels.z + labels.y
    at = {(c, groups.level[x]): i for i, (c, x, _) in enumerate(states)}
    for i in np.argwhere(s.use != UNUSED):
        i = tuple(i)
        assert posterior[(at[labels.l[i], level[i]], *i)] >= posterior[(slice(None), *i)].max() * (1 - 1e-4)


def test_ties_go_to_the_first_state():
    s = scene()
    theta = Theta(
        s.theta.gamma, np.zeros_like(s.theta.mu), np.ones((LABELS.Q, 1, 1)) * np.eye(2), 0 * s.theta.C
    )
    pair = [LABELS.l("left hippocampus"), LABELS.l("right hippocampus")]
    pi = np.zeros_like(s.pi)
    pi[..., pair] = 0.5
    labels = joint.find_most_probable(
        s.volume, pi, joint.compile_groups(LABELS, flat=joint.Flat(0.01)), theta
    )
    assert not labels.z.any()
    assert (labels.l[s.seen] == min(pair)).all()


def test_draw_frequencies_equal_the_enumerated_posterior():
    s = scene(blind=True)
    rng = np.random.default_rng(1)
    groups = joint.compile_groups(LABELS)
    fields = tuple(rng.normal(m, 1, SHAPE).astype(np.float32) for m in (-1.0, 0.3))
    D = np.where(s.seen, s.D, 0.0)
    posterior = reference.state_posterior(s.theta, D, s.pi, groups, fields)
    states = reference.states(groups)
    prior_only = np.array([w * s.pi[..., c] * np.exp(sum(fields[: groups.level[x]])) for c, x, w in states])
    posterior = np.where(s.seen, posterior, prior_only / prior_only.sum(0))
    index = np.full((LABELS.K, 3), -1)
    for i, (c, x, _) in enumerate(states):
        index[c, groups.level[x]] = i
    v, draws = s.volume, 400
    counts = np.zeros((len(states), *SHAPE))
    for k in range(draws):
        labels, _ = joint.draw(v, s.prior, groups, s.theta, fields, blank(), (11, k))
        state = index[labels.l, labels.z + labels.y]
        assert (state >= 0).all()  # forbidden states never occur
        np.add.at(counts, (state, *np.indices(SHAPE)), 1)
    p = posterior[:, s.use != UNUSED]
    c = counts[:, s.use != UNUSED]
    assert (c[p == 0] == 0).all()
    test = (p * draws > 5) & ((1 - p) * draws > 5)
    p, c = p[test], c[test]
    z = (c - draws * p) / np.sqrt(draws * p * (1 - p))
    assert abs(z.mean()) < 6 / np.sqrt(len(z))
    assert 0.95 < z.std() < 1.05
    assert np.abs(z).max() < 5.5
    assert (counts[index[0, 0]][s.use == UNUSED] == draws).all()  # untouched


def test_drawn_moments_are_those_of_the_drawn_labels():
    s = scene()
    groups = joint.compile_groups(LABELS)
    fields = (np.full(SHAPE, 0.5, np.float32), np.zeros(SHAPE, np.float32))
    labels, moments = joint.draw(s.volume, s.prior, groups, s.theta, fields, blank(), (5, 0))
    x = LABELS.x_of_l[labels.l]
    x[labels.z == 1], x[labels.y == 1] = LABELS.edema, LABELS.core
    D = np.where(s.seen, s.D, 0.0)
    slow = reference.moments(D, np.stack([(x == m) & s.seen for m in range(LABELS.X)]).astype(float))
    by_mixture = (groups.x_of_q == np.arange(LABELS.X)[:, None]).astype(float)
    fast = Moments(*(np.tensordot(by_mixture, getattr(moments, f), axes=1) for f in SUMS))
    assert_close(fast, slow, 2e-5)
    np.testing.assert_array_equal(fast.n, slow.n)


def test_components_are_drawn_by_their_responsibility():
    s = scene()
    groups = joint.compile_groups(LABELS)
    zero = np.zeros(SHAPE, np.float32)
    P = reference.mixture_prior(s.pi, groups)[groups.x_of_q]
    t, _ = reference.expectation(s.theta, np.where(s.seen, s.D, 0.0), P, s.seen)
    n = np.mean(
        [
            joint.draw(s.volume, s.prior, groups, s.theta, (zero, zero), blank(), (3, k))[1].n
            for k in range(200)
        ],
        0,
    )
    sd = np.sqrt((t * (1 - t)).sum((1, 2, 3)) / 200)
    assert (np.abs(n - t.sum((1, 2, 3))) < 6 * sd + 1e-9).all()


def test_fields_of_either_infinity_decide():
    s = scene()
    groups = joint.compile_groups(LABELS)
    zero, never = np.zeros(SHAPE, np.float32), np.full(SHAPE, -np.inf, np.float32)
    for k in range(20):
        labels, _ = joint.draw(s.volume, s.prior, groups, s.theta, (never, zero), blank(), (1, k))
        assert not labels.z.any()
    possible = (s.use != UNUSED) & (s.pi[..., LABELS.in_brain].sum(-1) > 0)
    always = np.where(possible, np.float32(np.inf), zero)
    labels, _ = joint.draw(s.volume, s.prior, groups, s.theta, (always, -always), blank(), (1, 0))
    assert labels.z[possible].all()
    assert not labels.y[possible].any()
    labels, _ = joint.draw(s.volume, s.prior, groups, s.theta, (always, always), blank(), (1, 0))
    assert labels.y[possible].all()
    # a field that decides leaves the odds below it alone
    some = np.full(SHAPE, 0.4, np.float32)
    share = [
        np.mean(
            [
                joint.draw(s.volume, s.prior, groups, s.theta, (f, some), blank(), (8, k))[0]
                .y[possible]
                .sum()
                for k in range(40)
            ]
        )
        for f in (always, np.where(possible, np.float32(60), zero))
    ]
    assert share[0] == pytest.approx(share[1], rel=0.03)


def test_colors_partition_the_voxels_and_their_moments():
    s = scene()
    groups = joint.compile_groups(LABELS)
    zero = np.zeros(SHAPE, np.float32)
    marked = joint.Labels(*(np.full(SHAPE, 77, np.uint8) for _ in range(3)))
    parts = [
        joint.draw(s.volume, s.prior, groups, s.theta, (zero, zero), marked, (2, 9), c) for c in range(8)
    ]
    drawn = np.array([labels.l != 77 for labels, _ in parts])
    np.testing.assert_array_equal(drawn.sum(0), s.use != UNUSED)
    x, y, z = np.indices(SHAPE)
    for c in range(8):
        assert not drawn[c][(4 * (x & 1) + 2 * (y & 1) + (z & 1)) != c].any()
    _, moments = joint.draw(s.volume, s.prior, groups, s.theta, (zero, zero), marked, (2, 9))
    total = parts[0][1]
    for _, part in parts[1:]:
        total = total + part
    assert_close(total, moments, 1e-6)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one thread only")
def test_bits_do_not_depend_on_the_number_of_threads():
    s = scene()
    groups = joint.compile_groups(LABELS, flat=joint.Flat())
    field = np.zeros(SHAPE, np.float32)
    before = numba.get_num_threads()
    results = []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        moments, likelihood = joint.expect(s.volume, s.pi, groups, s.theta)
        labels, drawn = joint.draw(s.volume, s.prior, groups, s.theta, (field, field), blank(), (4, 1))
        sums = [getattr(m, f) for m in (moments, drawn) for f in SUMS]
        results.append([likelihood, labels.l, labels.z, labels.y, *sums])
    numba.set_num_threads(before)
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_a_voxel_without_any_prior_is_refused():
    s = scene()
    pi = s.pi.copy()
    pi[tuple(np.argwhere(s.seen)[0])] = 0
    with pytest.raises(ValueError, match="1 have none"):
        joint.expect(s.volume, pi, joint.compile_groups(LABELS), s.theta)


def test_data_must_be_finite_where_used():
    s = scene()
    with pytest.raises(ValueError, match="finite"):
        joint.build_volume(s.D, np.full(SHAPE, WITH_DATA, np.uint8))
