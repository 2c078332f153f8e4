"""Bodies of known volume: their formulas agree with fine masks, in the world as well."""

import numpy as np
import pytest

from tumoar.geometry.image import Grid, Image
from tumoar.simulate.bodies import Placed, box, cone, linear_dose, mask_of, sphere, tube
from tumoar.simulate.orders import ORDERS, reorder, stored

BODIES = [sphere(1.0, 0), tube(1.0, 2), cone(1.0), box((8.0, 10.0, 12.5), 1)]


@pytest.mark.parametrize("shape", BODIES, ids=lambda s: s.name)
def test_fine_masks_have_the_volume_of_the_formula(shape):
    mask = mask_of(shape, (1.0, 1.0, 1.0), np.random.default_rng(0))
    assert float(np.sum(mask.data)) / 1000 == pytest.approx(shape.cm3, rel=2e-3)


@pytest.mark.parametrize("shape", BODIES, ids=lambda s: s.name)
def test_the_share_above_falls_from_one_to_zero(shape):
    reach = shape.extent[shape.axis]
    shares = [shape.above(t) for t in np.linspace(-reach, reach, 41)]
    assert shares[0] == pytest.approx(1)
    assert shares[-1] == pytest.approx(0, abs=1e-9)
    assert (np.diff(shares) <= 1e-12).all()


def test_a_placed_body_is_the_same_voxels_in_every_storage_order():
    turn = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1.0]])
    placed = Placed("box", box((9.0, 5.0, 7.0), 0), (1.3, -2.1, 0.4), turn)
    affine = np.diag([1.0, 1.5, 2.0, 1.0])
    affine[:3, 3] = -10.2, -11.1, -9.7
    grid = Grid((20, 15, 10), affine)
    mask = placed.mask(grid)
    assert mask.any()
    for axes, flips in ORDERS:
        there = stored(Image(mask.astype(np.uint8), grid), axes, flips)
        assert there.grid == reorder(grid, axes, flips)
        assert np.array_equal(placed.mask(there.grid), there.data > 0)


def test_a_body_outside_the_grid_has_no_voxels():
    assert not Placed("far", sphere(1.0, 0), (500.0, 0, 0)).mask(Grid((5, 5, 5), np.eye(4))).any()


def test_the_dose_rises_by_a_gray_per_millimeter():
    dose = linear_dose(1)
    assert np.allclose(np.diff(dose.data, axis=1)[:, 40:], 2.5)
