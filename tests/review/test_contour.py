"""A contour replaces the section of a structure in its slice, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from small_result import small_result

from tumoar.geometry.image import Grid
from tumoar.result.folder import Options, write_result
from tumoar.review.contour import AROUND, around_contour
from tumoar.review.session import Session
from tumoar.review.strokes import group_parts


def square(low, high, index, axis=2):
    """Voxels of a square in a slice."""
    found = np.argwhere(np.ones((high - low, high - low), bool)) + low
    return np.insert(found, axis, index, axis=1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_a_contour_leaves_out_is_taken_from_the_piece_that_it_meets(axis):
    mask = np.zeros((40, 40, 40), bool)
    mask[tuple(square(10, 20, 7, axis).T)] = True  # to be corrected
    mask[tuple(square(30, 33, 7, axis).T)] = True  # another piece in the slice
    mask[tuple(square(10, 20, 8, axis).T)] = True  # the next slice
    inside = square(14, 24, 7, axis)
    outside = around_contour(inside, axis, mask, Grid(mask.shape, np.eye(4)))
    after = mask.copy()
    after[tuple(inside.T)], after[tuple(outside.T)] = True, False
    wanted = mask.copy()
    wanted[tuple(square(10, 20, 7, axis).T)] = False
    wanted[tuple(inside.T)] = True
    assert np.array_equal(after, wanted)
    assert set(outside[:, axis]) == {7}
    assert not {*map(tuple, inside)} & {*map(tuple, outside)}


def test_what_lies_around_a_contour_is_outside_of_it_in_millimeters():
    grid = Grid((40, 40, 9), np.diag([0.5, 2.0, 5.0, 1]))
    inside = np.array([[20, 20, 4]])
    outside = around_contour(inside, 2, np.zeros(grid.shape, bool), grid)
    far = np.linalg.norm((outside - inside) * grid.spacing, axis=1)
    assert far.max() <= AROUND
    assert np.ptp(outside, axis=0).tolist() == [12, 2, 0]


def test_each_slice_of_several_is_a_contour_of_its_own():
    mask = np.zeros((30, 30, 9), bool)
    mask[5:15, 5:15, 3:6] = True
    inside = np.concatenate([square(8, 12, k) for k in (3, 4, 5)])
    outside = around_contour(inside, 2, mask, Grid(mask.shape, np.eye(4)))
    mask[tuple(outside.T)] = False
    assert np.array_equal(np.argwhere(mask), np.array(sorted(map(tuple, inside))))


def test_a_contour_is_one_stroke_with_two_parts(tmp_path):
    out = tmp_path / "out"
    write_result(out, small_result(), [], {"reference": "T1c"}, Options(), lambda manifest: "", [])
    session = Session.open(out)
    before = session.mask("GTV")
    axis, index = 2, int(np.argwhere(before)[:, 2].mean())
    low = np.argwhere(before[..., index]).min(0)
    inside = np.insert(low + np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), axis, index, axis=1)
    session.draw("GTV", inside, axis, "ABC")
    for some in (session, Session.open(out)):
        mask = some.mask("GTV")
        assert np.array_equal(np.argwhere(mask[..., index]), inside[:, :2])
        assert np.array_equal(np.delete(mask, index, 2), np.delete(before, index, 2))
    (parts,) = group_parts(session.strokes)
    assert [(p.id, p.inside, p.who) for p in parts] == [(1, True, "ABC"), (1, False, "ABC")]
    session.paint("GTV", True, inside[:1])
    assert [s.id for s in session.strokes] == [1, 1, 2]
    session.undo()
    session.undo()
    assert np.array_equal(session.mask("GTV"), before)
    assert not session.strokes
