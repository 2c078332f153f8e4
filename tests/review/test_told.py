"""What strokes tell: painted voxels, and those beside them in the same slices that were left as they are."""

from __future__ import annotations

import numpy as np
import pytest
from small_result import small_result

from tumoar.review.allowed import CORE, EDEMA, NONE
from tumoar.review.evidence import LEFT_IN, LEFT_OUT, PAINTED_IN, PAINTED_OUT, UNSEEN
from tumoar.review.strokes import Stroke
from tumoar.review.told import RING, find_told

SHAPE, SPACING = (40, 40, 20), (1.0, 1.0, 2.0)


@pytest.fixture(scope="module")
def table():
    return small_result().table


@pytest.fixture
def before():
    states = np.full(SHAPE, NONE, np.uint8)
    states[10:30, 10:30, 5:15] = EDEMA
    states[15:25, 15:25, 8:12] = CORE
    return states


def stroke(structure, inside, *ends, number=1):
    box = np.zeros(SHAPE, bool)
    box[tuple(slice(*e) for e in ends)] = True
    return Stroke(number, structure, inside, np.argwhere(box).astype(np.int32), "", "")


def test_a_stroke_tells_about_its_slice_and_no_other(before, table):
    gtv = stroke("GTV", False, (15, 18), (15, 25), (9, 10))
    z, y = find_told([gtv], before, table, SPACING)
    assert (z == UNSEEN).all(), "what is not core may be edema or nothing"
    assert (y[15:18, 15:25, 9] == PAINTED_OUT).all()
    assert (y[18:25, 15:25, 9] == LEFT_IN).all()
    assert (y[10:15, 15:25, 9] == LEFT_OUT).all()
    assert (np.delete(y, 9, axis=2) == UNSEEN).all()
    seen = np.argwhere(y != UNSEEN)
    far = np.maximum(0, np.maximum(np.array([15, 15, 9]) - seen, seen - np.array([17, 24, 9])))
    assert np.linalg.norm(far, axis=1).max() <= RING


def test_the_last_word_counts_and_paint_outweighs_what_was_left(before, table):
    first = stroke("GTV", False, (15, 18), (15, 25), (9, 10))
    last = stroke("GTV", True, (17, 19), (15, 25), (9, 10), number=2)
    _, y = find_told([first, last], before, table, SPACING)
    assert (y[15:17, 15:25, 9] == PAINTED_OUT).all()
    assert (y[17:19, 15:25, 9] == PAINTED_IN).all()


def test_edema_tells_about_tumor_and_what_it_takes_from_the_core(before, table):
    z, y = find_told([stroke("Edema", True, (5, 20), (15, 25), (9, 10))], before, table, SPACING)
    assert (z[5:20, 15:25, 9] == PAINTED_IN).all()
    assert (y[5:20, 15:25, 9] == PAINTED_OUT).all()
    z, y = find_told([stroke("Edema", False, (10, 20), (15, 25), (9, 10))], before, table, SPACING)
    assert (z[10:15, 15:25, 9] == PAINTED_OUT).all()
    assert (z[15:20, 15:25, 9] == UNSEEN).all(), "what is not edema may be core"
    assert (y == UNSEEN).all()


def test_organs_tell_nothing_about_tumor(before, table):
    z, y = find_told([stroke("Brainstem", True, (5, 20), (15, 25), (9, 10))], before, table, SPACING)
    assert not z.any()
    assert not y.any()
