"""Read DICOM segmentations: every segment as pixels on planes in world space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset

from tumoar.geometry.image import Grid
from tumoar.io.dicom_file import LPS_TO_RAS, directions, open_dicom, pixels_of, refusing, vector
from tumoar.io.files import open_file
from tumoar.io.identity import Person, person_of
from tumoar.vocabulary.errors import GeometryError, ResourceError, UnreadableFileError, printable

SEG = "1.2.840.10008.5.1.4.1.1.66.4"
MOST_BYTES, MOST_PIXELS = 1024**3, 2 * 10**9
BESIDE = 0.1  # mm between a pixel and a voxel

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Frame:
    """Pixels [row, column] of a segment, world position of the first, and column and row steps."""

    pixels: Mask
    corner: Points
    column: Points
    row: Points


@dataclass(frozen=True, eq=False)
class Segments:
    """Frames of every segment by label, their frame of reference, and the patient."""

    frames: Mapping[str, Sequence[Frame]]
    frame: str | None
    person: Person = field(default=(), repr=False)


def read_seg(path: str | Path) -> Segments:
    """Read a BINARY or FRACTIONAL segmentation; fractions of at least one half count as inside."""
    path = Path(path)
    with open_file(path, "the segmentation", MOST_BYTES):
        data = open_dicom(path)
    if data.SOPClassUID != SEG:
        raise UnreadableFileError("seg", "not a DICOM segmentation", file=path.name)
    with refusing(path):
        names = _labels(data, path.name)
        size = float(data.Rows) * float(data.Columns) * float(data.get("NumberOfFrames") or 1)
        if not 0 < size <= MOST_PIXELS:
            raise ResourceError("B6", "image too large", file=path.name, do="export it in parts")
        stored = pixels_of(data, path.name)
        stored = stored.reshape(-1, *stored.shape[-2:])
        kind = str(data.get("SegmentationType") or "BINARY")
        if kind not in ("BINARY", "FRACTIONAL"):
            raise _unusable(f"type {printable(kind)}, not BINARY or FRACTIONAL", path.name)
        least = 1.0 if kind == "BINARY" else float(data.MaximumFractionalValue) / 2
        frames: dict[str, list[Frame]] = {name: [] for name in names.values()}
        shared = (data.get("SharedFunctionalGroupsSequence") or [Dataset()])[0]
        groups = data.PerFrameFunctionalGroupsSequence
        if len(groups) != len(stored):
            raise _unusable(f"{len(stored)} frames with {len(groups)} positions", path.name)
        for pixels, own in zip(stored, groups):
            number = int(
                _group(own, shared, "SegmentIdentificationSequence", path.name).ReferencedSegmentNumber
            )
            if number not in names:
                raise _unusable(f"a frame of segment {number}, which the file does not list", path.name)
            frames[names[number]].append(_frame(pixels >= least, own, shared, path.name))
        uid = str(data.get("FrameOfReferenceUID") or "").strip() or None
        return Segments(frames, uid, person_of(data))


def mask_on(frames: Sequence[Frame], grid: Grid, name: str) -> Mask:
    """Mask of a segment on a grid in any storage order; refused if its pixels are not voxels of the grid."""
    out = np.zeros(grid.shape, bool)
    for frame in frames:
        rows, columns = frame.pixels.shape
        start = grid.index(frame.corner)
        steps = np.stack([grid.index(frame.corner + step) - start for step in (frame.row, frame.column)])
        whole = np.rint(steps).astype(np.int64)
        first = np.rint(start).astype(np.int64)
        ends = np.array([[0, 0], [0, columns - 1], [rows - 1, 0], [rows - 1, columns - 1]])
        beside = float(np.abs((start + ends @ steps - first - ends @ whole) * grid.spacing).max())
        where = first + np.argwhere(frame.pixels) @ whole
        is_turned = np.array_equal(np.abs(whole).sum(1), [1, 1]) and abs(whole[0] @ whole[1]) == 0
        if beside > BESIDE or not is_turned or ((where < 0) | (where >= grid.shape)).any():
            raise GeometryError(
                "evaluate-grid",
                f"pixels of {name} are not voxels of the image",
                do="give a segmentation of an image that was segmented",
            )
        out[tuple(where.T)] = True
    return out


def _labels(data: Dataset, name: str) -> dict[int, str]:
    """Label of every segment; it must exist and be unique."""
    out: dict[int, str] = {}
    for item in data.get("SegmentSequence") or []:
        number, label = int(item.SegmentNumber), printable(str(item.get("SegmentLabel") or "").strip())[:64]
        if number in out:
            raise _unusable(f"segment number {number} appears twice", name)
        if not label:
            raise _unusable(f"segment {number} has no label", name)
        if label in out.values():
            raise UnreadableFileError(
                "seg", f"two segments have the label {label}", file=name, do="rename or remove one of them"
            )
        out[number] = label
    return out


def _frame(pixels: Mask, own: Dataset, shared: Dataset, name: str) -> Frame:
    to_world = LPS_TO_RAS[:3, :3]
    corner = vector(_group(own, shared, "PlanePositionSequence", name), "ImagePositionPatient", 3, name)
    along = directions(_group(own, shared, "PlaneOrientationSequence", name), name)
    spacing = vector(_group(own, shared, "PixelMeasuresSequence", name), "PixelSpacing", 2, name)
    return Frame(
        pixels, to_world @ corner, to_world @ along[0] * spacing[1], to_world @ along[1] * spacing[0]
    )


def _group(own: Dataset, shared: Dataset, keyword: str, name: str) -> Dataset:
    for group in (own, shared):
        if group.get(keyword):
            found: Dataset = group[keyword].value[0]
            return found
    raise _unusable(f"a frame without {keyword}", name)


def _unusable(found: str, name: str) -> UnreadableFileError:
    return UnreadableFileError(
        "seg", "segmentation not usable", file=name, found=found, do="export the segmentation again"
    )
