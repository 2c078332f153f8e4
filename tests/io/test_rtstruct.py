"""Structure sets: what is written is what was meant, by our own reader and by independent ones."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from pydicom import dcmread
from rt_cases import Frame, random_frame, random_masks, transverse
from rt_files import PATIENT, enhanced, save, write_series
from rt_readers import read_own, read_plainly, read_plastimatch, read_rt_utils
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.io import rtstruct_write
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.rois import Review, Roi
from tumoar.io.rtstruct import read_rtstruct
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.vocabulary.errors import IntegrityError
from tumoar.vocabulary.labels import Code


def series_in(folder, frame, rng, **more):
    values = rng.integers(0, 2000, frame.grid.shape).astype(float)
    write_series(folder, values, frame.grid, modality="CT", **more)
    return only_series(folder)


def rois_of(masks):
    code = Code("119238007", "Brain Stem")
    return [Roi(name, "ORGAN", "#2ca02c", mask, code) for name, mask in masks.items()]


def round_trip(folder, seed):
    rng = np.random.default_rng(seed)
    frame = random_frame(rng)
    series = series_in(folder / "ct", frame, rng)
    masks = random_masks(rng, grid_of(series)[0].shape)
    smooth = bool(seed % 3 == 0)
    write_rtstruct(folder / "RS.dcm", rois_of(masks), series, smooth=smooth)
    found = {o.name for o in read_rtstruct(folder / "RS.dcm").outlines}
    assert found == {name for name, mask in masks.items() if mask.any()}
    if smooth:
        return
    for read in (read_own, read_plainly):
        for name, mask in read(folder / "RS.dcm", folder / "ct", series, found).items():
            assert np.abs(mask - masks[name].astype(float)).max() < 1e-3


@pytest.mark.parametrize("seed", [n if n < 6 else pytest.param(n, marks=pytest.mark.slow) for n in range(24)])
def test_round_trips(tmp_path, seed):
    round_trip(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_round_trips(tmp_path, seed):
    round_trip(tmp_path, seed)


def example(tmp_path, **more):
    rng = np.random.default_rng(11)
    frame = random_frame(rng, axial=True)
    series = series_in(tmp_path / "ct", frame, rng, **more)
    masks = random_masks(rng, grid_of(series)[0].shape)
    write_rtstruct(tmp_path / "RS.dcm", rois_of(masks), series, key="k")
    return series, masks


def test_what_the_file_says(tmp_path):
    series, masks = example(tmp_path)
    data = dcmread(tmp_path / "RS.dcm")
    header = series.headers[series.slices[0].path]
    assert data.PatientID == PATIENT["PatientID"]
    assert data.StudyInstanceUID == header.StudyInstanceUID
    assert data.SeriesInstanceUID != header.SeriesInstanceUID
    assert data.StructureSetLabel == "AUTO-UNREVIEWED"
    assert data.ApprovalStatus == "UNAPPROVED"
    frames = {data.FrameOfReferenceUID, data.ReferencedFrameOfReferenceSequence[0].FrameOfReferenceUID}
    frames |= {r.ReferencedFrameOfReferenceUID for r in data.StructureSetROISequence}
    assert frames == {header.FrameOfReferenceUID}
    study = data.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0]
    images = study.RTReferencedSeriesSequence[0].ContourImageSequence
    assert {i.ReferencedSOPInstanceUID for i in images} == {h.SOPInstanceUID for h in series.headers.values()}
    assert [r.ROIName for r in data.StructureSetROISequence] == list(masks)
    for row in data.RTROIObservationsSequence:
        assert row.RTROIInterpretedType == "ORGAN"
        assert row.RTROIIdentificationCodeSequence[0].CodeMeaning == "Brain Stem"
        assert "UNREVIEWED" in row.ROIObservationLabel
    assert data.ROIContourSequence[0].ROIDisplayColor == [0x2C, 0xA0, 0x2C]
    assert data.preamble == b"\0" * 128


def test_what_a_reviewed_file_says(tmp_path):
    series, masks = example(tmp_path)
    first = next(iter(masks))
    corrected = Review(frozenset([first]))
    approved = replace(corrected, reviewer="ABC", date="20260102", time="030405")
    write_rtstruct(tmp_path / "RS1.dcm", rois_of(masks), series, key="k1", review=corrected)
    write_rtstruct(tmp_path / "RS2.dcm", rois_of(masks), series, key="k2", review=approved, is_checked=False)
    one, two = dcmread(tmp_path / "RS1.dcm"), dcmread(tmp_path / "RS2.dcm")
    assert (one.ApprovalStatus, one.StructureSetLabel) == ("UNAPPROVED", "UNAPPROVED")
    assert "ReviewerName" not in one
    assert (two.ApprovalStatus, two.ReviewerName) == ("APPROVED", "ABC")
    assert (two.ReviewDate, two.ReviewTime) == ("20260102", "030405")
    assert "not checked" in two.SeriesDescription
    assert len(two.SeriesDescription) <= 64
    for row in two.StructureSetROISequence:
        is_corrected = row.ROIName == first
        assert row.ROIGenerationAlgorithm == ("SEMIAUTOMATIC" if is_corrected else "AUTOMATIC")
        assert ("corrected" in row.ROIDescription) == is_corrected
        assert "unreviewed" not in row.ROIDescription
    assert one.SOPInstanceUID != two.SOPInstanceUID


def test_the_same_result_has_the_same_identifiers(tmp_path):
    series, masks = example(tmp_path)
    first = dcmread(tmp_path / "RS.dcm").SOPInstanceUID
    write_rtstruct(tmp_path / "RS2.dcm", rois_of(masks), series, key="k")
    write_rtstruct(tmp_path / "RS3.dcm", rois_of(masks), series, key="other")
    assert dcmread(tmp_path / "RS2.dcm").SOPInstanceUID == first
    assert dcmread(tmp_path / "RS3.dcm").SOPInstanceUID != first


def test_what_reads_back_wrong_is_not_written(tmp_path, monkeypatch):
    """A tracer that loses a voxel's width must not get its contours out of the door."""
    rng = np.random.default_rng(11)
    series = series_in(tmp_path / "ct", random_frame(rng, axial=True), rng)
    masks = random_masks(rng, grid_of(series)[0].shape)
    (tmp_path / "RS.dcm").write_bytes(b"older")
    original = rtstruct_write.join_holes
    for fault in (lambda p: p + 0.4, lambda p: p.mean(0) + 0.9 * (p - p.mean(0))):
        monkeypatch.setattr(
            rtstruct_write, "join_holes", lambda region, fault=fault: [fault(p) for p in original(region)]
        )
        with pytest.raises(IntegrityError):
            write_rtstruct(tmp_path / "RS.dcm", rois_of(masks), series)
        assert (tmp_path / "RS.dcm").read_bytes() == b"older"
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_enhanced_images_are_referenced_by_frame(tmp_path):
    (tmp_path / "mr").mkdir()
    where = Grid((12, 10, 8), np.diag([-1.0, -1.5, 2.0, 1.0]))
    save(enhanced(np.ones(where.shape), where), tmp_path / "mr" / "a.dcm")
    series = only_series(tmp_path / "mr")
    mask = np.zeros(where.shape, bool)
    mask[3:6, 2:5, 4] = True
    write_rtstruct(tmp_path / "RS.dcm", rois_of({"X": mask}), series)
    image = dcmread(tmp_path / "RS.dcm").ROIContourSequence[0].ContourSequence[0].ContourImageSequence[0]
    assert image.ReferencedFrameNumber == grid_of(series)[1][4].frame + 1


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="needs dciodvfy (dicom3tools)")
def test_dciodvfy_finds_no_error(tmp_path):
    example(tmp_path)
    told = subprocess.run(["dciodvfy", tmp_path / "RS.dcm"], capture_output=True, text=True)
    assert "RTStructureSet" in told.stderr + told.stdout
    assert not [line for line in (told.stderr + told.stdout).splitlines() if line.startswith("Error")]


def test_dicom_validator_finds_no_error(tmp_path):
    from pathlib import Path

    from dicom_validator.spec_reader.edition_reader import EditionReader
    from dicom_validator.validator.dicom_file_validator import DicomFileValidator

    home = Path.home() / "dicom-validator"
    if not any(home.glob("*/json/*")):
        pytest.skip("needs the text of the standard, which dicom-validator keeps in ~/dicom-validator")
    example(tmp_path)
    info = EditionReader(home).load_dicom_info("current")
    result = DicomFileValidator(info).validate(tmp_path / "RS.dcm")
    assert all(not errors for errors in result.values())


@pytest.mark.skipif(shutil.which("plastimatch") is None, reason="needs plastimatch")
@pytest.mark.parametrize("seed", range(3))
def test_plastimatch_sees_the_same(tmp_path, seed):
    rng = np.random.default_rng(seed)
    series = series_in(tmp_path / "ct", Frame(transverse(random_frame(rng, axial=True).grid), True), rng)
    masks = random_masks(rng, grid_of(series)[0].shape)
    write_rtstruct(tmp_path / "RS.dcm", rois_of(masks), series)
    there = [name for name, mask in masks.items() if mask.any()]
    for name, read in read_plastimatch(tmp_path / "RS.dcm", tmp_path / "ct", series, there).items():
        assert np.array_equal(read, masks[name]), name


def test_rt_utils_sees_every_voxel(tmp_path):
    """It draws whole pixels wherever a contour touches, so it may see more, never less or elsewhere."""
    pytest.importorskip("rt_utils")
    rng = np.random.default_rng(2)
    square = Grid((20, 20, 6), np.diag([-1.2, -1.2, 2.0, 1.0]))
    series = series_in(tmp_path / "ct", Frame(square, True), rng)
    masks = random_masks(rng, square.shape)
    write_rtstruct(tmp_path / "RS.dcm", rois_of(masks), series)
    there = [name for name, mask in masks.items() if mask.any()]
    for name, read in read_rt_utils(tmp_path / "RS.dcm", tmp_path / "ct", series, there).items():
        grown = ndi.binary_dilation(masks[name], np.ones((3, 3, 1)))
        assert (read | ~masks[name]).all(), name
        assert (grown | ~read).all(), name
