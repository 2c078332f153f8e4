"""Statistics of Geweke's test of the joint distribution and of simulation-based calibration."""

from __future__ import annotations

import numpy as np
from scipy import stats
from tiny_chain import LABELS, TinyModel

from tumoar.model import joint
from tumoar.model.gmm import Theta

BATCHES = 50


def functionals(
    model: TinyModel, theta: Theta, labels: joint.Labels, D: np.ndarray, n: np.ndarray
) -> dict[str, float]:
    """At least 30 numbers that tell of all there is; n (Q,) counts t."""
    z, core, edema, ggm = labels.z.ravel(), 0, 2, 3
    first = int(np.flatnonzero(model.prior.has_bias)[0])
    out = {f"μ {q + 1},{c + 1}": theta.mu[q, c] for q in range(LABELS.Q) for c in range(2)}
    out |= {f"log |Σ| {q + 1}": value for q, value in enumerate(np.log(np.linalg.det(theta.Sigma)))}
    return out | {
        "Σ core 12": theta.Sigma[core, 0, 1],
        "γ core": theta.gamma[core],
        "(γ core)²": theta.gamma[core] ** 2,
        "(μ edema 1)²": theta.mu[edema, 0] ** 2,
        "μ edema 1 · μ gray 1": theta.mu[edema, 0] * theta.mu[ggm, 0],
        "C 001": theta.C[first, 0, 0, 1],
        "(C 101)²": theta.C[first, 1, 0, 1] ** 2,
        "least slack": (model.prior.b - model.prior.A @ theta.mu.ravel()).min(),
        "tumor": z.sum(),
        "tumor²": float(z.sum()) ** 2,
        "core": labels.y.sum(),
        "background": (labels.l == 0).sum(),
        "neighbors both tumor": z[-2] * z[-1],
        "t core 1": n[core],
        "t edema · μ edema 1": n[edema] * theta.mu[edema, 0],
        "mean of d1 d2": np.nanmean(D[0] * D[1]),
        "mean of d2": np.nanmean(D[1]),
    }


def compare_means(independent: np.ndarray, chain: np.ndarray) -> np.ndarray:
    """z-scores (functionals,); batch means carry the autocorrelation (the spectrum at frequency zero)."""
    batches = chain.reshape(BATCHES, -1, chain.shape[1]).mean(1)
    error = np.sqrt(independent.var(0) / len(independent) + batches.var(0, ddof=1) / BATCHES)
    return (chain.mean(0) - independent.mean(0)) / error


def p_values(ranks: np.ndarray, draws: int, bins: int = 20) -> np.ndarray:
    """(parameters,) χ² of ranks (replicates, parameters) in 0 … draws, cut into nearly equal bins."""
    of_rank = np.arange(draws + 1) * bins // (draws + 1)
    expected = np.bincount(of_rank, minlength=bins) / (draws + 1) * len(ranks)
    return np.array(
        [stats.chisquare(np.bincount(of_rank[r], minlength=bins), expected).pvalue for r in ranks.T]
    )
