"""Contours as volumes."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.contours import Outline, cut_outline, fill_contours, stack_planes
from tumoar.geometry.image import Grid
from tumoar.radiotherapy.dvh import dvh
from tumoar.simulate.bodies import linear_dose, shapes
from tumoar.vocabulary.errors import GeometryError

ANGLE = np.linspace(0, 2 * np.pi, 121)[:-1]
CIRCLE = np.stack([np.cos(ANGLE), np.sin(ANGLE), 0 * ANGLE], 1)


def disks(radius, heights):
    return tuple(CIRCLE * radius(z) + [0, 0, z] for z in heights)


def rotated(polygons, seed=3):
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return tuple(p @ turn.T for p in polygons)


@pytest.mark.parametrize("place", [lambda p: p, rotated], ids=["axial", "oblique"])
def test_a_drawn_tube_ends_at_its_outermost_contours(place):
    outline = Outline("tube", place(disks(lambda z: 5.0, np.arange(0.0, 21.0, 2.0))))
    assert cut_outline(outline).volumes.sum() == pytest.approx(np.pi * 25 * 20, rel=3e-3)


def test_voxel_edge_contours_stand_for_whole_slices():
    outline = Outline("tube", disks(lambda z: 5.0, np.arange(0.0, 21.0, 2.0)), slabs=True)
    assert cut_outline(outline).volumes.sum() == pytest.approx(np.pi * 25 * 22, rel=3e-3)


def test_the_surface_runs_from_plane_to_plane():
    """A sphere of 5 cm³ from contours 3 mm apart; how much of it lies beyond the outermost is not told."""
    shape = next(s for s in shapes(5.0) if s.name == "sphere, dose along x")
    heights = np.arange(-9.0, 9.5, 3.0)
    assert shape.radius(9.0) > 0
    found = dvh(cut_outline(Outline("s", disks(shape.radius, heights))), linear_dose(0))
    for percent in (5, 50, 95):
        assert found.D(percent) == pytest.approx(shape.D(percent), rel=0.005)


def test_holes_and_islands():
    outer, hole, island = (CIRCLE * r for r in (9.0, 6.0, 2.0))
    planes = tuple(p + np.array([0, 0, z]) for z in (0.0, 1.0, 2.0) for p in (outer, hole, island))
    expected = np.pi * (81 - 36 + 4) * 3
    assert stack_planes(Outline("ring", planes)).volume == pytest.approx(expected, rel=2e-3)
    assert cut_outline(Outline("ring", planes, slabs=True)).volumes.sum() == pytest.approx(expected, rel=5e-3)


def test_a_gap_is_not_filled():
    heights = [0.0, 2.0, 4.0, 20.0, 22.0]
    volume = cut_outline(Outline("two", disks(lambda z: 5.0, heights))).volumes.sum()
    assert volume == pytest.approx(np.pi * 25 * 6, rel=5e-3)


def test_one_plane_alone():
    with pytest.raises(GeometryError, match="one plane only"):
        cut_outline(Outline("x", disks(lambda z: 5.0, [1.0])))
    known = cut_outline(Outline("x", disks(lambda z: 5.0, [1.0]), spacing=2.0))
    assert known.volumes.sum() == pytest.approx(np.pi * 50, rel=3e-3)
    assert known.points[:, 2].min() >= 0
    assert known.points[:, 2].max() <= 2


def test_contours_out_of_plane_are_refused():
    flat, tilted = CIRCLE, CIRCLE[:, [2, 0, 1]]
    with pytest.raises(GeometryError, match="parallel"):
        stack_planes(Outline("x", (flat * 5, tilted)))


def test_filling_a_grid():
    grid = Grid((20, 20, 5), np.diag([-1.0, 1.0, 2.0, 1.0]))
    share = fill_contours(Outline("x", tuple(CIRCLE * 6 + grid.world([9.3, 10.2, k]) for k in (1, 2))), grid)
    assert share.sum() == pytest.approx(2 * np.pi * 36, rel=2e-3)
    assert share[:, :, [0, 3, 4]].max() == 0
    middle = np.einsum("ijk,ijkc->c", share, np.stack(np.indices(grid.shape), -1)) / share.sum()
    assert middle == pytest.approx([9.3, 10.2, 1.5], abs=0.01)
    with pytest.raises(GeometryError, match="do not lie on the slices"):
        fill_contours(Outline("x", (CIRCLE * 6 + grid.world([9, 10, 1.5]),), spacing=2.0), grid)
