"""Small DICOM files made for the tests: series of CT and MR slices, doses, structure sets."""

from __future__ import annotations

import gzip
import re
from base64 import b64decode
from pathlib import Path

import numpy as np
from pydicom import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from tumoar.geometry.image import Grid

CT, MR = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4"
RTDOSE, RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.2", "1.2.840.10008.5.1.4.1.1.481.3"
TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])

PATIENT = {
    "PatientName": "Planted^Nameofpatient",
    "PatientID": "PLANTED-ID-4711",
    "PatientBirthDate": "19410313",
    "PatientSex": "F",
    "StudyDate": "20240229",
    "StudyTime": "081500",
    "StudyID": "PLSTUDY",
    "AccessionNumber": "PLANTED-ACC",
    "ReferringPhysicianName": "Planted^Physician",
    "InstitutionName": "Planted Hospital",
    "InstitutionAddress": "Planted Street 1",
    "StationName": "PLANTEDSTATION",
    "OperatorsName": "Planted^Operator",
    "PerformingPhysicianName": "Planted^Performer",
    "RequestingPhysician": "Planted^Requester",
    "OtherPatientIDs": "PLANTED-OTHER-ID",
    "PatientAddress": "Planted Road 2",
    "PatientTelephoneNumbers": "555-PLANTED",
    "PatientComments": "Planted comment",
    "StudyDescription": "Planted study",
    "SeriesDescription": "Planted series",
    "DeviceSerialNumber": "PLANTED-SERIAL",
}
PLANTED = [value for value in PATIENT.values() if len(value) > 3]
BASE64 = re.compile(rb"H4sI[A-Za-z0-9+/=]{40,}")  # gzip streams within a page


def planted_in(path: Path) -> list[str]:
    """Which planted texts a file holds, also within what is compressed."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content += gzip.decompress(content)
    content += b"".join(gzip.decompress(b64decode(found)) for found in BASE64.findall(content))
    return [text for text in PLANTED if text.encode() in content]


def dataset(sop_class: str, **values) -> Dataset:
    """An empty object of a class, with the planted patient."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.SOPClassUID, data.SOPInstanceUID = sop_class, generate_uid()
    data.file_meta.MediaStorageSOPClassUID = sop_class
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    for name, value in {**PATIENT, **values}.items():
        setattr(data, name, value)
    return data


def save(data: Dataset, path: Path) -> Path:
    data.save_as(path, enforce_file_format=True)
    return path


def geometry(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """LPS affine, directions (6,) and pixel spacing of an array [column, row, slice]."""
    affine = TO_LPS @ grid.affine
    unit = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return affine, np.concatenate([unit[:, 0], unit[:, 1]]), grid.spacing[[1, 0]]


def pixels(data: Dataset, stored: np.ndarray) -> None:
    """(rows, columns) or (frames, rows, columns) of 16 bits."""
    data.Rows, data.Columns = stored.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    data.PixelRepresentation = int(stored.dtype == np.int16)
    data.PixelData = np.ascontiguousarray(stored).tobytes()


def write_series(
    folder: Path,
    values: np.ndarray,
    grid: Grid,
    *,
    modality: str = "MR",
    slopes=None,
    frame: str | None = None,
    study: str | None = None,
    edit=lambda data, k: None,
    **more,
) -> list[Path]:
    """One file per slice of values [column, row, slice]; files are named in no order."""
    folder.mkdir(parents=True, exist_ok=True)
    affine, directions, spacing = geometry(grid)
    series, frame, study = generate_uid(), frame or generate_uid(), study or generate_uid()
    count = values.shape[2]
    slopes = np.ones(count) if slopes is None else slopes
    intercept = -1024.0 if modality == "CT" else 0.0
    paths = []
    for k in range(count):
        data = dataset(CT if modality == "CT" else MR, Modality=modality, **more)
        data.StudyInstanceUID, data.SeriesInstanceUID, data.FrameOfReferenceUID = study, series, frame
        data.SeriesNumber, data.InstanceNumber = 3, count - k
        data.ImagePositionPatient = [f"{v:.10g}" for v in affine[:3] @ [0, 0, k, 1]]
        data.ImageOrientationPatient = [f"{v:.12g}" for v in directions]
        data.PixelSpacing = [f"{v:.10g}" for v in spacing]
        data.SliceThickness = f"{grid.spacing[2]:.6g}"
        data.RescaleSlope, data.RescaleIntercept = f"{slopes[k]:.8g}", f"{intercept:g}"
        stored = np.rint((values[:, :, k].T - intercept) / slopes[k])
        pixels(data, stored.astype(np.uint16))
        edit(data, k)
        paths.append(save(data, folder / f"{generate_uid()[-12:]}.dcm"))
    return paths


def enhanced(values, where, **more):
    """All slices in one file, their places in the groups of the frames."""
    affine, directions, spacing = geometry(where)
    data = dataset(f"{MR}.1", Modality="MR", FrameOfReferenceUID="1.2.3", **more)
    data.SeriesInstanceUID, data.StudyInstanceUID = generate_uid(), generate_uid()
    data.NumberOfFrames = values.shape[2]
    measures, turn = Dataset(), Dataset()
    measures.PixelSpacing = [f"{v:g}" for v in spacing]
    turn.ImageOrientationPatient = [f"{v:.12g}" for v in directions]
    shared = Dataset()
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = Sequence([measures]), Sequence([turn])
    data.SharedFunctionalGroupsSequence = Sequence([shared])
    order = np.random.default_rng(3).permutation(values.shape[2])
    groups = []
    for k in order:
        frame, place, scale = Dataset(), Dataset(), Dataset()
        place.ImagePositionPatient = [f"{v:.10g}" for v in affine[:3] @ [0, 0, k, 1]]
        scale.RescaleSlope, scale.RescaleIntercept = f"{1 + k}", "5"
        frame.PlanePositionSequence = Sequence([place])
        frame.PixelValueTransformationSequence = Sequence([scale])
        groups.append(frame)
    data.PerFrameFunctionalGroupsSequence = Sequence(groups)
    pixels(data, values.transpose(2, 1, 0)[order].astype(np.uint16))
    return data


def write_rtdose(path: Path, gray: np.ndarray, grid: Grid, frame: str, **more) -> Path:
    """A dose [column, row, plane] in Gy."""
    affine, directions, spacing = geometry(grid)
    scaling = gray.max() / 60000
    data = dataset(RTDOSE, Modality="RTDOSE", DoseUnits="GY", DoseType="PHYSICAL", DoseSummationType="PLAN")
    data.StudyInstanceUID, data.SeriesInstanceUID, data.FrameOfReferenceUID = (
        generate_uid(), generate_uid(), frame
    )  # fmt: skip
    data.ImagePositionPatient = [f"{v:.10g}" for v in affine[:3, 3]]
    data.ImageOrientationPatient = [f"{v:.12g}" for v in directions]
    data.PixelSpacing = [f"{v:.10g}" for v in spacing]
    step = affine[:3, 2] @ np.cross(directions[:3], directions[3:])
    data.GridFrameOffsetVector = [f"{k * step:.10g}" for k in range(gray.shape[2])]
    data.NumberOfFrames, data.DoseGridScaling = gray.shape[2], f"{scaling:.10g}"
    pixels(data, np.rint(gray.transpose(2, 1, 0) / scaling).astype(np.uint16))
    for name, value in more.items():
        setattr(data, name, value)
    return save(data, path)


def write_contours(path: Path, structures: dict[str, list[np.ndarray]], frame: str) -> Path:
    """A bare structure set of world polygons, as another program would draw them."""
    return save(contour_set(structures, frame), path)


def contour_set(structures: dict[str, list[np.ndarray]], frame: str, kind: str = "CLOSED_PLANAR") -> Dataset:
    """The same, not written yet."""
    data = dataset(RTSTRUCT, Modality="RTSTRUCT", StructureSetLabel="DRAWN")
    data.StudyInstanceUID, data.SeriesInstanceUID = generate_uid(), generate_uid()
    rois, contours = [], []
    for number, (name, polygons) in enumerate(structures.items(), 1):
        roi = Dataset()
        roi.ROINumber, roi.ROIName, roi.ReferencedFrameOfReferenceUID = number, name, frame
        rois.append(roi)
        item = Dataset()
        item.ReferencedROINumber, item.ContourSequence = number, Sequence()
        for polygon in polygons:
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = kind, len(polygon)
            contour.ContourData = [f"{v:.8g}" for v in (polygon * [-1, -1, 1]).ravel()]
            item.ContourSequence.append(contour)
        contours.append(item)
    data.StructureSetROISequence, data.ROIContourSequence = Sequence(rois), Sequence(contours)
    return data
