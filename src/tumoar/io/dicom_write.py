"""Write CT slices and doses of phantoms as plain DICOM, of a patient who does not exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

from tumoar.geometry.image import Grid, Image
from tumoar.io.dicom_file import LPS_TO_RAS
from tumoar.io.dose import RTDOSE
from tumoar.io.rois import MANUFACTURER, now, uid
from tumoar.version import __version__

CT = "1.2.840.10008.5.1.4.1.1.2"
PHANTOM = {"PatientName": "Phantom^Digital", "PatientID": "TUMOAR-PHANTOM", "StudyID": "PHANTOM"}
INTERCEPT = -1024  # of stored values in Hounsfield units
LARGEST = 60_000  # stored value of the highest dose


def write_ct(folder: Path, image: Image, key: str) -> None:
    """Write whole Hounsfield units as one CT series; the last axis of the grid runs through the slices."""
    folder.mkdir(parents=True)
    corner, directions, spacing = _geometry(image.grid)
    step = LPS_TO_RAS[:3, :3] @ image.grid.affine[:3, 2]
    stored = np.asarray(image.data, np.int64) - INTERCEPT
    for k in range(image.grid.shape[2]):
        data = _dataset(CT, "CT", key, f"slice {k}")
        data.ImageType = ["DERIVED", "SECONDARY", "AXIAL"]
        data.KVP, data.AcquisitionNumber = None, None
        data.InstanceNumber = k + 1
        data.ImagePositionPatient = _decimals(corner + k * step)
        data.ImageOrientationPatient, data.PixelSpacing = _decimals(directions), _decimals(spacing)
        data.SliceThickness = f"{image.grid.spacing[2]:.6g}"
        data.RescaleIntercept, data.RescaleSlope, data.RescaleType = str(INTERCEPT), "1", "HU"
        _add_pixels(data, stored[:, :, k].T)
        data.save_as(folder / f"{k + 1:04d}.dcm", enforce_file_format=True)


def write_dose(path: Path, dose: Image, key: str) -> None:
    """Write a dose in Gy as RTDOSE of a plan."""
    corner, directions, spacing = _geometry(dose.grid)
    step = float(LPS_TO_RAS[:3, :3] @ dose.grid.affine[:3, 2] @ np.cross(directions[:3], directions[3:]))
    data = _dataset(RTDOSE, "RTDOSE", key, "dose")
    data.DoseUnits, data.DoseType, data.DoseSummationType = "GY", "PHYSICAL", "PLAN"
    values = np.asarray(dose.data, float)
    scaling = float(f"{float(values.max()) / LARGEST:.9g}")
    data.DoseGridScaling = f"{scaling:.9g}"
    data.ImagePositionPatient = _decimals(corner)
    data.ImageOrientationPatient, data.PixelSpacing = _decimals(directions), _decimals(spacing)
    data.GridFrameOffsetVector = [f"{k * step:.10g}" for k in range(dose.grid.shape[2])]
    data.FrameIncrementPointer = 0x3004000C
    data.NumberOfFrames = dose.grid.shape[2]
    _add_pixels(data, np.rint(values / scaling).transpose(2, 1, 0))
    data.save_as(path, enforce_file_format=True)


def frame_of(key: str) -> str:
    """Frame of reference of all objects with this key."""
    return uid("phantom", key, "frame")


def _dataset(sop_class: str, modality: str, key: str, part: str) -> Dataset:
    date, time = now()
    data = Dataset()
    values = {
        "SOPClassUID": sop_class,
        "SOPInstanceUID": uid("phantom", key, modality, part),
        "StudyInstanceUID": uid("phantom", key, "study"),
        "SeriesInstanceUID": uid("phantom", key, modality),
        "FrameOfReferenceUID": frame_of(key),
        "Modality": modality,
        "Manufacturer": MANUFACTURER,
        "SoftwareVersions": __version__,
        "SpecificCharacterSet": "ISO_IR 192",
        "SeriesNumber": 1,
        "StudyDate": date,
        "StudyTime": time,
        "ContentDate": date,
        "ContentTime": time,
        "PositionReferenceIndicator": "",
        "PatientBirthDate": "",
        "PatientSex": "",
        "AccessionNumber": "",
        "ReferringPhysicianName": "",
        "PatientPosition": "HFS",
        **PHANTOM,
    }
    for keyword, value in values.items():
        setattr(data, keyword, value)
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    return data


def _geometry(
    grid: Grid,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Corner and directions (LPS) of an array [column, row, slice], and PixelSpacing."""
    affine = LPS_TO_RAS @ grid.affine
    along = affine[:3, :2] / grid.spacing[:2]
    return affine[:3, 3], along.T.ravel(), grid.spacing[[1, 0]]


def _decimals(values: npt.ArrayLike) -> list[str]:
    """Numbers of at most 16 characters, as the standard requires."""
    return [f"{v + 0.0:.9f}"[:16] for v in np.ravel(values).tolist()]


def _add_pixels(data: Dataset, values: npt.NDArray[np.generic]) -> None:
    data.Rows, data.Columns = values.shape[-2:]
    data.BitsAllocated = data.BitsStored = 16
    data.HighBit, data.PixelRepresentation, data.SamplesPerPixel = 15, 0, 1
    data.PhotometricInterpretation = "MONOCHROME2"
    data.PixelData = np.ascontiguousarray(values, "<u2").tobytes()
