"""docs/dicom.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.pixels import get_decoder
from pydicom.uid import UID, ExplicitVRLittleEndian
from rt_files import write_series

from tumoar.geometry.image import Grid
from tumoar.io import dicom_contrast
from tumoar.io.dicom import only_series
from tumoar.io.dicom_folder import CLASSES
from tumoar.io.dose import PART_OF_A_FRACTION, RTDOSE, WHOLE
from tumoar.io.rois import NOT_REVIEWED, STUDY, Roi
from tumoar.io.rtstruct import RTSTRUCT
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.io.seg import write_seg
from tumoar.io.seg_read import SEG
from tumoar.vocabulary.labels import Code

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dicom.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"
]
UIDS = {row[1]: row for row in ROWS if len(row) > 1 and re.fullmatch(r"1\.2\.840[\d.]+", row[1])}


def test_classes_are_those_that_are_read():
    told = {uid: row[2] for uid, row in UIDS.items() if UID(uid).type == "SOP Class"}
    others = {RTSTRUCT: "reference", SEG: "reference", RTDOSE: "dose"}
    assert told == dict.fromkeys(CLASSES, "image") | others


@pytest.mark.parametrize("uid", [u for u in UIDS if UID(u).type == "Transfer Syntax"])
def test_transfer_syntaxes_are_those_with_a_codec(uid):
    is_read = UIDS[uid][2].startswith("yes")
    is_deflated = uid == "1.2.840.10008.1.2.1.99"  # refused before anything is inflated
    assert UIDS[uid][0].split()[0] in UID(uid).name
    assert is_read == (get_decoder(uid).is_available and not is_deflated)


def test_every_attribute_that_guesses_a_contrast_is_listed():
    code = Path(dicom_contrast.__file__).read_text("utf-8")
    (row,) = (row for row in ROWS if "guess of the contrast" in row[1])
    used = set(re.findall(r'"([A-Z][a-z]+[A-Z]\w+)"', code))
    assert used <= set(row[0].split(", "))


def test_the_doses_are_those_of_the_code():
    text = PAGE.partition("## Doses")[2]
    assert all(word in text for word in (*WHOLE, *PART_OF_A_FRACTION))


@pytest.fixture
def written(tmp_path):
    """A structure set and a segmentation on a small series."""
    grid = Grid((12, 10, 4), np.diag([-1.0, -1.0, 2.0, 1.0]))
    write_series(tmp_path / "ct", np.ones((12, 10, 4)), grid, modality="CT")
    series = only_series(tmp_path / "ct")
    mask = np.zeros((12, 10, 4), bool)
    mask[3:8, 3:8, 1:3] = True
    rois = [Roi("Brainstem", "ORGAN", "#00ff00", mask, Code("15926001", "Brainstem"))]
    write_rtstruct(tmp_path / "rs.dcm", rois, series)
    write_seg(tmp_path / "seg.dcm", rois, series)
    return dcmread(tmp_path / "rs.dcm"), dcmread(tmp_path / "seg.dcm"), next(iter(series.headers.values()))


def test_what_is_copied_is_what_is_told(written):
    (row,) = (row for row in ROWS if row[-1].startswith("copied from the series"))
    assert set(row[0].split(", ")) == set(STUDY)
    structures, _, header = written
    for keyword in STUDY:
        assert structures[keyword].value == header[keyword].value


def test_the_values_of_written_files_are_those_of_the_table(written):
    structures, segments, header = written
    assert structures.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
    assert segments.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
    assert structures.preamble == segments.preamble == b"\0" * 128
    assert structures.StructureSetLabel == NOT_REVIEWED.label
    assert structures.ApprovalStatus == "UNAPPROVED"
    assert structures.StructureSetROISequence[0].ROIGenerationAlgorithm == "AUTOMATIC"
    contour = structures.ROIContourSequence[0].ContourSequence[0]
    assert contour.ContourGeometricType == "CLOSED_PLANAR"
    assert all(re.fullmatch(r"-?\d+\.\d{4}", str(v.original_string)) for v in contour.ContourData)
    assert structures.FrameOfReferenceUID == header.FrameOfReferenceUID
    assert segments.SegmentationType == "BINARY"
    assert segments.SegmentSequence[0].SegmentAlgorithmType == "AUTOMATIC"
    assert NOT_REVIEWED.label in segments.SegmentSequence[0].TrackingID
    assert segments.ContentLabel == "AUTO_UNREVIEWED"
