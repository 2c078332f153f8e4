"""Label-map kernels against slow twins and finite differences."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import reference_labels as slow

from tumoar.numerics import tetra_labels
from tumoar.numerics.tetra_cost import build_incidence, gather
from tumoar.train.mesh import build_uniform_mesh, free_directions

SHAPE = (16, 16, 16)
FLOOR = 1e-3


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(1)
    nodes, tetrahedra = build_uniform_mesh(SHAPE, 6.0, rng)
    nodes = nodes + rng.uniform(-0.6, 0.6, nodes.shape) * free_directions(nodes, SHAPE)
    alpha = rng.dirichlet(np.ones(5), len(nodes)).astype(np.float32)
    values = rng.integers(0, 5, SHAPE).astype(np.uint8)
    return nodes, tetrahedra, alpha, values


def test_cost_is_that_of_the_slow_twin(problem):
    cost, _ = tetra_labels.cost_and_gradient(*problem, FLOOR)
    assert cost == pytest.approx(slow.cost(*problem, FLOOR), rel=1e-10)


def test_gradient_is_that_of_finite_differences(problem):
    nodes, tetrahedra, alpha, values = problem
    # Values constant around each tetrahedron's voxels would hide nothing, but a moving face changes owners:
    # the cost is continuous there, so a small step still sees the derivative.
    _, shares = tetra_labels.cost_and_gradient(*problem, FLOOR)
    gradient = gather(shares, build_incidence(tetrahedra, len(nodes)))
    rng = np.random.default_rng(2)
    for _ in range(10):
        direction = rng.normal(size=nodes.shape) * free_directions(nodes, SHAPE)
        h = 1e-6
        up, down = (
            tetra_labels.cost_and_gradient(nodes + s * h * direction, tetrahedra, alpha, values, FLOOR)[0]
            for s in (1, -1)
        )
        assert np.vdot(gradient, direction) == pytest.approx((up - down) / (2 * h), rel=1e-5, abs=1e-4)


def test_counts_are_those_of_the_slow_twin(problem):
    nodes, tetrahedra, alpha, values = problem
    cost, counts = tetra_labels.counts(nodes[None], tetrahedra, alpha, values[None], FLOOR)
    np.testing.assert_allclose(counts, slow.counts(*problem, FLOOR), atol=1e-8)
    assert cost == pytest.approx(tetra_labels.cost_and_gradient(*problem, FLOOR)[0], rel=1e-12)


def test_em_never_raises_the_cost(problem):
    nodes, tetrahedra, alpha, values = problem
    costs = []
    for _ in range(5):
        cost, counts = tetra_labels.counts(nodes[None], tetrahedra, alpha, values[None], FLOOR)
        costs.append(cost)
        total = counts.sum(1, keepdims=True)
        alpha = np.where(total > 0, counts / np.maximum(total, 1e-300), alpha).astype(np.float32)
    assert (np.diff(costs) <= 1e-6 * costs[0]).all()


def test_curvature_is_positive_where_the_gradient_is_not_zero(problem):
    _, shares = tetra_labels.cost_and_gradient(*problem, FLOOR)
    curvature = tetra_labels.curvature(*problem, FLOOR)
    assert (curvature >= 0).all()
    assert (curvature[shares != 0] > 0).all()


def test_folded_is_infinite(problem):
    nodes, tetrahedra, alpha, values = problem
    inner = int(np.flatnonzero(free_directions(nodes, SHAPE).all(1))[0])
    folded = nodes.copy()
    folded[inner] += 50.0
    assert tetra_labels.cost_and_gradient(folded, tetrahedra, alpha, values, FLOOR)[0] == np.inf


def test_threads_do_not_change_bits(problem):
    nodes, tetrahedra, alpha, values = problem
    results = []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        cost, shares = tetra_labels.cost_and_gradient(*problem, FLOOR)
        _, counts = tetra_labels.counts(
            np.stack([nodes, nodes]), tetrahedra, alpha, np.stack([values] * 2), FLOOR
        )
        results.append((cost, shares.tobytes(), counts.tobytes()))
    assert results[0] == results[1]
