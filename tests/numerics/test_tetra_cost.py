import numba as nb
import numpy as np
import pytest
import reference_tetra as ref

from tumoar.numerics import tetra, tetra_cost

SHAPE = (6, 7, 8)
C = 4


def problem(seed):
    """A deformed mesh over the grid, sparse node values, likelihoods over twelve orders of magnitude."""
    rng = np.random.default_rng(seed)
    nodes, tetrahedra = ref.jittered(*ref.body_centered((2, 2, 3), 3.1, -0.8), 0.5, rng)
    alpha = rng.dirichlet(np.full(C, 0.3), len(nodes))
    alpha[alpha < 0.02] = 0.0
    alpha = (alpha / alpha.sum(1, keepdims=True)).astype(np.float32)
    alpha[rng.random(len(nodes)) < 0.3] = [1, 0, 0, 0]
    L = np.exp(rng.normal(0, 4, (*SHAPE, C))).astype(np.float32)
    L[..., 0] = 1.0
    L[rng.random(SHAPE) < 0.2] = 0.0
    return nodes, tetrahedra, alpha, L, rng


def test_cost_equals_its_slow_twin():
    nodes, tetrahedra, alpha, L, _ = problem(0)
    cost, _ = tetra_cost.data_cost(nodes, tetrahedra, alpha, L)
    assert cost == pytest.approx(ref.data_cost(nodes, tetrahedra, alpha, L), rel=1e-10)


def check_gradient(seed):
    nodes, tetrahedra, alpha, L, rng = problem(seed)
    at = tetra_cost.build_incidence(tetrahedra, len(nodes))
    gradient = tetra_cost.gather(tetra_cost.data_cost(nodes, tetrahedra, alpha, L, 0)[1], at)
    toward = rng.normal(size=nodes.shape)

    def along(x):
        return tetra_cost.data_cost(x, tetrahedra, alpha, L, 0)[0]

    # The cost is continuous but has kinks where a voxel changes its owner: step over none of them.
    h = 2e-5
    owner = tetra.owners(nodes, tetrahedra, SHAPE)
    while not all(
        np.array_equal(owner, tetra.owners(nodes + s * h * toward, tetrahedra, SHAPE)) for s in (-2, -1, 1, 2)
    ):
        h /= 2
    expected = ref.central_difference(along, nodes, toward, h)
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


def test_skipping_certain_tetrahedra_changes_nothing():
    nodes, tetrahedra, alpha, L, _ = problem(3)
    alpha[:, :] = 0
    alpha[:, 0] = 1
    alpha[:5] = [0.5, 0.5, 0, 0]
    with_all = tetra_cost.data_cost(nodes, tetrahedra, alpha, L)
    skipping = tetra_cost.data_cost(nodes, tetrahedra, alpha, L, 0)
    assert skipping[0] == pytest.approx(with_all[0], rel=1e-12)
    np.testing.assert_allclose(skipping[1], with_all[1], atol=1e-12)


def test_a_certain_mesh_has_no_gradient():
    nodes, tetrahedra, alpha, L, _ = problem(4)
    alpha[:] = [0, 1, 0, 0]
    cost, gradient = tetra_cost.data_cost(nodes, tetrahedra, alpha, L)
    inside = tetra.owners(nodes, tetrahedra, SHAPE) >= 0
    seen = L[inside][:, 1]
    assert cost == pytest.approx(-np.log(seen[seen > 0].astype(float)).sum())
    at = tetra_cost.build_incidence(tetrahedra, len(nodes))
    np.testing.assert_allclose(tetra_cost.gather(gradient, at), 0.0, atol=1e-9)


def test_impossible_voxels_cost_infinitely_much_and_masked_ones_nothing():
    nodes, tetrahedra, alpha, L, _ = problem(5)
    alpha[:] = [0, 1, 0, 0]
    L[:] = 0.0
    assert tetra_cost.data_cost(nodes, tetrahedra, alpha, L)[0] == 0.0
    L[3, 3, 3] = [1, 0, 0, 0]
    assert tetra_cost.data_cost(nodes, tetrahedra, alpha, L)[0] == np.inf
    L[3, 3, 3] = [1, 1e-35, 0, 0]
    assert tetra_cost.data_cost(nodes, tetrahedra, alpha, L)[0] == pytest.approx(-np.log(1e-35))


def test_a_folded_mesh_costs_infinitely_much():
    nodes, tetrahedra, alpha, L, _ = problem(6)
    tetrahedra[7] = tetrahedra[7][[1, 0, 2, 3]]
    assert tetra_cost.data_cost(nodes, tetrahedra, alpha, L)[0] == np.inf


def test_likelihood_ratios_keep_outliers_apart():
    log_likelihood = np.array([[-1000.0, -1030.0, -900.0], [5.0, 5.0, 5.0], [0.0, -79.0, -79.5]])
    L = tetra_cost.likelihood_ratios(log_likelihood, 0, np.array([True, False, True]))
    np.testing.assert_allclose(L[0], np.exp([0.0, -30.0, 80.0]), rtol=1e-6)
    np.testing.assert_array_equal(L[1], 0.0)
    assert 0 < L[2, 2] < L[2, 1] < L[2, 0] == 1


def test_merged_labels_add_up():
    alpha = np.float32([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0]])
    merged = tetra_cost.merge_labels(alpha, np.array([0, 1, 1, 0]))
    np.testing.assert_allclose(merged, [[0.5, 0.5], [1, 0]])


def test_fisher_is_the_sum_of_squared_voxel_gradients():
    nodes, tetrahedra, alpha, L, _ = problem(8)
    owner = tetra.owners(nodes, tetrahedra, SHAPE)
    expected = np.zeros((len(tetrahedra), 4, 3))
    for x in zip(*np.nonzero((owner >= 0) & (L != 0).any(-1))):
        corners = tetrahedra[owner[x]]
        b = ref.barycentric(nodes[corners], np.array(x))
        G = np.linalg.inv(np.vstack([nodes[corners].T, np.ones(4)]))[:, :3]
        f = alpha[corners].astype(float) @ L[x]
        expected[owner[x]] += (b[:, None] * (f @ G) / (b @ f)) ** 2
    found = tetra_cost.data_fisher(nodes, tetrahedra, alpha, L, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * expected.max())


def test_bits_do_not_depend_on_the_number_of_threads():
    nodes, tetrahedra, alpha, L, _ = problem(9)
    many = np.concatenate([tetrahedra] * 4)  # several blocks
    at = tetra_cost.build_incidence(many, len(nodes))
    results = []
    before = nb.get_num_threads()
    for threads in (1, before):
        nb.set_num_threads(threads)
        cost, gradient = tetra_cost.data_cost(nodes, many, alpha, L, 0)
        results.append((cost, tetra_cost.gather(gradient, at).tobytes()))
    nb.set_num_threads(before)
    assert results[0] == results[1]


def test_mismatched_classes_are_refused():
    nodes, tetrahedra, alpha, L, _ = problem(9)
    with pytest.raises(ValueError, match="L must be"):
        tetra_cost.data_cost(nodes, tetrahedra, alpha[:, :3], L)


def test_a_grid_too_long_for_the_lists_is_refused():
    nodes, tetrahedra, alpha, _, _ = problem(9)
    with pytest.raises(ValueError, match="axes of at most"):
        tetra_cost.data_cost(nodes, tetrahedra, alpha, np.zeros((1, 1, 5000, C), np.float32))
