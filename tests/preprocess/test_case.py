"""From named images to a case: the same for every way of storing them, and interpolated at most once."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_heads import AXES, head_grid, synthetic_head, with_header_moved

from tumoar.geometry.image import HOUNSFIELD_UNIT, Grid, Image
from tumoar.preprocess import case as assemble
from tumoar.preprocess.case import MARGIN, build_case, resample_to_input
from tumoar.preprocess.register import apply, mean_distance, rigid_transform
from tumoar.simulate.orders import ORDERS, stored
from tumoar.vocabulary.errors import ChannelError, GeometryError, UsageError

THICK = (0.75, 0.75, 2.4)


def same(a, b):
    """Whether two cases agree to the last bit in what the model sees."""
    return a.grid == b.grid and a.contrasts == b.contrasts and np.array_equal(a.D, b.D, equal_nan=True)


def index_of(case, image):
    """Where the first voxel of the case lies in an image on the same lattice."""
    return np.rint(image.grid.index(case.grid.affine[:3, 3])).astype(int)


@pytest.fixture(scope="module")
def pair():
    return {"T1c": synthetic_head("T1c"), "FLAIR": synthetic_head("FLAIR")}


@pytest.fixture(scope="module")
def case(pair):
    return build_case(pair)


@pytest.fixture
def interpolations(monkeypatch):
    """The grids of all images that are interpolated onto a case."""
    seen = []
    real = assemble.resample_valid

    def counted(values, valid, grid, onto, to_source):
        seen.append(grid)
        return real(values, valid, grid, onto, to_source)

    monkeypatch.setattr(assemble, "resample_valid", counted)
    return seen


# ---- values ------------------------------------------------------------------------------------------------


def test_images_on_one_millimeter_keep_their_values(pair, case):
    start = index_of(case, pair["T1c"])
    for D, image in zip(case.D, pair.values()):
        inside = np.argwhere(np.isfinite(D))
        np.testing.assert_array_equal(D[tuple(inside.T)], np.log(image.data[tuple((inside + start).T)]))
    assert not any(i.is_interpolated for i in case.inputs)
    assert all(np.array_equal(i.to_reference, np.eye(4)) for i in case.inputs)


def test_the_case_reaches_its_margin_around_the_head(case):
    low, high = case.grid.world([0, 0, 0]), case.grid.world(np.array(case.grid.shape) - 1)
    np.testing.assert_allclose(low, -AXES - MARGIN, atol=3)
    np.testing.assert_allclose(high, AXES + MARGIN, atol=3)


def test_beyond_the_image_nothing_is_said(case, pair):
    inside = pair["T1c"].grid.index(case.grid.world(np.moveaxis(np.indices(case.grid.shape), 0, -1)))
    outside = ((inside < 0) | (inside > np.array(pair["T1c"].grid.shape) - 1)).any(-1)
    assert outside.any()
    assert not case.valid[:, outside].any()


def test_zeros_and_missing_values_are_masked():
    image = synthetic_head("T1c")
    data = image.data.copy()
    data[30, 40, 35], data[31, 40, 35], data[32, 40, 35] = 0, np.nan, -3
    built = build_case({"T1c": Image(data, image.grid)})
    at = np.array([[30, 40, 35], [31, 40, 35], [32, 40, 35], [33, 40, 35]]) - index_of(built, image)
    assert built.valid[0][tuple(at.T)].tolist() == [False, False, False, True]


def test_ct_is_given_in_hounsfield_units_and_is_the_reference():
    built = build_case({"T1c": synthetic_head("T1c"), "CT": synthetic_head("CT")})
    assert built.reference == "CT"
    assert not built.skull_stripped
    ct = built.D[1] * HOUNSFIELD_UNIT
    center = tuple(np.rint(built.grid.index([0.0, -15.0, -8.0])).astype(int))
    assert abs(ct[center] - 36) < 20
    assert np.nanmin(ct) < -950


def test_padding_with_zeros_changes_nothing(record_property):
    image = synthetic_head("T1c", stripped=True)
    expected = build_case({"T1c": image})
    rng = np.random.default_rng(5)
    pads = [((5, 11), (9, 0), (2, 30)), *rng.integers(0, 40, (9, 3, 2)).tolist()]
    for pad in pads:
        affine = image.grid.affine.copy()
        affine[:3, 3] -= np.array(pad)[:, 0]
        data = np.pad(image.data, pad)
        assert same(build_case({"T1c": Image(data, Grid(data.shape, affine))}), expected), pad
    record_property("tried", len(pads))


def test_neck_and_shoulders_of_a_long_scan_are_left_out():
    image = synthetic_head("CT", head_grid((2.0, 2.0, 2.0)))
    data = np.pad(image.data, [(30, 30), (0, 0), (150, 0)], constant_values=-1000)
    neck, shoulders = (
        (slice(40, 58), slice(10, 40), slice(0, 160)),
        (slice(5, 93), slice(5, 40), slice(0, 40)),
    )
    data[neck] = data[shoulders] = 40
    affine = image.grid.affine.copy()
    affine[[0, 2], 3] -= [60, 300]
    built = build_case({"CT": Image(data, Grid(data.shape, affine))})
    width, _, height = built.grid.shape
    assert height <= assemble.TALLEST + 2 * MARGIN + 2
    assert width <= 2 * (AXES[0] + MARGIN) + 4


# ---- storage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spacing", "orders"),
    [
        pytest.param((1.0, 1.0, 1.0), ORDERS[::11], id="1 mm, few"),
        pytest.param((1.0, 1.0, 1.0), ORDERS, id="1 mm", marks=pytest.mark.slow),
        pytest.param(THICK, ORDERS[3::8], id="thick", marks=pytest.mark.slow),
    ],
)
def test_all_storage_orders_give_the_same_case(spacing, orders, record_property):
    image = synthetic_head("T1c", head_grid(spacing))
    expected = build_case({"T1c": image})
    for axes, flips in orders:
        built = build_case({"T1c": stored(image, axes, flips)})
        assert same(built, expected), (axes, flips)
    record_property("tried", len(orders))


def test_storage_orders_of_several_images_may_differ(case, pair):
    turned = {name: stored(image, *order) for (name, image), order in zip(pair.items(), ORDERS[13::20])}
    built = build_case(turned)
    assert same(built, case)
    assert built.inputs[0].orientation != "RAS"


@pytest.mark.long
def test_the_same_images_give_the_same_bits():
    images = {
        "T1c": synthetic_head("T1c"),
        "T2": synthetic_head("T2", head_grid(THICK), moved=rigid_transform([2, 3, 1], [1, 4, 2], [0, 0, 0])),
    }
    first, second = build_case(images), build_case(images)
    assert same(first, second)
    assert first.input("T2").to_reference.tobytes() == second.input("T2").to_reference.tobytes()


# ---- places ------------------------------------------------------------------------------------------------


def test_each_image_is_interpolated_once_if_at_all(interpolations):
    thick = head_grid(THICK)
    build_case({"T1c": synthetic_head("T1c"), "FLAIR": synthetic_head("FLAIR", thick)})
    assert [g.shape for g in interpolations] == [thick.shape]


def test_a_displaced_image_is_brought_back_and_the_way_is_recorded(case):
    moved = rigid_transform([4, -5, 3], [6, 8, -5], [0, 0, 0])
    built = build_case(
        {"T1c": synthetic_head("T1c"), "FLAIR": with_header_moved(synthetic_head("FLAIR"), moved)}
    )
    flair = built.input("FLAIR")
    points = np.random.default_rng(0).uniform(-25, 25, (500, 3))
    assert mean_distance(flair.to_reference, np.linalg.inv(moved), points) < 0.5
    assert flair.is_interpolated
    assert flair.figures["spread"] < 1
    both = built.valid[1] & case.valid[1]
    assert np.corrcoef(built.D[1][both], case.D[1][both])[0, 1] > 0.95


def test_values_go_back_to_the_voxels_of_an_input():
    moved = rigid_transform([0, 0, 10], [5, -3, 2], [0, 0, 0])
    image = with_header_moved(synthetic_head("T2", head_grid(THICK)), moved)
    built = build_case({"T1c": synthetic_head("T1c"), "T2": image})
    given = built.input("T2")
    world = built.grid.world(np.moveaxis(np.indices(built.grid.shape), 0, -1))
    ramp = resample_to_input(world[..., 0] + 100, built, "T2")
    assert ramp.shape == image.grid.shape
    expected = apply(given.to_reference, image.grid.world([[50, 50, 15], [40, 60, 18]]))[:, 0] + 100
    np.testing.assert_allclose(ramp[[50, 40], [50, 60], [15, 18]], expected, atol=1e-3)


def test_headers_that_are_wrong_are_refused_if_nothing_may_move():
    moved = rigid_transform([0, 0, 0], [0, 7, 0], [0, 0, 0])
    images = {"T1c": synthetic_head("T1c"), "FLAIR": with_header_moved(synthetic_head("FLAIR"), moved)}
    with pytest.raises(GeometryError, match="E4-B35 FLAIR is misaligned with T1c by 7 mm"):
        build_case(images, register=False)


def test_headers_that_are_right_are_kept_if_nothing_may_move(pair, case):
    assert same(build_case(pair, register=False), case)


def test_frames_of_reference_are_believed_or_set_right():
    flair = synthetic_head("FLAIR", head_grid(THICK, frame="1.2"))
    together = build_case({"T1c": synthetic_head("T1c", head_grid(frame="1.2")), "FLAIR": flair})
    assert np.array_equal(together.input("FLAIR").to_reference, np.eye(4))
    apart = {"T1c": synthetic_head("T1c", head_grid(frame="1.3")), "FLAIR": flair}
    assert any(note.id == "B33" for note in build_case(apart).notes)
    with pytest.raises(GeometryError, match="B33"):
        build_case(apart, register=False)


def test_a_mirrored_channel_is_refused(pair):
    flair = pair["FLAIR"]
    with pytest.raises(GeometryError, match="E4-B36 FLAIR looks left-right mirrored relative to T1c"):
        build_case({"T1c": pair["T1c"], "FLAIR": Image(flair.data[::-1], flair.grid)})


# ---- channels ----------------------------------------------------------------------------------------------


def test_flair_squared_is_the_product_on_the_common_grid(pair):
    flair, t2 = pair["FLAIR"], synthetic_head("T2")
    built = build_case({"FLAIR2": (flair, t2)})
    assert [c.name for c in built.contrasts] == ["FLAIR2"]
    assert [i.name for i in built.inputs] == ["FLAIR", "T2"]
    at = built.grid.index([[0, 0, 0], [5, -8, 12], [13, 9, -4]]).astype(int)
    expected = np.log(flair.data * t2.data)[tuple((at + index_of(built, flair)).T)]
    np.testing.assert_allclose(built.D[0][tuple(at.T)], expected, rtol=1e-5)


def test_flair_squared_does_not_come_with_its_factors(pair):
    images = {"FLAIR": pair["FLAIR"], "FLAIR2": (pair["FLAIR"], synthetic_head("T2"))}
    with pytest.raises(ChannelError, match="E5-B30 FLAIR2 is computed from FLAIR and T2"):
        build_case(images)


def test_an_image_given_twice_is_refused(pair):
    with pytest.raises(ChannelError, match="E5-B30 T1c and T2 are the same image"):
        build_case({"T1c": pair["T1c"], "T2": pair["T1c"]})


def test_ct_given_as_mr_is_refused():
    with pytest.raises(ChannelError, match="E5-B27"):
        build_case({"T1c": synthetic_head("CT")})


def test_a_contrast_may_come_more_than_once_under_a_number(pair):
    built = build_case({"other": pair["T1c"], "OTHER-2": pair["FLAIR"]})
    assert [c.name for c in built.contrasts] == ["other", "other"]
    assert [i.name for i in built.inputs] == ["other", "other-2"]
    with pytest.raises(UsageError, match="T1c is given twice"):
        build_case({"T1c": pair["T1c"], "t1c": pair["FLAIR"]})


def test_the_order_of_images_does_not_set_the_reference(pair):
    turned = build_case({"FLAIR": pair["FLAIR"], "T1": pair["T1c"]})
    straight = build_case({"T1": pair["T1c"], "FLAIR": pair["FLAIR"]})
    assert turned.reference == straight.reference == "T1"
    assert np.array_equal(turned.D[::-1], straight.D, equal_nan=True)


@pytest.mark.parametrize(
    ("images", "options"),
    [({}, {}), ({"T1c": "image"}, {"reference": "CT"}), ({"T1x": "image"}, {}), ({"T2": "pair"}, {})],
)
def test_nonsense_is_refused(pair, images, options):
    kinds = {"image": pair["T1c"], "pair": (pair["T1c"], pair["FLAIR"])}
    with pytest.raises(UsageError):
        build_case({name: kinds[kind] for name, kind in images.items()}, **options)


# ---- skull -------------------------------------------------------------------------------------------------


def test_the_skull_is_looked_for_and_the_user_not_believed_against_the_image():
    whole, stripped = synthetic_head("T1c"), synthetic_head("T1c", stripped=True)
    assert not build_case({"T1c": whole}).skull_stripped
    assert build_case({"T1c": stripped}).skull_stripped
    with pytest.raises(ChannelError, match="E5-B40"):
        build_case({"T1c": whole}, skull_stripped=True)
    with pytest.raises(ChannelError, match="E5-B40"):
        build_case({"T1c": stripped}, skull_stripped=False)


def test_one_skull_stripped_image_makes_the_case_so(pair):
    built = build_case({"T1c": pair["T1c"], "FLAIR": synthetic_head("FLAIR", stripped=True)})
    assert built.skull_stripped
    assert any((note.id, note.where) == ("B40", "FLAIR") for note in built.notes)


# ---- patients ----------------------------------------------------------------------------------------------

FILES = {"T1c": "t1c", "T1": "t1", "T2": "t2", "FLAIR": "flair"}


def patient_case(folder, *names):
    from tumoar.io.nifti import read_nifti

    images = {name: read_nifti(folder / f"{FILES[name]}.nii.gz") for name in names or FILES}
    return images, build_case(images)


@pytest.mark.shared
@pytest.mark.long
@pytest.mark.parametrize("patient", ["BraTS2021_00006", "BraTS2021_01485", "BraTS-GLI-00000-000"])
def test_co_registered_patients_keep_their_values(shared_data, patient):
    images, case = patient_case(shared_data / "patients" / patient)
    assert case.skull_stripped
    assert case.notes == ()
    assert [i.orientation for i in case.inputs] == ["LPS"] * 4
    for D, image in zip(case.D, images.values()):
        assert np.array_equal(
            np.sort(D[np.isfinite(D)]), np.sort(np.log(image.data[image.data > 0], dtype=np.float32))
        )


@pytest.mark.shared
@pytest.mark.long
def test_a_whole_head_with_thick_slices_becomes_a_case(shared_data):
    _, case = patient_case(shared_data / "patients" / "TCGA-02-0054")
    assert not case.skull_stripped
    assert [note.id for note in case.notes] == ["B20"] * 4
    np.testing.assert_allclose(case.grid.spacing, 1)
    assert all(i.figures["offset"] < 3 and i.figures["spread"] < 1 for i in case.inputs[1:])
