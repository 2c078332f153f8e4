"""Courses of nerves are found in noise and thick slices, do without images, and do not depend on the side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pathway_head as head
import pytest
from scipy import ndimage
from scipy.spatial import cKDTree

from tumoar.inference import gem
from tumoar.inference.pathway import find_courses, measure_resolution
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
ATLAS = cache(head.atlas)


def found_in(case, model=None):
    return find_courses(case, head.fit(case, model or ATLAS()))


def mean_error(course, side, bend):
    """Mean distance in mm of the structure from its true course."""
    points = head.grid().world(course.points[course.first : course.last])
    return float(cKDTree(head.course(side, bend)).query(points)[0].mean())


@pytest.mark.parametrize(
    ("scan", "allowed"),
    [
        ({}, 0.35),
        pytest.param({"noise": 0.5, "seed": 1}, 0.5, marks=pytest.mark.slow),
        pytest.param({"slices": 3}, 0.7, marks=pytest.mark.slow),
        ({"slices": 5}, 1.2),
        pytest.param({"slices": 5, "axis": 0}, 1.2, marks=pytest.mark.slow),
        pytest.param({"slices": 5, "axis": 1}, 1.2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_courses_away_from_the_atlas_are_found(scan, allowed):
    bend = (-2.0, 2.0)
    found = found_in(head.case(bend, **scan))
    assert len(found) == 2
    for course, side in zip(found, head.SIDES):
        away = mean_error(course, side, bend)
        assert away < allowed
        assert away < mean_error(course, side, (0.0, 0.0)) or scan.get("slices") == 5


def test_a_course_reaches_from_globe_to_chiasm():
    truth = head.label_map(head.grid().world(np.moveaxis(np.indices(head.SHAPE), 0, -1)), (2.0, 1.0))
    for course, side in zip(found_in(head.case((2.0, 1.0))), head.SIDES):
        passed = truth[tuple(np.rint(course.points).astype(int).T)]
        eye = np.isin(passed, [LABELS.l(f"{side} eye tissue"), LABELS.l(f"{side} eye fluid")])
        assert eye[: course.first - 3].all()
        assert not eye[course.first + 3 :].any()
        assert (passed[course.last + 5 :] == LABELS.l("optic chiasm")).mean() > 0.8
        assert course.radius[course.first] == pytest.approx(2.3, abs=0.02)
        assert course.radius[course.last] == pytest.approx(2.0, abs=0.02)


@pytest.mark.slow
def test_without_a_visible_nerve_the_course_is_that_of_the_atlas():
    for course, side in zip(found_in(head.case((-2.0, 2.0), shown=False)), head.SIDES):
        assert mean_error(course, side, (0.0, 0.0)) < 0.8


def test_tumor_tells_nothing_of_the_course():
    case = head.case((-2.0, 2.0))
    fit = head.fit(case, ATLAS())
    for course, side in zip(find_courses(case, replace(fit, w=np.ones_like(fit.w))), head.SIDES):
        assert mean_error(course, side, (0.0, 0.0)) < 0.8


@pytest.mark.slow
def test_mirrored_images_give_mirrored_courses():
    bends = {"left": (2.0, -1.0), "right": (-2.0, 1.5)}
    case = head.case(bends=bends)
    flipped = replace(case, D=np.ascontiguousarray(case.D[:, ::-1]))
    for course, other in zip(found_in(case), reversed(found_in(flipped))):
        mirrored = np.array([head.SHAPE[0] - 1, 0, 0]) + other.points * [-1, 1, 1]
        assert LABELS.mirrored[other.l] == course.l
        away = cKDTree(mirrored).query(course.points[course.first : course.last])[0]
        assert away.mean() < 0.1


@pytest.mark.slow
def test_the_two_courses_stay_apart():
    for bend in ((-3.0, 0.0), (3.0, 2.0)):
        left, right = found_in(head.case(bend))
        gap = cKDTree(left.points[: left.last]).query(right.points[: right.last])[0]
        assert gap.min() > 2 * head.CALIBER[1] / 2


def test_no_eyes_no_courses():
    case = head.case()
    merged = gem.merge_nonbrain(ATLAS())
    assert found_in(case, merged) == ()


def test_an_eye_out_of_view_has_no_course():
    case = head.case()
    D = case.D.copy()
    D[:, : head.SHAPE[0] // 2, 50:] = np.nan
    (only,) = found_in(replace(case, D=D))
    assert LABELS.structures[only.l].name == "right optic nerve"


def test_excluded_voxels_tell_nothing():
    case = head.case((-2.0, 2.0))
    excluded = np.zeros(head.SHAPE, bool)
    excluded[:, 20:52] = True
    for course, side in zip(found_in(replace(case, excluded=excluded)), head.SIDES):
        assert mean_error(course, side, (0.0, 0.0)) < mean_error(course, side, (-2.0, 2.0))


def test_thick_slices_count_less():
    assert measure_resolution(head.case()) == 1
    assert measure_resolution(head.case(slices=5)) == pytest.approx(0.2)


def test_the_globe_meets_the_tube():
    """In the truth of the images, the first voxels of the structure touch the globe."""
    truth = head.label_map(head.grid().world(np.moveaxis(np.indices(head.SHAPE), 0, -1)))
    for course, side in zip(found_in(head.case()), head.SIDES):
        eye = np.isin(truth, [LABELS.l(f"{side} eye tissue"), LABELS.l(f"{side} eye fluid")])
        around = ndimage.binary_dilation(eye, np.ones((3, 3, 3)))
        first = np.rint(course.points[course.first]).astype(int)
        assert around[tuple(first)]
