"""Tiny models on a mesh with two free nodes, which are drawn exactly from the prior too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import reference_tetra
import tiny_chain
import tiny_model as tiny
from scipy.special import logsumexp
from tiny_chain import LABELS, TinyModel

from tumoar.geometry.image import Grid
from tumoar.inference import gibbs, nodes
from tumoar.model import atlas, joint
from tumoar.model.gmm import Theta

LOW, HIGH = np.array([-0.9, -0.8, -0.7]), np.array([1.9, 1.8, 1.6])
"""Corners of the box in voxels; the grid is 2 x 2 x 2."""
TRIALS = 2000
"""Nodes tried at once."""


@dataclass(frozen=True)
class Free:
    """A node that moves anywhere between two corners of a box; it slides where they are equal."""

    node: int
    low: np.ndarray
    high: np.ndarray


def _place(points: np.ndarray, tetrahedra: list, stiffness: float, seed: int) -> atlas.Placed:
    points, corners = reference_tetra.oriented(points * (HIGH - LOW) + LOW, tetrahedra)
    alpha = np.random.default_rng(seed).dirichlet([0.4, 0.7, 0.7], len(points)).astype(np.float32)
    alpha /= alpha.sum(1, keepdims=True)
    found = atlas.Atlas(points, corners, alpha, LABELS, stiffness)
    return atlas.place(found, np.eye(4), Grid((2, 2, 2), np.eye(4)))


def _faces(corners: np.ndarray, nodes: list[int]) -> list[tuple[int, int, int]]:
    """Two triangles of each face of a box whose corners are `nodes`, but none of its upper face."""
    faces = []
    for axis in range(3):
        for side in (0, 1):
            ends = corners[nodes, axis]
            a, b, c, d = (n for n, at in zip(nodes, ends) if at == (ends.max() if side else ends.min()))
            if (axis, side) != (2, 1):
                faces += [(a, b, c), (b, c, d)]
    return faces


def one_cell(stiffness: float, seed: int = 1) -> tuple[atlas.Placed, tuple[Free, ...]]:
    """A node inside a box, and one that slides in its upper face; they share all tetrahedra of the face."""
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    points = np.concatenate([corners, [[0.5, 0.5, 0.5], [0.5, 0.5, 1.0]]])
    lid = [(1, 3, 9), (3, 7, 9), (7, 5, 9), (5, 1, 9)]
    faces = _faces(corners, list(range(8))) + lid
    found = _place(points, [(*face, 8) for face in faces], stiffness, seed)
    return found, (Free(8, LOW, HIGH), Free(9, np.array([*LOW[:2], HIGH[2]]), HIGH))


def two_cells(stiffness: float, seed: int = 1) -> tuple[atlas.Placed, tuple[Free, ...]]:
    """Two boxes with a node inside each, which share no tetrahedron: a family of two patches."""
    corners = np.array([[x, y, z] for x in (0, 0.5, 1) for y in (0, 1) for z in (0, 1)])
    points = np.concatenate([corners, [[0.25, 0.5, 0.5], [0.75, 0.5, 0.5]]])
    tetrahedra = []
    for first, center in ((0, 12), (4, 13)):
        cell = list(range(first, first + 8))
        lid = [(first + 1, first + 3, first + 5), (first + 3, first + 5, first + 7)]
        tetrahedra += [(*face, center) for face in _faces(corners, cell) + lid]
    found = _place(points, tetrahedra, stiffness, seed)
    kind = np.where(np.arange(len(points)) < 12, 7, found.kind).astype(np.uint8)  # the wall is held
    middle = (LOW + HIGH) / 2
    return replace(found, kind=kind), (
        Free(12, LOW, np.array([middle[0], *HIGH[1:]])),
        Free(13, np.array([middle[0], *LOW[1:]]), HIGH),
    )


@dataclass(frozen=True)
class TinyMesh:
    """A tiny model whose π follows a mesh, moved in every `every`-th sweep.

    p(η, l, z, y) is proportional to p(η) exp(-E(z) - E(y)) f(l, z, y) Π π_i(l_i | η), for all η with the same
    factor.
    """

    model: TinyModel
    placed: atlas.Placed
    free: tuple[Free, Free]
    every: int = 1
    radii: tuple[float, ...] = (2.5,)

    def at(self, eta: np.ndarray) -> TinyModel:
        """The model with the nodes held there."""
        out = replace(self.model)
        kept = {"maps": self.model.maps, "log_shape": self.model.log_shape}
        out.__dict__.update(pi=atlas.pi(self.placed, eta), **kept)
        return out

    def energies(self, eta: np.ndarray) -> np.ndarray:
        """(...,) −log p(η) of meshes (..., V, 3)."""
        edges, rest = (
            v[..., 1:, :] - v[..., :1, :] for v in (eta[..., self.placed.tetrahedra, :], self._rest)
        )
        J = np.swapaxes(np.linalg.solve(rest, edges), -1, -2)
        det = np.linalg.det(J)
        strain = (J**2).sum((-2, -1)) + (np.linalg.inv(J) ** 2).sum((-2, -1)) - 6
        energy = self.placed.atlas.stiffness * np.linalg.det(rest) / 6 * (1 + det) * strain
        return np.where(det > 0, energy, np.inf).sum(-1)

    @cached_property
    def _rest(self) -> np.ndarray:
        return self.placed.reference[self.placed.tetrahedra]

    def draw_uniform(self, rng: np.random.Generator, draws: int = TRIALS) -> np.ndarray:
        """(draws, V, 3) with free nodes anywhere: no mesh is folded while they are inside their boxes."""
        eta = np.tile(self.placed.reference, (draws, 1, 1))
        for free in self.free:
            eta[:, free.node] = rng.uniform(free.low, free.high, (draws, 3))
        return eta

    def draw_nodes(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """(draws, V, 3) from p(η) times the weight of all labels, by rejection.

        The energy is nowhere below 0, and the weight is largest if every voxel is brain.
        """
        log_bound = logsumexp(self.model.log_shape)
        found: list[np.ndarray] = []
        while len(found) < draws:
            tried = self.draw_uniform(rng)
            spare = rng.exponential(size=len(tried)) - self.energies(tried)
            found += [
                tried[i]
                for i in np.flatnonzero(spare > 0)
                if spare[i] > log_bound - logsumexp(self.at(tried[i]).log_weights())
            ]
        return np.array(found[:draws])

    @cached_property
    def mesh(self) -> nodes.Mesh:
        """Steps follow from the prior alone."""
        return nodes.build_mesh(
            self.placed, self.placed.reference, np.zeros((2, 2, 2, LABELS.K), np.float32), self.radii
        )

    def chain(self, D: np.ndarray, eta: np.ndarray, seed: int = 0) -> gibbs.Chain:
        chain = self.at(eta).chain(D, seed)
        return replace(chain, mesh=self.mesh, schedule=replace(chain.schedule, nodes_every=self.every))

    def state(
        self,
        sweep: int,
        theta: Theta,
        labels: joint.Labels,
        D: np.ndarray,
        t: np.ndarray,
        eta: np.ndarray,
    ) -> gibbs.ChainState:
        mesh = nodes.MeshState(eta, np.zeros(len(self.mesh.step)))
        return replace(self.model.state(sweep, theta, labels, D, t), mesh=mesh)


def _on(cell: tuple[atlas.Placed, tuple[Free, ...]], shapes, every: int = 1, **held: np.ndarray) -> TinyMesh:
    found, (first, second) = cell
    return TinyMesh(TinyModel((2, 2, 2), shapes, tiny.prior(), **held), found, (first, second), every)


_SHAPE = (2, 2, 2)
MODELS = {
    "cRBM": _on(one_cell(0.03), tiny_chain.CRBM),
    "two cells": _on(two_cells(0.03), tiny_chain.CRBM),
    "MRF, stiffer": _on(one_cell(0.1, seed=2), tiny_chain.WEAK_MRF),
    "held, unseen, unused": _on(one_cell(0.03), tiny_chain.CRBM, **tiny_chain._unequal(_SHAPE)),
    "a region": _on(two_cells(0.03), tiny_chain.CRBM, **tiny_chain._near(_SHAPE)),
    "rows that rest": _on(two_cells(0.03), tiny_chain.CRBM, every=2, **tiny_chain._resting(_SHAPE)),
}
"""Of eight voxels. Rows rest in the sweeps that move the nodes, and must be drawn all the same."""
