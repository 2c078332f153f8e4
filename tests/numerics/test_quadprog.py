"""The quadratic program of the means: exact, and refused when it is not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tumoar.numerics.quadprog import find_nearest
from tumoar.vocabulary.errors import FitError


def problem(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 11))
    a = rng.standard_normal((n, n + 1))
    size = 10.0 ** rng.uniform(-3.5, 3.5, n)  # counts of a voxel and of a million voxels side by side
    P = size[:, None] * (a @ a.T + 0.1 * np.eye(n)) * size
    A = np.zeros((12, n))
    for row in A:
        i, j = rng.choice(n, 2, replace=False)
        if i < j:  # an order of the coordinates, so that a feasible point exists
            row[[i, j]] = 1, -1
        else:
            row[[j, i]] = 1, -1
    return rng.standard_normal(n), P, A, -rng.uniform(0, 0.2, 12)


@pytest.mark.parametrize("seed", range(60))
def test_meets_the_optimality_conditions(seed):
    m, P, A, b = problem(seed)
    x = find_nearest(m, P, A, b)
    assert (A @ x <= b + 1e-9).all()
    # directional optimality over a feasible start: no feasible point on the segment to it is nearer
    rng = np.random.default_rng(seed)
    for _ in range(50):
        other = np.sort(rng.standard_normal(len(m))) + np.arange(len(m))
        assert (A @ other <= b).all()
        assert (P @ (x - m)) @ (other - x) >= -1e-7 * np.sqrt((x - m) @ P @ (x - m)) * np.sqrt(
            (other - x) @ P @ (other - x)
        )


def test_agrees_with_a_general_solver():
    m, P, A, b = (
        np.array([1.0, 0.0, -1.0]),
        np.diag([1.0, 2.0, 3.0]),
        np.array([[1.0, -1, 0], [0, 1, -1]]),
        np.zeros(2),
    )
    reference = minimize(
        lambda x: (x - m) @ P @ (x - m), np.zeros(3), constraints={"type": "ineq", "fun": lambda x: b - A @ x}
    )
    np.testing.assert_allclose(find_nearest(m, P, A, b), reference.x, atol=1e-6)


def test_a_feasible_mean_is_left_alone():
    m = np.array([0.0, 1.0])
    assert np.array_equal(find_nearest(m, np.eye(2), np.array([[1.0, -1.0]]), np.zeros(1)), m)


def test_contradicting_rows_are_refused():
    A, b = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([-1.0, -1.0])
    with pytest.raises(FitError) as refusal:
        find_nearest(np.zeros(2), np.eye(2), A, b)
    assert refusal.value.exit_code == 7
