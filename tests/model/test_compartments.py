"""Falx and tentorium of the package's atlas lie where anatomy has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.geometry.image import Grid
from tumoar.io.models import default_model
from tumoar.model.atlas import place
from tumoar.model.compartments import (
    BELOW,
    JOINED,
    LEFT,
    RIGHT,
    UNKNOWN,
    find_compartments,
    find_joined,
    has_tentorium,
)


@pytest.fixture(scope="module")
def atlas():
    return default_model().atlas


@pytest.fixture(scope="module")
def found(atlas):
    """Compartments at 2 mm, from 10 mm beyond the atlas, and a function that looks them up in mm."""
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = atlas.box[0] - 10
    X, Y, Z = ((atlas.box[1] - atlas.box[0] + 20) / 2).astype(int)
    grid = Grid((int(X), int(Y), int(Z)), affine)
    placed = place(atlas, np.eye(4), grid)
    map_ = find_compartments(placed, placed.reference)
    return lambda *mm: int(map_[tuple(np.rint(grid.index(mm)).astype(int))])


def test_sides(found):
    for x, y, z in ((30, 0, 40), (2, 40, 50), (2, -70, 20)):  # the last two: between frontal, occipital lobes
        assert found(-x, y, z) == LEFT
        assert found(x, y, z) == RIGHT
    assert found(0, 0, -97) == UNKNOWN


def test_hemispheres_join_at_the_corpus_callosum_and_in_the_middle_of_the_brain(found):
    for y, z in ((35, 18), (0, 28), (-25, 12), (0, 5), (0, -8)):
        assert found(-2, y, z) == found(2, y, z) == JOINED
    assert found(-20, 0, 28) == LEFT


def test_cerebellum_is_below_the_tentorium_and_the_lobes_above_it(found):
    for x in (-25, 0, 25):
        assert found(x, -50, -40) == BELOW
    for x, y, z in ((30, -80, 0), (40, 5, -30), (30, -60, 0), (25, -20, -12)):
        assert found(x, y, z) == RIGHT


def test_another_atlas_has_no_tentorium(atlas):
    other = replace(atlas, nodes=atlas.nodes * 1.01)
    assert has_tentorium(atlas)
    assert not has_tentorium(other)
    joined, _ = find_joined(other)
    assert joined.any()
