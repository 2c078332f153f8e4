"""Draws of the node positions η in Algorithm 1, which the paper leaves at their estimate.

The target is p(η | D, θ, z, y) with l and t summed out:

    p(η) ∏_i s_i(η),  s_i = Σ_l π_i(l | η) p(d_i | l, θ)^τ where z_i = 0,  Σ_{l ∈ B} π_i(l | η) elsewhere.

It is a product over tetrahedra. Patches of nodes (`model/patches.py`) are therefore proposed to move, and
accepted or rejected, each by itself and all patches of a family at once. Proposals are symmetric: normal, of
a size that is tuned per patch during the burn-in and fixed afterwards. A move that folds a tetrahedron has
no density and is rejected. l and t must be drawn right after a move, before anything is drawn given them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tumoar.model import deformation, joint
from tumoar.model.atlas import Placed, pi, project
from tumoar.model.gmm import Theta
from tumoar.model.patches import RADII, Family, build_families
from tumoar.numerics.tetra_cost import data_costs, merge_labels
from tumoar.numerics.tetra_prior import elastic_energies
from tumoar.numerics.voxels import UNUSED, Prior, Volume

Nodes = npt.NDArray[np.float64]
Likelihoods = npt.NDArray[np.float32]

TARGET = 0.35
"""Share of accepted moves that tuning aims at: near the best for three dimensions."""
FIRST_GAIN = 2.0
"""Change of a log step at the first move, per unit of acceptance above the target; falls as 1 / √move."""


@dataclass(frozen=True)
class Mesh:
    """Constants of the moves: the placed atlas, its classes, and the patches with their first steps.

    `alpha` (V, C) holds node probabilities of classes, structures with the same intensity model; `columns`
    (K,) is the class of each structure. `step` (P, 3) is the first standard deviation of each patch's moves,
    in voxels.
    """

    placed: Placed
    alpha: npt.NDArray[np.float32]
    columns: npt.NDArray[np.int64]
    families: tuple[Family, ...]
    step: npt.NDArray[np.float64]

    @property
    def background(self) -> int:
        """Class of the background."""
        return int(self.columns[self.placed.atlas.background])


@dataclass(frozen=True)
class MeshState:
    """Nodes (V, 3) after a number of moves, and the log factors of the steps (P,).

    `accepted` is the share of patches that the last move accepted. `pi` is the packed prior of these nodes;
    it is derived, not stored, and None in a restored state.
    """

    nodes: Nodes
    log_step: npt.NDArray[np.float64]
    moves: int = 0
    accepted: float = 0.0
    pi: Prior | None = None


def build_mesh(placed: Placed, nodes: Nodes, L: Likelihoods, radii: tuple[float, ...] = RADII) -> Mesh:
    """Patches of a mesh, and first steps from the curvature at these nodes and likelihoods of classes."""
    columns = joint.assign_columns(placed.atlas.labels)
    alpha = merge_labels(placed.atlas.alpha, columns)
    families = build_families(placed, radii)
    curvature = deformation.curvature(placed, nodes, alpha, L)
    stiffness = np.concatenate(
        [_sum_per(f.of_node, f.weight[:, None] ** 2 * curvature[f.node], len(f)) for f in families]
    )
    return Mesh(placed, alpha, columns, families, 1 / np.sqrt(stiffness))


def start(mesh: Mesh, nodes: Nodes, prior: Prior) -> MeshState:
    """State before the first move; `prior` is the packed π of these nodes."""
    return MeshState(nodes, np.zeros(len(mesh.step)), pi=prior)


def find_likelihoods(
    placed: Placed, volume: Volume, theta: Theta, z: npt.NDArray[np.uint8], tau: float = 1.0
) -> Likelihoods:
    """(X, Y, Z, C) of each class, relative to the background's: of d without tumor, of brain with it.

    Zero in voxels that do not depend on η: without data or use, and without tumor.
    """
    table = placed.atlas.labels
    columns = joint.assign_columns(table)
    groups, normal = joint.drop_tumor(joint.compile_groups(table, columns), theta)
    L = np.empty((*placed.shape, int(columns.max()) + 1), np.float32)
    joint.class_likelihoods(volume, groups, normal, L, int(columns[placed.atlas.background]), tau)
    brain = np.isin(np.arange(L.shape[-1]), columns[table.in_brain])
    L[(z == 1) & (volume.use != UNUSED)] = brain
    return L


def move(mesh: Mesh, state: MeshState, L: Likelihoods, rng: np.random.Generator, *, tunes: bool) -> MeshState:
    """Propose one move of every patch, family by family; with `tunes`, adapt the steps afterwards."""
    nodes, step = state.nodes, mesh.step * np.exp(state.log_step)[:, None]
    costs = find_costs(mesh, nodes, mesh.placed.tetrahedra, L)
    shares = np.empty(len(step))
    count = 0
    for family in mesh.families:
        at = slice(family.first, family.last)
        shift = step[at] * rng.standard_normal((len(family), 3))
        proposed = nodes.copy()
        proposed += project(mesh.placed, _spread(family, shift, len(nodes)))
        new = find_costs(mesh, proposed, family.corners, L)
        rise = _sum_per(family.owner, new - costs[family.tetrahedron], len(family))
        accepted = np.log(rng.random(len(family))) < -rise
        shares[at] = np.exp(-np.maximum(rise, 0))
        count += int(accepted.sum())
        moved = family.node[accepted[family.of_node]]
        nodes = nodes.copy()
        nodes[moved] = proposed[moved]
        taken = accepted[family.owner]
        costs[family.tetrahedron[taken]] = new[taken]
    moves = state.moves + 1
    gain = FIRST_GAIN / np.sqrt(moves) if tunes else 0.0
    return MeshState(nodes, state.log_step + gain * (shares - TARGET), moves, count / len(step))


def find_costs(
    mesh: Mesh, nodes: Nodes, tetrahedra: npt.NDArray[np.int32], L: Likelihoods
) -> npt.NDArray[np.float64]:
    """(T,) share of each tetrahedron in -log p(η | D, θ, z, y); +inf if it is folded."""
    placed = mesh.placed
    elastic = elastic_energies(nodes, placed.reference, tetrahedra, placed.atlas.stiffness)
    return elastic + data_costs(nodes, tetrahedra, mesh.alpha, L)


def with_prior(mesh: Mesh, state: MeshState, volume: Volume) -> MeshState:
    """The state with the packed prior of its nodes."""
    if state.pi is not None:
        return state
    return replace(state, pi=joint.pack_prior(volume, pi(mesh.placed, state.nodes)))


def to_arrays(state: MeshState) -> dict[str, npt.NDArray]:
    """Arrays of a state, for storage."""
    return {
        "nodes": state.nodes,
        "log_step": state.log_step,
        "moves": np.array(state.moves),
        "accepted": np.array(state.accepted),
    }


def from_arrays(arrays: Mapping[str, npt.NDArray]) -> MeshState:
    """Restore a state from the arrays of `to_arrays`."""
    moves, accepted = int(arrays["moves"]), float(arrays["accepted"])
    return MeshState(arrays["nodes"], arrays["log_step"], moves, accepted)


def _spread(family: Family, shift: npt.NDArray[np.float64], V: int) -> Nodes:
    """(V, 3) displacement of every node when each patch moves by its shift."""
    out = np.zeros((V, 3))
    out[family.node] = family.weight[:, None] * shift[family.of_node]
    return out


def _sum_per(patch: npt.NDArray[np.int64], values: npt.NDArray[np.float64], count: int) -> npt.NDArray:
    """Sums over the entries of each patch, in fixed order."""
    if values.ndim == 1:
        return np.bincount(patch, values, count)
    return np.stack([np.bincount(patch, column, count) for column in values.T], 1)
