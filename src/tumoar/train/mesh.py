"""Conforming tetrahedral meshes of a box with graded element size: small at borders, large elsewhere.

Cubes are cut into six tetrahedra each (Kuhn), which are bisected where they are too large (Maubach 1995). Few
shapes occur, none of them flat, and neighbors always share whole faces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.int32]
Shape = tuple[int, int, int]

CUBE = 16
"""Edge of the initial cubes in voxels; the sides of the box are multiples of it."""

SHAKE = 0.01

_EDGES = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])


def build_graded_mesh(
    shape: Shape, size: npt.NDArray[np.float32], rng: np.random.Generator
) -> tuple[Nodes, Tetrahedra]:
    """Nodes (V, 3) in voxels and tetrahedra (T, 4), none much larger than the local `size` (voxels).

    The size of a tetrahedron is the edge of a cube of six times its volume; one bisection divides it by 1.26.
    Nodes are jittered by 0.01 voxel: otherwise millions of voxel centers would lie on faces, and exact
    ownership tests take twenty times as long.
    """
    nodes, tetrahedra = _bisect(shape, size)
    nodes += rng.uniform(-SHAKE, SHAKE, nodes.shape) * free_directions(nodes, shape)
    return nodes, tetrahedra


def build_uniform_mesh(shape: Shape, size: float, rng: np.random.Generator) -> tuple[Nodes, Tetrahedra]:
    """Mesh with uniform element size."""
    return build_graded_mesh(shape, np.full(shape, size, np.float32), rng)


def size_map(
    probability: npt.NDArray[np.float32],
    fine: Sequence[int],
    organs: Sequence[Sequence[int]],
    sizes: tuple[float, float, float],
    slope: float,
) -> npt.NDArray[np.float32]:
    """Target element size (voxels) from probabilities (X, Y, Z, K) of a coarser atlas.

    `sizes` apply where labels of `fine` are possible, at borders of the `organs` (groups of labels), and
    where the label is uncertain; elsewhere the size grows by `slope` per voxel, up to the cube.
    """
    shape = probability.shape[:3]
    thin = probability[..., list(fine)].sum(-1) > 0.05
    border = np.zeros(shape, bool)
    for group in organs:
        p = probability[..., list(group)].sum(-1)
        border |= (p > 0.1) & (p < 0.9)
    uncertain = -(probability * np.log(np.maximum(probability, 1e-6))).sum(-1) > 0.25
    out = np.full(shape, CUBE, np.float32)
    for where, size in zip((thin, border, uncertain), sizes):
        if where.any():
            out = np.minimum(out, size + slope * ndi.distance_transform_edt(~where).astype(np.float32))
    return out


def quality(nodes: Nodes, tetrahedra: Tetrahedra) -> npt.NDArray[np.float64]:
    """(T,) shape quality: 1 for the regular tetrahedron, 0 for a flat one, negative for a folded one."""
    p = nodes[tetrahedra]
    volume = np.linalg.det(p[:, 1:] - p[:, :1]) / 6
    square = ((p[:, _EDGES[:, 0]] - p[:, _EDGES[:, 1]]) ** 2).sum(-1).mean(1)
    return 6 * np.sqrt(2) * volume / square**1.5


def limit_distortion(before: Nodes, after: Nodes, tetrahedra: Tetrahedra, least: float) -> Nodes:
    """Return `after`, with nodes of tetrahedra below the least quality reset to `before`."""
    old = quality(before, tetrahedra)
    out = after.copy()
    while True:
        new = quality(out, tetrahedra)
        nodes = np.unique(tetrahedra[(new < least) & (new < old)])
        if not len(nodes):
            return out
        out[nodes] = before[nodes]


def free_directions(nodes: Nodes, shape: Shape) -> npt.NDArray[np.bool_]:
    """(V, 3) False where a node lies on a face of the box: it can slide in the face, not leave it."""
    upper = np.array(shape) - 0.5
    return ~((nodes <= -0.5 + 1e-6) | (nodes >= upper - 1e-6))


def _bisect(shape: Shape, size: npt.NDArray[np.float32]) -> tuple[Nodes, Tetrahedra]:
    nodes, corners = _cut_cubes(shape)
    tag = np.full(len(corners), 3)
    split_keys, split_nodes = np.empty(0, np.int64), np.empty(0, np.int64)
    while True:
        due = _find_too_large(nodes, corners, size) | _has_split_edge(corners, split_keys)
        if not due.any():
            return nodes, _order(nodes, corners)
        parents, d = corners[due], tag[due]
        ends = np.stack([parents[:, 0], parents[np.arange(len(parents)), d]], 1)
        keys = _key(ends)
        fresh, first = np.unique(keys, return_index=True)
        is_new = ~np.isin(fresh, split_keys)
        fresh, first = fresh[is_new], first[is_new]
        middle = nodes[ends[first]].mean(1)
        split_keys = np.concatenate([split_keys, fresh])
        split_nodes = np.concatenate([split_nodes, len(nodes) + np.arange(len(fresh))])
        order = np.argsort(split_keys)
        split_keys, split_nodes = split_keys[order], split_nodes[order]
        nodes = np.concatenate([nodes, middle])
        children = _children(parents, d, split_nodes[np.searchsorted(split_keys, keys)])
        corners = np.concatenate([corners[~due], children])
        tag = np.concatenate([tag[~due], np.tile(np.where(d > 1, d - 1, 3), 2)])


def _cut_cubes(shape: Shape) -> tuple[Nodes, npt.NDArray[np.int64]]:
    if any(n % CUBE for n in shape):
        raise ValueError(f"shape must be multiples of {CUBE} voxels, got {shape}")
    n = [s // CUBE for s in shape]
    axes = [np.arange(k + 1) * float(CUBE) - 0.5 for k in n]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    number = np.arange(len(nodes)).reshape([k + 1 for k in n])
    cut = []
    for order in permutations(range(3)):
        at = np.zeros(3, int)
        chain = [number[: n[0], : n[1], : n[2]]]
        for axis in order:
            at[axis] = 1
            chain.append(number[tuple(slice(a, a + k) for a, k in zip(at, n))])
        cut.append(np.stack(chain, -1).reshape(-1, 4))
    return nodes, np.concatenate(cut)


def _find_too_large(
    nodes: Nodes, corners: npt.NDArray[np.int64], size: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    p = nodes[corners]
    edge = np.abs(np.linalg.det(p[:, 1:] - p[:, :1])) ** (1 / 3)
    center = p.mean(1, keepdims=True)
    samples = np.concatenate([center, 0.6 * p + 0.4 * center], 1)
    index = np.clip(np.rint(samples).astype(int), 0, np.array(size.shape) - 1)
    wanted = size[index[..., 0], index[..., 1], index[..., 2]].min(1)
    return edge > 1.12 * wanted


def _key(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (ends.min(-1) << 32) | ends.max(-1)


def _has_split_edge(corners: npt.NDArray[np.int64], split: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(split):
        return np.zeros(len(corners), bool)
    keys = _key(corners[:, _EDGES])
    at = np.minimum(np.searchsorted(split, keys), len(split) - 1)
    return (split[at] == keys).any(1)


def _children(
    parents: npt.NDArray[np.int64], d: npt.NDArray[np.int64], middle: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """(x0 .. x_{d-1}, z, x_{d+1} ..) and (x1 .. x_d, z, x_{d+1} ..) with z the middle of x0 x_d."""
    place = np.arange(4)
    first, second = parents.copy(), parents.copy()
    moved = place[None] < d[:, None]
    second[moved] = np.roll(parents, -1, 1)[moved]
    at = np.arange(len(parents))
    first[at, d] = middle
    second[at, d] = middle
    return np.concatenate([first, second])


def _order(nodes: Nodes, corners: npt.NDArray[np.int64]) -> Tetrahedra:
    """Orient tetrahedra positively and sort them so that neighbors are close in memory."""
    p = nodes[corners]
    folded = np.linalg.det(p[:, 1:] - p[:, :1]) < 0
    corners = corners.copy()
    corners[folded] = corners[folded][:, [0, 2, 1, 3]]
    cell = np.floor(p.mean(1) / CUBE)
    return np.ascontiguousarray(corners[np.lexsort((cell[:, 2], cell[:, 1], cell[:, 0]))].astype(np.int32))
