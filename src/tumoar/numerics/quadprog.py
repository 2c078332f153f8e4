"""Nearest point of a polyhedron: a small, strictly convex quadratic program, solved exactly.

The active set comes from daqp or, if that fails on nearly parallel rows, from non-negative least squares on
the dual. The point is recomputed from the active set and its optimality conditions are checked, so that
constraints are never silently violated.
"""

from __future__ import annotations

import daqp
import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from tumoar.vocabulary.errors import FitError

Array = npt.NDArray[np.floating]

OPTIMALITY = 1e-8
"""Largest relative residual of the Karush-Kuhn-Tucker conditions, for precisions with unit diagonal."""
FEASIBILITY = 1e-9
"""Largest violation of A x <= b, in the units of b."""


def find_nearest(m: Array, P: Array, A: Array, b: Array) -> Array:
    """Point x with A x <= b that minimizes (x − m)ᵀ P (x − m); P (D, D) positive definite, A (R, D)."""
    slack = b - A @ m
    if np.all(slack >= 0):
        return m.copy()
    # Substitute x = m + s u and normalize rows, because precisions differ by orders of magnitude.
    s = 1 / np.sqrt(np.diag(P))
    H = s[:, None] * P * s
    length = np.linalg.norm(A * s, axis=1)
    B, slack = A * s / length[:, None], slack / length
    best = np.inf
    for solver in (_by_daqp, _by_least_squares):
        u, lam = _from_active(H, B, slack, solver(H, B, slack) > 0)
        x = m + s * u
        fault = max(_kkt_violation(H, B, slack, u, lam) / OPTIMALITY, (A @ x - b).max() / FEASIBILITY)
        if fault <= 1:
            return x
        best = min(best, fault)
    raise FitError(
        "qp",
        "the constraints on the means cannot be met",
        found=f"optimality conditions violated by {best:.1e} times their tolerance",
    )


def _by_daqp(H: Array, B: Array, slack: Array) -> Array:
    """Multipliers (R,) of min uᵀ H u / 2 subject to B u <= slack."""
    _, _, flag, info = daqp.solve(H, np.zeros(len(H)), B, slack, primal_tol=1e-11, dual_tol=1e-12)
    return np.asarray(info["lam"]) if flag == 1 else np.zeros(len(B))


def _by_least_squares(H: Array, B: Array, slack: Array) -> Array:
    """Multipliers by Lawson and Hanson's least distance programming."""
    F = -solve_triangular(np.linalg.cholesky(H), B.T, lower=True)
    E = np.vstack([F, -slack])
    target = np.zeros(len(E))
    target[-1] = 1
    y, _ = nnls(E, target)
    rest = 1 - E[-1] @ y
    return y / rest if rest > 0 else np.zeros(len(B))


def _from_active(H: Array, B: Array, slack: Array, active: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Point and multipliers recomputed from the active rows, as equality constraints."""
    D, R = len(H), int(active.sum())
    system = np.zeros((D + R, D + R))
    system[:D, :D], system[:D, D:], system[D:, :D] = H, B[active].T, B[active]
    target = np.append(np.zeros(D), slack[active])
    solution = np.zeros(D + R)
    for _ in range(3):  # iterative refinement: precisions may differ by orders of magnitude
        solution += np.linalg.lstsq(system, target - system @ solution, rcond=None)[0]
    lam = np.zeros(len(B))
    lam[active] = solution[D:]
    return solution[:D], lam


def _kkt_violation(H: Array, B: Array, slack: Array, u: Array, lam: Array) -> float:
    """Largest relative violation of stationarity, dual feasibility and complementary slackness."""
    stationarity = np.abs(H @ u + B.T @ lam).max() / max(1.0, np.abs(u).max())
    sign = -lam.min() / max(1.0, lam.max())
    gap = np.abs(lam * (B @ u - slack)).sum() / max(1.0, u @ H @ u)
    return float(max(stationarity, sign, gap))
