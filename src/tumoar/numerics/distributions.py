"""Conjugate distributions with `mode()`, `sample(rng)` and `log_prob()`.

They are immutable and vectorized over independent distributions. `log_prob` of `ConstrainedNormal` lacks its
(intractable) normalizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import gammaln, log_ndtr, multigammaln, ndtri_exp

from tumoar.numerics.quadprog import FEASIBILITY, find_nearest

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Dirichlet:
    """Independent Dirichlet distributions, concatenated: entry q belongs to the vector `group[q]`."""

    alpha: Array
    group: npt.NDArray[np.int64]

    def mode(self) -> Array:
        """(alpha − 1) / sum of (alpha − 1) in each group; uniform for 0/0."""
        excess = self.alpha - 1
        if excess.min() < 0:
            raise ValueError(f"a Dirichlet mode needs alpha >= 1, got {self.alpha.min()}")
        total = self._sum(excess)
        return np.where(
            total > 0, excess / np.where(total > 0, total, 1), 1 / self._sum(np.ones_like(excess))
        )

    def sample(self, rng: np.random.Generator) -> Array:
        """One draw of every vector, concatenated."""
        draw = rng.standard_gamma(self.alpha)
        return draw / self._sum(draw)

    def log_prob(self, gamma: Array) -> float:
        """Sum of the log densities of all vectors."""
        totals = np.bincount(self.group, self.alpha)
        normalizer = gammaln(self.alpha).sum() - gammaln(totals[totals > 0]).sum()
        return float(((self.alpha - 1) * np.log(gamma)).sum() - normalizer)

    def _sum(self, values: Array) -> Array:
        return np.asarray(np.bincount(self.group, values)[self.group], float)


@dataclass(frozen=True)
class InverseWishart:
    """Independent inverse-Wishart matrices: df (Q,), scale (Q, N, N).

    p(Σ) ∝ |Σ|^{−(df+N+1)/2} exp(−tr(scale Σ⁻¹)/2): Murphy's convention, and scipy's `invwishart(df, scale)`.
    """

    df: Array
    scale: Array

    def mode(self) -> Array:
        """scale / (df + N + 1)."""
        return self.scale / (self.df + self.scale.shape[-1] + 1)[:, None, None]

    def sample(self, rng: np.random.Generator) -> Array:
        """(Q, N, N) draws by Bartlett: T Tᵀ ~ Wishart(df, 1), scale = L Lᵀ, B = L T⁻ᵀ, Σ = B Bᵀ."""
        Q, N = self.scale.shape[:2]
        T = np.tril(rng.standard_normal((Q, N, N)), -1)
        T[:, np.arange(N), np.arange(N)] = np.sqrt(rng.chisquare(self.df[:, None] - np.arange(N)))
        B = np.swapaxes(np.linalg.solve(T, np.swapaxes(np.linalg.cholesky(self.scale), 1, 2)), 1, 2)
        return B @ np.swapaxes(B, 1, 2)

    def log_prob(self, Sigma: Array) -> float:
        """Sum of the log densities of all matrices."""
        N = Sigma.shape[-1]
        logdet_S, logdet = np.linalg.slogdet(self.scale)[1], np.linalg.slogdet(Sigma)[1]
        trace = np.einsum("qij,qji->q", self.scale, np.linalg.inv(Sigma))
        normalizer = 0.5 * self.df * (N * np.log(2) - logdet_S) + multigammaln(self.df / 2, N)
        return float((-0.5 * ((self.df + N + 1) * logdet + trace) - normalizer).sum())


@dataclass(frozen=True)
class Normal:
    """N(m, P⁻¹) in information form: precision P (D, D) and h = P m (D,)."""

    P: Array
    h: Array

    @cached_property
    def _L(self) -> Array:
        return np.linalg.cholesky(self.P)

    def mode(self) -> Array:
        """The mean m."""
        return cho_solve((self._L, True), self.h)

    def sample(self, rng: np.random.Generator) -> Array:
        """One draw (D,)."""
        z = rng.standard_normal(len(self.h))
        return self.mode() + solve_triangular(self._L, z, lower=True, trans="T")

    def log_prob(self, x: Array) -> float:
        """Log density."""
        e = self._L.T @ (x - self.mode())
        return float(np.log(np.diag(self._L)).sum() - 0.5 * (e @ e + len(e) * np.log(2 * np.pi)))


@dataclass(frozen=True)
class ConstrainedNormal:
    """N(m, P⁻¹) restricted to A x <= b: P (D, D), h = P m (D,), A (R, D), b (R,).

    `start` is a feasible point: no exact draw is known, so `sample` is one Gibbs cycle that leaves this
    distribution invariant and begins there (Kotecha & Djuric 1999; Rodriguez-Yam et al. 2004).
    """

    P: Array
    h: Array
    A: Array
    b: Array
    start: Array

    @cached_property
    def _coupled(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.A != 0).any(axis=0))

    def mode(self) -> Array:
        """Exact mode: a small quadratic program in the coupled coordinates; the others follow."""
        c, f = self._coupled, ~self._coupled
        m = Normal(self.P, self.h).mode()
        if not c.any():
            return m
        x = m.copy()
        P_cc = self.P[np.ix_(c, c)]
        if f.any():  # marginal precision of the coupled coordinates
            gain = np.linalg.solve(self.P[np.ix_(f, f)], self.P[np.ix_(f, c)])
            P_cc = P_cc - self.P[np.ix_(c, f)] @ gain
        x[c] = find_nearest(m[c], P_cc, self.A[:, c], self.b)
        if f.any():
            x[f] = m[f] - gain @ (x[c] - m[c])
        return x

    def sample(self, rng: np.random.Generator) -> Array:
        """Draw each coupled coordinate given all others, then all free ones in one exact block."""
        x = np.array(self.start, float)
        for j in np.flatnonzero(self._coupled):
            a = self.A[:, j]
            slack = self.b - self.A @ x + a * x[j]  # a x_j <= slack
            low = (slack[a < 0] / a[a < 0]).max(initial=-np.inf)
            high = (slack[a > 0] / a[a > 0]).min(initial=np.inf)
            mean = x[j] + (self.h[j] - self.P[j] @ x) / self.P[j, j]
            x[j] = sample_truncated(mean, 1 / np.sqrt(self.P[j, j]), low, high, rng)
        f = ~self._coupled
        if f.any():
            rest = self.h[f] - self.P[np.ix_(f, ~f)] @ x[~f]
            x[f] = Normal(self.P[np.ix_(f, f)], rest).sample(rng)
        return x

    def log_prob(self, x: Array) -> float:
        """Log density of the unrestricted normal; −inf if a constraint is violated."""
        if (self.A @ x > self.b + FEASIBILITY).any():
            return -np.inf
        return Normal(self.P, self.h).log_prob(x)


def sample_truncated(mean: float, sd: float, low: float, high: float, rng: np.random.Generator) -> float:
    """Draw from N(mean, sd²) restricted to [low, high], by inversion of the log CDF: exact in the tails."""
    if low >= high:  # empty by rounding: the constraints fix the coordinate
        return 0.5 * (low + high)
    a, b, sign = (low - mean) / sd, (high - mean) / sd, 1.0
    if a > 0:  # the lower tail is more precise, so the upper one is mirrored
        a, b, sign = -b, -a, -1.0
    u = rng.random()
    with np.errstate(divide="ignore"):  # log(0) = −inf is intended
        log_p = np.logaddexp(log_ndtr(a) + np.log1p(-u), log_ndtr(b) + np.log(u))
    return float(np.clip(mean + sd * sign * ndtri_exp(log_p), low, high))
