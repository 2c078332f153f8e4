"""The nearest point of a polyhedron: a strictly convex quadratic program of a dozen rows, solved exactly.

The active set comes from daqp; the point is then recomputed from it and its optimality conditions are
checked, because an answer that only looks feasible would silently break what the constraints promise.
"""

from __future__ import annotations

import daqp
import numpy as np
import numpy.typing as npt

from tumoar.errors import FitError

Array = npt.NDArray[np.floating]

STATIONARITY = 1e-8
"""Largest residual of the Karush-Kuhn-Tucker conditions, in units where the precision has a unit diagonal."""
FEASIBILITY = 1e-9
"""Largest violation of A x <= b, in the units of b."""


def nearest(m: Array, P: Array, A: Array, b: Array) -> Array:
    """Point x with A x <= b that minimizes (x − m)ᵀ P (x − m); P (D, D) positive definite, A (R, D)."""
    slack = b - A @ m
    if np.all(slack >= 0):
        return m.copy()
    # x = m + s u and rows of unit length, so that precisions of very different size can be compared
    s = 1 / np.sqrt(np.diag(P))
    H = s[:, None] * P * s
    length = np.linalg.norm(A * s, axis=1)
    B, slack = A * s / length[:, None], slack / length
    u, _, flag, info = daqp.solve(H, np.zeros(len(m)), B, slack, primal_tol=1e-11, dual_tol=1e-12)
    if flag != 1:
        raise FitError("qp", "the constraints on the means cannot be met", found=f"daqp exit flag {flag}")
    u, lam = _polished(H, B, slack, u, np.asarray(info["lam"]))
    x = m + s * u
    residual = np.abs(H @ u + B.T @ lam).max() / max(1.0, np.abs(u).max())
    complementarity = np.abs(lam * (B @ u - slack)).max() / max(1.0, np.abs(u).max())
    violation = (A @ x - b).max()
    if max(residual, complementarity, -lam.min()) > STATIONARITY or violation > FEASIBILITY:
        raise FitError(
            "qp",
            "the constrained means are not optimal",
            found=f"residual {residual:.1e}, violation {violation:.1e}",
        )
    return x


def _polished(H: Array, B: Array, slack: Array, u: Array, lam: Array) -> tuple[Array, Array]:
    """Point and multipliers recomputed from the active rows alone; daqp's own where that is no better."""
    active = lam > 0
    W = np.linalg.solve(H, B[active].T)
    multipliers = np.linalg.lstsq(B[active] @ W, -slack[active], rcond=None)[0]
    v = -W @ multipliers
    if multipliers.min(initial=0.0) < 0 or (B @ v - slack).max() > max((B @ u - slack).max(), 0.0):
        return u, lam
    full = np.zeros_like(lam)
    full[active] = multipliers
    return v, full
