"""Limited-memory BFGS for the nodes of a mesh: preconditioned, with a trust radius and a guard at each node.

In a mesh of 10^5 nodes one nearly flat tetrahedron would throttle a global step length, and the curvature
differs by orders of magnitude between nodes. So the initial inverse Hessian is a diagonal given by the
caller, every node has its own trust radius, and nodes whose tetrahedra would lose too much volume take half
steps; what is left is a descent direction for which the full step usually passes Armijo's test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.numerics.tetra_prior import shorten

Nodes = npt.NDArray[np.float64]
CostAndGradient = Callable[[Nodes], tuple[float, Nodes]]

MEMORY = 12


@dataclass(frozen=True)
class Memory:
    """Pairs (s, y) of steps and gradient changes, oldest first; a value to carry to the next call."""

    pairs: tuple[tuple[Nodes, Nodes], ...] = ()

    def with_pair(self, s: Nodes, y: Nodes) -> Memory:
        """With the newest pair added, unless its curvature is not clearly positive."""
        if np.vdot(s, y) <= 1e-10 * np.sqrt(np.vdot(s, s) * np.vdot(y, y)):
            return self
        return Memory((*self.pairs, (s, y))[-MEMORY:])


@dataclass(frozen=True)
class Fit:
    """Where a minimization ended: nodes, cost and gradient there, memory, evaluations used."""

    nodes: Nodes
    cost: float
    gradient: Nodes
    memory: Memory
    evaluations: int
    converged: bool


def direction(gradient: Nodes, diagonal: Nodes, memory: Memory) -> Nodes:
    """-H gradient by the two-loop recursion, with H0 = 1 / diagonal scaled to the newest pair."""
    q = gradient.copy()
    weights = []
    for s, y in reversed(memory.pairs):
        rho = 1.0 / np.vdot(s, y)
        a = rho * np.vdot(s, q)
        q -= a * y
        weights.append((rho, a))
    q /= diagonal
    if memory.pairs:
        s, y = memory.pairs[-1]
        q *= np.vdot(s, y) / np.vdot(y, y / diagonal)
    for (s, y), (rho, a) in zip(memory.pairs, reversed(weights)):
        q += (a - rho * np.vdot(y, q)) * s
    return -q


def minimize(
    cost: CostAndGradient,
    nodes: Nodes,
    diagonal: Nodes,
    tetrahedra: npt.NDArray[np.integer],
    evaluations: int,
    *,
    radius: float = 2.0,
    fraction: float = 0.35,
    tolerance: float = 0.0,
    memory: Memory | None = None,
) -> Fit:
    """Lower `cost` from `nodes` (V, 3), with at most this many evaluations of it.

    `cost` returns +inf for folded meshes, which are never accepted. `diagonal` (V, 3) > 0 approximates the
    Hessian's diagonal. In one iteration no coordinate moves more than `radius`, and the guard sees to it that
    tetrahedra keep a `fraction` of their volume. Converged when no coordinate moves more than `tolerance`, or
    no descent is left.
    """
    if not (diagonal > 0.0).all():
        raise ValueError(f"diagonal must be positive, got a smallest value of {diagonal.min()}")
    memory = Memory() if memory is None else memory
    value, gradient = cost(nodes)
    if not np.isfinite(value):
        raise ValueError(f"cost must be finite at the start, got {value}")
    used = 1
    while used < evaluations:
        step = direction(gradient, diagonal, memory)
        longest = np.abs(step).max(1, keepdims=True)
        step *= np.minimum(1.0, radius / np.maximum(longest, 1e-300))
        step = shorten(nodes, step, tetrahedra, fraction)
        slope = np.vdot(gradient, step)
        accepted = False
        if slope < 0.0:
            length = 1.0
            while not accepted and used < evaluations and length > 1e-4:
                new_value, new_gradient = cost(nodes + length * step)
                used += 1
                accepted = bool(new_value <= value + 1e-4 * length * slope)
                if not accepted:
                    length *= 0.4
        if not accepted:
            if not memory.pairs:
                return Fit(nodes, value, gradient, memory, used, used < evaluations)
            memory = Memory()  # the pairs misled: start over from the diagonal
            continue
        moved = length * step
        memory = memory.with_pair(moved, new_gradient - gradient)
        nodes, value, gradient = nodes + moved, new_value, new_gradient
        if np.abs(moved).max() <= tolerance:
            return Fit(nodes, value, gradient, memory, used, True)
    return Fit(nodes, value, gradient, memory, used, False)
