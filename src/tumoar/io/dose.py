"""Dose distributions in Gy from RTDOSE, NIfTI or NRRD files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydicom import Dataset

from tumoar.errors import ChannelError, GeometryError, UnreadableFileError
from tumoar.image import Grid, Image
from tumoar.io.dicom_file import (
    LPS_TO_RAS,
    affine_of,
    directions,
    number,
    open_dicom,
    pixels_of,
    refusing,
    vector,
)
from tumoar.io.identity import Person, person_of
from tumoar.io.nifti import SUFFIXES, read_nifti

MOST_GY = 500.0  # more is cGy, or no dose at all
RTDOSE = "1.2.840.10008.5.1.4.1.1.481.2"


def read_dose(path: str | Path) -> Image:
    """A dose in Gy on its grid; whatever is relative, in other units, negative or implausible is refused."""
    path = Path(path)
    if path.name.endswith(SUFFIXES):
        dose = read_nifti(path)
    elif path.suffix == ".nrrd":
        dose = _read_nrrd(path)
    else:
        dose = _read_rtdose(path)
    values = np.asarray(dose.data, np.float32)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() == 0:
        raise ChannelError("dose", "not a dose: values negative, missing or zero everywhere", file=path.name)
    if values.max() > MOST_GY:
        raise ChannelError(
            "dose", "dose not in Gy", file=path.name, found=f"up to {values.max():.0f}", do="divide it by 100"
        )
    return Image(values, dose.grid, path.name)


def dose_person(path: str | Path) -> Person:
    """Whom an RTDOSE file names; NIfTI and NRRD files name nobody."""
    path = Path(path)
    if path.name.endswith((*SUFFIXES, ".nrrd")):
        return ()
    with refusing(path):
        return person_of(open_dicom(path, pixels=False))


def _read_nrrd(path: Path) -> Image:
    import SimpleITK

    if not path.is_file():
        raise UnreadableFileError(
            "B1", "cannot read the dose: no such file", file=path.name, do="check the name"
        )
    try:
        image = SimpleITK.ReadImage(str(path))
    except RuntimeError as error:
        raise UnreadableFileError("B7", "not a readable NRRD file", file=path.name) from error
    if image.GetDimension() != 3 or image.GetNumberOfComponentsPerPixel() != 1:
        raise UnreadableFileError("B7", "not a scalar 3-D dose", file=path.name)
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    values = SimpleITK.GetArrayFromImage(image).transpose(2, 1, 0)
    return Image(values, Grid(values.shape, LPS_TO_RAS @ affine), path.name)


def _read_rtdose(path: Path) -> Image:
    data = open_dicom(path)
    if data.SOPClassUID != RTDOSE:
        raise UnreadableFileError("dose", "not an RTDOSE file", file=path.name)
    with refusing(path):
        if data.get("DoseUnits") != "GY":
            raise ChannelError("dose", "dose not in Gy", file=path.name, do="export the absolute dose")
        frames = pixels_of(data, path.name)
        frames = frames if frames.ndim == 3 else frames[None]
        values = (frames * number(data, "DoseGridScaling", path.name)).transpose(2, 1, 0)
        frame = data.get("FrameOfReferenceUID")
        grid = Grid(values.shape, _dose_affine(data, len(frames), path.name), str(frame) if frame else None)
    return Image(values, grid, path.name)


def _dose_affine(data: Dataset, count: int, name: str) -> np.ndarray:
    pair = directions(data, name)
    corner = vector(data, "ImagePositionPatient", 3, name)
    normal = np.cross(*pair)
    offsets = vector(data, "GridFrameOffsetVector", count, name) if count > 1 else np.array([0.0, 1.0])
    steps = np.diff(offsets)
    if np.ptp(steps) > 0.01 * abs(steps.mean()) + 1e-6 or abs(steps.mean()) < 1e-3:
        raise GeometryError("dose", "planes of the dose not evenly spaced", file=name, do="export it again")
    # Offsets that do not begin at zero are places along z, which only transverse planes have.
    if offsets[0] != 0 and abs(abs(normal[2]) - 1) > 1e-3:
        raise GeometryError("dose", "positions of the dose's planes not usable", file=name)
    direction = normal if offsets[0] == 0 else np.array([0.0, 0.0, 1.0])
    if offsets[0] != 0:
        corner = np.array([corner[0], corner[1], offsets[0]])
    return affine_of(pair, vector(data, "PixelSpacing", 2, name), corner, direction * steps.mean())
