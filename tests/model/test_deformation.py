import numpy as np
import pytest
import reference_tetra as ref
from small_atlas import LABELS, grid, small_atlas

from tumoar.model import deformation
from tumoar.model.atlas import pi, place
from tumoar.numerics import tetra, tetra_cost


def skewed():
    affine = np.eye(4)
    affine[:3, :3] += np.random.default_rng(2).normal(0, 0.05, (3, 3))
    return affine


def test_energy_is_zero_at_the_affine_reference():
    placed = place(small_atlas(), skewed(), grid())
    value, gradient = deformation.energy(placed, placed.reference)
    assert abs(value) < 1e-9
    assert np.abs(gradient).max() < 1e-9


def test_cost_is_the_sum_of_both_terms_and_its_gradient_the_slope():
    placed = place(small_atlas(), skewed(), grid())
    rng = np.random.default_rng(1)
    alpha = tetra_cost.merge_labels(placed.atlas.alpha, LABELS.x_of_l)
    L = np.exp(rng.normal(0, 1, (*placed.shape, alpha.shape[1]))).astype(np.float32)
    nodes = placed.reference + deformation.project(placed, rng.uniform(-0.3, 0.3, placed.reference.shape))
    total, gradient = deformation.cost(placed, nodes, alpha, L)
    data = tetra_cost.data_cost(nodes, placed.tetrahedra, alpha, L)[0]
    assert total == pytest.approx(deformation.energy(placed, nodes)[0] + data)
    toward = deformation.project(placed, rng.normal(size=nodes.shape))
    slope = ref.central_difference(lambda x: deformation.cost(placed, x, alpha, L)[0], nodes, toward, 1e-6)
    assert np.vdot(gradient, toward) == pytest.approx(slope, rel=1e-4)


def test_a_fold_costs_infinitely_much():
    placed = place(small_atlas(), np.eye(4), grid())
    nodes = placed.reference.copy()
    inner = np.flatnonzero(placed.kind == 0)[0]
    nodes[inner] += 20.0
    alpha = placed.atlas.alpha
    L = np.ones((*placed.shape, alpha.shape[1]), np.float32)
    assert deformation.energy(placed, nodes)[0] == np.inf
    assert deformation.cost(placed, nodes, alpha, L)[0] == np.inf


def test_a_known_deformation_is_recovered():
    """Likelihoods are sharpened probabilities of a deformed atlas: the fit comes back to its image."""
    placed = place(small_atlas(3), skewed(), grid())
    x = placed.reference
    wave = 0.8 * np.sin(x[:, [1, 2, 0]] / 3.0)
    truth = x + deformation.project(placed, wave)
    L = pi(placed, truth) ** 4 + 1e-6
    before = np.abs(pi(placed, x) - pi(placed, truth)).mean()
    fit = deformation.fit(placed, x, placed.atlas.alpha, L, evaluations=60)
    after = np.abs(pi(placed, fit.nodes) - pi(placed, truth)).mean()
    assert after < 0.5 * before
    assert tetra.volumes(fit.nodes, placed.tetrahedra).min() > 0


def test_fitted_nodes_stay_on_their_faces():
    placed = place(small_atlas(4), skewed(), grid())
    rng = np.random.default_rng(5)
    L = np.exp(rng.normal(0, 2, (*placed.shape, LABELS.K))).astype(np.float32)
    fit = deformation.fit(placed, placed.reference, placed.atlas.alpha, L, evaluations=15)
    shift = fit.nodes - placed.reference
    np.testing.assert_allclose(shift, deformation.project(placed, shift), atol=1e-10)
    assert (np.abs(shift[placed.kind == 1]).max(1) > 1e-4).any()


def check_fit(seed):
    """Random likelihoods pull the mesh about: it does not fold, and its probabilities are some."""
    rng = np.random.default_rng(seed)
    placed = place(small_atlas(seed % 7), skewed(), grid())
    L = np.exp(rng.normal(0, rng.uniform(0.5, 4), (*placed.shape, LABELS.K))).astype(np.float32)
    fit = deformation.fit(placed, placed.reference, placed.atlas.alpha, L, evaluations=10)
    assert tetra.volumes(fit.nodes, placed.tetrahedra).min() > 0
    owner = tetra.owners(fit.nodes, placed.tetrahedra, placed.shape)
    assert tetra.voxel_counts(fit.nodes, placed.tetrahedra, placed.shape).sum() == (owner >= 0).sum()
    assert np.abs(pi(placed, fit.nodes)[owner >= 0].sum(-1) - 1).max() <= 1e-6
    return np.abs(fit.nodes - placed.reference).max()


def test_fits_do_not_fold():
    assert max(check_fit(seed) for seed in range(4)) > 0.5


@pytest.mark.long
def test_five_hundred_fits_do_not_fold(record_property):
    assert max(check_fit(seed) for seed in range(500)) > 0.5
    record_property("tried", 500)
