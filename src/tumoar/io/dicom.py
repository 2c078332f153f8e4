"""Read CT and MR series from folders.

Geometry comes only from ImagePositionPatient, ImageOrientationPatient and PixelSpacing of each slice. A
series that is not one evenly spaced stack of parallel slices is refused; it is never stretched, rectified or
subsampled.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset

from tumoar.geometry.image import Grid, Image
from tumoar.io.dicom_contrast import Guess, guess_contrast
from tumoar.io.dicom_file import (
    CHUNK,
    MOST_BYTES,
    PIXEL_SPACING,
    affine_of,
    count,
    directions,
    number,
    pixels_of,
    read_dicom,
    refusing,
    vector,
)
from tumoar.io.dicom_folder import CLASSES, note_gaps, slices_in
from tumoar.io.files import open_file
from tumoar.io.identity import Person, is_same_person, merge_people, person_of
from tumoar.io.nifti import MAX_VOXELS
from tumoar.io.nifti_header import COPY_AGAIN
from tumoar.io.rois import STUDY
from tumoar.vocabulary.errors import (
    ChannelError,
    GeometryError,
    IntegrityError,
    ResourceError,
    TumoarError,
    UnreadableFileError,
)
from tumoar.vocabulary.notes import Note

SAME_PLACE = 0.01  # mm
UNEVEN, UNEVEN_MM = 0.01, 0.05  # of the spacing, or mm
SHEAR = 1e-3
MOST_FRAMES = 20_000  # of one file
MOST_SCALE = 1e9  # of slope and intercept; integers up to it are exact

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Slice:
    """One frame of one file: position and directions (LPS), and scaling of its values."""

    path: Path
    frame: int
    corner: Vector
    pair: Vector  # (2, 3)
    spacing: Vector  # between rows, between columns
    size: tuple[int, int]  # rows, columns
    bits: int
    slope: float
    intercept: float


@dataclass(frozen=True, eq=False)
class Series:
    """Slices that belong together, not yet checked to be one even stack; `person` is never shown."""

    modality: str
    slices: tuple[Slice, ...]
    frame: str | None
    guess: Guess
    is_mosaic: bool
    order: int
    person: Person = field(repr=False)
    headers: Mapping[Path, Dataset] = field(repr=False)
    notes: tuple[Note, ...] = ()

    @property
    def uid(self) -> str:
        """Its SeriesInstanceUID."""
        return str(self.headers[self.slices[0].path].get("SeriesInstanceUID"))

    @property
    def name(self) -> str:
        """Name for tables and messages; it contains no text of the header."""
        return f"{self.modality} series of {len(self.slices)} slices"


# ---- content of a folder -----------------------------------------------------------------------------------


def find_series(folder: Path) -> list[Series]:
    """Find all CT and MR series below a folder, sorted by series number; other objects are skipped."""
    groups: dict[tuple[object, ...], list[tuple[Path, Dataset]]] = {}
    for path, data in slices_in(folder):
        with refusing(path):
            groups.setdefault(_key(data, path.name), []).append((path, data))
    found = [_series(members) for members in groups.values()]
    found = [replace(s, notes=_note_gaps(s, found)) for s in found]
    return sorted(found, key=lambda s: (s.order, s.uid))


def _note_gaps(series: Series, found: Sequence[Series]) -> tuple[Note, ...]:
    """Note missing slices according to the counters; stacks of one series are counted together."""
    headers = [h for other in found if other.uid == series.uid for h in other.headers.values()]
    if any("PerFrameFunctionalGroupsSequence" in h for h in headers):
        return ()
    with refusing(series.slices[0].path):
        return note_gaps(headers)


def _key(data: Dataset, name: str) -> tuple[object, ...]:
    """Key that all slices of one stack share: series, size, directions, echo."""
    if "PerFrameFunctionalGroupsSequence" in data:
        return data.get("SeriesInstanceUID"), data.get("SOPInstanceUID")
    turned = tuple(np.round(directions(data, name).ravel(), 2) + 0.0)
    return data.get("SeriesInstanceUID"), data.get("Rows"), data.get("Columns"), turned, data.get("EchoTime")


def _series(members: Sequence[tuple[Path, Dataset]]) -> Series:
    path, first = members[0]
    with refusing(path):
        slices = tuple(s for p, data in members for s in _slices(p, data))
        for _, data in members:
            for keyword in (*STUDY, "SeriesInstanceUID", "SOPInstanceUID", "SpecificCharacterSet"):
                data.get(keyword)  # decode now, where errors become refusals
        frames = {str(d.get("FrameOfReferenceUID") or "") for _, d in members}
        people = {person_of(d) for _, d in members}
        order = int(first.get("SeriesNumber") or 0)
        guess = guess_contrast(first)
        is_mosaic = "MOSAIC" in [str(v).upper() for v in first.get("ImageType") or []]
    if len(frames) > 1:
        raise GeometryError("B33", "slices of one series have different frames of reference", file=path.name)
    if not all(is_same_person(one, other) for one, other in combinations(people, 2)):
        raise GeometryError("B34", "slices of one series are from different patients", file=path.name)
    modality = CLASSES[str(first.SOPClassUID)]
    return Series(
        modality, slices, frames.pop() or None, guess, is_mosaic, order, merge_people(people), dict(members)
    )


def _slices(path: Path, data: Dataset) -> Iterator[Slice]:
    size = count(data, "Rows", path.name), count(data, "Columns", path.name)
    bits = count(data, "BitsAllocated", path.name, 64)
    if "PerFrameFunctionalGroupsSequence" not in data:
        yield _slice(path, 0, data, data, data, data, size, bits)
        return
    shared = data.get("SharedFunctionalGroupsSequence") or [Dataset()]

    def group(frame: Dataset, keyword: str) -> Dataset:
        for item in (frame, shared[0]):
            if item.get(keyword):
                return Dataset(item[keyword].value[0])
        return Dataset()

    groups = data.PerFrameFunctionalGroupsSequence or []
    if len(groups) > MOST_FRAMES:
        raise ResourceError("B6", "image too large", file=path.name, found=f"{len(groups)} frames")
    if len(groups) != count(data, "NumberOfFrames", path.name, MOST_FRAMES):
        raise UnreadableFileError(
            "B48", "frames are missing, or too many", file=path.name, found=f"{len(groups)}", do=COPY_AGAIN
        )
    for i, frame in enumerate(groups):
        yield _slice(
            path,
            i,
            group(frame, "PlanePositionSequence"),
            group(frame, "PlaneOrientationSequence"),
            group(frame, "PixelMeasuresSequence"),
            group(frame, "PixelValueTransformationSequence"),
            size,
            bits,
        )


def _slice(
    path: Path,
    frame: int,
    place: Dataset,
    turn: Dataset,
    measures: Dataset,
    scale: Dataset,
    size: tuple[int, int],
    bits: int,
) -> Slice:
    has_scale = "RescaleSlope" in scale
    slope = number(scale, "RescaleSlope", path.name) if has_scale else 1.0
    intercept = number(scale, "RescaleIntercept", path.name) if has_scale else 0.0
    if slope == 0 or max(abs(slope), abs(intercept)) > MOST_SCALE:
        found = f"slope {slope:g}, intercept {intercept:g}"
        raise UnreadableFileError("B21", "scaling invalid", file=path.name, found=found, do=COPY_AGAIN)
    return Slice(
        path,
        frame,
        vector(place, "ImagePositionPatient", 3, path.name),
        directions(turn, path.name),
        vector(measures, "PixelSpacing", 2, path.name),
        size,
        bits,
        slope,
        intercept,
    )


# ---- one series as an image --------------------------------------------------------------------------------


def only_series(folder: Path, which: int | None = None) -> Series:
    """Return the only series of a folder, or the one with this number in its list."""
    found = find_series(folder)
    if not found:
        raise UnreadableFileError(
            "B1", "no CT or MR series in this folder", file=folder, do="give a folder of images"
        )
    if which is not None:
        if not 1 <= which <= len(found):
            raise ChannelError("B46", f"there is no series {which}", found=_list_series(found))
        return found[which - 1]
    if len(found) > 1:
        raise ChannelError(
            "B46",
            f"{len(found)} series in this folder",
            found=_list_series(found),
            do="choose one by its number, as in FOLDER#2",
        )
    return found[0]


def _list_series(found: Sequence[Series]) -> str:
    return ", ".join(f"#{i} {s.name} ({s.guess.text})" for i, s in enumerate(found, 1))


def grid_of(series: Series) -> tuple[Grid, tuple[Slice, ...]]:
    """Grid of an array [column, row, slice], and the slices in this order."""
    if series.is_mosaic:
        raise ChannelError("B49", "mosaic images are not read", found=series.name, do="export plain slices")
    first = series.slices[0]
    for s in series.slices:
        if np.abs(s.pair - first.pair).max() > SHEAR or np.abs(s.spacing - first.spacing).max() > 1e-3:
            raise GeometryError("B47", "directions or spacing change within the series", found=series.name)
        if s.size != first.size:
            raise GeometryError("B47", "size of the slices changes within the series", found=series.name)
    normal = np.cross(*first.pair)
    depth = np.array([s.corner @ normal for s in series.slices])
    order = np.argsort(depth, kind="stable")
    slices = tuple(series.slices[i] for i in order)
    step = _even_step(depth[order], series.name)
    with refusing(first.path):
        along = normal * _thickness(series.headers[first.path])
    if len(slices) > 1:
        along = (slices[-1].corner - slices[0].corner) / (len(slices) - 1)
        drift = np.linalg.norm(along - normal * step) / step
        if drift > SHEAR:
            raise GeometryError(
                "B28",
                "slices are tilted against their stack",
                found=f"{np.degrees(np.arctan(drift)):.1f} degrees",
                do="export the series with the tilt corrected",
            )
        _require_straight(slices, along, series.name)
    affine = affine_of(first.pair, first.spacing, slices[0].corner, along)
    rows, columns = first.size
    return Grid((columns, rows, len(slices)), affine, series.frame), slices


def _require_straight(slices: Sequence[Slice], along: Vector, name: str) -> None:
    """Refuse a stack in which a slice is shifted sideways."""
    corners = np.array([s.corner for s in slices])
    beside = np.linalg.norm(corners - corners[0] - np.arange(len(slices))[:, None] * along, axis=1)
    if beside.max() > max(UNEVEN * float(np.linalg.norm(along)), UNEVEN_MM) * 2:
        raise GeometryError(
            "B45",
            "slices are not stacked in line",
            found=f"{beside.max():.2f} mm beside, {name}",
            do="export the whole series",
        )


def _even_step(depth: Vector, name: str) -> float:
    """Distance between slices (mm); uneven distances are refused."""
    if len(depth) == 1:
        return 1.0
    gaps = np.diff(depth)
    same = int(np.count_nonzero(gaps < SAME_PLACE))
    if same:
        raise ChannelError(
            "B46",
            f"{same} {'slice shares' if same == 1 else 'slices share'} a position with another slice",
            found=name,
            do="give one acquisition, echo or time point",
        )
    step = float(np.median(gaps))
    bad = np.flatnonzero(np.abs(gaps - step) > max(UNEVEN * step, UNEVEN_MM))
    if len(bad):
        i, many = int(bad[0]), round(float(gaps[bad[0]]) / step)
        missing = many > 1 and abs(gaps[i] - many * step) <= max(UNEVEN * step, UNEVEN_MM) * many
        raise GeometryError(
            "B45",
            f"slice missing between {depth[i]:.1f} and {depth[i + 1]:.1f} mm"
            if missing
            else "slices not evenly spaced",
            found=f"{gaps[i]:.2f} mm where others are {step:.2f} mm apart",
            do="export the whole series",
        )
    return float(depth[-1] - depth[0]) / len(gaps)


def _thickness(header: Dataset) -> float:
    """Slice thickness in mm; 1 mm if absent."""
    try:
        thickness = number(header, "SliceThickness", "") or 1.0
    except TumoarError:
        return 1.0
    if not PIXEL_SPACING[0] <= thickness <= PIXEL_SPACING[1]:
        raise GeometryError("B13", "voxel size not usable", found=f"{thickness:g} mm thick")
    return thickness


def read_series(series: Series) -> Image:
    """Read a series, each slice scaled by its own slope and intercept."""
    return read_hashed(series)[0]


def read_hashed(series: Series) -> tuple[Image, str]:
    """Like `read_series`, with the digest (`digest_of`) of the bytes that were read."""
    grid, slices = grid_of(series)
    if math.prod(grid.shape) > MAX_VOXELS:
        raise ResourceError("B6", "image too large", found=series.name, do="export the head alone")
    is_whole = all(s.slope == 1 and s.intercept == int(s.intercept) and s.bits <= 16 for s in slices)
    out = np.empty((len(slices), *slices[0].size), np.int32 if is_whole else np.float32)
    places: dict[Path, list[int]] = defaultdict(list)
    for k, s in enumerate(slices):
        places[s.path].append(k)
    digests = []
    for path, here in places.items():
        with refusing(path):
            data, digest = read_dicom(path)
            _require_unchanged(data, [slices[k] for k in here], series)
            stored = pixels_of(data, path.name)
        frames = stored if stored.ndim == 3 else stored[None]
        if len(frames) != len(here) or frames.shape[1:] != slices[0].size:
            raise UnreadableFileError("B48", "pixel data short or damaged", file=path.name, do=COPY_AGAIN)
        for k in here:
            s, values = slices[k], frames[slices[k].frame]
            out[k] = (
                values.astype(np.int32) + int(s.intercept) if is_whole else values * s.slope + s.intercept
            )
        digests.append(digest)
    return Image(out.transpose(2, 1, 0), grid, series.name, series.notes), _join_digests(digests)


def _require_unchanged(data: Dataset, slices: Sequence[Slice], series: Series) -> None:
    """Refuse a file that changed after its header was checked."""
    path = slices[0].path
    again = {s.frame: s for s in _slices(path, data)}
    same = person_of(data) == person_of(series.headers[path])
    same &= data.get("SOPInstanceUID") == series.headers[path].get("SOPInstanceUID")
    if not same or not all(s.frame in again and _is_same(s, again[s.frame]) for s in slices):
        raise IntegrityError("changed", "file changed while it was read", file=path.name, do="try again")


def _is_same(one: Slice, other: Slice) -> bool:
    arrays = ((s.corner, s.pair, s.spacing) for s in (one, other))
    plain = [(s.size, s.bits, s.slope, s.intercept) for s in (one, other)]
    return plain[0] == plain[1] and all(np.array_equal(a, b) for a, b in zip(*arrays))


def digest_of(series: Series) -> str:
    """SHA-256 over the files of a series, independent of their names."""
    digests = []
    for path in {s.path for s in series.slices}:
        digest = hashlib.sha256()
        with open_file(path, "the DICOM file", MOST_BYTES) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        digests.append(digest.hexdigest())
    return _join_digests(digests)


def _join_digests(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
