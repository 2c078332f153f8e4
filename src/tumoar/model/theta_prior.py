"""The prior p(θ) of Eq. (6): Dirichlet, inverse Wishart, and linear constraints on the means.

The paper's priors of means and bias coefficients are flat. Here means have Gaussian priors ten times as wide
as the data, which keep the posterior proper, and bias fields a prior on their bending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.model.bias import PER_AXIS
from tumoar.model.gmm import Theta
from tumoar.numerics.distributions import Dirichlet, InverseWishart
from tumoar.numerics.quadprog import FEASIBILITY
from tumoar.vocabulary.contrasts import Contrast, select_constraints
from tumoar.vocabulary.labels import LabelTable

Array = npt.NDArray[np.floating]

WIDTH = 10.0
"""Standard deviation of the weak priors of μ and C, in standard deviations of the data."""


class Quadratic(NamedTuple):
    """Log density −½ μᵀ J μ + jᵀ μ of all means, up to a constant: J (Q N, Q N), j (Q N,)."""

    J: Array
    j: Array


@dataclass(frozen=True)
class ThetaPrior:
    """p(θ) for Q components and N contrasts.

    alpha0 of every Dirichlet; nu0 (Q,) and S0 (Q, N, N) of the inverse Wisharts; A (R, Q N) and b (R,) of the
    constraints A μ <= b; mean mu0 (N,) and precision (N,) of the weak prior of μ; precision of C, zero mean,
    bias_precision (N, 4, 4, 4); group (Q,) mixture of each component; has_bias (N,) False where the bias
    field is clamped. `relations` is a prior of means relative to each other (model/tumor_means.py).
    """

    alpha0: float
    nu0: Array
    S0: Array
    A: Array
    b: Array
    mu0: Array
    precision: Array
    bias_precision: Array
    group: npt.NDArray[np.int64]
    has_bias: npt.NDArray[np.bool_]
    relations: Quadratic | None = None

    def log_prob(self, theta: Theta) -> float:
        """log p(θ) up to a constant; −inf if a constraint is violated."""
        if (self.A @ theta.mu.ravel() > self.b + FEASIBILITY).any():
            return -np.inf
        weak = self.precision * ((theta.mu - self.mu0) ** 2).sum(0)
        weak = weak + (self.bias_precision * theta.C**2).sum((1, 2, 3))
        related = 0.0
        if self.relations is not None:
            mu = theta.mu.ravel()
            related = float(self.relations.j @ mu - 0.5 * mu @ self.relations.J @ mu)
        return (
            Dirichlet(np.full(len(self.group), self.alpha0), self.group).log_prob(theta.gamma)
            + InverseWishart(self.nu0, self.S0).log_prob(theta.Sigma)
            - 0.5 * float(weak.sum())
            + related
        )


def build_theta_prior(
    labels: LabelTable,
    contrasts: Sequence[Contrast],
    mean: Array,
    variance: Array,
    voxels: float,
    expected: Array,
    bending: float = 0.0,
    relations: Quadratic | None = None,
) -> ThetaPrior:
    """p(θ) of section 3.3: mean d̄ and variance (N,) of the data, I = `voxels`, I_x = `expected` (X,)."""
    N, x = len(contrasts), labels.x_of_component
    nu0 = N + 0.1 * (np.asarray(expected, float) / labels.G)[x]
    X = np.array([g.scatter or labels.X for g in labels.gmms], float)[x]
    A, b = build_mean_constraints(labels, contrasts)
    return ThetaPrior(
        alpha0=1 + 1e-4 * voxels,
        nu0=nu0,
        S0=(nu0 / X**2)[:, None, None] * np.diag(variance),
        A=A,
        b=b,
        mu0=np.asarray(mean, float),
        precision=1 / (WIDTH**2 * np.asarray(variance, float)),
        bias_precision=build_bias_precision(np.asarray(variance, float), bending * voxels),
        group=x,
        has_bias=np.array([c.bias_field for c in contrasts]),
        relations=relations,
    )


def build_bias_precision(variance: Array, weight: float) -> Array:
    """(N, 4, 4, 4) precision of C: a weak prior, and `weight` times the bending energy of each function.

    The fourth power of the number of half-waves leaves the slow shading of a coil almost free and restrains
    fields that rise and fall within the size of a tumor. Like ν0, the weight is a fraction of the voxels: a
    region that deviates from its tissue deviates as one, so that its voxels are no independent evidence.
    """
    waves = (np.indices((PER_AXIS,) * 3) ** 2).sum(0) ** 2
    return (1 / WIDTH**2 + weight * waves) / variance[:, None, None, None]


def expect_voxels(
    labels: LabelTable, atlas_sums: Array, tumor_mm3: Mapping[str, float], voxel_mm3: float
) -> Array:
    """(X,) I_x: Σ_i π_i over the structures of normal mixtures (`atlas_sums`), mean volumes for tumor."""
    I = np.array(atlas_sums, float)
    for x, gmm in enumerate(labels.gmms):
        if gmm.role in tumor_mm3:
            I[x] = tumor_mm3[gmm.role] / voxel_mm3
    return I


def build_mean_constraints(labels: LabelTable, contrasts: Sequence[Contrast]) -> tuple[Array, Array]:
    """A (R, Q N) and b (R,) of A μ <= b (Table 3); a bound on a maximum becomes one row per term."""
    N = len(contrasts)
    rows, bounds = [], []

    def components(gmm: str, component: int | None = None) -> list[int]:
        q = labels.component_slice(labels.x_named(gmm))
        return list(range(q.start, q.stop)) if component is None else [q.start + component]

    for n, contrast in enumerate(contrasts):
        for c in select_constraints(contrast, labels):
            sign = 1.0 if c.op == "<=" else -1.0
            for ref in c.refs:
                for q in components(c.gmm, c.component):
                    for r in components(ref):
                        row = np.zeros((labels.Q, N))
                        row[q, n], row[r, n] = sign, -sign
                        rows.append(row.ravel())
                        bounds.append(sign * c.log_offset)
    return np.array(rows).reshape(-1, labels.Q * N), np.array(bounds)
