"""Canonical axes and the exact way back."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.orientation import find_orientation, reorient, to_canonical, to_native
from tumoar.simulate.orders import ORDERS, stored

SHAPE = (4, 5, 7)
ANGLES = {"straight": (0, 0, 0), "oblique": (12, -20, 7), "halfway": (45, 0, 0)}


def ras_image(angles, rng):
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("zyx", angles, degrees=True).as_matrix() * [0.5, 1.0, 2.5]
    affine[:3, 3] = [-60.25, 31.5, 12.0]
    return Image(rng.integers(0, 1000, SHAPE).astype(np.int16), Grid(SHAPE, affine))


@pytest.mark.parametrize("angles", ANGLES.values(), ids=ANGLES)
@pytest.mark.parametrize(("axes", "flips"), ORDERS)
def test_every_storage_order_gives_one_canonical_image(axes, flips, angles):
    image = ras_image(angles, np.random.default_rng(1))
    reference, _ = reorient(image)
    native = stored(image, axes, flips)
    turned, orientation = reorient(native)
    assert turned.data.flags.c_contiguous
    np.testing.assert_array_equal(turned.data, reference.data)
    np.testing.assert_allclose(turned.grid.affine, reference.grid.affine, atol=1e-12)
    np.testing.assert_array_equal(to_native(turned.data, orientation), native.data)
    assert orientation.native is native.grid


@pytest.mark.parametrize(("axes", "flips"), ORDERS)
def test_a_straight_grid_comes_back_bit_exactly(axes, flips):
    image = ras_image((0, 0, 0), np.random.default_rng(2))
    turned, _ = reorient(stored(image, axes, flips))
    assert turned.grid == image.grid


@pytest.mark.parametrize(("axes", "flips"), ORDERS)
def test_left_stays_left(axes, flips):
    """A voxel marked at a known place in world space is found there, with the smaller i to the left."""
    image = ras_image((3, -5, 8), np.random.default_rng(0))
    marked = np.zeros(SHAPE, np.uint8)
    marked[0, 2, 3], marked[3, 2, 3] = 1, 2
    native = stored(Image(marked, image.grid), axes, flips)
    turned, orientation = reorient(native)
    (left,), (right,) = np.argwhere(turned.data == 1), np.argwhere(turned.data == 2)
    assert left[0] < right[0]
    np.testing.assert_allclose(turned.grid.world(left), image.grid.world([0, 2, 3]), atol=1e-12)
    assert turned.grid.world(left)[0] < turned.grid.world(right)[0]
    assert orientation.codes == nibabel_codes(native.grid.affine)


def test_no_other_order_is_closer():
    """However oblique and however thick the slices: the sum of cosines to right, front, up is the largest."""
    rng = np.random.default_rng(5)
    for turn in Rotation.random(200, rng=rng).as_matrix():
        image = Image(np.zeros(SHAPE, np.uint8), Grid(SHAPE, affine_of(turn, rng.uniform(0.3, 6, 3))))
        chosen = closeness(find_orientation(image.grid).grid)
        assert chosen >= max(closeness(stored(image, *order).grid) for order in ORDERS) - 1e-6


def affine_of(turn, spacing):
    affine = np.eye(4)
    affine[:3, :3] = turn * spacing
    return affine


def closeness(grid):
    return np.trace(grid.affine[:3, :3] / grid.spacing)


def nibabel_codes(affine):
    import nibabel as nib

    return "".join(nib.aff2axcodes(affine))


def test_axes_beyond_the_third_stay():
    image = stored(ras_image((0, 0, 0), np.random.default_rng(3)), (2, 0, 1), (True, False, True))
    orientation = find_orientation(image.grid)
    votes = np.random.default_rng(4).random((*image.grid.shape, 3))
    there = to_canonical(votes, orientation)
    assert there.shape == (*SHAPE, 3)
    for channel in range(3):
        np.testing.assert_array_equal(there[..., channel], to_canonical(votes[..., channel], orientation))
    np.testing.assert_array_equal(to_native(there, orientation), votes)


def test_a_wrong_shape_is_named():
    orientation = find_orientation(Grid((4, 5, 7), np.eye(4)))
    with pytest.raises(ValueError, match=r"\(4, 5, 7\), got \(7, 5, 4\)"):
        to_native(np.zeros((7, 5, 4)), orientation)
