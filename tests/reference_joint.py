"""The joint density of everything Algorithm 1 draws, term by term as in section 2, slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import reference_voxels as reference
from scipy import stats

from tumoar.model.gmm import Theta
from tumoar.model.shape.crbm import CRBM
from tumoar.model.theta_prior import ThetaPrior
from tumoar.vocabulary.labels import LabelTable


@dataclass(frozen=True)
class Everything:
    """q (X, Y, Z) is the component that t picks; h_z and h_y (M, *J) are all units that reach the grid."""

    D: np.ndarray
    q: np.ndarray
    l: np.ndarray
    z: np.ndarray
    y: np.ndarray
    h_z: np.ndarray
    h_y: np.ndarray
    theta: Theta


def log_joint(
    e: Everything, labels: LabelTable, pi: np.ndarray, prior: ThetaPrior, shapes, tau: float = 1.0
) -> float:
    """log p(D, t, l, z, y, H^z, H^y, θ | η) up to a constant; −inf where f or a constraint forbids it.

    Densities of the data count with the power `tau`.
    """
    for i in np.ndindex(e.l.shape):
        if not _possible(e, labels, i):
            return -np.inf
    total = log_theta(e.theta, prior)
    log_gamma = np.log(e.theta.gamma)
    log_density = reference.log_components(e.theta, e.D) - log_gamma[:, None, None, None]
    for i in np.ndindex(e.l.shape):
        total += log_gamma[e.q[i]] + tau * log_density[(e.q[i], *i)] + np.log(float(pi[(*i, e.l[i])]))
    return total - crbm_energy(shapes[0], e.z, e.h_z) - crbm_energy(shapes[1], e.y, e.h_y)


def _possible(e: Everything, labels: LabelTable, i: tuple[int, ...]) -> bool:
    """f(l, z, y) = 0, and t picks a component of the mixture x(l, z, y)."""
    l, z, y = int(e.l[i]), int(e.z[i]), int(e.y[i])
    if (y and not z) or (z and not labels.structures[l].in_brain):
        return False
    gmm = "core" if y else "edema" if z else labels.structures[l].gmm
    return labels.gmms[labels.x_of_component[e.q[i]]].name == gmm


def crbm_energy(crbm: CRBM, v: np.ndarray, h: np.ndarray) -> float:
    """Eq. (2) hidden unit by hidden unit, v surrounded by zeros so that every voxel has all its units."""
    w = crbm.w.astype(float).repeat(2, 1).repeat(2, 2).repeat(2, 3)
    r = w.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(v.astype(float), r - 1), (r, r, r))
    inputs = np.einsum("mabc,xyzabc->mxyz", w, windows) + crbm.b[:, None, None, None]
    return float(-(h * inputs).sum() - crbm.a * v.sum())


def log_theta(theta: Theta, prior: ThetaPrior) -> float:
    """Eq. (6), with weak Gaussians on the means and the bias coefficients."""
    if (prior.A @ theta.mu.ravel() > prior.b).any():
        return -np.inf
    total = 0.0
    for x in np.unique(prior.group):
        gamma = theta.gamma[prior.group == x]
        if len(gamma) > 1:
            total += stats.dirichlet.logpdf(gamma, np.full(len(gamma), prior.alpha0))
    for q in range(theta.Q):
        total += stats.invwishart.logpdf(theta.Sigma[q], prior.nu0[q], prior.S0[q])
    deviation = 1 / np.sqrt(prior.precision)
    total += stats.norm.logpdf(theta.mu, prior.mu0, deviation).sum()
    C, width = (v.reshape(theta.N, -1)[prior.has_bias, 1:] for v in (theta.C, prior.bias_precision**-0.5))
    total += stats.norm.logpdf(C, 0, width).sum()
    return float(total)
