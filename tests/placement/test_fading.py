"""A fading coil is found without knowing where a head is, and air that was cleared still counts as air."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.image import Case, Grid, Input
from tumoar.numerics.histogram import MISSING
from tumoar.placement.fading import estimate_fading, fading_at, polynomial_count, polynomials
from tumoar.placement.pyramid import pyramid
from tumoar.vocabulary.contrasts import find_contrast

BOX = np.array([[0.0, 0.0, 0.0], [160.0, 200.0, 180.0]])


def tissues(rng, n=4000):
    """Positions and logs of intensities of four tissues that lie in patches."""
    where = rng.uniform(BOX[0], BOX[1], (n, 3))
    waves = np.sin(where / [9.0, 11.0, 8.0]).sum(1)
    level = np.select([waves < -0.8, waves < 0.2, waves < 1.2], [5.0, 5.5, 4.6], 6.0)
    return where, level + rng.normal(0, 0.08, n)


@pytest.mark.parametrize("way", [(0, 0, 1), (0, -1, 0), (0.7, 0, -0.7)])
def test_a_fading_coil_is_found(way):
    rng = np.random.default_rng(0)
    where, v = tissues(rng)
    x = (where - BOX.mean(0)) / (BOX[1] - BOX[0])
    field = 2 * x @ np.array(way) - 0.8 * (x**2).sum(1)
    found = fading_at(where, *estimate_fading(v + field, where)) - fading_at(
        where, *estimate_fading(v, where)
    )
    assert np.std(found - field) < 0.1 * np.std(field)


def test_brightness_is_no_fading():
    where, v = tissues(np.random.default_rng(1))
    a, b = (fading_at(where, *estimate_fading(v + shift, where)) for shift in (0.0, 3.0))
    assert np.allclose(a, b, atol=1e-6)


def test_fading_does_not_run_away_outside_the_head():
    where, v = tissues(np.random.default_rng(2))
    coefficients, box = estimate_fading(v + where[:, 2] / 90, where)
    far = np.array([[80.0, 100.0, 5000.0], [80.0, 100.0, box[1, 2]]])
    assert np.ptp(fading_at(far, coefficients, box)) == 0


def test_polynomials_come_by_degree_and_without_a_constant():
    where = np.random.default_rng(3).uniform(BOX[0], BOX[1], (50, 3))
    cubic = polynomials(where, BOX, 3)
    assert cubic.shape[1] == polynomial_count(3) == 19
    assert np.array_equal(polynomials(where, BOX, 1), cubic[:, :3])
    assert np.linalg.matrix_rank(np.column_stack([np.ones(50), cubic])) == 20


def cleared_case(names=("T1",), bottom=0):
    """A ball of flesh in nothing, cut off below at `bottom` voxels above its lowest."""
    shape = (96, 96, 96)
    where = np.indices(shape) - 47.5
    inside = (np.sqrt((where**2).sum(0)) < 36) & (where[2] >= -36 + bottom)
    noise = np.random.default_rng(5).normal(0, 0.1, (len(names), *shape))
    D = np.where(inside, 5 + noise, np.nan).astype(np.float32)
    grid = Grid(shape, np.eye(4))
    given = tuple(Input(name, "", grid, "RAS", np.eye(4)) for name in names)
    return Case(D, tuple(find_contrast(n) for n in names), grid, names[0], given, False)


def test_cleared_air_is_air_beside_the_head_but_not_below_the_image():
    whole = pyramid(cleared_case(), (4,))[0]
    assert {0, MISSING}.intersection(whole.bins.ravel().tolist()) == {0}
    assert whole.q[whole.bins[:, 0] == 0][:, 2].min() < 4
    cut = pyramid(cleared_case(bottom=30), (4,))[0]
    nothing = cut.q[cut.bins[:, 0] == 0]
    assert len(nothing) > 1000
    assert nothing[:, 2].min() > 36


def test_one_channel_tells_of_cleared_air():
    signal = pyramid(cleared_case(("T1", "T2")), (4,))[0]
    outside = ~signal.in_head & (signal.bins[:, 0] == 0)
    assert outside.any()
    assert (signal.bins[outside, 1] == MISSING).all()
