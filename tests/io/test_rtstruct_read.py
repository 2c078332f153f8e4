"""Structure sets of others: contours mean what the standard says, or are refused."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom import Dataset
from pydicom.dataelem import RawDataElement
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from rt_files import contour_set, save, write_contours

from tumoar.geometry.contours import cut_outline, fill_contours
from tumoar.geometry.image import Grid
from tumoar.io.rtstruct import read_rtstruct
from tumoar.vocabulary.errors import GeometryError, ResourceError, TumoarError, UnreadableFileError

SQUARE = np.array([[0, 0, 0], [10, 0, 0], [10, 10, 0], [0, 10, 0.0]])
HEIGHTS = (0.0, 2.0, 4.0)
GRID = Grid((40, 40, 3), np.diag([1.0, 1.0, 2.0, 1.0]) + np.array([[0, 0, 0, -9.5]] * 2 + [[0] * 4] * 2))
CONTOUR_DATA = Tag("ContourData")


def tube(*polygons, heights=HEIGHTS):
    return [p + np.array([0, 0, z]) for z in heights for p in polygons]


def volume(path, name="X"):
    """cm³ of a structure between its outermost planes, and of the same on voxels; notes on the way."""
    read = read_rtstruct(path)
    outline = next(o for o in read.outlines if o.name == name)
    cut = cut_outline(outline).volumes.sum() / 4
    voxels = fill_contours(outline, GRID).sum() / 3
    assert voxels == pytest.approx(cut, rel=0.02)
    return cut, read.notes


def edited(tmp_path, edit, structures=None):
    data = contour_set({"X": tube(SQUARE)} if structures is None else structures, "1.5")
    edit(data)
    return save(data, tmp_path / "RS.dcm")


# ---- which contours belong together ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "again",
    [
        SQUARE,
        SQUARE[::-1],
        np.roll(SQUARE, 1, axis=0),
        SQUARE + 0.01,
        np.concatenate([SQUARE, SQUARE[:1]]),
        np.insert(SQUARE, 1, [5.0, 0.0, 0.0], axis=0),
        SQUARE + np.array([0, 0, 0.04]),
        np.concatenate([SQUARE, SQUARE]),
    ],
    ids=[
        "same",
        "backwards",
        "other start",
        "rounded",
        "closed",
        "more points",
        "near plane",
        "twice in one",
    ],
)
def test_contours_given_twice_count_once(tmp_path, again):
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(SQUARE, again)}, "1.5")
    found, notes = volume(path)
    assert found == pytest.approx(100, rel=0.01)
    assert any("3 contours of X are duplicates and counted once" in note for note in notes)


def test_a_contour_that_runs_around_twice_counts_once(tmp_path):
    for turns in (2, 3, 4):
        path = write_contours(tmp_path / "RS.dcm", {"X": tube(np.concatenate([SQUARE] * turns))}, "1.5")
        found, notes = volume(path)
        assert found == pytest.approx(100, rel=0.01)
        assert notes == ("3 contours of X were traced twice and counted once",)


def test_three_times_the_same_is_no_hole_and_no_island(tmp_path):
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(SQUARE, SQUARE, SQUARE)}, "1.5")
    found, notes = volume(path)
    assert found == pytest.approx(100, rel=0.01)
    assert notes == ("6 contours of X are duplicates and counted once",)


@pytest.mark.parametrize(("shift", "union"), [((5, 5, 0), 175), ((5, 0, 0), 150), ((9, 9, 0), 199)])
def test_contours_that_cross_are_united(tmp_path, shift, union):
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(SQUARE, SQUARE + np.array(shift, float))}, "1.5")
    found, notes = volume(path)
    assert found == pytest.approx(union, rel=0.01)
    assert notes == ("contours of X cross each other in 3 planes: their union was taken",)


def test_a_contour_within_another_is_a_hole(tmp_path):
    hole, island = SQUARE * 0.6 + [2, 2, 0], SQUARE * 0.2 + [4, 4, 0]
    for polygons, expected in (((SQUARE, hole), 64), ((SQUARE, hole, island), 68), ((hole, SQUARE), 64)):
        path = write_contours(tmp_path / "RS.dcm", {"X": tube(*polygons)}, "1.5")
        found, notes = volume(path)
        assert found == pytest.approx(expected, rel=0.01)
        assert notes == ()


def test_a_hole_that_is_repeated_stays_a_hole(tmp_path):
    hole = SQUARE * 0.6 + [2, 2, 0]
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(SQUARE, hole, SQUARE, hole)}, "1.5")
    assert volume(path)[0] == pytest.approx(64, rel=0.01)


def test_a_hole_along_its_wall_is_a_hole(tmp_path):
    hole = SQUARE * 0.5  # shares a corner and two sides
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(SQUARE, hole)}, "1.5")
    assert volume(path) == (pytest.approx(75, rel=0.02), ())


def test_a_keyhole_is_a_hole(tmp_path):
    hole = SQUARE * 0.6 + [2, 2, 0]
    for inner in (hole, hole[::-1]):
        start = inner[:1]
        keyhole = np.concatenate([SQUARE, SQUARE[:1], inner, start])
        path = write_contours(tmp_path / "RS.dcm", {"X": tube(keyhole)}, "1.5")
        assert volume(path) == (pytest.approx(64, rel=0.02), ())


def test_a_thin_shell_is_a_shell(tmp_path):
    """Skin of 1 mm around 200 mm: a hole of 98 % of the area is no repetition."""
    outer, inner = SQUARE * 2.0, SQUARE * 1.9 + [0.5, 0.5, 0]
    path = write_contours(tmp_path / "RS.dcm", {"X": tube(outer, inner)}, "1.5")
    assert volume(path) == (pytest.approx(400 - 361, rel=0.03), ())


def test_parts_side_by_side_are_both_there(tmp_path):
    for shift in (20.0, 10.0):
        parts = SQUARE, SQUARE + np.array([shift, 0, 0])
        path = write_contours(tmp_path / "RS.dcm", {"X": tube(*parts)}, "1.5")
        assert volume(path) == (pytest.approx(200, rel=0.01), ())


def test_exclusive_contours_exclude_one_another_where_they_cross(tmp_path):
    for other, expected in ((SQUARE + np.array([5, 0, 0]), 100), (SQUARE * 0.6 + [2, 2, 0], 64)):
        data = contour_set({"X": tube(SQUARE, other)}, "1.5", "CLOSEDPLANAR_XOR")
        assert volume(save(data, tmp_path / "RS.dcm")) == (pytest.approx(expected, rel=0.02), ())


def test_exclusive_contours_given_twice_are_refused(tmp_path):
    data = contour_set({"X": tube(SQUARE, SQUARE)}, "1.5", "CLOSEDPLANAR_XOR")
    outline = read_rtstruct(save(data, tmp_path / "RS.dcm")).outlines[0]
    for use in (cut_outline, lambda o: fill_contours(o, GRID)):
        with pytest.raises(GeometryError, match="would cancel each other"):
            use(outline)


def test_contours_on_another_series_keep_their_volume(tmp_path):
    """Planes 6 mm apart beside planes 2 mm apart: the space between is not lost."""
    structures = {"X": tube(SQUARE, heights=np.arange(0, 25, 6.0)), "fine": tube(SQUARE)}
    read = read_rtstruct(write_contours(tmp_path / "RS.dcm", structures, "1.5"))
    assert cut_outline(read.outlines[0]).volumes.sum() == pytest.approx(2400, rel=0.01)
    assert read.notes == (
        "contours of X are 6 mm apart, those of other structures 2 mm: the space between them was filled",
    )


def test_a_stray_plane_does_not_thin_the_others(tmp_path):
    structures = {"X": tube(SQUARE, heights=[0, 2, 2.1, 4, 6, 8]), "Y": tube(SQUARE, heights=[0, 0.1])}
    outline = read_rtstruct(write_contours(tmp_path / "RS.dcm", structures, "1.5")).outlines[0]
    assert cut_outline(outline).volumes.sum() == pytest.approx(800, rel=0.01)


def test_gaps_stay_empty_and_are_noted(tmp_path):
    structures = {"X": tube(SQUARE, heights=[0, 2, 4, 20, 22])}
    read = read_rtstruct(write_contours(tmp_path / "RS.dcm", structures, "1.5"))
    assert read.notes == ("contours of X leave gaps of up to 16 mm, which stay empty",)


# ---- what is no volume -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("polygon", "what"),
    [
        (SQUARE[:1], "3 contours without area of X were not used"),
        (SQUARE[:2], "3 contours without area of X were not used"),
        (np.repeat(SQUARE[:1], 4, axis=0), "3 contours without area of X were not used"),
        (np.array([[0, 0, 0], [5, 0, 0], [10, 0, 0.0]]), "3 contours without area of X were not used"),
        (np.array([[0, 0, 0], [5, 5, 0], [10, 10, 0], [3, 3, 0.0]]), "3 contours without area of X"),
        (np.concatenate([SQUARE, SQUARE[::-1]]), "3 contours without area of X were not used"),
        (np.zeros((0, 3)), "3 contours without area of X were not used"),
    ],
    ids=["point", "pair", "point-like", "collinear", "oblique line", "there and back", "nothing"],
)
def test_contours_without_area_are_noted(tmp_path, polygon, what):
    structures = {"X": tube(SQUARE + np.array([30, 0, 0]), polygon) if len(polygon) else tube(SQUARE)}
    data = contour_set(structures, "1.5")
    if not len(polygon):
        for _ in range(3):
            empty = Dataset()
            empty.ContourGeometricType, empty.NumberOfContourPoints = "CLOSED_PLANAR", 0
            data.ROIContourSequence[0].ContourSequence.append(empty)
    read = read_rtstruct(save(data, tmp_path / "RS.dcm"))
    assert cut_outline(read.outlines[0]).volumes.sum() == pytest.approx(400, rel=0.01)
    assert [note for note in read.notes if note.startswith(what)]
    alone = read_rtstruct(edited(tmp_path, lambda d: None, {"X": [polygon] if len(polygon) else []}))
    assert alone.outlines == ()


def test_contours_that_cross_themselves_have_an_area(tmp_path):
    bow = SQUARE[[0, 2, 1, 3]]  # turns as much one way as the other
    read = read_rtstruct(write_contours(tmp_path / "RS.dcm", {"X": tube(bow)}, "1.5"))
    assert cut_outline(read.outlines[0]).volumes.sum() == pytest.approx(200, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("POINT", "point"), ("OPEN_PLANAR", "open contour"), ("OPEN_NONPLANAR", "open contour")],
)
def test_points_and_open_contours_are_noted(tmp_path, kind, what):
    def edit(data):
        for contour in data.ROIContourSequence[0].ContourSequence[:2]:
            contour.ContourGeometricType = kind

    read = read_rtstruct(edited(tmp_path, edit, {"X": tube(SQUARE), "Y": tube(SQUARE)}))
    assert f"2 {what}s of X were not used" in read.notes
    assert [o.is_whole for o in read.outlines] == [kind == "POINT", True]


# ---- what contradicts itself -------------------------------------------------------------------------------


def roi(data, n=0):
    return data.StructureSetROISequence[n]


def item(data, n=0):
    return data.ROIContourSequence[n]


def contour(data, n=0):
    return data.ROIContourSequence[0].ContourSequence[n]


def put(data, text):
    contour(data)[CONTOUR_DATA] = RawDataElement(CONTOUR_DATA, "DS", len(text), text, 0, False, True)


def rename(data):
    roi(data, 1).ROIName = "X "


def renumber(data):
    roi(data, 1).ROINumber = 1


def refer(data):
    item(data, 1).ReferencedROINumber = 9


def refer_twice(data):
    item(data, 1).ReferencedROINumber = 1


def unname(data):
    roi(data).ROIName = ""


def unnumber(data):
    del item(data).ReferencedROINumber


def count(data):
    contour(data).NumberOfContourPoints = 5


def mistype(data):
    contour(data).ContourGeometricType = "ROUND"


def untype(data):
    del contour(data).ContourGeometricType


def mix(data):
    contour(data).ContourGeometricType = "CLOSEDPLANAR_XOR"


def offset(data):
    contour(data).ContourOffsetVector = [0, 0, 3]


def frames(data):
    roi(data, 1).ReferencedFrameOfReferenceUID = "1.6"


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (rename, "two structures have the name X"),
        (renumber, "structure number 1 appears twice"),
        (refer, "structure number 9, which the file does not list"),
        (refer_twice, "structure number 1 appears twice"),
        (unname, "structure number 1 has contours but no name"),
        (unnumber, "a structure without a number"),
        (count, "a contour of X with 4 points that claims 5"),
        (mistype, "a contour of X of unknown type"),
        (untype, "a contour of X of unknown type"),
        (mix, "contours of X are of both types"),
        (offset, "are shifted by a Contour Offset Vector"),
        (frames, "different frames of reference"),
        (lambda d: put(d, rb"0\0\0\10\0\0\10\10 "), "with 8 coordinates, not three per point"),
        (lambda d: put(d, rb"0\0\0\10\0\0\nan\10\0\0\0\0"), "coordinates that are not numbers"),
        (lambda d: put(d, rb"0\0\0\10\0\0\inf\10\0\0\0\0"), "coordinates that are not numbers"),
        (lambda d: put(d, rb"0\0\0\10\0\0\1_0\10\0\0\0\0"), "coordinates that are not numbers"),
        (lambda d: put(d, rb"0\0\0\10\0\0\1-1\10\0\0\0\0"), "coordinates that are not numbers"),
        (lambda d: put(d, rb"0\0\0\10\0\0\\10\0\0\0\0"), "coordinates that are not numbers"),
        (lambda d: put(d, rb"0\0\0\10\0\0\1e300\10\0\0\0\0 "), "outside any scanner"),
        (lambda d: put(d, rb"0\0\0\10\0\0\1e999\10\0\0\0\0 "), "outside any scanner"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path, edit, sentence):
    path = edited(tmp_path, edit, {"X": tube(SQUARE), "Y": tube(SQUARE)})
    with pytest.raises(TumoarError) as refusal:
        read_rtstruct(path)
    assert sentence in str(refusal.value)
    assert refusal.value.id in ("rtstruct", "B33")
    assert "do: " in str(refusal.value)


def test_names_of_structures_without_contours_do_not_matter(tmp_path):
    path = edited(tmp_path, rename, {"X": tube(SQUARE), "Y": []})
    assert [o.name for o in read_rtstruct(path).outlines] == ["X"]


def test_a_frame_of_reference_may_be_absent(tmp_path):
    def edit(data):
        del roi(data).ReferencedFrameOfReferenceUID

    assert read_rtstruct(edited(tmp_path, edit)).frame is None


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "RS.dcm")
    for path in (tmp_path / "RS.dcm", "/dev/zero", tmp_path):
        with pytest.raises(UnreadableFileError, match="cannot read the structure set"):
            read_rtstruct(path)


# ---- size --------------------------------------------------------------------------------------------------


def circle(points, radius=50.0):
    angle = np.linspace(0, 2 * np.pi, points + 1)[:-1]
    return radius * np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)


def written(tmp_path, polygons):
    data = contour_set({"X": []}, "1.5")
    for polygon in polygons:
        text = "\\".join(f"{v:.4f}" for v in (polygon * [-1, -1, 1]).ravel()).encode()
        text += b" " * (len(text) % 2)
        single = Dataset()
        single.ContourGeometricType = "CLOSED_PLANAR"
        single[CONTOUR_DATA] = RawDataElement(CONTOUR_DATA, "UN", len(text), text, 0, False, True)
        item(data).ContourSequence.append(single)
    data.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2"  # implicit: without a bound of 64 kB
    for single in item(data).ContourSequence:
        raw = single.get_item(CONTOUR_DATA)
        single[CONTOUR_DATA] = RawDataElement(CONTOUR_DATA, "DS", raw.length, raw.value, 0, True, True)
    data.save_as(tmp_path / "RS.dcm", enforce_file_format=True, implicit_vr=True, little_endian=True)
    return tmp_path / "RS.dcm"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("polygons", "expected"),
    [
        ([circle(100_000) + np.array([0, 0, z]) for z in (0, 2, 4)], np.pi * 2500 * 4),
        (
            [
                circle(10, 2.0) + np.array([x * 6, y * 6, z])
                for z in range(0, 30, 2)
                for x in range(20)
                for y in range(20)
            ],
            400 * 28 * 10 * 2 * np.sin(np.pi / 5),
        ),
    ],
    ids=["300,000 points", "6,000 contours"],
)
def test_large_structures_take_seconds(tmp_path, polygons, expected):
    path = written(tmp_path, polygons)
    begin = time.process_time()
    read = read_rtstruct(path)
    assert cut_outline(read.outlines[0]).volumes.sum() == pytest.approx(expected, rel=0.02)
    assert time.process_time() - begin < 60
    assert read.notes == ()


@pytest.mark.parametrize(
    "polygons",
    [
        [np.random.default_rng(0).uniform(0, 300, (20_000, 3)) * [1, 1, 0] + [0, 0, z] for z in (0, 2)],
        [circle(8, 5 + n / 50) for n in range(3_000)],
        [SQUARE + np.array([0, 0, 0.1 * n]) for n in range(6_000)],
    ],
    ids=["2000 m in a plane", "thousands within one another", "600 m of planes"],
)
def test_what_is_beyond_reason_is_refused(tmp_path, polygons):
    read = read_rtstruct(written(tmp_path, polygons))
    with pytest.raises(ResourceError, match="contours of X are not plausible"):
        cut_outline(read.outlines[0])


# ---- anything ----------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from(
    ["0", "1", "-3.5", "1e3", "10", "20", "nan", "inf", "", "x", "1e308", " 7", "1_0", "9" * 20]
)
POINT = st.tuples(NUMBERS, NUMBERS, st.sampled_from(["0", "2", "4", "1e9"]))
PLAIN = st.tuples(
    st.integers(-30, 30).map(str), st.integers(-30, 30).map(str), st.sampled_from(["0", "2", "4", "6"])
)
CONTOUR = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            [*["CLOSED_PLANAR"] * 6, "CLOSEDPLANAR_XOR", "POINT", "OPEN_PLANAR", "", "closed"]
        ),
        "points": st.lists(PLAIN, max_size=8) | st.lists(POINT, max_size=5),
        "extra": st.sampled_from([0, 0, 0, 0, 1, 2]),
        "claimed": st.sampled_from([None, None, "right", "right", 0, -1, 99]),
    }
)
SAME_HEIGHT = CONTOUR.map(lambda c: c | {"points": [(x, y, c["points"][0][2]) for x, y, _ in c["points"]]})
ROI = st.fixed_dictionaries(
    {
        "number": st.sampled_from([1, 2, 2, 3, 3, 3, None]),
        "name": st.sampled_from(["A", "B", "Brainstem", "$x^$", "", None, "\u00e9" * 70, "C"]),
        "frame": st.sampled_from(["1.5", "1.5", "1.5", "1.6", None]),
        "refers": st.sampled_from([1, 2, 2, 3, 3, 3, 7, None]),
        "contours": st.none() | st.lists(SAME_HEIGHT, max_size=5),
    }
)


def built(rois):
    data = contour_set({}, "1.5")
    for given_ in rois:
        row, drawn = Dataset(), Dataset()
        for keyword, value in (("ROINumber", "number"), ("ROIName", "name")):
            if given_[value] is not None:
                setattr(row, keyword, given_[value])
        if given_["frame"]:
            row.ReferencedFrameOfReferenceUID = given_["frame"]
        if given_["refers"] is not None:
            drawn.ReferencedROINumber = given_["refers"]
        if given_["contours"] is not None:
            drawn.ContourSequence = Sequence(_single(c) for c in given_["contours"])
        data.StructureSetROISequence.append(row)
        data.ROIContourSequence.append(drawn)
    return data


def _single(of):
    out = Dataset()
    if of["kind"]:
        out.ContourGeometricType = of["kind"]
    if of["claimed"] is not None:
        out.NumberOfContourPoints = len(of["points"]) if of["claimed"] == "right" else of["claimed"]
    text = "\\".join([v for p in of["points"] for v in p] + ["5"] * of["extra"]).encode()
    out[CONTOUR_DATA] = RawDataElement(
        CONTOUR_DATA, "DS", len(text), text + b" " * (len(text) % 2), 0, False, True
    )
    return out


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rois=st.lists(ROI, max_size=3))
def test_any_structure_set_is_understood_or_refused(tmp_path_factory, rois):
    path = tmp_path_factory.getbasetemp() / "fuzzed.dcm"
    built(rois).save_as(path, enforce_file_format=True)
    try:
        read = read_rtstruct(path)
    except TumoarError:
        return
    assert len({o.name for o in read.outlines}) == len(read.outlines)
    for outline in read.outlines:
        try:
            pieces = cut_outline(outline, 500)
        except TumoarError:
            continue
        assert np.isfinite(pieces.points).all()
        assert (pieces.volumes >= 0).all()
        assert pieces.volumes.sum() > 0
