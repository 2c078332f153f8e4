"""What strokes leave possible, and how z and y are held for it."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.image import Grid
from tumoar.result.parts import widen_gtv
from tumoar.review.allowed import (
    ALL,
    CAVITY,
    CORE,
    EDEMA,
    FREE,
    NONE,
    find_allowed,
    hold,
    index_into,
    look_up,
    states_of,
)
from tumoar.review.strokes import Stroke
from tumoar.vocabulary.labels import add_cavity, default_labels

TABLE = default_labels()
AFTER = add_cavity(TABLE)


def test_states_of_structures():
    assert states_of(TABLE.organ("GTV"), TABLE) == CORE
    assert states_of(TABLE.organ("Brainstem"), TABLE) == 0
    assert states_of(TABLE.organ("Brain"), TABLE) == 0
    wide = widen_gtv(TABLE)
    assert states_of(wide.organ("GTV"), wide) == CORE | EDEMA
    assert states_of(AFTER.organ("GTV"), AFTER) == CORE | CAVITY
    assert states_of(AFTER.organ("GTV_residual"), AFTER) == CORE
    assert states_of(AFTER.organ("Cavity"), AFTER) == CAVITY
    assert states_of(AFTER.organ("Brain"), AFTER) == 0


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ([("GTV", True)], CORE | CAVITY),
        ([("GTV", True), ("Cavity", False)], CORE),
        ([("GTV", False), ("Edema", False)], NONE),
        ([("GTV", True), ("GTV", False)], NONE | EDEMA),
        ([("GTV", False), ("GTV", True)], CORE | CAVITY),
        ([("Brainstem", True)], ALL),
    ],
)
def test_the_last_stroke_prevails(said, left):
    at = np.array([[0, 1, 0]], np.int32)
    strokes = [Stroke(n, name, inside, at, "", "") for n, (name, inside) in enumerate(said, 1)]
    found = find_allowed(strokes, AFTER, (1, 2, 1))
    assert found.ravel().tolist() == [ALL, left]


@pytest.mark.parametrize("allowed", range(1, 16))
def test_z_and_y_are_held_so_that_only_allowed_states_are_left(allowed):
    z, y = (int(v[0, 0, 0]) for v in hold(np.full((1, 1, 1), allowed, np.uint8), np.zeros((1, 1, 1)), _no()))
    # +∞ on y excludes edema; z = 0 excludes all tumor.
    left = {
        NONE: z != 1,
        EDEMA: z != 0 and y != 1,
        CORE | CAVITY: z != 0 and y != 0,
    }
    assert left[NONE] == bool(allowed & NONE)
    if allowed & CORE or not allowed & CAVITY or not allowed & EDEMA:
        assert left[EDEMA] == bool(allowed & EDEMA)
        assert left[CORE | CAVITY] == bool(allowed & (CORE | CAVITY))
    assert any(left.values())
    assert {z, y} <= {FREE, 0, 1}


def test_a_voxel_that_is_a_cavity_stays_one_if_it_may_not_be_core():
    allowed = np.full((1, 1, 1), NONE | EDEMA | CAVITY, np.uint8)
    level = np.full((1, 1, 1), 2)
    assert [int(v[0, 0, 0]) for v in hold(allowed, level, ~_no())] == [FREE, 1]
    assert [int(v[0, 0, 0]) for v in hold(allowed, level, _no())] == [FREE, 0]


def test_centers_of_voxels_are_looked_up_where_they_lie():
    fine = Grid((4, 4, 4), np.eye(4))
    thick = Grid((2, 4, 2), np.diag([-2.0, 1.0, 2.0, 1.0]) + np.array([[0, 0, 0, 2.6]] + 3 * [[0, 0, 0, 0]]))
    index = index_into(thick, fine, (slice(1, 4), slice(0, 2), slice(2, 4)))
    assert index.shape == (3, 2, 2, 3)
    for at in np.ndindex(3, 2, 2):
        expected = np.rint(thick.index(fine.world(np.add(at, (1, 0, 2)))))
        assert np.array_equal(index[at], expected)
    values = np.arange(16, dtype=np.uint8).reshape(2, 4, 2)
    assert look_up(values, np.array([[1, 3, 1], [-1, 0, 0], [0, 0, 2]]), 99).tolist() == [15, 99, 99]


def _no():
    return np.zeros((1, 1, 1), bool)
