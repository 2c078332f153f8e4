import numpy as np
import pytest
import reference_tetra as ref
from scipy.spatial.transform import Rotation

from tumoar.numerics import tetra, tetra_cost, tetra_prior

K = 0.1


def deformed(seed, amount=0.4):
    rng = np.random.default_rng(seed)
    reference, tetrahedra = ref.jittered(*ref.body_centered((2, 2, 2), 3.0), 0.4, rng)
    nodes = reference + rng.uniform(-amount, amount, reference.shape)
    return nodes, reference, tetrahedra, rng


def test_energy_equals_its_slow_twin():
    nodes, reference, tetrahedra, _ = deformed(0)
    energy, _ = tetra_prior.elastic_energy(nodes, reference, tetrahedra, K)
    assert energy == pytest.approx(ref.elastic_energy(nodes, reference, tetrahedra, K), rel=1e-12)


def test_energy_vanishes_at_rest_and_under_rigid_motion():
    _, reference, tetrahedra, _ = deformed(1)
    turn = Rotation.from_euler("xyz", [0.3, -1.0, 2.0]).as_matrix()
    for x in (reference, reference @ turn.T + [5.0, -7.0, 1.0]):
        energy, gradient = tetra_prior.elastic_energy(x, reference, tetrahedra, K)
        assert abs(energy) < 1e-10
        assert np.abs(gradient).max() < 1e-10


def test_energy_is_invariant_to_rigid_motion_of_a_deformed_mesh():
    nodes, reference, tetrahedra, _ = deformed(2)
    turn = Rotation.from_euler("xyz", [0.3, -1.0, 2.0]).as_matrix()
    energy, gradient = tetra_prior.elastic_energy(nodes, reference, tetrahedra, K)
    moved, turned = tetra_prior.elastic_energy(nodes @ turn.T + 3.0, reference, tetrahedra, K)
    assert moved == pytest.approx(energy, rel=1e-12)
    np.testing.assert_allclose(turned, gradient @ turn.T, atol=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_energy_is_the_same_when_the_meshes_change_roles(seed):
    nodes, reference, tetrahedra, _ = deformed(seed)
    there, _ = tetra_prior.elastic_energy(nodes, reference, tetrahedra, K)
    back, _ = tetra_prior.elastic_energy(reference, nodes, tetrahedra, K)
    assert there == pytest.approx(back, rel=1e-12)


def check_gradient(seed):
    nodes, reference, tetrahedra, rng = deformed(seed)
    at = tetra_cost.build_incidence(tetrahedra, len(nodes))
    gradient = tetra_cost.gather(tetra_prior.elastic_energy(nodes, reference, tetrahedra, K)[1], at)
    toward = rng.normal(size=nodes.shape)
    toward *= np.sign(np.vdot(gradient, toward))

    def along(x):
        return tetra_prior.elastic_energy(x, reference, tetrahedra, K)[0]

    expected = ref.central_difference(along, nodes, toward, 1e-4)
    size = np.linalg.norm(gradient) * np.linalg.norm(toward) / np.sqrt(toward.size)
    assert abs(np.vdot(gradient, toward) - expected) <= 1e-5 * size


@pytest.mark.parametrize("seed", range(100))
def test_gradient_equals_differences(seed):
    check_gradient(seed)


@pytest.mark.long
def test_gradient_equals_differences_at_a_thousand_points(record_property):
    for seed in range(1000):
        check_gradient(seed)
    record_property("tried", 1000)


def test_curvature_is_the_hessian_diagonal_at_rest():
    _, reference, tetrahedra, _ = deformed(4)
    at = tetra_cost.build_incidence(tetrahedra, len(reference))
    diagonal = tetra_cost.gather(tetra_prior.elastic_curvature(reference, tetrahedra, K), at)
    h = 1e-4
    for v, d in ((0, 0), (13, 1), (20, 2), (30, 0)):
        moved = reference.copy()
        moved[v, d] += h
        energy = tetra_prior.elastic_energy(moved, reference, tetrahedra, K)[0]
        assert 2 * energy / h**2 == pytest.approx(diagonal[v, d], rel=1e-3)


def test_folded_is_infinite():
    nodes, reference, tetrahedra, _ = deformed(5)
    nodes[13] = nodes[13] + [6.0, 0.0, 0.0]
    assert (tetra.volumes(nodes, tetrahedra) < 0).any()
    assert tetra_prior.elastic_energy(nodes, reference, tetrahedra, K)[0] == np.inf


@pytest.mark.parametrize("seed", range(20))
def test_shortened_steps_keep_volume(seed):
    nodes, _, tetrahedra, rng = deformed(seed, 0.0)
    step = rng.normal(0, 1.5, nodes.shape)
    assert (tetra.volumes(nodes + step, tetrahedra) < 0).any()
    short = tetra_prior.shorten(nodes, step, tetrahedra, 0.35, rounds=30)
    before, after = tetra.volumes(nodes, tetrahedra), tetra.volumes(nodes + short, tetrahedra)
    assert (after >= 0.35 * before * (1 - 1e-9)).all()


def test_harmless_steps_are_not_shortened():
    nodes, _, tetrahedra, rng = deformed(3, 0.0)
    step = rng.normal(0, 0.01, nodes.shape)
    np.testing.assert_array_equal(tetra_prior.shorten(nodes, step, tetrahedra, 0.35), step)
