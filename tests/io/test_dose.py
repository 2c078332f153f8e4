"""Doses in and their figures, against files of our own and a planning system's histograms."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from fuzzing import harmless
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nrrd_files import content, fields_of, write_nrrd
from pydicom import dcmread
from rt_files import PLANTED, save, write_contours, write_rtdose

from tumoar.geometry.contours import cut_outline
from tumoar.geometry.image import Grid
from tumoar.io.dose import MOST_VOXELS, load_dose, read_dose
from tumoar.io.nifti import write_nifti
from tumoar.io.rtstruct import read_rtstruct
from tumoar.radiotherapy.dvh import dvh
from tumoar.vocabulary.errors import (
    ChannelError,
    GeometryError,
    ResourceError,
    TumoarError,
    UnreadableFileError,
    UsageError,
)


def grids():
    """Head first supine, prone, feet first, and turned."""
    for signs in ([-1, -1, 1], [1, 1, 1], [1, -1, -1]):
        affine = np.diag([2.0 * signs[0], 3.0 * signs[1], 2.5 * signs[2], 1.0])
        affine[:3, 3] = [10, -20, 30]
        yield Grid((9, 7, 5), affine)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3] = turn * [2.0, 3.0, 2.5]
    yield Grid((9, 7, 5), affine)


@pytest.mark.parametrize("grid", list(grids()), ids=["supine", "prone", "feet first", "oblique"])
def test_rtdose_lies_where_it_was_put(tmp_path, grid):
    gray = np.random.default_rng(1).uniform(0, 70, grid.shape)
    dose = read_dose(write_rtdose(tmp_path / "RD.dcm", gray, grid, "1.2.3"))
    assert np.allclose(dose.grid.affine, grid.affine, atol=1e-6)
    assert np.allclose(dose.data, gray, atol=1e-3)
    assert dose.grid.frame == "1.2.3"


def test_plane_positions_along_z(tmp_path):
    grid = next(grids())
    gray = np.random.default_rng(1).uniform(0, 70, grid.shape)
    heights = [30 + 2.5 * k for k in range(5)]
    dose = read_dose(write_rtdose(tmp_path / "RD.dcm", gray, grid, "1.2.3", GridFrameOffsetVector=heights))
    assert np.allclose(dose.grid.affine, grid.affine, atol=1e-6)


def test_nrrd_and_nifti(tmp_path):
    grid = next(grids())
    gray = np.random.default_rng(1).uniform(0, 70, grid.shape).astype(np.float32)
    write_nifti(tmp_path / "d.nii.gz", gray, grid)
    image = sitk.GetImageFromArray(gray.transpose(2, 1, 0))
    image.SetSpacing([2.0, 3.0, 2.5])
    image.SetOrigin([-10, 20, 30])
    sitk.WriteImage(image, str(tmp_path / "d.nrrd"))
    for name in ("d.nii.gz", "d.nrrd"):
        dose = read_dose(tmp_path / name)
        assert np.allclose(dose.grid.affine, grid.affine, atol=1e-5)
        assert np.array_equal(dose.data, gray)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"DoseUnits": "RELATIVE"}, ChannelError),
        ({"DoseGridScaling": "1"}, ChannelError),
        ({"GridFrameOffsetVector": [0, 2, 5, 7, 9]}, GeometryError),
        ({"GridFrameOffsetVector": [0, 2]}, GeometryError),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, GeometryError),
        ({"GridFrameOffsetVector": [0, 0, 0, 0, 0]}, GeometryError),
        ({"GridFrameOffsetVector": [0, 2.5, 0, 2.5, 0]}, GeometryError),
        ({"GridFrameOffsetVector": [40, 42.5, 45, 47.5, 50]}, GeometryError),  # the first plane lies at 30
        ({"GridFrameOffsetVector": None}, GeometryError),
        ({"GridFrameOffsetVector": ["0", "2.5", "5", "7.5", "1e400"]}, TumoarError),
        ({"ImagePositionPatient": ["1e300", "0", "0"]}, GeometryError),
        ({"PixelSpacing": [0, 1]}, GeometryError),
        ({"PixelSpacing": ["1e-9", "1e-9"]}, GeometryError),
        ({"PixelSpacing": [-2, 2]}, GeometryError),
        ({"PixelSpacing": [3000, 3000]}, GeometryError),
        ({"DoseUnits": None}, ChannelError),
        ({"DoseUnits": ["GY", "RELATIVE"]}, ChannelError),
        ({"DoseType": "ERROR"}, ChannelError),
        ({"DoseType": "SOMETHING"}, ChannelError),
        ({"DoseType": None}, ChannelError),
        ({"DoseGridScaling": "0"}, ChannelError),
        ({"DoseGridScaling": "-0.001"}, ChannelError),
        ({"DoseGridScaling": "1e-30"}, TumoarError),
        ({"DoseGridScaling": "1e300"}, ChannelError),
        ({"NumberOfFrames": 3, "GridFrameOffsetVector": [0, 2.5, 5]}, UnreadableFileError),
        ({"NumberOfFrames": 0}, TumoarError),
        ({"NumberOfFrames": 10**9}, ResourceError),
        ({"SOPClassUID": "1.2.3"}, UnreadableFileError),
        ({"Rows": 100}, UnreadableFileError),
    ],
    ids=str,
)
def test_what_is_no_dose_of_a_plan_in_gray_is_refused(tmp_path, change, error):
    grid = next(grids())
    gray = np.random.default_rng(1).uniform(0, 70, grid.shape)
    path = write_rtdose(tmp_path / "RD.dcm", gray, grid, "1.2.3", **change)
    with pytest.raises(error) as refusal:
        read_dose(path)
    assert "Planted" not in str(refusal.value)


def test_damaged_files_are_refused(tmp_path):
    grid = next(grids())
    gray = np.random.default_rng(1).uniform(0, 70, grid.shape)
    whole = write_rtdose(tmp_path / "RD.dcm", gray, grid, "1.2.3").read_bytes()
    for size in (0, 100, 200, 700, len(whole) - 50):
        (tmp_path / "cut.dcm").write_bytes(whole[:size])
        with pytest.raises(TumoarError):
            read_dose(tmp_path / "cut.dcm")
    (tmp_path / "text.nrrd").write_text("NRRD0004\n")
    for name in ("text.nrrd", "absent.nrrd", "absent.dcm"):
        with pytest.raises(UnreadableFileError):
            read_dose(tmp_path / name)


def test_structure_sets_of_others(tmp_path):
    square = np.array([[0, 0, 0], [10, 0, 0], [10, 10, 0], [0, 10, 0.0]])
    planes = [square + np.array([0, 0, z]) for z in (0, 2, 4)]
    path = write_contours(
        tmp_path / "RS.dcm", {"Brainstem": planes, "empty": [], "point": [square[:2]]}, "1.5"
    )
    read = read_rtstruct(path)
    assert [o.name for o in read.outlines] == ["Brainstem"]
    assert read.frame == "1.5"
    assert cut_outline(read.outlines[0]).volumes.sum() == pytest.approx(400, rel=0.01)


@pytest.mark.shared
def test_a_planning_systems_histograms(shared_data):
    """Small organs of a clinical plan on a phantom; all structures in research/dose.py."""
    import csv

    folder = shared_data / "radiotherapy" / "eclipse-ent"
    dose = read_dose(folder / "dose.nrrd")
    rows = list(csv.reader((folder / "dvh_eclipse.csv").open()))
    for outline in read_rtstruct(folder / "rtstruct.dcm").outlines:
        if outline.name not in ("Optic Chiasm", "Optic Nerve-Lt", "Lens - right", "Orbit - left"):
            continue
        key = "".join(c for c in outline.name if c.isalnum()).lower()
        column = next(i for i, h in enumerate(rows[0]) if h.lower().startswith(f"{key}_"))
        curve = np.array([[float(v) for v in row[column : column + 2]] for row in rows[1:] if row[column]])
        found = dvh(cut_outline(outline), dose)
        for percent in (5, 50, 95):
            assert found.D(percent) == pytest.approx(np.interp(-percent, -curve[:, 1], curve[:, 0]), abs=0.5)
        assert found.mean == pytest.approx(np.trapezoid(curve[:, 1], curve[:, 0]) / 100, abs=0.2)


# ---- whole courses -----------------------------------------------------------------------------------------

GRID = next(grids())
GRAY = np.random.default_rng(1).uniform(0, 60, GRID.shape).astype(np.float32)
SOME = ["FRACTION", "FRACTION_SESSION", "BRACHY", "BRACHY_SESSION", "RECORD", "PLAN_OVERVIEW", "", None, "X"]


@pytest.mark.parametrize("kind", ["PLAN", "MULTI_PLAN"])
def test_doses_of_plans_are_whole(tmp_path, kind):
    path = write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3", DoseSummationType=kind)
    assert load_dose(path).notes == ()
    assert np.array_equal(read_dose(path, fractions=1).data, read_dose(path).data)
    with pytest.raises(UsageError, match="E2-fractions the dose covers the whole plan"):
        read_dose(path, fractions=2)


@pytest.mark.parametrize("kind", SOME)
def test_doses_of_some_fractions_are_refused_unless_it_is_said(tmp_path, kind):
    path = write_rtdose(tmp_path / "RD.dcm", GRAY / 30, GRID, "1.2.3", DoseSummationType=kind)
    with pytest.raises(ChannelError, match="not known to cover the whole course") as refusal:
        read_dose(path)
    assert "--fractions" in str(refusal.value)
    found = load_dose(path, fractions=30)
    assert np.allclose(found.image.data, GRAY, atol=1e-2)
    assert found.notes == ("the dose is for one fraction, multiplied by 30",)


@pytest.mark.parametrize("fractions", [None, 1, 30])
@pytest.mark.parametrize("kind", ["BEAM", "BEAM_SESSION", "CONTROL_POINT"])
def test_doses_of_some_beams_are_refused_whatever_is_said(tmp_path, kind, fractions):
    path = write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3", DoseSummationType=kind)
    with pytest.raises(ChannelError, match="dose of some beams only"):
        read_dose(path, fractions=fractions)


@pytest.mark.parametrize("fractions", [0, -1, 101, 10**9])
def test_a_number_of_fractions_is_1_to_100(tmp_path, fractions):
    with pytest.raises(UsageError, match="E2-fractions"):
        read_dose(write_nrrd(tmp_path / "d.nrrd", GRAY, GRID), fractions=fractions)


def test_multiplied_beyond_any_dose_is_refused(tmp_path):
    with pytest.raises(ChannelError, match="dose not in Gy"):
        read_dose(write_nrrd(tmp_path / "d.nrrd", GRAY, GRID), fractions=30)


def test_effective_doses_are_noted(tmp_path):
    path = write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3", DoseType="EFFECTIVE")
    assert load_dose(path).notes == ("the dose is weighted by biological effect (Dose Type EFFECTIVE)",)


def test_a_low_dose_is_refused_where_the_file_does_not_say_what_it_is_of(tmp_path):
    """Of one fraction, or relative to 1."""
    low = (GRAY / 30).astype(np.float32)
    write_nifti(tmp_path / "d.nii.gz", low, GRID)
    write_nrrd(tmp_path / "d.nrrd", low, GRID)
    for name in ("d.nii.gz", "d.nrrd"):
        with pytest.raises(ChannelError, match="too low for the dose of a whole course"):
            read_dose(tmp_path / name)
        assert np.allclose(read_dose(tmp_path / name, fractions=30).data, GRAY, rtol=1e-5)
        assert np.array_equal(read_dose(tmp_path / name, fractions=1).data, low)
    plan = load_dose(write_rtdose(tmp_path / "RD.dcm", low, GRID, "1.2.3"))
    assert "low for a whole course" in plan.notes[0]


def test_doses_that_name_nobody_are_doubted(tmp_path):
    assert load_dose(write_nrrd(tmp_path / "d.nrrd", GRAY, GRID)).doubt
    assert load_dose(write_rtdose(tmp_path / "a.dcm", GRAY, GRID, "")).doubt
    found = load_dose(write_rtdose(tmp_path / "b.dcm", GRAY, GRID, "1.2.3"))
    assert found.doubt == ""
    assert not any(planted in repr(found) for planted in PLANTED)


# ---- kinds of files ----------------------------------------------------------------------------------------


def test_the_content_says_what_a_file_is(tmp_path):
    write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3")
    write_nifti(tmp_path / "d.nii", GRAY, GRID)
    write_nifti(tmp_path / "d.nii.gz", GRAY, GRID)
    write_nrrd(tmp_path / "d.nrrd", GRAY, GRID)
    for source in ("RD.dcm", "d.nii", "d.nii.gz", "d.nrrd"):
        for name in ("x.dcm", "x.nii", "x.nii.gz", "x.nrrd", "x", "a\\b"):
            shutil.copy(tmp_path / source, tmp_path / name)
            dose = read_dose(tmp_path / name)
            assert np.allclose(dose.data, GRAY, atol=1e-2)
            assert np.allclose(dose.grid.affine, GRID.affine, atol=1e-4)


@pytest.mark.parametrize("name", ["d.nrrd", "d.nii", "d.nii.gz", "d.dcm", "d"])
def test_a_relative_dose_is_refused_under_any_name(tmp_path, name):
    path = write_rtdose(tmp_path / name, GRAY, GRID, "1.2.3", DoseUnits="RELATIVE")
    with pytest.raises(ChannelError, match="dose not in Gy"):
        read_dose(path)
    without = path.read_bytes()[132:]
    path.write_bytes(without)  # DICOM may lack its preamble
    with pytest.raises(TumoarError):
        read_dose(path)


def test_a_file_of_two_kinds_is_refused(tmp_path):
    """The preamble of a DICOM file may hold the header of another kind."""
    relative = write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3", DoseUnits="RELATIVE").read_bytes()
    (tmp_path / "d.nrrd").write_bytes(b"NRRD0004\n".ljust(128, b"#") + relative[128:])
    write_nifti(tmp_path / "d.nii", GRAY, GRID)
    nifti = bytearray((tmp_path / "d.nii").read_bytes())
    nifti[128:132] = b"DICM"
    (tmp_path / "e.nii").write_bytes(nifti)
    (tmp_path / "e.nii.gz").write_bytes(gzip.compress(bytes(nifti)))
    for name in ("d.nrrd", "e.nii", "e.nii.gz"):
        with pytest.raises(UnreadableFileError, match="file type is ambiguous"):
            read_dose(tmp_path / name)


def test_compressed_files_of_other_kinds_are_refused(tmp_path):
    whole = write_rtdose(tmp_path / "RD.dcm", GRAY, GRID, "1.2.3").read_bytes()
    nrrd = write_nrrd(tmp_path / "d.nrrd", GRAY, GRID).read_bytes()
    for inner in (whole, nrrd, b"", b"abc", bytes(5000)):
        (tmp_path / "d.nii.gz").write_bytes(gzip.compress(inner))
        with pytest.raises(UnreadableFileError, match="compressed"):
            read_dose(tmp_path / "d.nii.gz")


def test_pipes_and_devices_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.dcm")
    refusals = []

    def read():
        for name in (tmp_path / "pipe.dcm", "/dev/zero", "/dev/null", tmp_path):
            with pytest.raises(UnreadableFileError, match="E3-B1") as refusal:
                read_dose(name)
            refusals.append(refusal.value)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(20)
    assert len(refusals) == 4


# ---- NRRD --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", list(grids()), ids=["supine", "prone", "feet first", "oblique"])
@pytest.mark.parametrize("encoding", ["raw", "gzip", "gz"])
def test_nrrd_lies_where_it_was_put(tmp_path, grid, encoding):
    dose = read_dose(write_nrrd(tmp_path / "d.nrrd", GRAY, grid, encoding=encoding))
    assert np.allclose(dose.grid.affine, grid.affine, atol=1e-6)
    assert np.array_equal(dose.data, GRAY)


@pytest.mark.parametrize("space", ["right-anterior-superior", "RAS", "LAS", "left-anterior-superior", "LPS"])
def test_spaces_of_nrrd(tmp_path, space):
    affine = np.diag([2.0, 3.0, 2.5, 1.0])
    affine[:3, 3] = [10, -20, 30]
    fields = fields_of(GRAY, Grid(GRAY.shape, np.diag([-1, -1, 1, 1]) @ affine)) | {"space": space}
    (tmp_path / "d.nrrd").write_bytes(content(fields, GRAY.tobytes(order="F")))
    found = read_dose(tmp_path / "d.nrrd").grid.affine
    left = space[0].upper() == "L"
    back = "posterior" in space or space == "LPS"
    sign = (-1.0 if left else 1.0, -1.0 if back else 1.0)
    assert np.allclose(found, np.diag([*sign, 1.0, 1.0]) @ affine)


def test_nrrd_agrees_with_simpleitk(tmp_path):
    rng = np.random.default_rng(5)
    for grid in grids():
        for kind in (np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64):
            image = sitk.GetImageFromArray(rng.uniform(0, 70, grid.shape[::-1]).astype(kind))
            image.SetSpacing(grid.spacing.tolist())
            image.SetOrigin(rng.uniform(-100, 100, 3).tolist())
            image.SetDirection((np.diag([-1, -1, 1]) @ grid.affine[:3, :3] / grid.spacing).ravel().tolist())
            sitk.WriteImage(image, str(tmp_path / "d.nrrd"), bool(rng.random() < 0.5))
            found = read_dose(tmp_path / "d.nrrd")
            assert np.array_equal(found.data, sitk.GetArrayFromImage(image).T.astype(np.float32))
            place = image.TransformIndexToPhysicalPoint((3, 2, 1))
            assert np.allclose(found.grid.world([3, 2, 1]), np.array(place) * [-1, -1, 1], atol=1e-4)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"space": None}, GeometryError),
        ({"space": "scanner-xyz"}, GeometryError),
        ({"space": "3D-right-handed"}, GeometryError),
        ({"space": "left-posterior-superior-time"}, GeometryError),
        ({"space_directions": None}, GeometryError),
        ({"space_origin": None}, GeometryError),
        ({"space_directions": "(2,0,0) (1,3,0) (0,0,2.5)"}, GeometryError),  # shear
        ({"space_directions": "(2,0,0) (2,0,0) (0,0,2.5)"}, GeometryError),
        ({"space_directions": "(3000,0,0) (0,3000,0) (0,0,3000)"}, GeometryError),
        ({"space_directions": "(0.01,0,0) (0,0.01,0) (0,0,0.01)"}, GeometryError),
        ({"space_directions": "(0,0,0) (0,0,0) (0,0,0)"}, GeometryError),
        ({"space_directions": "(nan,0,0) (0,3,0) (0,0,2.5)"}, GeometryError),
        ({"space_directions": "(inf,0,0) (0,3,0) (0,0,2.5)"}, GeometryError),
        ({"space_directions": "(1e999,0,0) (0,3,0) (0,0,2.5)"}, GeometryError),
        ({"space_directions": "(2,0) (0,3) (0,0)"}, GeometryError),
        ({"space_directions": "none (2,0,0) (0,3,0) (0,0,2.5)"}, GeometryError),
        ({"space_origin": "(1e9,0,0)"}, GeometryError),
        ({"space_origin": "1 2 3"}, GeometryError),
        ({"space_units": '"cm" "cm" "cm"'}, GeometryError),
        ({"data_file": "../../x.raw"}, UnreadableFileError),
        ({"data_file": "LIST"}, UnreadableFileError),
        ({"datafile": "d%03d.raw 1 9 1"}, UnreadableFileError),
        ({"byte_skip": "100"}, UnreadableFileError),
        ({"byte_skip": "-1"}, UnreadableFileError),
        ({"line_skip": "1"}, UnreadableFileError),
        ({"encoding": "ascii"}, UnreadableFileError),
        ({"encoding": "bzip2"}, UnreadableFileError),
        ({"type": "block"}, UnreadableFileError),
        ({"type": "float" * 1000}, UnreadableFileError),
        ({"endian": None}, UnreadableFileError),
        ({"dimension": "4"}, UnreadableFileError),
        ({"kinds": "domain domain vector"}, UnreadableFileError),
        ({"sizes": "9 7 6"}, UnreadableFileError),
        ({"sizes": "9 7 4"}, UnreadableFileError),
        ({"sizes": "9 7 -5"}, UnreadableFileError),
        ({"sizes": "9 7 0"}, UnreadableFileError),
        ({"sizes": "9 7"}, UnreadableFileError),
        ({"sizes": "999999999 999999999 999999999"}, TumoarError),
        ({"spacings": "2 3 2.5"}, UnreadableFileError),
        ({"sample_units": "cGy"}, ChannelError),
        ({"sample_units": "%"}, ChannelError),
        ({"more": "DoseUnits:=RELATIVE\n"}, ChannelError),
        ({"more": "dose unit name:=cGy\n"}, ChannelError),
        ({"more": "type: float\n"}, UnreadableFileError),
        ({"more": "no field\n"}, UnreadableFileError),
        ({"more": "x:=" + "y" * 70_000 + "\n"}, UnreadableFileError),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_nrrd_that_leaves_anything_open_is_refused(tmp_path, change, error):
    with pytest.raises(error):
        read_dose(write_nrrd(tmp_path / "d.nrrd", GRAY, GRID, **change))


def test_nrrd_of_one_plane_is_refused(tmp_path):
    grid = Grid((9, 7, 1), GRID.affine)
    with pytest.raises(GeometryError, match="one plane only"):
        read_dose(write_nrrd(tmp_path / "d.nrrd", GRAY[:, :, :1], grid))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_values_that_are_no_doses_are_refused(tmp_path, value):
    gray = GRAY.copy()
    gray[3, 2, 1] = value
    write_nifti(tmp_path / "d.nii", gray, GRID)
    for path in (tmp_path / "d.nii", write_nrrd(tmp_path / "d.nrrd", gray, GRID)):
        with pytest.raises(ChannelError, match="not a dose"):
            read_dose(path)


@pytest.mark.parametrize("claim", ["500 500 400", "1200 1200 1100"])
def test_a_bomb_costs_no_memory(tmp_path, claim):
    """Half a megabyte that claims, or unpacks to, gigabytes."""
    fields = fields_of(GRAY, GRID) | {"sizes": claim, "encoding": "gzip"}
    zeros = gzip.compress(bytes(64 * 1024**2), 9) * 8
    head = content(fields | {"encoding": "raw"}, b"").replace(b"encoding: raw", b"encoding: gzip")
    (tmp_path / "d.nrrd").write_bytes(head + zeros)
    tracemalloc.start()
    try:
        with pytest.raises(TumoarError):
            read_dose(tmp_path / "d.nrrd")
        assert tracemalloc.get_traced_memory()[1] < 16 * MOST_VOXELS
    finally:
        tracemalloc.stop()


def test_what_follows_the_voxels_of_an_nrrd_is_refused(tmp_path):
    for encoding in ("raw", "gzip"):
        path = write_nrrd(tmp_path / "d.nrrd", GRAY, GRID, encoding=encoding)
        whole = path.read_bytes()
        path.write_bytes(whole + b"\1")
        with pytest.raises(TumoarError):
            read_dose(path)
        path.write_bytes(whole[:-3])
        with pytest.raises(TumoarError):
            read_dose(path)


# ---- at random ---------------------------------------------------------------------------------------------

number = st.one_of(
    st.sampled_from(
        ["0", "-0", "1", "2.5", "-3", "1e-9", "1e300", "1e999", "nan", "inf", "1_0", "", "0x1", "٣"]
    ),
    st.floats(allow_nan=False).map(repr),
)
vectors = st.lists(number, min_size=1, max_size=4).map(lambda parts: f"({','.join(parts)})")
nrrd_values = {
    "type": st.sampled_from(["float", "double", "short", "uchar", "block", "int8", "FLOAT", ""]),
    "dimension": st.sampled_from(["3", "2", "4", "03", "-3", "x"]),
    "space": st.sampled_from(["LPS", "ras", "scanner-xyz", "left-posterior-superior", "", "LPST"]),
    "sizes": st.lists(number, min_size=1, max_size=4).map(" ".join),
    "space directions": st.lists(vectors, min_size=1, max_size=4).map(" ".join),
    "space origin": vectors,
    "kinds": st.sampled_from(["domain domain domain", "space space space", "vector", "list domain domain"]),
    "endian": st.sampled_from(["little", "big", "middle"]),
    "encoding": st.sampled_from(["raw", "gzip", "txt", "hex", "RAW"]),
    "space units": st.sampled_from(['"mm" "mm" "mm"', '"m" "m" "m"', '"']),
    "byte skip": number,
    "data file": st.sampled_from(["x.raw", "/dev/zero", "LIST", ""]),
    "measurement frame": vectors,
}
lines = st.one_of(
    *[value.map(lambda v, k=key: f"{k}: {v}") for key, value in nrrd_values.items()],
    st.sampled_from(["# x", "a:=b", ":", ":=", "type", "\r", "\x00: \x00", "DoseUnits:=%"]),
    st.text(max_size=20),
)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(st.sampled_from(sorted(nrrd_values)), st.none(), max_size=3),
    st.lists(lines, max_size=4),
    st.sampled_from([0, 1, 7, 1259, 1260, 1261]),
    st.sampled_from(["NRRD0004", "NRRD0005", "NRRD0006", "NRRD0001", "NRRD", "nrrd0004"]),
)
def test_nrrd_headers_at_random_are_read_right_or_refused(tmp_path, left_out, added, size, magic):
    fields = {k: v for k, v in fields_of(GRAY, GRID).items() if k not in left_out}
    path = tmp_path / "d.nrrd"
    body = (GRAY.tobytes(order="F") + bytes(9))[:size]
    more = "".join(f"{line}\n" for line in added)
    path.write_bytes(content(fields, body, magic, more.encode("utf-8", "replace").decode()))
    dose = harmless(lambda: read_dose(path))
    if dose is None:
        return
    assert 0.2 <= dose.grid.spacing.min() <= dose.grid.spacing.max() <= 10
    assert np.isfinite(dose.data).all()
    assert 5 <= dose.data.max() <= 500


rtdose_values = {
    "DoseUnits": st.sampled_from(["GY", "RELATIVE", "gy", "CGY", "", ["GY", "GY"]]),
    "DoseType": st.sampled_from(["PHYSICAL", "EFFECTIVE", "ERROR", ""]),
    "DoseSummationType": st.sampled_from(["PLAN", "MULTI_PLAN", "FRACTION", "BEAM", "RECORD", "", "X"]),
    "DoseGridScaling": st.sampled_from(["0", "-1", "1e-3", "1e-30", "1e300", "0.0001", ""]),
    "GridFrameOffsetVector": st.lists(
        st.sampled_from(["0", "2.5", "5", "7.5", "10", "-2.5", "30", "1e9", "1e-9"]), max_size=6
    ),
    "PixelSpacing": st.lists(st.sampled_from(["2", "0", "-1", "1e-9", "3000", "1e300"]), max_size=3),
    "ImagePositionPatient": st.lists(st.sampled_from(["0", "30", "1e9", "-1e300"]), max_size=4),
    "ImageOrientationPatient": st.lists(st.sampled_from(["0", "1", "-1", "0.5"]), min_size=5, max_size=7),
    "NumberOfFrames": st.sampled_from(["0", "1", "3", "5", "6", "-5", "999999999"]),
    "Rows": st.sampled_from([0, 1, 7, 8, 65535]),
    "Columns": st.sampled_from([0, 1, 9, 65535]),
    "BitsAllocated": st.sampled_from([0, 1, 8, 16, 32, 64, 7]),
    "BitsStored": st.sampled_from([0, 8, 12, 16, 33]),
    "PixelRepresentation": st.sampled_from([0, 1, 2]),
    "SamplesPerPixel": st.sampled_from([0, 1, 3]),
    "PhotometricInterpretation": st.sampled_from(["MONOCHROME2", "RGB", "X"]),
    "FrameOfReferenceUID": st.sampled_from(["1.2.3", "", "x"]),
}


@settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data(), st.lists(st.sampled_from(sorted(rtdose_values)), max_size=3, unique=True), st.booleans())
def test_rtdose_headers_at_random_are_read_right_or_refused(tmp_path, data, changed, deletes):
    path = tmp_path / "RD.dcm"
    if not path.exists():
        write_rtdose(path, GRAY, GRID, "1.2.3")
    header = dcmread(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in changed:
            if deletes:
                del header[name]
            else:
                setattr(header, name, data.draw(rtdose_values[name], name))
        save(header, tmp_path / "x.dcm")
    dose = harmless(lambda: read_dose(tmp_path / "x.dcm"))
    if dose is None:
        return
    assert 0.2 <= dose.grid.spacing.min() <= dose.grid.spacing.max() <= 10
    assert 0.1 <= dose.data.max() <= 500
    assert dose.grid.shape == GRID.shape
