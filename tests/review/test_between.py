"""Slices between two strokes are filled by shape, in any plane, with the spacing of the image."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.image import Grid
from tumoar.review.between import fill_between
from tumoar.review.strokes import Stroke
from tumoar.vocabulary.errors import UsageError

SPACING = (0.5, 1.0, 3.0)
GRID = Grid((60, 40, 20), np.diag([*SPACING, 1.0]))


def disk(axis, index, radius, inside=True, center=(14.0, 20.0, 27.0)):
    """A disk in one slice; radius and center in mm."""
    at = np.indices(GRID.shape).reshape(3, -1).T
    at = at[at[:, axis] == index]
    away = at * SPACING - np.array(center)
    away[:, axis] = 0
    return Stroke(1, "GTV", inside, at[np.linalg.norm(away, axis=1) <= radius].astype(np.int32), "", "")


@pytest.mark.parametrize(("axis", "begin", "end"), [(2, 4, 8), (1, 22, 16), (0, 20, 26)])
def test_radii_go_linearly_from_one_disk_to_the_other(axis, begin, end):
    first, last = disk(axis, begin, 6.0), disk(axis, end, 10.0)
    found, across = fill_between([first, last], GRID)
    assert across == axis
    low, high = sorted((begin, end))
    assert sorted(set(found[:, axis])) == list(range(low + 1, high))
    for index in range(low + 1, high):
        share = (index - begin) / (end - begin)
        pixel = np.prod([s for a, s in enumerate(SPACING) if a != axis])
        radius = np.sqrt((found[:, axis] == index).sum() * pixel / np.pi)
        assert radius == pytest.approx(
            6 + 4 * share, abs=0.75 * max(s for a, s in enumerate(SPACING) if a != axis)
        )


def test_equal_disks_give_the_same_disk():
    first, last = disk(2, 3, 5.0), disk(2, 7, 5.0)
    found, _ = fill_between([first, last], GRID)
    for z in (4, 5, 6):
        at = found[found[:, 2] == z][:, :2]
        assert np.array_equal(np.unique(at, axis=0), np.unique(first.voxels[:, :2], axis=0))


@pytest.mark.parametrize(
    "strokes",
    [
        [],
        [disk(2, 3, 5.0)],
        [disk(2, 3, 5.0), disk(2, 4, 5.0)],
        [disk(2, 3, 5.0), disk(2, 3, 4.0)],
        [disk(2, 3, 5.0), disk(1, 20, 5.0)],
        [disk(2, 3, 5.0), disk(2, 8, 5.0, inside=False)],
        [disk(2, 3, 2.0, center=(5.0, 8.0, 0.0)), disk(2, 12, 2.0, center=(25.0, 30.0, 0.0))],
    ],
)
def test_what_cannot_be_joined_is_refused(strokes):
    with pytest.raises(UsageError):
        fill_between(strokes, GRID)
