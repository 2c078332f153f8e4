from dataclasses import replace

import numpy as np
import pytest
import reference_tetra as ref
from small_atlas import LABELS, grid, small_atlas

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, mirror, pi, place, project, smooth
from tumoar.numerics import tetra


def test_arrays_are_frozen_and_probabilities_checked():
    atlas = small_atlas()
    with pytest.raises(ValueError, match="read-only"):
        atlas.nodes[0] = 0
    with pytest.raises(ValueError, match="sum to 1"):
        replace(atlas, alpha=atlas.alpha * 1.01)
    with pytest.raises(ValueError, match="positive volume"):
        replace(atlas, tetrahedra=atlas.tetrahedra[:, [1, 0, 2, 3]])
    with pytest.raises(ValueError, match="each of the"):
        replace(atlas, tetrahedra=atlas.tetrahedra[:10])
    with pytest.raises(ValueError, match="finite"):
        replace(atlas, nodes=np.where(atlas.nodes == atlas.nodes[7], np.nan, atlas.nodes))


def test_nodes_on_faces_are_held_across_them():
    atlas = small_atlas()
    low, high = atlas.box
    np.testing.assert_array_equal(atlas.fixed, (atlas.nodes == low) | (atlas.nodes == high))
    assert atlas.fixed.all(1).sum() == 8


def test_probabilities_are_the_same_on_a_grid_of_either_handedness():
    atlas = small_atlas()
    right = place(atlas, np.eye(4), grid())
    flip = np.array([[-1, 0, 0, 16], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    left = place(atlas, np.eye(4), Grid((17, 21, 17), grid().affine @ flip))
    assert tetra.volumes(left.reference, left.tetrahedra).min() > 0
    a, b = pi(right, right.reference), pi(left, left.reference)
    np.testing.assert_allclose(a, b[::-1], atol=1e-6)
    np.testing.assert_allclose(a.sum(-1), 1.0, atol=1e-6)


def test_volumes_are_counted_in_voxels_of_the_grid():
    atlas = small_atlas()
    coarse = Grid((9, 11, 9), grid().affine @ np.diag([2.0, 2, 2, 1]))
    fine, half = place(atlas, np.eye(4), grid()), place(atlas, np.eye(4), coarse)
    assert tetra.volumes(fine.reference, fine.tetrahedra).sum() == pytest.approx(16 * 20 * 16)
    assert tetra.volumes(half.reference, half.tetrahedra).sum() == pytest.approx(16 * 20 * 16 / 8)


def test_sliding_nodes_stay_in_their_face_after_any_affine():
    atlas = small_atlas()
    rng = np.random.default_rng(2)
    affine = np.eye(4)
    affine[:3, :3] += rng.normal(0, 0.2, (3, 3))
    placed = place(atlas, affine, grid())
    moved = placed.reference + project(placed, rng.normal(size=placed.reference.shape))
    to_voxel = grid().inverse @ affine
    back = (moved - to_voxel[:3, 3]) @ np.linalg.inv(to_voxel[:3, :3]).T
    np.testing.assert_allclose(back[atlas.fixed], atlas.nodes[atlas.fixed], atol=1e-10)
    assert (np.abs(back - atlas.nodes)[(atlas.fixed.sum(1) < 3)].max(1) > 1e-3).all()
    np.testing.assert_allclose(project(placed, moved * 0 + 1.0)[placed.kind == 0], 1.0)


def test_space_outside_the_mesh_is_background():
    atlas = small_atlas()
    far = Grid((5, 5, 5), np.eye(4) + 100 * np.eye(4, k=3))
    placed = place(atlas, np.eye(4), far)
    out = pi(placed, placed.reference)
    assert (out[..., LABELS.l("background")] == 1).all()


def test_mirrored_twice_is_the_same_and_sides_change_places():
    atlas = small_atlas()
    twice = mirror(mirror(atlas))
    np.testing.assert_array_equal(twice.nodes, atlas.nodes)
    np.testing.assert_array_equal(twice.tetrahedra, atlas.tetrahedra)
    np.testing.assert_array_equal(twice.alpha, atlas.alpha)
    left, right = LABELS.l("left hippocampus"), LABELS.l("right hippocampus")
    np.testing.assert_array_equal(mirror(atlas).alpha[:, left], atlas.alpha[:, right])
    box = Grid((16, 20, 16), np.array([[1, 0, 0, -7.5], [0, 1, 0, -8.6], [0, 0, 1, -6.6], [0, 0, 0, 1.0]]))
    here, there = place(atlas, np.eye(4), box), place(mirror(atlas), np.eye(4), box)
    straight, flipped = pi(here, here.reference), pi(there, there.reference)
    np.testing.assert_allclose(flipped, straight[::-1][..., LABELS.mirrored], atol=1e-6)


def test_smoothing_preserves_mass_and_spreads_with_the_given_variance():
    nodes, tetrahedra = ref.body_centered((14, 14, 14), 2.0, -14.0)
    alpha = np.zeros((len(nodes), LABELS.K), np.float32)
    alpha[:, 0] = 1
    middle = np.argmin((nodes**2).sum(1))
    alpha[middle] = 0
    alpha[middle, 3] = 1
    atlas = Atlas(nodes, tetrahedra, alpha, LABELS)
    sigma = 3.0
    blurred = smooth(atlas, sigma, steps=16)
    mass = np.bincount(tetrahedra.ravel(), np.repeat(tetra.volumes(nodes, tetrahedra) / 4, 4))
    weight = mass * blurred.alpha[:, 3]
    assert weight.sum() == pytest.approx(mass[middle], rel=0.02)
    np.testing.assert_allclose((weight @ nodes**2) / weight.sum(), sigma**2, rtol=0.05)
    np.testing.assert_allclose(smooth(atlas, 1e-6).alpha, atlas.alpha, atol=1e-6)
