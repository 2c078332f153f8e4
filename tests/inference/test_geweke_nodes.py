"""Geweke's test of the joint distribution with node positions that are drawn too (see test_geweke)."""

from __future__ import annotations

import numpy as np
import pytest
import sampler_tests
from tiny_chain import LABELS
from tiny_mesh import MODELS, TinyMesh

from tumoar.inference import gibbs


def functionals(m: TinyMesh, eta, theta, labels, D, n) -> dict[str, float]:
    """Those without a mesh, and moments of the nodes, alone and with labels and data."""
    out = sampler_tests.functionals(m.model, theta, labels, D, n)
    (x, y, z), (u, v, _) = (eta[free.node] for free in m.free)
    brain = m.at(eta).pi[..., LABELS.in_brain].sum(-1)
    out |= {"x": x, "y": y, "z": z, "u": u, "v": v}
    out |= {f"{name}²": out[name] ** 2 for name in "xyzuv"}
    return out | {
        "x y": x * y,
        "y z": y * z,
        "x u": x * u,
        "x background": x * (labels.l == 0).sum(),
        "z white": z * (labels.l == 1).sum(),
        "u tumor": u * labels.z.sum(),
        "brain": brain.sum(),
        "brain in tumor": (brain * labels.z).sum(),
        "y mean of d2": y * np.nanmean(D[1]),
    }


def from_the_prior(m: TinyMesh, draws: int, rng: np.random.Generator) -> np.ndarray:
    rows = []
    for eta in m.draw_nodes(rng, draws):
        theta = m.model.draw_theta(rng)
        labels = m.at(eta).draw_labels(rng)
        D, t = m.model.simulate(theta, labels, rng)
        rows.append(list(functionals(m, eta, theta, labels, D, t.sum((1, 2, 3))).values()))
    return np.array(rows)


def from_the_sampler(m: TinyMesh, draws: int, rng: np.random.Generator) -> np.ndarray:
    theta, eta = m.model.draw_theta(rng), m.draw_nodes(rng, 1)[0]
    labels = m.at(eta).draw_labels(rng)
    rows = []
    for i in range(draws):
        D, t = m.model.simulate(theta, labels, rng)
        chain = m.chain(D, eta, seed=7)
        state = m.state(2 * i + 1, theta, labels, D, t, eta)
        for _ in range(2):
            state, _ = gibbs.sweep(chain, state)
        theta, labels, eta = state.theta, state.labels, state.mesh.nodes
        rows.append(list(functionals(m, eta, theta, labels, D, state.moments.n).values()))
    return np.array(rows)


def scores(m: TinyMesh, draws: int, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    a, b = from_the_prior(m, 2 * draws, rng), from_the_sampler(m, draws, rng)
    theta, eta = m.model.draw_theta(rng), m.draw_nodes(rng, 1)[0]
    labels = m.at(eta).draw_labels(rng)
    D, _ = m.model.simulate(theta, labels, rng)
    names = functionals(m, eta, theta, labels, D, np.zeros(LABELS.Q))
    return dict(zip(names, sampler_tests.compare_means(a, b).tolist()))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) for n in ("cRBM", "two cells", "rows that rest")]
)
def test_joint_distribution(name):
    z = scores(MODELS[name], 250)
    assert len(z) >= 45
    assert max(map(abs, z.values())) < 4


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MODELS)
def test_joint_distribution_at_length(name, record_property):
    z = np.abs(list(scores(MODELS[name], 10_000).values()))
    assert z.max() < 4
    assert (z > 2.6).sum() <= 3  # of 54, where 0.5 are expected of independent ones, which these are not
    record_property("tried", len(z))
