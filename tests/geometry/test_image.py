"""What a grid, an image, an input and a case promise once they are built."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from tumoar.geometry.image import (
    HOUNSFIELD_UNIT,
    Case,
    Grid,
    Image,
    Input,
    is_canonical,
    is_valid,
    transform_intensities,
)
from tumoar.vocabulary.contrasts import find_contrast

GRID = Grid((4, 5, 6), np.eye(4))
T1C = Input("T1c", "a.nii", GRID, "RAS", np.eye(4))


def case(**changes):
    settings = {
        "D": np.zeros((1, 4, 5, 6), np.float32),
        "contrasts": (find_contrast("T1c"),),
        "grid": GRID,
        "reference": "T1c",
        "inputs": (T1C,),
        "skull_stripped": False,
    }
    return Case(**{**settings, **changes})


def affine(spacing=1.0, flip=1.0):
    return np.diag([flip * spacing, spacing, spacing, 1.0])


def test_equal_grids_have_equal_hashes_whatever_the_sign_of_zero():
    negative = np.eye(4)
    negative[0, 1] = -0.0
    assert Grid((2, 2, 2), negative) == Grid((2, 2, 2), np.eye(4))
    assert hash(Grid((2, 2, 2), negative)) == hash(Grid((2, 2, 2), np.eye(4)))


def test_world_and_index_are_inverse():
    grid = Grid((3, 4, 5), [[0, 2, 0, 5], [-1, 0, 0, 7], [0, 0, 3, -2], [0, 0, 0, 1]])
    points = np.array([[0, 0, 0], [2, 3, 4], [0.5, 1.25, 3.75]])
    np.testing.assert_allclose(grid.index(grid.world(points)), points, atol=1e-12)
    np.testing.assert_allclose(grid.spacing, [1, 2, 3])


@pytest.mark.parametrize("flip", [1, -1])
def test_volume_of_a_voxel_has_no_sign(flip):
    assert Grid((2, 2, 2), np.diag([flip * 2.0, 3.0, 0.5, 1.0])).voxel_volume == pytest.approx(3.0)


def test_what_is_built_stays():
    for built, name in (
        (GRID, "shape"),
        (Image(np.zeros((4, 5, 6)), GRID), "grid"),
        (T1C, "name"),
        (case(), "grid"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(built, name, None)


@pytest.mark.parametrize(
    ("data", "source", "word"),
    [
        (np.zeros((4, 5, 7)), "", "shape"),
        (np.zeros((4, 5, 6), complex), "", "floating"),
        (np.zeros((4, 5, 6)), "patient/a.nii", "path"),
    ],
)
def test_an_image_is_valid_once_built(data, source, word):
    with pytest.raises(ValueError, match=word):
        Image(data, GRID, source)


def test_an_image_cannot_be_written_to_and_leaves_its_source_writable():
    data = np.zeros((4, 5, 6))
    image = Image(data, GRID)
    with pytest.raises(ValueError, match="read-only"):
        image.data[0, 0, 0] = 1
    data[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"D": np.zeros((1, 4, 5, 6))}, "float32"),
        ({"D": np.zeros((1, 4, 5, 6), np.float16)}, "float32"),
        ({"D": np.zeros((2, 4, 5, 6), np.float32)}, "shape"),
        ({"D": np.zeros((0, 4, 5, 6), np.float32), "contrasts": ()}, "shape"),
        ({"excluded": np.zeros((4, 5, 7), bool)}, "excluded"),
        ({"D": np.full((1, 4, 5, 6), np.inf, np.float32)}, "infinities"),
        ({"grid": Grid((4, 5, 6), affine(1.5))}, "1 mm"),
        ({"grid": Grid((4, 5, 6), affine(flip=-1.0))}, "right"),
        ({"reference": "FLAIR"}, "FLAIR"),
    ],
)
def test_a_case_is_valid_once_built(changes, word):
    with pytest.raises(ValueError, match=word):
        case(**changes)


def test_voxels_may_be_excluded():
    mask = np.ones((4, 5, 6), bool)
    assert case(excluded=mask).excluded is mask


def test_nan_is_where_an_image_says_nothing():
    D = np.zeros((1, 4, 5, 6), np.float32)
    D[0, 1, 2, 3] = np.nan
    built = case(D=D)
    assert built.valid.sum() == D.size - 1
    assert not built.valid[0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        built.D[0, 0, 0, 0] = 1


def test_inputs_are_found_by_name():
    assert case().input("T1c") is T1C
    with pytest.raises(KeyError, match="T1c"):
        case().input("T2")


def turned(angle):
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("angle", [0.1, 1.0, 3.0])
def test_every_turn_is_rigid(angle):
    given = Input("T1c", "a.nii", GRID, "RAS", turned(angle))
    np.testing.assert_array_equal(given.to_reference, turned(angle))


@pytest.mark.parametrize(
    "matrix",
    [np.diag([2.0, 1, 1, 1]), np.diag([-1.0, 1, 1, 1]), np.diag([1.001, 1, 1, 1]), np.eye(3), np.eye(5)],
)
def test_only_rigid_maps_lead_to_the_reference(matrix):
    with pytest.raises(ValueError, match="rigid"):
        Input("T1c", "a.nii", GRID, "RAS", matrix)


@pytest.mark.parametrize(("spacing", "expected"), [(1.0, True), (1.009, True), (0.98, False), (2.0, False)])
def test_canonical_means_one_millimeter(spacing, expected):
    assert is_canonical(Grid((4, 5, 6), affine(spacing))) is expected


def test_canonical_allows_oblique_but_not_exchanged_axes():
    assert is_canonical(Grid((4, 5, 6), turned(0.4)))
    assert not is_canonical(Grid((4, 5, 6), turned(1.2)))
    assert not is_canonical(Grid((4, 5, 6), np.eye(4)[[1, 0, 2, 3]]))
    assert not is_canonical(Grid((4, 5, 6), np.eye(4)[[1, 2, 0, 3]]))
    assert not is_canonical(Grid((4, 5, 6), np.diag([-1.0, -1.0, 1.0, 1.0])))


def test_mr_is_valid_where_positive_and_ct_above_its_padding():
    values = np.array([np.nan, np.inf, -1025, -1024, -1000, -1, 0, 1e-3, 50], np.float32)
    assert is_valid(values, find_contrast("T1c")).tolist() == [False] * 7 + [True] * 2
    assert is_valid(values, find_contrast("CT")).tolist() == [False] * 4 + [True] * 5


def test_scaling_an_mr_image_shifts_its_log_by_a_constant():
    values = np.array([0.01, 0.5, 1, 30, 4000], np.float32)
    shift = transform_intensities(8 * values, find_contrast("FLAIR")) - transform_intensities(
        values, find_contrast("FLAIR")
    )
    np.testing.assert_allclose(shift, math.log(8), rtol=1e-6)


def test_ct_is_linear_and_clipped():
    values = np.array([-2000, -1024, 0, 40, 3071, 9000], np.float32)
    expected = np.array([-1024, -1024, 0, 40, 3071, 3071]) / HOUNSFIELD_UNIT
    np.testing.assert_allclose(transform_intensities(values, find_contrast("CT")), expected, rtol=1e-6)
