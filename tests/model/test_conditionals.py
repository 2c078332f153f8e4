"""Appendix A: every conditional is the joint seen along one parameter, and GEM never goes down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference_voxels as reference
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from theta_problems import Problem, expectation, random_problem, spd

from tumoar.model.conditionals import (
    C_given,
    Sigma_given,
    gamma_given,
    make_sampler,
    mode,
    mu_given,
    set_free,
    update_theta,
)
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import Quadratic


def complete(problem: Problem, theta: Theta, t: np.ndarray) -> float:
    """log p(D, t | θ) + log p(θ) up to a constant: the joint, computed voxel by voxel."""
    return float((t * reference.log_components(theta, problem.D)).sum()) + problem.prior.log_prob(theta)


def hard(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A random one-hot t."""
    t = np.eye(len(problem.prior.group))[rng.integers(0, len(problem.prior.group), problem.mask.shape)]
    return np.moveaxis(t, -1, 0) * problem.mask


def feasible(problem: Problem, theta: Theta, rng: np.random.Generator) -> Theta:
    """θ moved at random, inside the constraints."""
    moved = theta.mu
    for _ in range(200):
        mu = theta.mu + 0.3 * rng.standard_normal(theta.mu.shape)
        if (problem.prior.A @ mu.ravel() <= problem.prior.b).all():
            moved = mu
            break
    N = theta.N
    C = np.where(problem.prior.has_bias[:, None, None, None], 0.1 * rng.standard_normal((N, 4, 4, 4)), 0.0)
    C[:, 0, 0, 0] = 0
    w = rng.dirichlet(np.ones(2))
    return Theta(np.array([1, *w, 1, 1]), moved, np.array([spd(N, rng, 1.0) for _ in range(theta.Q)]), C)


@pytest.mark.parametrize("seed", range(12))
def test_ratios_of_every_conditional_are_ratios_of_the_joint(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, N=int(rng.integers(1, 4)), clamped=bool(seed % 2))
    prior, t = problem.prior, hard(problem, rng)
    moments = reference.moments(problem.D, t)
    here, there = feasible(problem, problem.theta, rng), feasible(problem, problem.theta, rng)

    def joint(**change: np.ndarray) -> float:
        return complete(problem, replace(here, **change), t) - complete(problem, here, t)

    def close(conditional, new, old, **change) -> None:
        difference = conditional.log_prob(new) - conditional.log_prob(old)
        assert difference == pytest.approx(joint(**change), rel=1e-9, abs=1e-7)

    close(gamma_given(moments, prior), there.gamma, here.gamma, gamma=there.gamma)
    close(mu_given(here, moments, prior), there.mu.ravel(), here.mu.ravel(), mu=there.mu)
    close(Sigma_given(here, moments, prior), there.Sigma, here.Sigma, Sigma=there.Sigma)
    if prior.has_bias.any():
        new, old = (C.reshape(len(C), -1)[prior.has_bias, 1:].ravel() for C in (there.C, here.C))
        np.testing.assert_array_equal(set_free(here.C, new, prior), there.C)
        close(C_given(here, moments, prior), new, old, C=there.C)


def monotone(seed: int) -> bool:
    """Runs GEM on a random problem; True if a constraint was active at its end."""
    problem = random_problem(seed, N=1 + seed % 3, clamped=seed % 4 == 3)
    theta, before = problem.theta, -np.inf
    for _ in range(8):
        t, evidence = expectation(problem, theta)
        objective = evidence + problem.prior.log_prob(theta)
        assert objective >= before - 1e-9 * abs(before)
        before = objective
        moments = reference.moments(problem.D, t)
        bound = complete(problem, theta, t)
        new = update_theta(theta, moments, problem.prior, mode)
        part = theta
        for name in ("gamma", "mu", "Sigma", "C"):
            part = replace(part, **{name: getattr(new, name)})
            step = complete(problem, part, t)
            assert step >= bound - 1e-9 * abs(bound), name
            bound = step
        theta = new
    return bool((np.abs(problem.prior.A @ theta.mu.ravel() - problem.prior.b) < 1e-8).any())


def test_gem_never_decreases_the_posterior_at_any_substep():
    assert sum(monotone(seed) for seed in range(40)) > 10


@pytest.mark.long
def test_gem_never_decreases_on_200_problems(record_property):
    assert sum(monotone(seed) for seed in range(200)) > 50
    record_property("tried", 200)


@pytest.mark.parametrize("seed", range(5))
def test_without_atlas_bias_and_constraints_it_is_scikit_learns_mixture(seed):
    rng = np.random.default_rng(seed)
    N, Q = 2, 3
    problem = random_problem(seed, N)
    centers = rng.standard_normal((Q, N)) * 3
    D = centers[rng.integers(0, Q, problem.mask.shape)] + rng.standard_normal((*problem.mask.shape, N))
    D = np.moveaxis(D, -1, 0)
    mask = np.ones(problem.mask.shape, bool)
    prior = replace(
        problem.prior,
        alpha0=1.0,
        nu0=np.full(Q, -N - 1.0),  # no prior: mode = scatter / n
        S0=np.zeros((Q, N, N)),
        A=np.zeros((0, Q * N)),
        b=np.zeros(0),
        precision=np.zeros(N),
        bias_precision=np.zeros((N, 4, 4, 4)),
        group=np.zeros(Q, int),
        has_bias=np.zeros(N, bool),
        relations=None,
    )
    start = rng.standard_normal((Q, N)) * 2
    theta = Theta(np.full(Q, 1 / Q), start, np.array([np.eye(N)] * Q), np.zeros((N, 4, 4, 4)))
    for _ in range(15):
        t, _ = reference.expectation(theta, D, np.ones((Q, *mask.shape)), mask)
        theta = update_theta(theta, reference.moments(D, t), prior, mode)
    other = GaussianMixture(
        Q, max_iter=15, tol=0, reg_covar=0, means_init=start, weights_init=np.full(Q, 1 / Q),
        precisions_init=np.array([np.eye(N)] * Q),
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning):
        other.fit(D.reshape(N, -1).T)
    np.testing.assert_allclose(theta.gamma, other.weights_, rtol=1e-6)
    np.testing.assert_allclose(theta.mu, other.means_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(theta.Sigma, other.covariances_, rtol=1e-6, atol=1e-6)


def test_means_of_a_draw_keep_the_constraints_and_c_its_clamps():
    rng = np.random.default_rng(3)
    problem = random_problem(3, N=2, clamped=True)
    theta = problem.theta
    moments = reference.moments(problem.D, hard(problem, rng))
    for _ in range(50):
        theta = update_theta(theta, moments, problem.prior, make_sampler(rng))
        assert (problem.prior.A @ theta.mu.ravel() <= problem.prior.b + 1e-9).all()
        assert not theta.C[1].any()
        assert theta.C[0, 1:].any()
        assert not theta.C[:, 0, 0, 0].any()


def test_conditioning_on_a_clamped_contrast_beats_deleting_it():
    """Two correlated contrasts, one without a field: its residual tells where the other's noise is."""
    rng = np.random.default_rng(4)
    problem = random_problem(4, N=2, clamped=True)
    Sigma = np.array([[1.0, 0.95], [0.95, 1.0]]) * 0.05
    truth = np.zeros((2, 4, 4, 4))
    truth[0] = 0.2 * rng.standard_normal((4, 4, 4))
    truth[:, 0, 0, 0] = 0
    shape = problem.mask.shape
    noise = np.moveaxis(rng.multivariate_normal([0, 0], Sigma, shape), -1, 0)
    D = noise + np.einsum("nabc,abcxyz->nxyz", truth, reference.basis(shape))
    Q = len(problem.prior.group)
    theta = Theta(problem.theta.gamma, np.zeros((Q, 2)), np.array([Sigma] * Q), np.zeros((2, 4, 4, 4)))
    t = np.zeros((Q, *shape))
    t[0] = 1
    moments = reference.moments(D, t)
    both = replace(problem.prior, has_bias=np.array([True, True]))
    conditioned = set_free(theta.C, C_given(theta, moments, problem.prior).mode(), problem.prior)
    deleted = set_free(theta.C, C_given(theta, moments, both).mode(), both)

    def error(C: np.ndarray) -> float:
        return float(np.sqrt(((C[0] - truth[0]) ** 2).mean()))

    assert error(conditioned) < 0.6 * error(deleted)


@pytest.mark.parametrize("seed", range(3))
def test_channel_order_and_scale_do_not_matter(seed):
    problem = random_problem(seed, N=3)
    t, _ = expectation(problem, problem.theta)
    plain = update_theta(problem.theta, reference.moments(problem.D, t), problem.prior, mode)
    order = [2, 0, 1]
    prior, Q = problem.prior, problem.theta.Q
    flat = np.arange(Q * 3).reshape(Q, 3)[:, order].ravel()
    related = prior.relations
    turned_prior = replace(
        prior,
        relations=related and Quadratic(related.J[flat][:, flat], related.j[flat]),
        S0=prior.S0[:, order][:, :, order],
        A=prior.A.reshape(-1, Q, 3)[:, :, order].reshape(-1, Q * 3),
        mu0=prior.mu0[order],
        precision=prior.precision[order],
        bias_precision=prior.bias_precision[order],
        has_bias=prior.has_bias[order],
    )
    start = problem.theta
    turned_start = Theta(start.gamma, start.mu[:, order], start.Sigma[:, order][:, :, order], start.C[order])
    turned = update_theta(turned_start, reference.moments(problem.D[order], t), turned_prior, mode)
    np.testing.assert_allclose(turned.mu, plain.mu[:, order], atol=1e-9)
    np.testing.assert_allclose(turned.Sigma, plain.Sigma[:, order][:, :, order], atol=1e-9)
    np.testing.assert_allclose(turned.C, plain.C[order], atol=1e-7)
    # a factor on the intensities is a shift of their logarithm
    shift = np.array([3.0, -2.0, 5.0])
    shifted = update_theta(
        replace(start, mu=start.mu + shift),
        reference.moments(problem.D + shift[:, None, None, None], t),
        replace(prior, mu0=prior.mu0 + shift),
        mode,
    )
    np.testing.assert_allclose(shifted.mu, plain.mu + shift, atol=1e-8)
    np.testing.assert_allclose(shifted.Sigma, plain.Sigma, atol=1e-8)
