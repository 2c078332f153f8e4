"""Random mixture problems: a small grid, constraints that bind, a class with hardly a voxel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import reference_voxels as reference

from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import Quadratic, ThetaPrior

SHAPE = (6, 5, 7)


@dataclass(frozen=True)
class Problem:
    D: np.ndarray
    mask: np.ndarray
    P: np.ndarray
    prior: ThetaPrior
    theta: Theta


def spd(n: int, rng: np.random.Generator, scale: float) -> np.ndarray:
    a = rng.standard_normal((n, n + 1)) * np.sqrt(scale / n)
    return a @ a.T + 0.2 * scale * np.eye(n)


def random_relations(Q: int, N: int, rng: np.random.Generator) -> Quadratic:
    """A prior of the difference of two means, in all contrasts jointly."""
    K = np.zeros((N, Q, N))
    K[np.arange(N), 0, np.arange(N)], K[np.arange(N), 3, np.arange(N)] = 1, -1
    K = K.reshape(N, Q * N)
    precision = spd(N, rng, 20.0)
    return Quadratic(K.T @ precision @ K, K.T @ precision @ rng.standard_normal(N))


def random_problem(seed: int, N: int = 2, clamped: bool = False) -> Problem:
    """Mixtures of 1, 2, 1 and 1 components; the last hardly in one voxel; μ ordered by constraints.

    With odd seeds, means also have a prior relative to each other.
    """
    rng = np.random.default_rng(seed)
    group = np.array([0, 1, 1, 2, 3])
    Q = len(group)
    mask = rng.random(SHAPE) < 0.8
    mass = rng.dirichlet(np.ones(4), SHAPE).transpose(3, 0, 1, 2)
    mass[3] = 0
    mass[3, 2, 2, 2] = 1e-3
    mask[2, 2, 2] = True
    D = rng.standard_normal((N, *SHAPE)) + 2 * rng.integers(0, 2, (1, *SHAPE))
    D[0] += np.linspace(0, 1.5, SHAPE[2])
    A = np.zeros((3, Q, N))
    # the data cannot prefer this order, so some rows are active at the optimum
    A[0, [0, 1], 0], A[1, [3, 1], 0], A[2, [4, 0], N - 1] = (1, -1), (1, -1), (1, -1)
    variance = D[:, mask].var(1)
    nu0 = N + rng.uniform(0, 4, Q)
    has_bias = np.ones(N, bool)
    has_bias[-1] = not clamped
    prior = ThetaPrior(
        alpha0=1 + rng.random(),
        nu0=nu0,
        S0=(nu0 / 4)[:, None, None] * np.diag(variance),
        A=A.reshape(3, Q * N),
        b=np.array([-0.2, 0.0, -0.1]),
        mu0=D[:, mask].mean(1),
        precision=1 / (100 * variance),
        bias_precision=rng.uniform(0.5, 2, (N, 4, 4, 4)) / (100 * variance[:, None, None, None]),
        group=group,
        has_bias=has_bias,
        relations=random_relations(Q, N, np.random.default_rng(seed)) if seed % 2 else None,
    )
    mu = D[:, mask].mean(1) + rng.standard_normal((Q, N)) * 0.1
    mu[[4, 0, 1], 0], mu[3, 0] = (-1.0, 0.0, 1.0), 0.5
    mu[[4, 0], N - 1] = (-1.0, 0.0)
    theta = Theta(
        gamma=np.array([1, 0.4, 0.6, 1, 1]),
        mu=mu,
        Sigma=np.array([spd(N, rng, 1.0) for _ in range(Q)]),
        C=np.zeros((N, 4, 4, 4)),
    )
    return Problem(D, mask, mass[group], prior, theta)


def expectation(problem: Problem, theta: Theta) -> tuple[np.ndarray, float]:
    return reference.expectation(theta, problem.D, problem.P, problem.mask)
