"""Each check refuses or notes what it is for, and leaves a good image alone."""

from __future__ import annotations

import numpy as np
import pytest
from nifti_files import SHAPE, head
from numpy.testing import assert_array_equal

from tumoar.geometry.image import Grid, Image
from tumoar.preprocess import quality
from tumoar.preprocess.quality import check_distinct, check_image, guess_kind
from tumoar.vocabulary.errors import ChannelError

BRAIN = head() > 100
GRID = Grid(SHAPE, np.eye(4))


def mr():
    return Image(head(dtype=np.float32), GRID)


def ct(dtype=np.int16, seed=0):
    rng = np.random.default_rng(seed)
    return Image(np.where(BRAIN, rng.normal(35, 15, SHAPE), -1000).astype(dtype), GRID)


def changed(image, where, value):
    data = image.data.copy()
    data[where] = value
    return Image(data, image.grid)


def some(share, seed=0):
    """A random part of the brain."""
    return BRAIN & (np.random.default_rng(seed).random(SHAPE) < share)


def refusal(image, **options):
    with pytest.raises(ChannelError) as stop:
        check_image(image, "FLAIR", **{"kind": "MR", "brain": BRAIN, **options})
    assert stop.value.exit_code == 5
    return str(stop.value)


def notes(image, **options):
    return [str(n) for n in check_image(image, "FLAIR", **{"kind": "MR", "brain": BRAIN, **options})]


@pytest.mark.parametrize("brain", [BRAIN, None], ids=["brain", "whole"])
def test_good_images_pass_without_a_word(brain):
    assert notes(mr(), brain=brain) == []
    assert notes(ct(), kind="CT", brain=brain) == []
    assert notes(ct(np.float32), kind="CT", brain=brain) == []


@pytest.mark.parametrize("shape", [(256, 256, 1), (31, 64, 64), (64, 64, 15)])
def test_too_few_voxels(shape):
    image = Image(head(shape), Grid(shape, np.diag([1, 1, 1.5, 1])))
    assert refusal(image, brain=None).startswith("E5-B19 FLAIR is too small | found: ")


@pytest.mark.parametrize(
    ("shape", "thickness"), [((32, 32, 32), 1.0), ((64, 64, 16), 6.0), ((64, 64, 24), 4.0)]
)
def test_just_enough_voxels(shape, thickness):
    grid = Grid(shape, np.diag([1, 1, thickness, 1]))
    quality.check_size(grid, "FLAIR")
    assert quality.note_thickness(grid) == []


def test_a_stack_of_thick_slices_is_large_enough_and_noted():
    shape = (64, 64, 23)
    image = Image(head(shape), Grid(shape, np.diag([1, 1, 6.5, 1])))
    assert notes(image, brain=None) == ["B20 thick slices: 6.5 mm"]


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e35])
def test_values_beyond_single_precision_are_refused(scale):
    data = np.random.default_rng(0).uniform(0, 1, (40, 40, 40)) * scale
    with pytest.raises(ChannelError, match="are not intensities"):
        quality.check_finite(data, "T1c")


def test_missing_values():
    assert notes(changed(mr(), ~BRAIN, np.nan)) == []
    assert notes(changed(mr(), some(0.03), np.inf))[0].startswith("B22 no value in 2.8 % of the brain")
    assert refusal(changed(mr(), some(0.1), np.nan)).startswith("E5-B22 FLAIR has no value in")
    assert notes(changed(mr(), ~BRAIN, np.nan), brain=None)[0].endswith("of the image: masked")
    assert refusal(changed(mr(), BRAIN | ~BRAIN, np.nan), brain=None).startswith("E5-B22")


@pytest.mark.parametrize("value", [0, 7])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_no_signal(value, dtype):
    image = Image(np.full(SHAPE, value, dtype), GRID)
    assert refusal(image) == f"E5-B23 no signal in FLAIR | found: {value} everywhere | do: give another image"


def test_no_signal_beside_missing_values():
    image = changed(Image(np.full(SHAPE, 7, np.float32), GRID), ~BRAIN, np.nan)
    assert refusal(image, brain=None).startswith("E5-B23 no signal in FLAIR | found: 7 everywhere")


def test_no_signal_in_the_brain():
    assert refusal(changed(mr(), BRAIN, 0)).startswith("E5-B23")


@pytest.mark.parametrize("value", [0, -3])
def test_zeros_and_negatives_in_the_brain(value):
    assert "is zero or negative in" in refusal(changed(mr(), some(0.12), value))
    share = some(0.06).sum() / BRAIN.sum()
    assert f"is zero or negative in {100 * share:.2g} %" in refusal(changed(mr(), some(0.06), value))
    check_image(changed(mr(), some(0.045), value), "FLAIR", "MR", brain=BRAIN)


def test_without_a_brain_zeros_are_background_and_negatives_are_not():
    stripped = changed(mr(), ~BRAIN, 0)
    assert notes(stripped, brain=None) == []
    assert refusal(changed(stripped, some(0.12), -3), brain=None).startswith("E5-B24 FLAIR is negative in")


def test_few_negatives_are_counted():
    image = changed(mr(), (17, 18, slice(18, 21)), -2)
    assert notes(image) == ["B25 3 negative voxels: masked"]


def test_saturation():
    image = changed(mr(), some(0.1), 4095)
    assert notes(image)[0].startswith("B26 saturated: ")


def test_ct_as_mr_and_mr_as_ct():
    assert refusal(ct()).startswith("E5-B27 FLAIR looks like CT | found: values -1000…")
    assert refusal(mr(), kind="CT").startswith("E5-B27 FLAIR does not look like CT in Hounsfield units")
    shifted = Image((ct().data + 1024).astype(np.uint16), GRID)
    assert refusal(shifted, kind="CT").startswith("E5-B27")


def test_a_skull_stripped_ct_is_a_ct():
    assert notes(changed(ct(), ~BRAIN, 0), kind="CT") == []


@pytest.mark.parametrize("scale", [0.005, 0.2, 1])
def test_a_skull_stripped_mr_is_no_ct(scale):
    stripped = changed(mr(), ~BRAIN, 0)
    assert refusal(Image(stripped.data * np.float32(scale), GRID), kind="CT").startswith("E5-B27")


def test_air_alone_makes_no_ct():
    """Large negative and positive values, nothing where soft tissue is."""
    data = np.where(BRAIN, head() + 500, -head() - 5000)
    assert not quality.has_air(data)
    assert not quality.has_air(-np.abs(data))


def test_metal_on_ct():
    image = changed(ct(), (17, 18, slice(18, 21)), 3071)
    assert notes(image, kind="CT") == ["B28 3 voxels at 3071 HU or above: clipped"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.float32, np.int64])
@pytest.mark.parametrize("kind", ["MR", "CT"])
def test_a_label_map_is_no_image(dtype, kind):
    labels = np.random.default_rng(0).integers(0, 60, SHAPE).astype(dtype)
    assert "E5-B29 FLAIR looks like a label map" in refusal(Image(labels, GRID), kind=kind, brain=None)
    assert guess_kind(labels) == "labels"
    assert notes(Image(labels, GRID), kind="labels", brain=None) == []
    assert guess_kind(np.random.default_rng(0).integers(0, 62, SHAPE).astype(dtype)) == "MR"


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_labels_over_the_whole_range_of_a_type(dtype):
    ends = np.where(BRAIN, np.iinfo(dtype).max, np.iinfo(dtype).min).astype(dtype)
    assert quality.is_label_map(ends)


def test_an_image_scaled_to_one_is_no_label_map():
    scaled = (head() / 700).astype(np.float32)
    assert guess_kind(scaled) == "MR"
    assert guess_kind((scaled * 20).round() / 20) == "MR"


def test_few_but_far_labels():
    assert quality.is_label_map(np.where(BRAIN, 10**6, 3))
    assert not quality.is_label_map(np.random.default_rng(0).integers(0, 10**6, SHAPE))


def test_kinds():
    assert (guess_kind(mr().data), guess_kind(ct().data)) == ("MR", "CT")


@pytest.mark.parametrize("brain", [BRAIN, None])
def test_the_same_image_twice(brain):
    flair, t2 = mr().data, head(seed=1)
    check_distinct({"FLAIR": flair, "T2": t2}, brain)
    with pytest.raises(ChannelError, match=r"^E5-B30 T2 and FLAIR are the same image"):
        check_distinct({"T1": t2, "T2": flair * 2 + 5, "FLAIR": flair}, brain)


def test_flair_squared_needs_one_of_its_factors_left_out():
    images = {name: head(seed=n) for n, name in enumerate(("FLAIR", "T2", "FLAIR2"))}
    with pytest.raises(ChannelError, match=r"^E5-B30 FLAIR2 adds nothing to FLAIR and T2"):
        check_distinct(images)
    check_distinct({name: images[name] for name in ("FLAIR2", "T2")})


def test_the_sentence_names_the_file():
    image = Image(np.zeros(SHAPE, np.int16), GRID, "t2.nii.gz")
    assert "| file: t2.nii.gz |" in refusal(image)


def test_nothing_is_changed():
    image = mr()
    before = image.data.copy()
    notes(image)
    assert_array_equal(image.data, before)
