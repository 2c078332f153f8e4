"""Structure sets read: every structure as contours in world space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset

from tumoar.contours import Outline, common_spacing
from tumoar.errors import UnreadableFileError, printable
from tumoar.io.dicom_file import open_dicom, refusing
from tumoar.io.identity import Person, person_of

RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
MODEL_NAME = "tumoar"
VOXEL_EDGES = "voxel edges"
"""In the description of our own structures: their contours stand for whole slices."""


Points = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StructureSet:
    """The structures of a file that have contours, the frame of reference they lie in, and whose they are."""

    outlines: tuple[Outline, ...]
    frame: str | None
    person: Person = field(default=(), repr=False)


def read_rtstruct(path: str | Path, spacing: float | None = None) -> StructureSet:
    """Read a structure set; `spacing` (mm) is that of the slices, else the least distance of any contours."""
    path = Path(path)
    data = open_dicom(path)
    if data.SOPClassUID != RTSTRUCT:
        raise UnreadableFileError("rtstruct", "not an RTSTRUCT file", file=path.name)
    with refusing(path):
        rows = {int(row.ROINumber): row for row in data.get("StructureSetROISequence", [])}
        outlines = [
            _outline(contour, rows[int(contour.ReferencedROINumber)])
            for contour in data.get("ROIContourSequence", [])
            if contour.get("ContourSequence")
        ]
        person = person_of(data)
        frames = {str(row.ReferencedFrameOfReferenceUID) for row in rows.values()}
    drawn = [o for o in outlines if o.polygons]
    common = spacing or common_spacing(drawn)
    frame = frames.pop() if len(frames) == 1 else None
    return StructureSet(tuple(replace(o, spacing=common) for o in drawn), frame, person)


def _outline(contours: Dataset, row: Dataset) -> Outline:
    polygons = [
        _decimals(c).reshape(-1, 3) * [-1.0, -1.0, 1.0]
        for c in contours.ContourSequence
        if c.ContourGeometricType in ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
    ]
    follows_voxels = VOXEL_EDGES in str(row.get("ROIDescription", ""))
    kept = tuple(p for p in polygons if len(p) >= 3)
    return Outline(printable(str(row.get("ROIName", "")))[:64], kept, slabs=follows_voxels)


def _decimals(contour: Dataset) -> Points:
    """The coordinates of a contour; read from the bytes, as there are very many of them."""
    if "ContourData" not in contour:
        return np.zeros(0)
    raw = contour.get_item("ContourData")
    values = raw.value.split(b"\\") if isinstance(raw.value, bytes) else raw.value
    return np.array([float(v) for v in values])
