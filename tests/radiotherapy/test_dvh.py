"""Dose-volume histograms against formulas."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.pieces import Pieces, cut_mask
from tumoar.radiotherapy.dvh import Dvh, band, dvh, thin_dvh
from tumoar.simulate.bodies import CENTER_GY, GRADIENT, linear_dose, mask_of, possible, shapes

PERCENTS = (5, 50, 95)


def errors(shape, spacing, rng):
    """Excess over the larger of 0.5 % and 0.1 Gy is a failure: errors in units of that."""
    found = dvh(cut_mask(mask_of(shape, spacing, rng)), linear_dose(shape.axis))
    true = np.array([shape.D(p) for p in PERCENTS])
    return np.abs([found.D(p) for p in PERCENTS] - true) / np.maximum(0.005 * true, 0.1)


@pytest.mark.parametrize("spacing", [(0.5, 0.5, 0.5), (1.0, 1.0, 1.0), (1.5, 1.5, 1.5)], ids=str)
@pytest.mark.parametrize("cm3", [0.05, 0.5])
def test_small_bodies_in_a_steep_dose(cm3, spacing):
    rng = np.random.default_rng(5)
    for shape in shapes(cm3):
        assert errors(shape, spacing, rng).max() < 1, shape.name


@pytest.mark.long
def test_five_hundred_bodies(record_property):
    rng, tried = np.random.default_rng(9), 0
    for size in (0.5, 0.75, 1.0, 1.25, 1.5):
        for cm3 in (0.05, 0.1, 0.5, 5.0):
            for shape in shapes(cm3) * 5:
                assert errors(shape, (size, size, size), rng).max() < 1, (shape.name, size, cm3)
                tried += 1
    record_property("tried", tried)


@pytest.mark.parametrize("spacing", [(2.0, 2.0, 2.0), (1.0, 1.0, 3.0), (3.0, 3.0, 3.0)], ids=str)
def test_coarse_masks_are_read_within_what_they_allow(spacing):
    """Where the bar is missed the mask itself leaves more open than the bar allows."""
    rng = np.random.default_rng(6)
    for shape in shapes(0.05):
        mask = mask_of(shape, spacing, rng)
        found = dvh(cut_mask(mask), linear_dose(shape.axis))
        for percent in PERCENTS:
            low, high = possible(mask, shape.axis, percent)
            assert low - 0.02 <= found.D(percent) <= high + 0.02
            assert low - 0.02 <= shape.D(percent) <= high + 0.02
            error = abs(found.D(percent) - shape.D(percent))
            assert error <= max(0.005 * shape.D(percent), 0.1) or (high - low) / 2 > error, shape.name


def test_large_mask_has_no_steps():
    cube = np.zeros((44, 44, 44))
    cube[2:-2, 2:-2, 2:-2] = 1
    affine = np.eye(4)
    affine[:3, 3] = -21.5
    found = dvh(cut_mask(Image(cube, Grid(cube.shape, affine))), linear_dose(0))
    for percent in (2, 5, 37, 50, 95):
        expected = CENTER_GY + GRADIENT * (20 - 0.4 * percent)
        assert found.D(percent) == pytest.approx(expected, abs=0.03)
        assert found.V(expected) == pytest.approx(percent, abs=0.1)
    assert found.mean == pytest.approx(CENTER_GY, abs=0.02)
    assert found.volume == pytest.approx(64.0)
    assert found.D_cc(6.4) == pytest.approx(found.D(10))


def test_shares_of_voxels_are_kept():
    rng = np.random.default_rng(1)
    fraction = np.where(rng.random((6, 5, 4)) < 0.3, 0.0, rng.random((6, 5, 4)))
    grid = Grid(fraction.shape, np.diag([1.0, 2.0, 3.0, 1.0]))
    pieces = cut_mask(Image(fraction, grid))
    voxel = np.rint(grid.index(pieces.points)).astype(int)
    kept = np.zeros(fraction.shape)
    np.add.at(kept, tuple(voxel.T), pieces.volumes / 6.0)
    assert np.allclose(kept, fraction, atol=1e-5)


def test_what_lies_outside_the_dose_is_told():
    dose = Image(np.full((4, 4, 4), 10.0), Grid((4, 4, 4), np.eye(4)))
    mask = Image(np.ones((8, 4, 4)), Grid((8, 4, 4), np.eye(4)))
    found = dvh(cut_mask(mask), dose)
    assert found.outside == pytest.approx(0.5, abs=0.01)
    assert found.mean == pytest.approx(5.0, abs=0.1)


def test_an_empty_structure_has_no_figures():
    found = dvh(Pieces(np.zeros((0, 3)), np.zeros(0)), linear_dose(0))
    figures = found.figures()
    assert figures.pop("volume_cm3") == figures.pop("outside_percent") == 0
    assert all(np.isnan(v) for v in figures.values())
    assert np.isnan(Dvh(np.array([3.0]), np.array([0.01])).D_cc(0.03))


def test_band_holds_its_curves():
    curves = [Dvh(np.array([d + 1.0, d]), np.array([1.0, 1.0])) for d in (10.0, 12.0, 14.0)]
    found = band(curves, 0.9, doses=[9.0, 12.5, 16.0])
    assert found.low == pytest.approx([100, 5, 0])  # of 0, 50 and 100 % at 12.5 Gy
    assert found.median == pytest.approx([100, 50, 0])
    assert found.high == pytest.approx([100, 95, 0])
    with pytest.raises(ValueError, match="at least one"):
        band([Dvh(np.zeros(0), np.zeros(0))])


def test_a_thinned_curve_keeps_its_hot_spots():
    rng = np.random.default_rng(3)
    doses = np.sort(rng.gamma(2.0, 10.0, 300_000))[::-1]
    whole = Dvh(doses, np.full(len(doses), 1e-3))
    few = thin_dvh(whole, 2000)
    assert len(few.doses) <= 2000
    assert few.maximum == whole.maximum
    assert few.volume == pytest.approx(whole.volume)
    assert few.mean == pytest.approx(whole.mean)
    for cc in (0.03, 0.1, 0.5):
        assert few.D_cc(cc) == whole.D_cc(cc)
    for percent in (5, 50, 95):
        assert few.D(percent) == pytest.approx(whole.D(percent), abs=0.1)
