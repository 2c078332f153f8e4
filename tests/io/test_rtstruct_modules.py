"""What the standard requires of a structure set, module by module (PS3.3, A.19).

It stands in for dicom-validator where the text of the standard, which that needs, cannot be had; dciodvfy of
dicom3tools looks at the same files (test_rtstruct.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from pydicom import Dataset, dcmread
from rt_cases import random_frame, random_masks
from rt_files import write_series

from tumoar.io.dicom import grid_of, only_series
from tumoar.io.rois import Roi
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.vocabulary.labels import Code

# Type 1 has to be there with a value, type 2 has to be there.
MODULES = {
    "Patient": {"": ((), "PatientName PatientID PatientBirthDate PatientSex")},
    "General Study": {
        "": ("StudyInstanceUID", "StudyDate StudyTime ReferringPhysicianName StudyID AccessionNumber")
    },
    "RT Series": {"": ("Modality SeriesInstanceUID", "SeriesNumber OperatorsName")},
    "General Equipment": {"": ((), "Manufacturer")},
    "Frame of Reference": {"": ("FrameOfReferenceUID", "PositionReferenceIndicator")},
    "Structure Set": {
        "": ("StructureSetLabel StructureSetROISequence", "StructureSetDate StructureSetTime"),
        "StructureSetROISequence": (
            "ROINumber ReferencedFrameOfReferenceUID",
            "ROIName ROIGenerationAlgorithm",
        ),
        "ReferencedFrameOfReferenceSequence": ("FrameOfReferenceUID", ()),
        "ReferencedFrameOfReferenceSequence RTReferencedStudySequence": (
            "ReferencedSOPClassUID ReferencedSOPInstanceUID RTReferencedSeriesSequence", ()
        ),
        "ReferencedFrameOfReferenceSequence RTReferencedStudySequence RTReferencedSeriesSequence": (
            "SeriesInstanceUID ContourImageSequence", ()
        ),
    },
    "ROI Contour": {
        "": ("ROIContourSequence", ()),
        "ROIContourSequence": ("ReferencedROINumber", ()),
        "ROIContourSequence ContourSequence": (
            "ContourGeometricType NumberOfContourPoints ContourData", ()
        ),
        "ROIContourSequence ContourSequence ContourImageSequence": (
            "ReferencedSOPClassUID ReferencedSOPInstanceUID", ()
        ),
    },
    "RT ROI Observations": {
        "": ("RTROIObservationsSequence", ()),
        "RTROIObservationsSequence": (
            "ObservationNumber ReferencedROINumber", "RTROIInterpretedType ROIInterpreter"
        ),
        "RTROIObservationsSequence RTROIIdentificationCodeSequence": (
            "CodeValue CodingSchemeDesignator CodeMeaning", ()
        ),
    },
    "Approval": {"": ("ApprovalStatus", ())},
    "SOP Common": {"": ("SOPClassUID SOPInstanceUID SpecificCharacterSet", ())},
}  # fmt: skip
LENGTHS = {"SH": 16, "LO": 64, "CS": 16, "DS": 16, "IS": 12, "UI": 64, "DA": 8, "ST": 1024}


@pytest.fixture(scope="module", params=[False, True], ids=["edges", "smooth"])
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    rng = np.random.default_rng(4)
    frame = random_frame(rng)
    # Most of what is type 2 is absent from the images: it has to be there, empty, all the same.
    edit = lambda d, k: [delattr(d, n) for n in ("StudyTime", "StudyID", "PatientSex", "AccessionNumber")]  # noqa: E731
    write_series(folder / "ct", np.ones(frame.grid.shape), frame.grid, modality="CT", edit=edit)
    series = only_series(folder / "ct")
    masks = random_masks(rng, grid_of(series)[0].shape)
    rois = [Roi(n, "ORGAN", "#2ca02c", m, Code("119238007", "Brain Stem")) for n, m in masks.items()]
    write_rtstruct(folder / "RS.dcm", rois, series, smooth=request.param)
    return dcmread(folder / "RS.dcm")


def items_at(data: Dataset, path: str) -> list[Dataset]:
    found = [data]
    for keyword in path.split():
        found = [item for parent in found for item in parent.get(keyword, [])]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_required_attributes(data, module):
    for path, (type_1, type_2) in MODULES[module].items():
        items = items_at(data, path)
        assert items, path
        for item in items:
            for keyword in type_1.split() if type_1 else ():
                assert keyword in item, f"{path} {keyword}"
                assert not item[keyword].is_empty, keyword
            assert all(keyword in item for keyword in (type_2.split() if type_2 else ())), path


def test_numbers_agree(data):
    numbers = [row.ROINumber for row in data.StructureSetROISequence]
    assert len(set(numbers)) == len(numbers)
    assert [c.ReferencedROINumber for c in data.ROIContourSequence] == numbers
    assert [o.ReferencedROINumber for o in data.RTROIObservationsSequence] == numbers
    frames = {f.FrameOfReferenceUID for f in data.ReferencedFrameOfReferenceSequence}
    assert {row.ReferencedFrameOfReferenceUID for row in data.StructureSetROISequence} == frames
    for contour in items_at(data, "ROIContourSequence ContourSequence"):
        assert len(contour.ContourData) == 3 * contour.NumberOfContourPoints
        assert contour.ContourGeometricType == "CLOSED_PLANAR"


def test_values_fit_their_representation(data):
    def walk(of: Dataset):
        for element in of:
            if element.VR == "SQ":
                for item in element.value:
                    yield from walk(item)
            else:
                yield element

    for element in [*walk(data.file_meta), *walk(data)]:
        values = element.value if element.VM > 1 else [element.value]
        for value in values:
            text = getattr(value, "original_string", None) or str(value if value is not None else "")
            assert len(text) <= LENGTHS.get(element.VR, 2**31), element.keyword
