"""The deformation prior p(eta) and the fit of node positions to likelihoods (sections 2.1.2 and 2.3.2).

-log p(eta) sums K V (1 + det J) (tr J'J + tr (J'J)^-1 - 6) over tetrahedra; it is +inf for a folded mesh. V
is in voxels of the grid, so the balance of stiffness K and data term does not depend on resolution. Nodes on
the faces of the atlas box slide in them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.model.atlas import Placed, project
from tumoar.numerics import lbfgs, tetra_cost, tetra_prior

Nodes = npt.NDArray[np.float64]


def energy(placed: Placed, nodes: Nodes) -> tuple[float, Nodes]:
    """-log p(eta) and its gradient (V, 3) along the free directions of each node."""
    value, shares = tetra_prior.elastic_energy(
        nodes, placed.reference, placed.tetrahedra, placed.atlas.stiffness
    )
    return value, project(placed, tetra_cost.gather(shares, placed.incidence))


def cost(
    placed: Placed,
    nodes: Nodes,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
    reference: int = -1,
) -> tuple[float, Nodes]:
    """-log p(eta) - sum_i log sum_c L_i(c) pi_i(c | eta), and its gradient (V, 3) along free directions.

    `alpha` (V, C) holds node probabilities of the classes c; L and `reference` are as in
    `tetra_cost.data_cost`.
    """
    data, shares = tetra_cost.data_cost(nodes, placed.tetrahedra, alpha, L, reference)
    if not np.isfinite(data):
        return np.inf, np.zeros_like(nodes)
    elastic, shares = tetra_prior.elastic_energy(
        nodes, placed.reference, placed.tetrahedra, placed.atlas.stiffness, onto=shares
    )
    return data + elastic, project(placed, tetra_cost.gather(shares, placed.incidence))


def curvature(
    placed: Placed,
    nodes: Nodes,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
    reference: int = -1,
) -> Nodes:
    """(V, 3) diagonal approximation of the Hessian of `cost`: prior at rest plus Fisher information.

    Equal along the three axes for nodes on a face, so that scaled steps stay in the face.
    """
    shares = tetra_cost.data_fisher(nodes, placed.tetrahedra, alpha, L, reference)
    shares += tetra_prior.elastic_curvature(placed.reference, placed.tetrahedra, placed.atlas.stiffness)
    diagonal = tetra_cost.gather(shares, placed.incidence)
    fixed = placed.kind != 0
    diagonal[fixed] = diagonal[fixed].max(1, keepdims=True)
    return diagonal


def fit(
    placed: Placed,
    nodes: Nodes,
    alpha: npt.NDArray[np.float32],
    L: npt.NDArray[np.float32],
    reference: int = -1,
    *,
    evaluations: int = 20,
    tolerance: float = 1e-3,
    memory: lbfgs.Memory | None = None,
) -> lbfgs.Minimum:
    """Minimize `cost` from `nodes` with at most this many evaluations.

    Stops when no coordinate moves more than `tolerance` voxels. Pass the returned memory to the next call if
    L changes little.
    """
    return lbfgs.minimize(
        lambda x: cost(placed, x, alpha, L, reference),
        nodes,
        curvature(placed, nodes, alpha, L, reference),
        placed.tetrahedra,
        evaluations,
        tolerance=tolerance,
        memory=memory,
    )
