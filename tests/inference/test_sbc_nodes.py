"""Simulation-based calibration with node positions that are drawn too (see test_sbc)."""

from __future__ import annotations

import numpy as np
import pytest
from sampler_tests import p_values
from scipy import stats
from tiny_chain import LABELS
from tiny_mesh import MODELS, TinyMesh

from tumoar.inference import gibbs
from tumoar.model import joint
from tumoar.model.gmm import Theta

DRAWS, THIN, BURN_IN, BINS = 39, 8, 40, 10
"""Thinned draws of the nodes, whose autocorrelation time is below 2."""


def parameters(m: TinyMesh, eta: np.ndarray, theta: Theta, labels: joint.Labels) -> dict[str, float]:
    """Coordinates of the free nodes, what they make of π, and some of what depends on it."""
    (x, y, z), (u, v, _) = (eta[free.node] for free in m.free)
    pi = m.at(eta).pi
    out = {"x": x, "y": y, "z": z, "u": u, "v": v, "π brain": pi[..., LABELS.in_brain].sum()}
    out |= {f"π {s.name} at a voxel": pi[0, 1, 1, l] for l, s in enumerate(LABELS.structures)}
    out |= {s.name: (labels.l == l).sum() for l, s in enumerate(LABELS.structures)}
    out |= {"tumor": labels.z.sum(), "μ white": theta.mu[4, 0], "Σ gray": theta.Sigma[3, 0, 0]}
    return {name: float(value) for name, value in out.items()}


def replicate(m: TinyMesh, number: int) -> dict[str, int]:
    """Rank of every parameter among thinned draws given its data; ties are broken at random."""
    rng = np.random.default_rng([number, 21])
    eta, other = m.draw_nodes(rng, 2)
    theta, labels = m.model.draw_theta(rng), m.at(eta).draw_labels(rng)
    D, _ = m.model.simulate(theta, labels, rng)
    chain = m.chain(D, other, seed=number)
    state = gibbs.initialize_state(chain, m.model.draw_theta(rng), m.at(other).draw_labels(rng), other)
    sample = []
    for i in range(BURN_IN + DRAWS * THIN):
        state, _ = gibbs.sweep(chain, state)
        if i >= BURN_IN and (i - BURN_IN) % THIN == THIN - 1:
            sample.append(list(parameters(m, state.mesh.nodes, state.theta, state.labels).values()))
    truth = parameters(m, eta, theta, labels)
    below = (np.array(sample) < list(truth.values())).sum(0)
    ties = (np.array(sample) == list(truth.values())).sum(0)
    return dict(zip(truth, (below + rng.integers(0, ties + 1)).tolist()))


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", ["cRBM", "two cells"])
def test_ranks_are_uniform(name, record_property):
    rows = [replicate(MODELS[name], number) for number in range(400)]
    p = p_values(np.array([list(row.values()) for row in rows]), DRAWS, BINS)
    assert p.min() > 0.001
    assert stats.combine_pvalues(p, "fisher").pvalue > 0.01
    record_property("tried", len(p))
