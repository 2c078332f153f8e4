"""The mesh atlas (section 2.1.2): nodes with label probabilities, and the atlas placed on an image grid.

An `Atlas` has its own world coordinates (RAS, mm); its hull is a box along the world axes. `place` maps it by
an affine to the voxel coordinates of a grid, where it deforms. The node positions eta of the paper are nodes
(V, 3) of a `Placed` atlas; pi_i(k | eta) interpolates node probabilities linearly in each tetrahedron.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from tumoar.geometry.image import Grid
from tumoar.numerics import tetra, tetra_cost
from tumoar.numerics.tetra_raster import rasterize
from tumoar.vocabulary.labels import LabelTable

_ON_FACE = 1e-3
"""Millimeters within which a node counts as lying on a face of the box."""
_FARTHEST = 1000.0
"""Maximum distance from the origin in millimeters: larger than any head, without loss of precision."""
_SMALLEST, _GAP = 1e-6, 1e-3
"""Minimum volume of a tetrahedron in mm³; fraction of the box that may be uncovered or covered twice."""
_STIFFNESS = (1e-6, 1e6)


@dataclass(frozen=True)
class Atlas:
    """Reference nodes (V, 3), tetrahedra (T, 4) of positive volume, label probabilities alpha (V, K)."""

    nodes: npt.NDArray[np.float64]
    tetrahedra: npt.NDArray[np.int32]
    alpha: npt.NDArray[np.float32]
    labels: LabelTable
    stiffness: float = 0.1
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = np.array(self.nodes, np.float64)
        if np.asarray(self.tetrahedra).dtype.kind not in "iu":
            raise ValueError("tetrahedra must be integers")
        tetrahedra = np.clip(self.tetrahedra, -1, 2**31 - 1).astype(np.int32)
        alpha = np.array(self.alpha, np.float32)
        V, K = len(nodes), self.labels.K
        if nodes.ndim != 2 or nodes.shape[1] != 3 or not np.isfinite(nodes).all():
            raise ValueError(f"nodes must be finite and (V, 3), got {nodes.shape}")
        if np.abs(nodes).max(initial=0) > _FARTHEST:
            raise ValueError(f"nodes must lie within {_FARTHEST:g} mm of the origin")
        if tetrahedra.ndim != 2 or tetrahedra.shape[1] != 4 or len(tetrahedra) == 0:
            raise ValueError(f"tetrahedra must be (T, 4), got {tetrahedra.shape}")
        if not np.array_equal(np.unique(tetrahedra), np.arange(V)):
            raise ValueError(f"tetrahedra must use each of the {V} nodes and no other")
        volumes = tetra.volumes(nodes, tetrahedra)
        if not (volumes > _SMALLEST).all():
            raise ValueError("tetrahedra must have positive volume; one is folded or flat")
        if not abs(volumes.sum() / np.prod(np.ptp(nodes, axis=0)) - 1) < _GAP:
            raise ValueError("tetrahedra must fill a box along the axes exactly once")
        if alpha.shape != (V, K) or not np.isfinite(alpha).all():
            raise ValueError(f"alpha must be finite and {(V, K)}, got {alpha.shape}")
        if alpha.min() < 0 or np.abs(alpha.sum(1, dtype=float) - 1).max() > 1e-5:
            raise ValueError("alpha must be probabilities that sum to 1 at each node")
        if isinstance(self.stiffness, bool) or not _STIFFNESS[0] <= self.stiffness <= _STIFFNESS[1]:
            low, high = _STIFFNESS
            raise ValueError(f"stiffness must be a number from {low:g} to {high:g}, got {self.stiffness}")
        for name, array in (("nodes", nodes), ("tetrahedra", tetrahedra), ("alpha", alpha)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "stiffness", float(self.stiffness))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    @cached_property
    def box(self) -> npt.NDArray[np.float64]:
        """(2, 3) lowest and highest corner of the hull in mm."""
        return np.stack([self.nodes.min(0), self.nodes.max(0)])

    @cached_property
    def fixed(self) -> npt.NDArray[np.bool_]:
        """(V, 3) True where a node lies on a face of the box and cannot move along that axis."""
        return np.any(np.abs(self.nodes[:, None] - self.box) < _ON_FACE, axis=1)

    @cached_property
    def background(self) -> int:
        """Position of the label outside the hull."""
        return int(np.flatnonzero(self.labels.indices == 0)[0])


@dataclass(frozen=True)
class Placed:
    """An atlas on a grid: reference nodes in voxel coordinates, and the directions in which nodes can move.

    `allowed` (8, 3, 3) are projectors onto the free directions of each kind of node; kind (V,) is the sum of
    1, 2 and 4 for the atlas axes along which a node is fixed.
    """

    atlas: Atlas
    shape: tuple[int, int, int]
    reference: npt.NDArray[np.float64]
    tetrahedra: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    allowed: npt.NDArray[np.float64]

    @cached_property
    def incidence(self) -> tetra_cost.Incidence:
        """Tetrahedron corners at each node."""
        return tetra_cost.build_incidence(self.tetrahedra, len(self.reference))


def place(atlas: Atlas, affine: npt.ArrayLike, grid: Grid) -> Placed:
    """Place the atlas on a grid; `affine` (4, 4) maps atlas world coordinates to those of the grid."""
    to_voxel = grid.inverse @ np.asarray(affine, float)
    M = to_voxel[:3, :3]
    reference = atlas.nodes @ M.T + to_voxel[:3, 3]
    mirrored = np.linalg.det(M) < 0
    tetrahedra = atlas.tetrahedra[:, [1, 0, 2, 3] if mirrored else [0, 1, 2, 3]]
    return Placed(
        atlas=atlas,
        shape=grid.shape,
        reference=reference,
        tetrahedra=tetrahedra[tetra.spatial_order(reference, tetrahedra)],
        kind=(atlas.fixed @ [1, 2, 4]).astype(np.uint8),
        allowed=np.stack([_projector(M[:, [d for d in range(3) if not kind >> d & 1]]) for kind in range(8)]),
    )


def project(placed: Placed, vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Project vectors (V, 3) onto free directions: nodes on a face of the atlas box slide in that face."""
    out = vectors.copy()
    fixed = np.flatnonzero(placed.kind)
    out[fixed] = np.einsum("vij,vj->vi", placed.allowed[placed.kind[fixed]], vectors[fixed])
    return out


def pi(placed: Placed, nodes: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """(X, Y, Z, K) label probabilities pi_i(k | eta); background outside the mesh."""
    atlas = placed.atlas
    return rasterize(nodes, placed.tetrahedra, atlas.alpha, placed.shape, atlas.background)


def smooth(atlas: Atlas, sigma: float, steps: int = 4) -> Atlas:
    """Blur node probabilities by a Gaussian with standard deviation sigma (mm).

    Solves the heat equation on the mesh with linear elements, up to time sigma^2 / 2, in implicit steps.
    """
    stiffness, mass = _heat_matrices(atlas.nodes, atlas.tetrahedra)
    system = (sparse.diags(mass) + sigma**2 / (2 * steps) * stiffness).tocsr()
    alpha = atlas.alpha.astype(np.float64)
    preconditioner = sparse.diags(1 / system.diagonal())
    for _ in range(steps):
        columns = [
            sparse.linalg.cg(system, mass * a, x0=a, rtol=1e-6, M=preconditioner)[0] if a.any() else a
            for a in alpha.T
        ]
        alpha = np.stack(columns, 1)
    alpha = np.maximum(alpha, 0)  # obtuse elements undershoot slightly
    alpha[alpha < 1e-6] = 0.0
    return replace(atlas, alpha=alpha / alpha.sum(1, keepdims=True))


def mirror(atlas: Atlas) -> Atlas:
    """Mirror the atlas, x -> -x, and swap left and right labels."""
    return replace(
        atlas,
        nodes=atlas.nodes * [-1, 1, 1],
        tetrahedra=atlas.tetrahedra[:, [1, 0, 2, 3]],
        alpha=atlas.alpha[:, atlas.labels.mirrored],
    )


def join(atlas: Atlas, name: str, into: str) -> Atlas:
    """Join a structure with another one: its probabilities are added to those of the other at each node."""
    k, target = atlas.labels.l(name), atlas.labels.l(into)
    alpha = atlas.alpha.copy()
    alpha[:, target] += alpha[:, k]
    return replace(atlas, alpha=np.delete(alpha, k, axis=1), labels=atlas.labels.join(name, into))


def spread_untrained(atlas: Atlas, probability: float) -> Atlas:
    """Add structures that training label maps lack at each node, and scale to sum to one (section 3.1)."""
    alpha = atlas.alpha.astype(float) * atlas.labels.trained
    alpha /= alpha.sum(1, keepdims=True)
    alpha[:, ~atlas.labels.trained] = probability
    return replace(atlas, alpha=alpha / alpha.sum(1, keepdims=True))


def _projector(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(3, 3) orthogonal projection onto the span of the columns."""
    Q = np.linalg.qr(directions)[0]
    return Q @ Q.T


def _heat_matrices(
    nodes: npt.NDArray[np.float64], tetrahedra: npt.NDArray[np.integer]
) -> tuple[sparse.csr_matrix, npt.NDArray[np.float64]]:
    """Stiffness (V, V) and lumped mass (V,) of linear elements."""
    p = nodes[tetrahedra]
    inverse = np.linalg.inv(p[:, 1:] - p[:, :1])  # columns are the gradients of b_1, b_2, b_3
    G = np.concatenate([-inverse.sum(2, keepdims=True), inverse], 2)
    volume = tetra.volumes(nodes, tetrahedra)
    local = np.einsum("tdv,tdw,t->tvw", G, G, volume)
    rows = np.repeat(tetrahedra, 4, axis=1).ravel()
    columns = np.tile(tetrahedra, (1, 4)).ravel()
    V = len(nodes)
    stiffness = sparse.csr_matrix((local.ravel(), (rows, columns)), (V, V))
    mass = np.zeros(V)
    np.add.at(mass, tetrahedra, volume[:, None] / 4)
    return stiffness, mass
