import numpy as np
import pytest
import reference_tetra as ref

from tumoar.numerics import lbfgs, tetra, tetra_cost, tetra_prior
from tumoar.numerics.tetra_raster import rasterize


def mesh(seed):
    rng = np.random.default_rng(seed)
    return *ref.jittered(*ref.body_centered((3, 3, 3), 3.0), 0.3, rng), rng


def test_a_quadratic_is_minimized_to_rounding():
    nodes, tetrahedra, rng = mesh(0)
    target = nodes + rng.normal(0, 0.1, nodes.shape)
    scale = np.exp(rng.normal(0, 3, nodes.shape))

    def cost(x):
        return 0.5 * np.vdot(scale, (x - target) ** 2), scale * (x - target)

    fit = lbfgs.minimize(cost, nodes, scale * np.exp(rng.normal(0, 0.3, nodes.shape)), tetrahedra, 60)
    np.testing.assert_allclose(fit.nodes, target, atol=1e-6)


def test_the_memory_carries_over():
    nodes, tetrahedra, rng = mesh(1)
    target = nodes + rng.normal(0, 0.1, nodes.shape)
    A = rng.normal(size=(nodes.size, nodes.size)) / 20 + np.eye(nodes.size)
    A = A.T @ A

    def cost(x):
        r = (x - target).ravel()
        return 0.5 * r @ A @ r, (A @ r).reshape(x.shape)

    ones = np.ones_like(nodes)
    whole = lbfgs.minimize(cost, nodes, ones, tetrahedra, 21)
    first = lbfgs.minimize(cost, nodes, ones, tetrahedra, 11)
    warm = lbfgs.minimize(cost, first.nodes, ones, tetrahedra, 11, memory=first.memory)
    np.testing.assert_allclose(warm.nodes, whole.nodes, atol=1e-12)
    cold = lbfgs.minimize(cost, first.nodes, ones, tetrahedra, 11)
    assert warm.cost < cold.cost


def test_costs_never_rise_and_no_coordinate_moves_beyond_the_radius():
    nodes, tetrahedra, _ = mesh(2)
    trace = []

    def cost(x):
        value = float(np.sum(np.sin(3 * x) + 0.1 * x**2))
        trace.append((value, x.copy()))
        return value, 3 * np.cos(3 * x) + 0.2 * x

    lbfgs.minimize(cost, nodes, np.full_like(nodes, 0.5), tetrahedra, 40, radius=0.2)
    accepted = [trace[0]]
    for value, x in trace[1:]:
        if value <= accepted[-1][0]:
            assert np.abs(x - accepted[-1][1]).max() <= 0.2 + 1e-12
            accepted.append((value, x))
    assert accepted[-1][0] < trace[0][0]


def fit_at_random(seed):
    """A random mesh fitted to random likelihoods that pull hard, with soft stiffness."""
    rng = np.random.default_rng(seed)
    shape = (10, 10, 10)
    reference, tetrahedra = ref.jittered(*ref.body_centered((3, 3, 3), 3.4, -0.6), 0.5, rng)
    alpha = rng.dirichlet(np.full(3, 0.2), len(reference)).astype(np.float32)
    L = np.exp(rng.normal(0, 6, (*shape, 3))).astype(np.float32)
    at = tetra_cost.build_incidence(tetrahedra, len(reference))
    accepted = []

    def cost(x):
        data, a = tetra_cost.data_cost(x, tetrahedra, alpha, L)
        energy, b = tetra_prior.elastic_energy(x, reference, tetrahedra, 0.01)
        if not accepted or data + energy <= accepted[-1][0]:
            accepted.append((data + energy, x))
        return data + energy, tetra_cost.gather(a + b, at)

    H = tetra_cost.gather(
        tetra_prior.elastic_curvature(reference, tetrahedra, 0.01)
        + tetra_cost.data_fisher(reference, tetrahedra, alpha, L),
        at,
    )
    fit = lbfgs.minimize(cost, reference, H, tetrahedra, 25)
    return fit, accepted, tetrahedra, shape, alpha


def check_fit(seed):
    fit, accepted, tetrahedra, shape, alpha = fit_at_random(seed)
    assert fit.cost < accepted[0][0]
    for _, x in accepted:
        assert tetra.volumes(x, tetrahedra).min() > 0
    owner = tetra.owners(fit.nodes, tetrahedra, shape)
    assert tetra.voxel_counts(fit.nodes, tetrahedra, shape).sum() == (owner >= 0).sum()
    pi = rasterize(fit.nodes, tetrahedra, alpha, shape)
    np.testing.assert_allclose(pi.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_folded_mesh_is_ever_accepted(seed):
    check_fit(seed)


@pytest.mark.long
def test_no_folded_mesh_is_ever_accepted_in_five_hundred_fits():
    for seed in range(500):
        check_fit(seed)


def test_a_bad_start_is_refused():
    nodes, tetrahedra, _ = mesh(3)
    with pytest.raises(ValueError, match="finite at the start"):
        lbfgs.minimize(lambda x: (np.inf, x), nodes, np.ones_like(nodes), tetrahedra, 5)
    with pytest.raises(ValueError, match="diagonal"):
        lbfgs.minimize(lambda x: (0.0, x), nodes, np.zeros_like(nodes), tetrahedra, 5)
