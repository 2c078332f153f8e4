"""Conditionals of θ (Appendix A): Algorithm 2 uses their modes (Appendix B), Algorithm 1 samples from them.

Moments are sums over t: expected values in the GEM algorithm, one-hot draws in the sampler. Two misprints are
corrected: the mean of a voxel is μ + Cφ throughout (Appendix B has a minus once), and the means minimize the
quadratic form (printed as arg max).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.model.bias import PER_AXIS, phi_sums
from tumoar.model.gmm import Moments, Theta
from tumoar.model.theta_prior import ThetaPrior
from tumoar.numerics.distributions import ConstrainedNormal, Dirichlet, InverseWishart, Normal

Array = npt.NDArray[np.floating]
Pick = Callable[[Any], Array]


def mode(conditional: Any) -> Array:
    """Take the mode of a conditional (GEM algorithm)."""
    return np.asarray(conditional.mode())


def make_sampler(rng: np.random.Generator) -> Pick:
    """Function that samples from a conditional (Gibbs sampler)."""
    return lambda conditional: np.asarray(conditional.sample(rng))


def update_theta(theta: Theta, moments: Moments, prior: ThetaPrior, pick: Pick, tau: float = 1.0) -> Theta:
    """Update γ, μ, Σ and C in turn, Eqs. (A.2)–(A.5), each given the values picked before it.

    With the likelihood exponent `tau`, voxels have weight `tau` for μ, Σ and C, and 1 for γ.
    """
    theta = replace(theta, gamma=pick(gamma_given(moments, prior)))
    moments = moments.scaled(tau)
    theta = replace(theta, mu=pick(mu_given(theta, moments, prior)).reshape(theta.mu.shape))
    theta = replace(theta, Sigma=pick(Sigma_given(theta, moments, prior)))
    if not prior.has_bias.any():
        return theta
    return replace(theta, C=set_free(theta.C, pick(C_given(theta, moments, prior)), prior))


def gamma_given(moments: Moments, prior: ThetaPrior) -> Dirichlet:
    """p(γ|·), Eq. (A.2): α_xg = α_0 + N_xg."""
    return Dirichlet(prior.alpha0 + moments.n, prior.group)


def mu_given(theta: Theta, moments: Moments, prior: ThetaPrior) -> ConstrainedNormal:
    """p(μ|·), Eq. (A.3): normal around the means of d − Cφ, precision N_xg Σ_xg⁻¹, with A μ <= b."""
    Q, N = theta.mu.shape
    inverse = np.linalg.inv(theta.Sigma)
    first, _ = moments.subtract_bias(theta.C)
    P = np.zeros((Q, N, Q, N))
    q = np.arange(Q)
    P[q, :, q, :] = moments.n[:, None, None] * inverse + np.diag(prior.precision)
    h = (np.einsum("qmn,qn->qm", inverse, first) + prior.precision * prior.mu0).ravel()
    flat = P.reshape(Q * N, Q * N)
    if prior.relations is not None:
        flat, h = flat + prior.relations.J, h + prior.relations.j
    return ConstrainedNormal(flat, h, prior.A, prior.b, start=theta.mu.ravel())


def Sigma_given(theta: Theta, moments: Moments, prior: ThetaPrior) -> InverseWishart:
    """p(Σ|·), Eq. (A.4): scatter around the new means plus that of the prior."""
    return InverseWishart(prior.nu0 + moments.n, prior.S0 + moments.scatter(theta.mu, theta.C))


def C_given(theta: Theta, moments: Moments, prior: ThetaPrior) -> Normal:
    """p(C|·), Eq. (A.5), over the free coefficients: 63 of each contrast that has a bias field.

    The right-hand side sums w r = w d − Σ w_xg μ directly, because the paper's division by w may be by zero
    off the diagonal. Clamped contrasts are conditioned on: their rows and columns are removed from the
    precision, while their residuals still contribute through Σ⁻¹.
    """
    free = prior.has_bias
    Q, N = theta.mu.shape
    inverse = np.linalg.inv(theta.Sigma)[:, free]  # (Q, F, N)
    residual = moments.dcos.reshape(Q, N, -1) - theta.mu[:, :, None] * phi_sums(moments.cos)[:, None, :]
    h = np.einsum("qmn,qna->ma", inverse, residual)[:, 1:]
    G = moments.gram[:, 1:, 1:].reshape(Q, -1)
    F, p = int(free.sum()), PER_AXIS**3 - 1
    P = (inverse[:, :, free].reshape(Q, -1).T @ G).reshape(F, F, p, p).swapaxes(1, 2).reshape(F * p, F * p)
    return Normal(P + np.diag(prior.bias_precision[free].reshape(F, -1)[:, 1:].ravel()), h.ravel())


def set_free(C: Array, c: Array, prior: ThetaPrior) -> Array:
    """Copy of C (N, 4, 4, 4) with its free coefficients set to c."""
    full = C.reshape(len(C), -1).copy()
    full[prior.has_bias, 1:] = c.reshape(int(prior.has_bias.sum()), -1)
    return full.reshape(C.shape)
