"""Doses in and their figures, against files of our own and a planning system's histograms."""

from __future__ import annotations

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from rt_files import write_contours, write_rtdose

from tumoar.contours import pieces_of_outline
from tumoar.dose import dvh
from tumoar.errors import ChannelError, GeometryError, TumoarError, UnreadableFileError
from tumoar.image import Grid
from tumoar.io.dose import read_dose
from tumoar.io.nifti import write_nifti
from tumoar.io.rtstruct import read_rtstruct


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
        ({"PixelSpacing": [0, 1]}, GeometryError),
        ({"SOPClassUID": "1.2.3"}, UnreadableFileError),
        ({"Rows": 100}, UnreadableFileError),
    ],
    ids=str,
)
def test_what_is_no_dose_is_refused(tmp_path, change, error):
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
    assert pieces_of_outline(read.outlines[0]).volumes.sum() == pytest.approx(400, rel=0.01)


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
        found = dvh(pieces_of_outline(outline), dose)
        for percent in (5, 50, 95):
            assert found.D(percent) == pytest.approx(np.interp(-percent, -curve[:, 1], curve[:, 0]), abs=0.5)
        assert found.mean == pytest.approx(np.trapezoid(curve[:, 1], curve[:, 0]) / 100, abs=0.2)
