"""What the conditionals rest on: modes are modes, draws have the right moments, far tails are exact."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tumoar.numerics.distributions import (
    ConstrainedNormal,
    Dirichlet,
    InverseWishart,
    Normal,
    sample_truncated,
)

DRAWS = 6_000


def spd(n: int, rng: np.random.Generator, scale: float = 1.0) -> np.ndarray:
    a = rng.standard_normal((n, n + 2))
    return scale * (a @ a.T + 0.3 * np.eye(n))


def within(draws: np.ndarray, mean: np.ndarray, sd: np.ndarray, mc_sd: float = 6.0) -> bool:
    return bool((np.abs(draws.mean(0) - mean) <= mc_sd * sd / np.sqrt(len(draws))).all())


def test_dirichlet_groups_are_independent_dirichlets():
    rng = np.random.default_rng(0)
    d = Dirichlet(np.array([2.0, 3.0, 4.0, 1.5, 6.0]), np.array([0, 0, 2, 2, 2]))
    expected = stats.dirichlet([2, 3]).logpdf([0.3, 0.7]) + stats.dirichlet([4, 1.5, 6]).logpdf(
        [0.2, 0.3, 0.5]
    )
    assert d.log_prob(np.array([0.3, 0.7, 0.2, 0.3, 0.5])) == pytest.approx(expected)
    draws = np.array([d.sample(rng) for _ in range(DRAWS)])
    totals = np.array([5, 5, 11.5, 11.5, 11.5])
    mean = d.alpha / totals
    assert within(draws, mean, np.sqrt(mean * (1 - mean) / (totals + 1)))
    np.testing.assert_allclose(d.mode(), [1 / 3, 2 / 3, 3 / 8.5, 0.5 / 8.5, 5 / 8.5])


def test_dirichlet_mode_of_a_flat_prior_without_counts_is_uniform():
    np.testing.assert_allclose(Dirichlet(np.ones(3), np.array([0, 0, 1])).mode(), [0.5, 0.5, 1])


def test_inverse_wishart_agrees_with_scipy():
    rng = np.random.default_rng(1)
    df, scale = np.array([5.0, 9.5]), np.stack([spd(3, rng), spd(3, rng)])
    d = InverseWishart(df, scale)
    Sigma = np.stack([spd(3, rng), spd(3, rng)])
    expected = sum(stats.invwishart(f, S).logpdf(X) for f, S, X in zip(df, scale, Sigma))
    assert d.log_prob(Sigma) == pytest.approx(expected)
    draws = np.array([np.linalg.inv(d.sample(rng)) for _ in range(DRAWS)])  # Σ⁻¹ ~ Wishart(df, scale⁻¹)
    V = np.linalg.inv(scale)
    diagonal = np.einsum("qii->qi", V)
    variance = df[:, None, None] * (V**2 + diagonal[:, :, None] * diagonal[:, None, :])
    assert within(draws, df[:, None, None] * V, np.sqrt(variance))


def test_normal_has_the_moments_and_density_of_its_precision():
    rng = np.random.default_rng(2)
    P = spd(4, rng)
    m = rng.standard_normal(4)
    d = Normal(P, P @ m)
    np.testing.assert_allclose(d.mode(), m)
    x = rng.standard_normal(4)
    assert d.log_prob(x) == pytest.approx(stats.multivariate_normal(m, np.linalg.inv(P)).logpdf(x))
    draws = np.array([d.sample(rng) for _ in range(DRAWS)])
    S = np.linalg.inv(P)
    assert within(draws, m, np.sqrt(np.diag(S)))
    second = (draws - m)[:, :, None] * (draws - m)[:, None, :]
    assert within(second, S, np.sqrt(S**2 + np.outer(np.diag(S), np.diag(S))))


def chain(rng: np.random.Generator, n: int = 5) -> ConstrainedNormal:
    """x0 <= x1 − 0.3, x2 >= x1 and x2 >= x0 + 1; the other coordinates are free but correlated."""
    A = np.zeros((3, n))
    A[0, [0, 1]], A[1, [1, 2]], A[2, [0, 2]] = (1, -1), (1, -1), (1, -1)
    P, m = spd(n, rng), rng.standard_normal(n)
    return ConstrainedNormal(P, P @ m, A, np.array([-0.3, 0.0, -1.0]), start=np.array([0.0, 1, 2, 0, 0])[:n])


@pytest.mark.parametrize("seed", range(30))
def test_constrained_mode_is_feasible_and_beats_every_feasible_neighbor(seed):
    rng = np.random.default_rng(seed)
    d = chain(rng)
    x = d.mode()
    assert (d.A @ x <= d.b + 1e-9).all()
    best = d.log_prob(x)
    for scale in (1e-4, 1e-2, 1.0):
        for step in rng.standard_normal((60, 5)) * scale:
            assert d.log_prob(x + step) <= best + 1e-9


@pytest.mark.parametrize("d", [0, 1, 2])
def test_modes_beat_random_perturbations(d):
    rng = np.random.default_rng(d)
    cases = [
        (
            Dirichlet(np.array([2.0, 3.0, 4.0]), np.zeros(3, int)),
            lambda x, e: x * np.exp(e) / (x * np.exp(e)).sum(),
        ),
        (InverseWishart(np.array([5.0]), spd(3, rng)[None]), lambda x, e: _congruent(x, e)),
        (Normal(spd(3, rng), rng.standard_normal(3)), lambda x, e: x + e),
    ]
    dist, move = cases[d]
    mode = dist.mode()
    for _ in range(200):
        e = rng.standard_normal((3,)) * 10 ** rng.uniform(-3, 0)
        assert dist.log_prob(move(mode, e)) <= dist.log_prob(mode) + 1e-12


def _reweighted(x: np.ndarray, e: np.ndarray) -> np.ndarray:
    return x * np.exp(e) / (x * np.exp(e)).sum()


def _congruent(x: np.ndarray, e: np.ndarray) -> np.ndarray:
    T = np.eye(3) + np.diag(e) * 0.3 + np.outer(e, e) * 0.1
    return T @ x @ T.T


def test_constrained_draws_follow_the_restricted_density():
    rng = np.random.default_rng(5)
    P = np.array([[2.0, 0.5, 0.0, 0.6], [0.5, 1.5, -0.3, 0.0], [0.0, -0.3, 1.0, 0.4], [0.6, 0.0, 0.4, 1.2]])
    like = chain(rng, n=4)
    d = ConstrainedNormal(P, P @ np.array([0.0, 0.2, 0.6, 0.3]), like.A, like.b, like.start)
    x, draws = d.start, []
    for _ in range(5_000):
        x = ConstrainedNormal(d.P, d.h, d.A, d.b, x).sample(rng)
        draws.append(x)
    draws = np.array(draws)
    assert (draws @ d.A.T <= d.b + 1e-9).all()
    free = rng.multivariate_normal(np.linalg.solve(d.P, d.h), np.linalg.inv(d.P), size=200_000)
    kept = free[(free @ d.A.T <= d.b).all(1)]
    assert len(kept) > 10_000
    batches = draws.reshape(100, -1, 4).mean(1)  # batch means carry the autocorrelation
    error = np.sqrt(batches.var(0, ddof=1) / 100 + kept.var(0) / len(kept))
    assert (np.abs(draws.mean(0) - kept.mean(0)) < 6 * error).all()


@pytest.mark.parametrize("far", [0.0, 1.0, 5.0, 9.0, 20.0, 40.0])
@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("width", [np.inf, 1e-2, 1e-12])
def test_truncated_normal_is_exact_to_40_sd(far, side, width):
    rng = np.random.default_rng(7)
    low, high = (far, far + width) if side > 0 else (-far - width, -far)
    x = np.array([sample_truncated(0.0, 1.0, low, high, rng) for _ in range(3_000)])
    assert (x >= low).all()
    assert (x <= high).all()

    def cdf(v: np.ndarray) -> np.ndarray:  # of the distance from the bound nearer to zero
        v = np.abs(v) - far
        if width < 1e-6:  # the density is flat to 4e-11 over so short an interval
            return v / width
        log_tail = stats.norm.logsf(far + v) - stats.norm.logsf(far)
        whole = -np.expm1(stats.norm.logsf(far + width) - stats.norm.logsf(far))
        return -np.expm1(log_tail) / whole

    # an interval 1e-12 wide at 40 holds only some 140 floating-point numbers
    grain = np.spacing(far) / width
    assert (
        stats.kstest(x, cdf if side > 0 else lambda v: 1 - cdf(v)).statistic
        < 1.95 / np.sqrt(len(x)) + 2 * grain
    )
