"""Registration finds known displacements, knows when it failed, and tells left from right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt
from synthetic_heads import head_grid, synthetic_head, with_header_moved

from tumoar.geometry.distance import distance_to
from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample, resample_mean, resample_sparse, resample_valid
from tumoar.preprocess.register import (
    FINE,
    apply,
    looks_mirrored,
    mean_distance,
    mirror,
    mutual_information,
    overlap,
    prepare_image,
    refine,
    register,
    rigid_transform,
    rotation_angle,
)
from tumoar.preprocess.skull import decide_stripped, measure_skull
from tumoar.vocabulary.errors import ChannelError

CT_WINDOW = (-200.0, 300.0)


@pytest.fixture(scope="module")
def fixed():
    return prepare_image(synthetic_head("T1c"))


@pytest.fixture(scope="module")
def moving():
    return prepare_image(synthetic_head("FLAIR"))


def evidence(prepared, bone=None):
    return measure_skull(np.asarray(prepared.levels[FINE].data), prepared.valid, prepared.is_head, FINE, bone)


# ---- rigid maps --------------------------------------------------------------------------------------------


def test_a_rigid_map_turns_about_its_center_and_then_shifts():
    matrix = rigid_transform([0, 0, 90], [1, 2, 3], [10, 0, 0])
    np.testing.assert_allclose(apply(matrix, np.array([10.0, 0, 0])), [11, 2, 3], atol=1e-12)
    np.testing.assert_allclose(apply(matrix, np.array([11.0, 0, 0])), [11, 3, 3], atol=1e-12)
    assert rotation_angle(matrix) == pytest.approx(90)


def test_distance_of_a_shift_is_its_length():
    points = np.random.default_rng(0).normal(size=(50, 3))
    assert mean_distance(
        rigid_transform([0, 0, 0], [3, 4, 0], [0, 0, 0]), np.eye(4), points
    ) == pytest.approx(5)


# ---- registration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "shift"),
    [
        ([6, -4, 5], [8, -6, 9]),
        pytest.param([0, 0, 0], [0, 0, 0], marks=pytest.mark.slow),
        pytest.param([-3, 8, 0], [60, -80, 40], marks=pytest.mark.slow),
    ],
)
def test_a_displaced_header_is_found_out(fixed, turn, shift):
    moved = rigid_transform(turn, shift, [0, 0, 0])
    found = register(fixed, prepare_image(with_header_moved(synthetic_head("FLAIR"), moved)))
    assert mean_distance(found.to_moving, moved, fixed.head) < 0.5
    assert found.spread < 0.5
    assert found.overlap > 0.95


def test_a_moved_head_is_found_on_a_grid_with_thick_slices(fixed):
    moved = rigid_transform([3, 2, -4], [4, 3, -5], [0, 0, 0])
    image = synthetic_head("T2", head_grid((0.8, 0.8, 4.0)), moved=moved)
    found = register(fixed, prepare_image(image))
    assert mean_distance(found.to_moving, moved, fixed.head) < 1.0


def test_mr_is_aligned_with_ct():
    moved = rigid_transform([3, -4, 2], [6, 2, -4], [0, 0, 0])
    fixed = prepare_image(synthetic_head("CT"), CT_WINDOW)
    found = register(fixed, prepare_image(with_header_moved(synthetic_head("T1c"), moved)))
    assert mean_distance(found.to_moving, moved, fixed.head) < 0.75


@pytest.mark.slow
def test_the_same_images_give_the_same_bits(fixed, moving):
    first, second = (refine(fixed, moving, np.eye(4)) for _ in range(2))
    assert first.to_moving.tobytes() == second.to_moving.tobytes()
    assert (first.spread, first.information) == (second.spread, second.information)


def test_information_is_highest_in_place(fixed, moving):
    in_place = mutual_information(fixed, moving, np.eye(4))
    for step in 4 * np.vstack([np.eye(3), -np.eye(3)]):
        assert mutual_information(fixed, moving, rigid_transform([0, 0, 0], step, [0, 0, 0])) < in_place


@pytest.mark.long
def test_noise_is_not_aligned(fixed):
    noise = np.random.default_rng(3).gamma(4, 20, head_grid().shape).astype(np.float32)
    found = register(fixed, prepare_image(Image(noise, head_grid())))
    assert found.spread > 1.0


def test_overlap_counts_the_head_that_is_covered(fixed, moving):
    assert overlap(fixed, moving, np.eye(4)) > 0.99
    assert overlap(fixed, moving, rigid_transform([0, 0, 0], [500, 0, 0], [0, 0, 0])) == 0
    assert mutual_information(fixed, moving, rigid_transform([0, 0, 0], [500, 0, 0], [0, 0, 0])) == 0


# ---- left and right ----------------------------------------------------------------------------------------


def test_mirroring_twice_is_nothing(moving):
    twice = mirror(mirror(moving))
    for mm, level in moving.levels.items():
        assert np.array_equal(level.data, twice.levels[mm].data)
    np.testing.assert_allclose(twice.head, moving.head)


@pytest.mark.long
def test_a_mirrored_image_is_recognized_and_a_straight_one_is_not(fixed):
    image = synthetic_head("FLAIR", moved=rigid_transform([2, -3, 4], [3, 2, 1], [0, 0, 0]))
    straight = prepare_image(image)
    assert not looks_mirrored(fixed, straight, register(fixed, straight))
    flipped = prepare_image(Image(image.data[::-1], image.grid))
    assert looks_mirrored(fixed, flipped, register(fixed, flipped))


# ---- skull -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contrast", ["T1c", "T1", "T2", "FLAIR"])
@pytest.mark.parametrize("stripped", [False, True])
def test_a_skull_is_seen_or_missed(contrast, stripped):
    found = evidence(prepare_image(synthetic_head(contrast, stripped=stripped)))
    assert found.is_stripped is stripped
    assert found.is_clear


def test_a_whole_head_whose_air_was_cleared_is_still_whole():
    image = synthetic_head("T1c")
    data = np.where(image.data < 5, 0, image.data)
    assert not evidence(prepare_image(Image(data, image.grid))).is_stripped


def test_a_skull_is_bright_in_ct():
    bone = 0.8 * (CT_WINDOW[1] - CT_WINDOW[0])
    assert not evidence(prepare_image(synthetic_head("CT"), CT_WINDOW), bone).is_stripped


def test_a_user_may_decide_only_what_the_image_leaves_open():
    found = evidence(prepare_image(synthetic_head("T1c", stripped=True)))
    assert decide_stripped(found, "T1c", None) is True
    assert decide_stripped(found, "T1c", True) is True
    with pytest.raises(ChannelError, match="B40 T1c is skull-stripped, not a whole head"):
        decide_stripped(found, "T1c", False)
    unclear = type(found)(air=0.0, skull=0.02)
    assert decide_stripped(unclear, "T1c", False) is False


# ---- resampling --------------------------------------------------------------------------------------------


def test_resampling_reads_a_linear_function_exactly():
    source = Grid((12, 14, 10), [[2, 0, 0, -9], [0, 1.5, 0, -8], [0, 0, 3, -12], [0, 0, 0, 1]])
    onto = Grid((5, 6, 4), np.diag([1.0, 1, 1, 1]))
    slope = np.array([0.3, -0.7, 0.2])
    values = source.world(np.moveaxis(np.indices(source.shape), 0, -1)) @ slope
    turned = rigid_transform([5, 10, -8], [1, -2, 0.5], [0, 0, 0])
    expected = apply(turned, onto.world(np.moveaxis(np.indices(onto.shape), 0, -1))) @ slope
    np.testing.assert_allclose(resample(values, source, onto, turned), expected, atol=1e-4)


@pytest.mark.parametrize(
    "box", [np.s_[3:5, 6:9, 2:4], np.s_[:4, 10:, 7:], np.s_[:, :, :], np.s_[0:0, 0:0, 0:0]]
)
def test_what_is_mostly_zero_is_resampled_alike(box):
    source = Grid((12, 14, 10), [[2, 0, 0, -9], [0, 1.5, 0, -8], [0, 0, 3, -12], [0, 0, 0, 1]])
    onto = Grid((33, 30, 41), [[-1, 0, 0, 17], [0, 0, 1, -11], [0, 1, 0, -14], [0, 0, 0, 1]])
    values = np.zeros(source.shape, np.float32)
    values[box] = np.random.default_rng(0).random(values[box].shape)
    turned = rigid_transform([5, 10, -8], [1, -2, 0.5], [0, 0, 0])
    whole = resample(values, source, onto, turned)
    assert whole.any() == values.any()
    np.testing.assert_allclose(resample_sparse(values, source, onto, turned), whole, atol=1e-5)


def test_large_voxels_get_the_mean_of_what_lies_in_them():
    source = Grid((24, 20, 42), np.diag([1.0, 1, 1, 1]))
    thick = np.diag([0.5, 0.5, 6, 1.0])
    thick[:3, 3] = [-0.25, -0.25, 2.5]
    onto = Grid((48, 40, 7), thick)
    sheet = np.zeros(source.shape, np.float32)
    sheet[5:19, 6:14, 17:19] = 1  # between the centers of two slices
    assert not resample(sheet, source, onto).any()
    mean = resample_mean(sheet, source, onto)
    assert mean.sum() * onto.voxel_volume == pytest.approx(sheet.sum(), rel=0.02)
    assert mean[20, 20, 2:4] == pytest.approx([1 / 6, 1 / 6], abs=0.01)
    slope = np.array([0.3, -0.1, 0.2])
    ramp = source.world(np.moveaxis(np.indices(source.shape), 0, -1)) @ slope
    inside = onto.world(np.moveaxis(np.indices(onto.shape), 0, -1)) @ slope
    np.testing.assert_allclose(
        resample_mean(ramp, source, onto)[2:-2, 2:-2, 1:-1], inside[2:-2, 2:-2, 1:-1], atol=1e-4
    )
    same = Grid((24, 20, 42), np.diag([1.0, 1, 1, 1]))
    np.testing.assert_array_equal(resample_mean(sheet, source, same), sheet)


def test_invalid_voxels_do_not_leak():
    grid = Grid((8, 8, 8), np.eye(4))
    valid = np.indices(grid.shape)[0] < 4
    values = np.where(valid, 100.0, 0.0)
    half = np.eye(4)
    half[0, 3] = 0.4
    found, seen = resample_valid(values, valid, grid, grid, half)
    np.testing.assert_allclose(found[seen], 100, rtol=1e-6)
    assert seen[:4].all()
    assert not seen[4:].any()


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.9, 1.2, 2.5)])
def test_distances_to_a_mask(spacing):
    mask = np.random.default_rng(3).random((19, 14, 11)) > 0.99
    wanted = distance_transform_edt(~mask, sampling=spacing)
    np.testing.assert_allclose(distance_to(mask, spacing), wanted, atol=1e-5)
    assert np.isposinf(distance_to(np.zeros_like(mask), spacing)).all()
