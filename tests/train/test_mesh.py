"""Graded meshes: conforming, well shaped, filling the box, as fine as asked."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.numerics import tetra
from tumoar.train.mesh import (
    CUBE,
    build_graded_mesh,
    build_uniform_mesh,
    free_directions,
    limit_distortion,
    quality,
    size_map,
)

SHAPE = (32, 48, 32)


def _sizes(center=(20, 30, 12)):
    distance = np.sqrt(sum((i - c) ** 2 for i, c in zip(np.indices(SHAPE), center)))
    return np.minimum(CUBE, 1.7 + 0.4 * distance).astype(np.float32)


@pytest.fixture(scope="module")
def graded():
    return build_graded_mesh(SHAPE, _sizes(), np.random.default_rng(0))


def test_fills_the_box_and_every_voxel_has_an_owner(graded):
    nodes, tetrahedra = graded
    volumes = tetra.volumes(nodes, tetrahedra)
    assert (volumes > 0).all()
    assert volumes.sum() == pytest.approx(np.prod(SHAPE), rel=1e-12)
    assert (tetra.owners(nodes, tetrahedra, SHAPE) >= 0).all()


def test_neighbors_share_whole_faces(graded):
    nodes, tetrahedra = graded
    faces = np.sort(np.concatenate([np.delete(tetrahedra, w, 1) for w in range(4)]), 1)
    unique, count = np.unique(faces, axis=0, return_counts=True)
    assert count.max() == 2
    alone = unique[count == 1]
    held = ~free_directions(nodes, SHAPE)
    assert held[alone].all(1).any(1).all(), "a face without neighbor lies on the box"


def test_well_shaped_and_as_fine_as_asked(graded):
    nodes, tetrahedra = graded
    assert quality(nodes, tetrahedra).min() > 0.6
    edge = (6 * tetra.volumes(nodes, tetrahedra)) ** (1 / 3)
    center = np.rint(nodes[tetrahedra].mean(1)).astype(int)
    assert (edge <= 1.2 * _sizes()[tuple(np.clip(center, 0, np.array(SHAPE) - 1).T)]).all()
    assert edge.max() > 4 * edge.min()


def test_uniform_sizes_halve_with_three_bisections():
    coarse = build_uniform_mesh(SHAPE, 16.0, np.random.default_rng(0))[1]
    fine = build_uniform_mesh(SHAPE, 8.0, np.random.default_rng(0))[1]
    assert len(fine) == 8 * len(coarse)


def test_box_must_be_whole_cubes():
    with pytest.raises(ValueError, match="multiples"):
        build_uniform_mesh((30, 48, 32), 8.0, np.random.default_rng(0))


def test_size_map_is_fine_at_thin_labels_and_borders_and_grows_from_there():
    probability = np.zeros((*SHAPE, 3), np.float32)
    probability[..., 0] = 1
    probability[8, 8, 8] = [0.8, 0.2, 0.0]
    probability[24, 40, 16] = [0.5, 0.0, 0.5]
    size = size_map(probability, [1], [[2]], (2.0, 3.0, 5.0), 0.5)
    assert size[8, 8, 8] == 2.0
    assert size[24, 40, 16] == 3.0
    assert size[8, 8, 12] == pytest.approx(4.0)
    assert size.max() <= CUBE


def test_moves_that_flatten_are_taken_back(graded):
    nodes, tetrahedra = graded
    rng = np.random.default_rng(3)
    moved = nodes + rng.normal(0, 0.4, nodes.shape) * free_directions(nodes, SHAPE)
    kept = limit_distortion(nodes, moved, tetrahedra, 0.3)
    assert quality(moved, tetrahedra).min() < 0.3 <= quality(kept, tetrahedra).min()
    assert (kept == moved).all(1).mean() > 0.3
