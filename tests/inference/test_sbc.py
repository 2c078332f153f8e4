"""Simulation-based calibration: a parameter drawn from the prior ranks uniformly among draws given its data.

Talts et al. 2018. Every replicate draws θ, labels and data from the prior, runs Algorithm 1 from another draw
of the prior, and counts how many of its thinned draws lie below the truth.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference_voxels as reference
import tiny_model as tiny
from sampler_tests import p_values
from scipy import stats
from tiny_chain import LABELS, TinyModel, mixtures

from tumoar.inference import gibbs
from tumoar.model import joint
from tumoar.model.gmm import Theta

MODEL = TinyModel((2, 2, 3), (tiny.crbm(1, -1.0, 0.5, 2), tiny.crbm(2, -0.2, 0.5, 2)), tiny.prior())
"""Twelve voxels, two contrasts, the second without bias field."""
DRAWS, THIN, BURN_IN = 100, 2, 20
"""Thinned draws whose autocorrelation time is below 3 keep ranks uniform as far as 1,000 of them can tell."""
COEFFICIENTS = [(0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 1), (3, 2, 0)]
"""Of the bias field; the last is zero in every voxel of the grid and keeps its prior."""


def parameters(model: TinyModel, theta: Theta, labels: joint.Labels, D: np.ndarray) -> dict[str, float]:
    """Everything whose rank is taken: θ, counts of labels, and how well the data fit, which mixes all."""
    out = {"γ core": theta.gamma[0]}
    for q, name in enumerate(("core 1", "core 2", "edema", "GGM", "GWM", "background")):
        out |= {f"μ {name} {n + 1}": theta.mu[q, n] for n in range(theta.N)}
        out |= {
            f"Σ {name} {m + 1}{n + 1}": theta.Sigma[q, m, n] for m in range(theta.N) for n in range(m + 1)
        }
    out |= {"C " + "".join(map(str, c)): theta.C[(0, *c)] for c in COEFFICIENTS}
    out |= {"tumor": labels.z.sum(), "core": labels.y.sum()}
    out |= {s.name: (labels.l == l).sum() for l, s in enumerate(LABELS.structures)}
    out["log p(D | θ, l, z, y)"] = log_likelihood(theta, labels, D)
    return {name: float(value) for name, value in out.items()}


def log_likelihood(theta: Theta, labels: joint.Labels, D: np.ndarray) -> float:
    x = mixtures(labels)
    components = np.exp(reference.log_components(theta, D.astype(float)))
    return float(
        np.log(np.where(LABELS.x_of_component[:, None, None, None] == x, components, 0).sum(0)).sum()
    )


def replicate(model: TinyModel, number: int, draws: int = DRAWS) -> dict[str, int]:
    """Rank of every parameter among `draws` thinned draws given its data; ties are broken at random."""
    rng = np.random.default_rng([number, 20])
    theta, labels = model.draw_theta(rng), model.draw_labels(rng)
    D, _ = model.simulate(theta, labels, rng)
    chain = model.chain(D, seed=number)
    state = gibbs.initialize_state(chain, model.draw_theta(rng), model.draw_labels(rng))
    sample = []
    for i in range(BURN_IN + draws * THIN):
        state, _ = gibbs.sweep(chain, state)
        if i >= BURN_IN and (i - BURN_IN) % THIN == THIN - 1:
            sample.append(list(parameters(model, state.theta, state.labels, D).values()))
    truth = parameters(model, theta, labels, D)
    below = (np.array(sample) < list(truth.values())).sum(0)
    ties = (np.array(sample) == list(truth.values())).sum(0)
    return dict(zip(truth, (below + rng.integers(0, ties + 1)).tolist()))


def test_uniform_ranks_pass_and_skewed_ones_do_not():
    rng = np.random.default_rng(0)
    uniform = rng.integers(0, DRAWS + 1, (1000, 50))
    assert p_values(uniform, DRAWS).min() > 0.001
    narrow = rng.binomial(DRAWS, rng.beta(1.3, 1.3, (1000, 1)))
    assert p_values(narrow, DRAWS).max() < 1e-4


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ranks_are_uniform(record_property):
    rows = [replicate(MODEL, number) for number in range(1000)]
    p = p_values(np.array([list(row.values()) for row in rows]), DRAWS)
    assert p.min() > 0.001
    assert stats.combine_pvalues(p, "fisher").pvalue > 0.01
    record_property("tried", len(p))
