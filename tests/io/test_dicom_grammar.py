"""DICOM files that are well formed and say something odd: read where they lie, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from fuzzing import harmless
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom import Dataset, dcmread
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataelem import DataElement
from pydicom.sequence import Sequence
from rt_files import enhanced, save, write_series

from tumoar.geometry.image import Grid
from tumoar.io.images import read_image, read_scans
from tumoar.vocabulary.errors import GeometryError, TumoarError, UnreadableFileError

pytestmark = pytest.mark.filterwarnings("ignore:Invalid value for VR")  # said while the files are made

GRID = Grid((10, 8, 5), np.diag([-1.0, -1.5, 2.0, 1.0]))
VALUES = np.random.default_rng(0).integers(0, 900, GRID.shape).astype(float)

# What other programs, other units and hostile hands write where a number should be.
DECIMALS = [
    "", "0", "-1", "1", "1e-9", "1E9", "1e300", "-1e300", "1e-320", "nan", "inf", "-inf", "1,5", "0x10",
    " 2 ", "2\\3", "1\\2\\3", "\\", "1e", "--1", "99999999999999999", "1.5", "x",
]  # fmt: skip
INTEGERS = [0, 1, 2, 7, 8, 16, 64, 255, 4096, 65535]
TEXTS = ["", "x", "\\", "MONOCHROME1", "RGB", "1.2.3", "../x", "é", "\x1b$B", "=^=^"]
GEOMETRY = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness",
            "RescaleSlope", "RescaleIntercept")  # fmt: skip
SIZES = (
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "SamplesPerPixel",
)
OTHERS = ("NumberOfFrames", "SeriesNumber", "InstanceNumber", "ImagesInAcquisition", "EchoTime", "ImageType",
          "PhotometricInterpretation", "SeriesInstanceUID", "SOPClassUID",
          "FrameOfReferenceUID", "PatientID", "PatientName", "PatientBirthDate", "SeriesDescription",
          "PixelData", "PixelPaddingValue")  # fmt: skip
LENGTHS = {"ImagePositionPatient": 3, "ImageOrientationPatient": 6, "PixelSpacing": 2}


@st.composite
def edits(draw, keywords):
    """Up to three elements with other values, of their own kind or of another; or gone, or empty."""
    changes = {}
    for keyword in draw(st.lists(st.sampled_from(keywords), min_size=1, max_size=3, unique=True)):
        vr = dictionary_VR(tag_for_keyword(keyword))
        how = draw(st.sampled_from(["value", "value", "value", "other kind", "gone", "empty", "sequence"]))
        if how in ("gone", "sequence"):
            changes[keyword] = (how, None, None)
        elif how == "empty":
            changes[keyword] = ("raw", vr[:2], b"")
        elif how == "other kind":
            changes[keyword] = draw(
                st.sampled_from([
                    ("raw", "LO", b"text"), ("raw", "FD", np.float64(1e-9).tobytes()),
                    ("raw", "US", b"\xff\xff"), ("raw", "UN", b"\0\1\2\3"), ("raw", "OB", bytes(6)),
                    ("raw", "SS", b"\xff\xff"),
                    ("raw", "DS", b"1e-9\\1e-9 "), ("raw", "IS", b"99999999999999999999"),
                ])
            )  # fmt: skip
        elif vr in ("US", "US or SS"):
            value = draw(st.sampled_from(INTEGERS))
            changes[keyword] = ("raw", "US", value.to_bytes(2, "little"))
        elif vr in ("OB or OW", "OW", "OB"):
            size = draw(st.sampled_from([0, 2, 158, 160, 162, 10_000]))
            changes[keyword] = ("raw", "OW", bytes(size))
        elif vr in ("DS", "IS"):
            count = LENGTHS.get(keyword, 1) if draw(st.booleans()) else 1
            text = "\\".join(draw(st.sampled_from(DECIMALS)) for _ in range(count)).encode("latin-1")
            changes[keyword] = ("raw", vr, text + b" " * (len(text) % 2))
        else:
            text = draw(st.sampled_from(TEXTS)).encode("latin-1")
            changes[keyword] = ("raw", vr, text + b" " * (len(text) % 2))
    return changes


def write_raw(data: Dataset, path, changes) -> None:
    """The file with elements in their place among the others, whatever they hold."""
    marks = {}
    for number, (keyword, (how, _, _)) in enumerate(changes.items()):
        tag = tag_for_keyword(keyword)
        data.pop(tag, None)
        if how == "sequence":
            data[tag] = DataElement(tag, "SQ", Sequence([Dataset()]))
        elif how == "raw":
            marks[keyword] = b"%032d" % number
            data[tag] = DataElement(tag, "OB", marks[keyword])
    data.save_as(path)
    whole = path.read_bytes()
    for keyword, mark in marks.items():
        _, vr, value = changes[keyword]
        tag = int(tag_for_keyword(keyword))
        head = (tag >> 16).to_bytes(2, "little") + (tag & 0xFFFF).to_bytes(2, "little")
        old = head + b"OB\0\0" + len(mark).to_bytes(4, "little") + mark
        assert whole.count(old) == 1
        long = vr in ("OB", "OW", "UN", "SQ")
        size = b"\0\0" + len(value).to_bytes(4, "little") if long else len(value).to_bytes(2, "little")
        whole = whole.replace(old, head + vr.encode() + size + value)
    path.write_bytes(whole)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    paths = write_series(folder / "s", VALUES, GRID, EchoTime="20")
    save(enhanced(VALUES, GRID), folder / "whole.dcm")
    return paths, folder / "whole.dcm"


def require_same_place(image):
    if image is not None:
        np.testing.assert_allclose(image.grid.spacing, GRID.spacing, rtol=0.03)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(changes=edits((*GEOMETRY, *SIZES, *OTHERS)), number=st.integers(0, 4))
def test_one_odd_slice_among_others(study, changes, number):
    paths, _ = study
    path = paths[number]
    whole = path.read_bytes()
    try:
        write_raw(dcmread(path), path, changes)
        require_same_place(harmless(lambda: read_image(path.parent)))
    finally:
        path.write_bytes(whole)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(changes=edits((*GEOMETRY, *SIZES, *OTHERS)))
def test_a_series_that_is_odd_in_every_slice(study, changes):
    paths, _ = study
    wholes = [path.read_bytes() for path in paths]
    try:
        for path in paths:
            write_raw(dcmread(path), path, changes)
        image = harmless(lambda: read_image(paths[0].parent))
        if image is not None:
            assert 0.2 <= image.grid.spacing.min() <= image.grid.spacing.max() <= 10
            assert np.isfinite(image.grid.affine).all()
    finally:
        for path, whole in zip(paths, wholes):
            path.write_bytes(whole)


GROUPS = ("PlanePositionSequence", "PlaneOrientationSequence", "PixelMeasuresSequence",
          "PixelValueTransformationSequence")  # fmt: skip
MULTI = ("no frames", "frame gone", "frame added", "group gone", "group empty", "shared gone", "shared empty",
         "count", "value")  # fmt: skip


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    how=st.lists(st.sampled_from(MULTI), min_size=1, max_size=2),
    which=st.integers(0, 4),
    group=st.sampled_from(GROUPS),
    count=st.sampled_from(["0", "1", "4", "6", "-1", "x", "", "99999999"]),
    value=st.sampled_from(DECIMALS[:12]),
)
def test_an_odd_multi_frame_image(study, how, which, group, count, value):
    _, path = study
    whole = path.read_bytes()
    data = dcmread(path)
    frames, shared = data.PerFrameFunctionalGroupsSequence, data.SharedFunctionalGroupsSequence
    for one in how:
        if one == "no frames":
            data.PerFrameFunctionalGroupsSequence = Sequence()
        elif one == "frame gone" and frames:
            del frames[which % len(frames)]
        elif one == "frame added" and frames:
            frames.append(frames[0])
        elif one in ("group gone", "group empty"):
            for item in (*frames, *shared):
                if group in item:
                    del item[group]
                    if one == "group empty":
                        setattr(item, group, Sequence([Dataset()]))
        elif one == "shared gone":
            data.pop("SharedFunctionalGroupsSequence", None)
        elif one == "shared empty":
            data.SharedFunctionalGroupsSequence = Sequence()
        elif one == "count":
            write_raw(data, path, {"NumberOfFrames": ("raw", "IS", count.encode().ljust(8))})
            data = dcmread(path)
            frames, shared = (
                data.get(f"{whose}FunctionalGroupsSequence", Sequence()) for whose in ("PerFrame", "Shared")
            )
        elif one == "value" and frames and "PlanePositionSequence" in frames[0]:
            place = frames[0].PlanePositionSequence[0]
            place[0x00200032] = DataElement(0x00200032, "LO", [value, "0", "0"])
    try:
        data.save_as(path)
        require_same_place(harmless(lambda: read_image(only(path))))
    finally:
        path.write_bytes(whole)


def only(path):
    """A folder with this file alone."""
    folder = path.parent / "alone"
    folder.mkdir(exist_ok=True)
    (folder / "a.dcm").write_bytes(path.read_bytes())
    return folder


# ---- one by one --------------------------------------------------------------------------------------------

ODD = {
    "PixelSpacing 1e-9": ({"PixelSpacing": b"1e-9\\1e-9 "}, GeometryError, "B13"),
    "PixelSpacing 1e9": ({"PixelSpacing": b"1e9\\1e9 "}, GeometryError, "B47"),
    "PixelSpacing 5000": ({"PixelSpacing": b"5000\\5000 "}, GeometryError, "B13"),
    "PixelSpacing -1": ({"PixelSpacing": b"-1\\-1 "}, GeometryError, "B13"),
    "PixelSpacing nan": ({"PixelSpacing": b"nan\\1 "}, GeometryError, "B47"),
    "position nan": ({"ImagePositionPatient": b"nan\\0\\0 "}, GeometryError, "B47"),
    "position 1e300": ({"ImagePositionPatient": b"1e300\\0\\0 "}, GeometryError, "B47"),
    "Rows 0": ({"Rows": 0}, UnreadableFileError, "B48"),
    "Columns 0": ({"Columns": 0}, UnreadableFileError, "B48"),
    "BitsAllocated 0": ({"BitsAllocated": 0}, UnreadableFileError, "B48"),
    "intercept 1e300": ({"RescaleIntercept": b"1e300 "}, UnreadableFileError, "B21"),
    "slope 0": ({"RescaleSlope": b"0 "}, UnreadableFileError, "B21"),
    "slope 1e38": ({"RescaleSlope": b"1e38"}, UnreadableFileError, "B21"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("which", ["all", "one", "alone"])
def test_a_length_or_size_that_is_none(tmp_path, kind, which):
    values, error, id = ODD[kind]
    paths = write_series(tmp_path / "s", VALUES, GRID)
    for path in paths[1:] if which == "alone" else ():
        path.unlink()
    for path in paths if which == "all" else paths[:1]:
        raw = {
            k: ("raw", "US", v.to_bytes(2, "little")) if isinstance(v, int) else ("raw", "DS", v)
            for k, v in values.items()
        }
        write_raw(dcmread(path), path, raw)
    with pytest.raises(TumoarError) as refusal:
        read_image(tmp_path / "s")
    if which == "alone":
        assert isinstance(refusal.value, error)
        assert refusal.value.id == id


CHARACTER_SETS = [
    b"ISO_IR 192", b"ISO_IR 100", b"ISO_IR 999", b"ISO 2022 IR 6\\ISO 2022 IR 87", b"\\ISO 2022 IR 87", b"\\",
    b"utf8", b"", b"GBK\\ISO_IR 192", b"\xff\xfe\xfd", b"ISO_IR 192\\ISO 2022 IR 6", b"None",
]  # fmt: skip


@pytest.mark.parametrize("name", ["Müller^J".encode(), "Müller^J".encode("latin-1"), b"\x1b$B;3ED\x1b(B^x"])
@pytest.mark.parametrize("characters", CHARACTER_SETS)
def test_character_sets_that_are_odd(tmp_path, characters, name):
    for path in write_series(tmp_path, VALUES, GRID):
        write_raw(dcmread(path), path, {"PatientName": ("raw", "PN", name + b" " * (len(name) % 2))})
        whole = path.read_bytes()
        start = 132 + 12 + int.from_bytes(whole[140:144], "little")
        value = characters + b" " * (len(characters) % 2)
        element = b"\x08\x00\x05\x00CS" + len(value).to_bytes(2, "little") + value
        path.write_bytes(whole[:start] + element + whole[start:])
    image = harmless(lambda: read_image(tmp_path))
    assert image is None or np.array_equal(image.data, VALUES)


@pytest.mark.parametrize("kind", [b"PALETTE COLOR ", b"RGB ", b"YBR_FULL"])
def test_numbers_of_colors_are_no_intensities(tmp_path, kind):
    for path in write_series(tmp_path, VALUES, GRID):
        write_raw(dcmread(path), path, {"PhotometricInterpretation": ("raw", "CS", kind)})
    with pytest.raises(UnreadableFileError, match="E3-B48 not a gray image"):
        read_image(tmp_path)


@pytest.mark.parametrize("thickness", ["1e-9", "1e9", "-5", "1e300"])
def test_one_slice_of_no_thickness(tmp_path, thickness):
    paths = write_series(tmp_path, VALUES[:, :, :1], GRID)
    write_raw(dcmread(paths[0]), paths[0], {"SliceThickness": ("raw", "DS", thickness.encode().ljust(6))})
    with pytest.raises(GeometryError, match="E4-B13"):
        read_scans({"T1": tmp_path})
