"""Patches of a mesh: sets of nodes that move together, in families whose patches move at the same time.

A patch is a single node, or the nodes within a radius of a point, weighted by (1 - (distance / radius)²)².
Single nodes move on the scale of the mesh, larger patches on longer ones, as in multigrid Monte Carlo
(Goodman and Sokal, Phys. Rev. D 40, 1989). No tetrahedron touches two patches of a family. A density that is
a product over tetrahedra therefore factorizes over the patches of a family, given all other nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from tumoar.model.atlas import Placed

Index = npt.NDArray[np.int64]

RADII = (8.0, 16.0, 32.0)
"""Radii of patches of several nodes, in mm of the atlas."""
_HELD = 7
"""Kind of a node that cannot move: a corner of the box."""


class Patch(NamedTuple):
    """Nodes that move, their weights, and the tetrahedra that touch them."""

    node: Index
    weight: npt.NDArray[np.float64]
    tetrahedron: Index


@dataclass(frozen=True)
class Family:
    """Patches `first` to `last` (exclusive); `of_node` and `owner` count from the first.

    Node `node[i]` moves with weight `weight[i]` and patch `of_node[i]`. Tetrahedron `tetrahedron[j]`, with
    nodes `corners[j]`, touches patch `owner[j]`.
    """

    first: int
    last: int
    node: Index
    weight: npt.NDArray[np.float64]
    of_node: Index
    tetrahedron: Index
    corners: npt.NDArray[np.int32]
    owner: Index

    def __len__(self) -> int:
        return self.last - self.first


def build_families(placed: Placed, radii: tuple[float, ...] = RADII) -> tuple[Family, ...]:
    """Families of all patches of a mesh: first of single nodes, then of each radius in mm."""
    out: list[Family] = []
    first = 0
    for patches in (_single_nodes(placed), *(_around_lattice(placed, r) for r in radii)):
        for members in _separate(list(patches), len(placed.tetrahedra)):
            out.append(_join(members, placed.tetrahedra, first))
            first = out[-1].last
    return tuple(out)


def _touching(placed: Placed, node: Index) -> Index:
    at = placed.incidence
    return np.unique(np.concatenate([at.corner[at.start[v] : at.start[v + 1]] for v in node]) // 4)


def _single_nodes(placed: Placed) -> Iterator[Patch]:
    for v in np.flatnonzero(placed.kind != _HELD):
        node = np.array([v])
        yield Patch(node, np.ones(1), _touching(placed, node))


def _around_lattice(placed: Placed, radius: float) -> Iterator[Patch]:
    """Patches around the points of a cubic lattice, one radius apart, so that they overlap by half."""
    nodes, (low, high) = placed.atlas.nodes, placed.atlas.box
    axes = [np.linspace(a, b, 1 + max(1, round((b - a) / radius))) for a, b in zip(low, high)]
    centers = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    found = cKDTree(nodes).query_ball_point(centers, radius, return_sorted=True)
    for center, inside in zip(centers, found):
        node = np.array(inside, np.int64)
        weight = (1 - ((nodes[node] - center) ** 2).sum(1) / radius**2) ** 2
        moves = (placed.kind[node] != _HELD) & (weight > 0)
        if moves.sum() > 1:
            yield Patch(node[moves], weight[moves], _touching(placed, node[moves]))


def _separate(patches: list[Patch], T: int) -> list[list[Patch]]:
    """Greedy coloring: the first family none of whose patches touches a tetrahedron of this one."""
    families: list[list[Patch]] = []
    taken: list[npt.NDArray[np.bool_]] = []
    for patch in patches:
        at = next((i for i, used in enumerate(taken) if not used[patch.tetrahedron].any()), len(taken))
        if at == len(taken):
            families.append([])
            taken.append(np.zeros(T, bool))
        families[at].append(patch)
        taken[at][patch.tetrahedron] = True
    return families


def _join(patches: list[Patch], tetrahedra: npt.NDArray[np.int32], first: int) -> Family:
    number = np.arange(len(patches))
    tetrahedron = np.concatenate([p.tetrahedron for p in patches])
    owner = np.repeat(number, [len(p.tetrahedron) for p in patches])
    order = np.argsort(tetrahedron)  # neighbors in space follow each other
    return Family(
        first,
        first + len(patches),
        np.concatenate([p.node for p in patches]),
        np.concatenate([p.weight for p in patches]),
        np.repeat(number, [len(p.node) for p in patches]),
        tetrahedron[order],
        np.ascontiguousarray(tetrahedra[tetrahedron[order]]),
        owner[order],
    )
