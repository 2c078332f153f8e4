"""Voxels of the page and of the stored image correspond exactly, for all storage orders."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.orientation import find_orientation
from tumoar.report.volumes import pack
from tumoar.simulate.orders import ORDERS, stored
from tumoar.vocabulary.errors import UsageError
from tumoar.web.voxels import picture_on, to_page, to_stored

SHAPE = (4, 5, 6)


def oblique():
    """A rotated grid with three different spacings."""
    a, b = 0.3, 0.2
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    turn = turn @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([0.7, 1.1, 2.5])
    affine[:3, 3] = -3, 8, 1
    return Grid(SHAPE, affine)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_voxel_of_the_page_is_the_voxel_at_its_place(order):
    canonical = oblique()
    image = stored(Image(np.arange(120).reshape(SHAPE), canonical), *order)
    orientation = find_orientation(image.grid)
    flat = np.array([0, 1, 4, 37, 118, 119])
    runs = np.column_stack([flat, np.ones_like(flat)]).ravel().tolist()
    found = to_stored(runs, orientation)
    expected = canonical.world(np.stack(np.unravel_index(flat, SHAPE, order="F"), 1))
    assert np.allclose(image.grid.world(found), expected)
    values = np.frombuffer(to_page(image.data.astype(np.uint8), orientation), np.uint8)
    assert np.array_equal(values[flat], image.data[tuple(found.T)])
    mask = image.data % 3 == 0
    bits = np.frombuffer(to_page(mask, orientation), np.uint8)
    shown = np.unpackbits(bits, count=120, bitorder="little").astype(bool)
    assert np.array_equal(shown[flat], mask[tuple(found.T)])


def test_runs_go_along_x():
    found = to_stored([2, 3], find_orientation(Grid(SHAPE, np.eye(4))))
    assert found.tolist() == [[2, 0, 0], [3, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    "runs", [[], [1], [-1, 2], [0, 0], [0, -1], [119, 2], [0, 10**15], [10**15, 1], [[1, 2]]]
)
def test_runs_outside_are_refused_before_anything_is_allocated(runs):
    with pytest.raises(UsageError):
        to_stored(runs, find_orientation(Grid(SHAPE, np.eye(4))))


def test_pictures_lie_where_they_did():
    volume = np.zeros((9, 9, 9), np.uint8)
    volume[2, 3, 4] = 200
    grid = Grid((9, 9, 9), np.eye(4))
    finer = Grid((18, 9, 9), np.diag([0.5, 1, 1, 1]))
    found = picture_on(pack(volume, grid), finer)
    assert np.unravel_index(found.argmax(), found.shape) == (4, 3, 4)
    assert found[4, 3, 4] == 200
    assert found[5, 3, 4] == 100
