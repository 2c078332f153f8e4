"""Limited-memory BFGS for the nodes of a mesh: preconditioned, with a trust radius and a guard per node.

In a mesh of 10^5 nodes, one nearly flat tetrahedron would limit a global step length, and the curvature
differs by orders of magnitude between nodes. Therefore the caller gives a diagonal initial Hessian, every
node has its own trust radius, and nodes whose tetrahedra would lose too much volume take half steps. The full
step along the resulting descent direction usually passes Armijo's test.
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
    """Pairs (s, y) of steps and gradient changes, oldest first; can be passed to the next call."""

    pairs: tuple[tuple[Nodes, Nodes], ...] = ()

    def add_pair(self, s: Nodes, y: Nodes) -> Memory:
        """Memory with a new pair, unless its curvature is not clearly positive."""
        if np.vdot(s, y) <= 1e-10 * np.sqrt(np.vdot(s, s) * np.vdot(y, y)):
            return self
        return Memory((*self.pairs, (s, y))[-MEMORY:])


@dataclass(frozen=True)
class Minimum:
    """Result of a minimization: nodes, cost, gradient, memory, number of evaluations."""

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
) -> Minimum:
    """Minimize `cost` from `nodes` (V, 3) with at most this many evaluations.

    `cost` returns +inf for folded meshes, which are never accepted. `diagonal` (V, 3) > 0 approximates the
    diagonal of the Hessian. In one iteration no coordinate moves more than `radius`, and tetrahedra keep at
    least a `fraction` of their volume. Converged when no coordinate moves more than `tolerance`, or if there
    is no descent direction.
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
                return Minimum(nodes, value, gradient, memory, used, used < evaluations)
            memory = Memory()  # discard misleading pairs and restart from the diagonal
            continue
        moved = length * step
        memory = memory.add_pair(moved, new_gradient - gradient)
        nodes, value, gradient = nodes + moved, new_value, new_gradient
        if np.abs(moved).max() <= tolerance:
            return Minimum(nodes, value, gradient, memory, used, True)
    return Minimum(nodes, value, gradient, memory, used, False)
