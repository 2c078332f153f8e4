"""Read structure sets: every structure as contours in world space.

Contradictory files are refused. Points and open contours, which enclose no volume, are skipped and listed in
`StructureSet.notes`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset

from tumoar.geometry.contours import Outline, common_spacing, find_remarks
from tumoar.geometry.planes import drop_repeats, has_area
from tumoar.io.dicom_file import open_dicom, refusing, require_whole
from tumoar.io.files import open_file
from tumoar.io.identity import Person, person_of
from tumoar.vocabulary.errors import (
    GeometryError,
    TumoarError,
    UnreadableFileError,
    join_names,
    plain_name,
    printable,
)

RTSTRUCT = "1.2.840.10008.5.1.4.1.1.481.3"
VOXEL_EDGES = "voxel edges"
"""In the description of our own structures: their contours represent whole slices."""

MOST_BYTES = 512 * 1024**2
MOST_POINTS, MOST_CONTOURS = 20_000_000, 500_000  # of a file
FARTHEST = 100_000.0  # mm from the origin
NAME_LENGTH = 64  # characters, by the standard
NUMERALS = b"0123456789+-.eE \\"
CLOSED, EXCLUSIVE = "CLOSED_PLANAR", "CLOSEDPLANAR_XOR"
NO_VOLUME = {"POINT": "point", "OPEN_PLANAR": "open contour", "OPEN_NONPLANAR": "open contour"}
AGAIN = "export the structure set again"

Points = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StructureSet:
    """Structures with contours, their frame of reference, and the patient.

    `empty` lists structures without closed contours; `notes` say what was skipped or interpreted.
    """

    outlines: tuple[Outline, ...]
    frame: str | None
    person: Person = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def read_rtstruct(path: str | Path, spacing: float | None = None) -> StructureSet:
    """Read a structure set; `spacing` (mm) of the slices defaults to that of the closest contours."""
    path = Path(path)
    with open_file(path, "the structure set", MOST_BYTES):
        data = open_dicom(path)
    require_whole(data, path.name)
    if data.SOPClassUID != RTSTRUCT:
        raise UnreadableFileError("rtstruct", "not an RTSTRUCT file", file=path.name)
    with refusing(path):
        rows = _numbered(data.get("StructureSetROISequence") or [], "ROINumber", path.name)
        drawn = {
            number: item
            for number, item in _numbered(
                data.get("ROIContourSequence") or [], "ReferencedROINumber", path.name
            ).items()
            if item.get("ContourSequence")
        }
        names = _names(rows, drawn, path.name)
        _require_bounded(drawn.values(), path.name)
        found = [_outline(item, rows[n], names[n], path.name) for n, item in drawn.items()]
        person = person_of(data)
        frame = _frame([rows[n] for n in drawn], path.name)
        frameless = [names[n] for n in drawn if frame and not _frame_of(rows[n])]
        bare = [text for n, row in rows.items() if n not in drawn and (text := _name(row))]
    outlines = [outline for outline, _ in found if outline.polygons]
    common = spacing or common_spacing(outlines)
    outlines = [replace(o, spacing=common) for o in outlines]
    notes = [note for _, own in found for note in own]
    if frameless:
        verb = "names" if len(frameless) == 1 else "name"
        where = "assumed to be that of the others"
        notes.append(f"{join_names(frameless)} {verb} no frame of reference: {where}")
    if bare:
        notes.append(f"without contours in {plain_name(path.name)}: {join_names(bare)}")
    notes += [note for outline in outlines for note in _remarks(outline)]
    empty = [*bare, *(outline.name for outline, _ in found if not outline.polygons)]
    return StructureSet(tuple(outlines), frame, person, tuple(notes), tuple(empty))


def _numbered(items: Iterable[Dataset], keyword: str, name: str) -> dict[int, Dataset]:
    """Items of a sequence by their structure number, which must be unique."""
    out: dict[int, Dataset] = {}
    for item in items:
        if item.get(keyword) is None:
            raise _unusable("a structure without a number", name)
        number = int(item[keyword].value)
        if number in out:
            raise _unusable(f"structure number {number} appears twice", name)
        out[number] = item
    return out


def _names(rows: Mapping[int, Dataset], drawn: Iterable[int], name: str) -> dict[int, str]:
    """Name of every structure with contours; it must exist and be unique."""
    out = {}
    for number in drawn:
        if number not in rows:
            raise _unusable(f"contours of structure number {number}, which the file does not list", name)
        out[number] = _name(rows[number])
        if not out[number]:
            raise _unusable(f"structure number {number} has contours but no name", name)
    twice = [text for text, count in Counter(out.values()).items() if count > 1]
    if twice:
        raise UnreadableFileError(
            "rtstruct",
            f"two structures have the name {twice[0]}",
            file=name,
            do="rename or remove one of them in the planning system",
        )
    return out


def _name(row: Dataset) -> str:
    text = unicodedata.normalize("NFC", str(row.get("ROIName") or ""))
    return printable(text.strip().strip("\0"))[:NAME_LENGTH].strip()


def _require_bounded(drawn: Iterable[Dataset], name: str) -> None:
    count = sum(len(item.ContourSequence) for item in drawn)
    if count > MOST_CONTOURS:
        raise _unusable(f"{count} contours, at most {MOST_CONTOURS}", name)


def _frame(rows: Iterable[Dataset], name: str) -> str | None:
    """Frame of reference of all structures with contours; None if none is given."""
    frames = {_frame_of(row) for row in rows} - {""}
    if len(frames) > 1:
        raise GeometryError(
            "B33",
            "structures lie in different frames of reference",
            file=name,
            found=f"{len(frames)} frames",
            do="export them on one series",
        )
    return frames.pop() if frames else None


def _frame_of(row: Dataset) -> str:
    return str(row.get("ReferencedFrameOfReferenceUID") or "").strip()


def _outline(item: Dataset, row: Dataset, name: str, file: str) -> tuple[Outline, list[str]]:
    """Closed contours of a structure, and notes on its other contents."""
    polygons, left_out, kinds = [], Counter[str](), set[str]()
    for contour in item.ContourSequence:
        kind = str(contour.get("ContourGeometricType") or "").strip()
        if kind in NO_VOLUME:
            left_out[NO_VOLUME[kind]] += 1
            continue
        if kind not in (CLOSED, EXCLUSIVE):
            raise _unusable(f"a contour of {name} of unknown type", file)
        kinds.add(kind)
        points = _points(contour, name, file)
        polygon = drop_repeats(points)
        if not has_area(polygon):
            left_out["contour without area"] += 1
            continue
        left_out["repetition"] += len(polygon) < len(points)
        polygons.append(polygon)
    if len(kinds) > 1:
        raise _unusable(f"contours of {name} are of both types, {CLOSED} and {EXCLUSIVE}", file)
    repeated = left_out.pop("repetition", 0)
    notes = [f"{_counted(n, what)} of {name} {_was(n)} not used" for what, n in left_out.items()]
    if repeated:
        notes.append(
            f"{_counted(repeated, 'contour')} of {name} {_was(repeated)} traced twice and counted once"
        )
    outline = Outline(
        name,
        tuple(polygons),
        slabs=VOXEL_EDGES in str(row.get("ROIDescription", "")),
        exclusive=EXCLUSIVE in kinds,
        is_whole="open contour" not in left_out,
    )
    return outline, notes


def _points(contour: Dataset, name: str, file: str) -> Points:
    """(n, 3) points of a contour in world mm (RAS)."""
    values = _decimals(contour, name, file)
    if len(values) % 3:
        raise _unusable(f"a contour of {name} with {len(values)} coordinates, not three per point", file)
    points = values.reshape(-1, 3)
    claimed = contour.get("NumberOfContourPoints")
    if claimed is not None and int(claimed) != len(points):
        raise _unusable(f"a contour of {name} with {len(points)} points that claims {int(claimed)}", file)
    if not (np.abs(points) <= FARTHEST).all():
        raise _unusable(f"a contour of {name} with coordinates outside any scanner", file)
    offset = contour.get("ContourOffsetVector")
    if offset and any(float(v) != 0 for v in offset):
        raise _unusable(f"contours of {name} are shifted by a Contour Offset Vector", file)
    return points * [-1.0, -1.0, 1.0]


def _decimals(contour: Dataset, name: str, file: str) -> Points:
    """Coordinates of a contour, parsed from the raw bytes for speed."""
    if "ContourData" not in contour:
        return np.zeros(0)
    raw = contour.get_item("ContourData")
    if not isinstance(raw.value, bytes):
        return np.array([float(v) for v in raw.value or ()])
    text = raw.value.rstrip(b"\0 ")
    if text.translate(None, NUMERALS):
        raise _unusable(f"a contour of {name} with coordinates that are not numbers", file)
    if not text:
        return np.zeros(0)
    values = text.split(b"\\")
    if len(values) > 3 * MOST_POINTS:
        raise _unusable(f"a contour of {name} with {len(values) // 3} points", file)
    try:
        return np.array([float(v) for v in values])
    except ValueError as error:
        raise _unusable(f"a contour of {name} with coordinates that are not numbers", file) from error


def _remarks(outline: Outline) -> list[str]:
    """Notes on contours that can be arranged in planes; others are refused where they are used."""
    try:
        return find_remarks(outline)
    except TumoarError:
        return []


def _counted(count: int, what: str) -> str:
    if what.startswith("contour ") and count != 1:
        return f"{count} contours{what.removeprefix('contour')}"
    return f"{count} {what}{'' if count == 1 else 's'}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _unusable(found: str, name: str) -> UnreadableFileError:
    return UnreadableFileError("rtstruct", "structure set not usable", file=name, found=found, do=AGAIN)
