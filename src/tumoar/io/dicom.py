"""CT and MR series: what a folder holds, and one series as an image on its grid.

Geometry comes from ImagePositionPatient, ImageOrientationPatient and PixelSpacing alone, slice by slice. A
series that is not one even stack of parallel slices is refused, never stretched, rectified or picked from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset

from tumoar.errors import ChannelError, GeometryError, ResourceError, TumoarError, UnreadableFileError
from tumoar.image import Grid, Image
from tumoar.io.dicom_contrast import Guess, guess_contrast
from tumoar.io.dicom_file import (
    affine_of,
    directions,
    is_dicom,
    number,
    open_dicom,
    pixels_of,
    refusing,
    vector,
)
from tumoar.io.identity import Person, merged, person_of, same_person
from tumoar.io.nifti import MAX_BYTES
from tumoar.io.rois import STUDY

CLASSES = {
    "1.2.840.10008.5.1.4.1.1.2": "CT",
    "1.2.840.10008.5.1.4.1.1.2.1": "CT",
    "1.2.840.10008.5.1.4.1.1.2.2": "CT",
    "1.2.840.10008.5.1.4.1.1.4": "MR",
    "1.2.840.10008.5.1.4.1.1.4.1": "MR",
    "1.2.840.10008.5.1.4.1.1.4.4": "MR",
}
"""Images by SOP class: plain, enhanced, and converted to enhanced."""

SAME_PLACE = 0.01  # mm
UNEVEN, UNEVEN_MM = 0.01, 0.05  # of the spacing, or mm
SHEAR = 1e-3
MOST_FILES = 20_000

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Slice:
    """One frame of one file: its place and directions (LPS), and how its values are scaled."""

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
    """Slices that belong together, not yet known to be one even stack; `person` is never shown."""

    modality: str
    slices: tuple[Slice, ...]
    frame: str | None
    guess: Guess
    is_mosaic: bool
    order: int
    person: Person = field(repr=False)
    headers: Mapping[Path, Dataset] = field(repr=False)

    @property
    def uid(self) -> str:
        """Its SeriesInstanceUID."""
        return str(self.headers[self.slices[0].path].get("SeriesInstanceUID"))

    @property
    def name(self) -> str:
        """What it is called in tables and messages: nothing from its text."""
        return f"{self.modality} series of {len(self.slices)} slices"


# ---- what a folder holds -----------------------------------------------------------------------------------


def find_series(folder: Path) -> list[Series]:
    """All CT and MR series below a folder, in the order of their numbers; other objects are passed over."""
    groups: dict[tuple[object, ...], list[tuple[Path, Dataset]]] = {}
    for path, data in _headers(folder):
        with refusing(path):
            groups.setdefault(_key(data, path.name), []).append((path, data))
    found = [_series(members) for members in groups.values()]
    return sorted(found, key=lambda s: (s.order, s.uid))


def _headers(folder: Path) -> Iterator[tuple[Path, Dataset]]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "DICOMDIR")
    if len(paths) > MOST_FILES:
        raise ResourceError("files", f"more than {MOST_FILES} files in this folder", do="give one study")
    for path in paths:
        is_marked = is_dicom(path)
        if not is_marked and path.suffix.lower() not in ("", ".dcm", ".ima"):
            continue
        try:
            data = open_dicom(path, pixels=False)
        except UnreadableFileError:
            if is_marked or path.suffix.lower() in (".dcm", ".ima"):
                raise  # a slice that cannot be read must not go missing
            continue
        if str(data.SOPClassUID) in CLASSES:
            yield path, data


def _key(data: Dataset, name: str) -> tuple[object, ...]:
    """What slices of one stack have in common: series, size, directions, echo."""
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
                data.get(keyword)  # decoded now, within reach of a refusal
        frames = {str(d.get("FrameOfReferenceUID") or "") for _, d in members}
        people = {person_of(d) for _, d in members}
        order = int(first.get("SeriesNumber") or 0)
        guess = guess_contrast(first)
        is_mosaic = "MOSAIC" in [str(v).upper() for v in first.get("ImageType") or []]
    if len(frames) > 1:
        raise GeometryError("B33", "slices of one series have different frames of reference", file=path.name)
    if not all(same_person(one, other) for one, other in combinations(people, 2)):
        raise GeometryError("B34", "slices of one series are from different patients", file=path.name)
    modality = CLASSES[str(first.SOPClassUID)]
    return Series(
        modality, slices, frames.pop() or None, guess, is_mosaic, order, merged(people), dict(members)
    )


def _slices(path: Path, data: Dataset) -> Iterator[Slice]:
    size = int(number(data, "Rows", path.name)), int(number(data, "Columns", path.name))
    bits = int(number(data, "BitsAllocated", path.name))
    if "PerFrameFunctionalGroupsSequence" not in data:
        yield _slice(path, 0, data, data, data, data, size, bits)
        return
    shared = data.get("SharedFunctionalGroupsSequence") or [Dataset()]

    def group(frame: Dataset, keyword: str) -> Dataset:
        for item in (frame, shared[0]):
            if item.get(keyword):
                return Dataset(item[keyword].value[0])
        return Dataset()

    for i, frame in enumerate(data.PerFrameFunctionalGroupsSequence):
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
    return Slice(
        path,
        frame,
        vector(place, "ImagePositionPatient", 3, path.name),
        directions(turn, path.name),
        vector(measures, "PixelSpacing", 2, path.name),
        size,
        bits,
        number(scale, "RescaleSlope", path.name) if has_scale else 1.0,
        number(scale, "RescaleIntercept", path.name) if has_scale else 0.0,
    )


# ---- one series as an image --------------------------------------------------------------------------------


def only_series(folder: Path, which: int | None = None) -> Series:
    """The one series of a folder, or the one with this place in its list."""
    found = find_series(folder)
    if not found:
        raise UnreadableFileError(
            "B1", "no CT or MR series in this folder", file=folder, do="give a folder of images"
        )
    if which is not None:
        if not 1 <= which <= len(found):
            raise ChannelError("B46", f"there is no series {which}", found=_listed(found))
        return found[which - 1]
    if len(found) > 1:
        raise ChannelError(
            "B46",
            f"{len(found)} series in this folder",
            found=_listed(found),
            do="name one by its number, as in FOLDER#2",
        )
    return found[0]


def _listed(found: Sequence[Series]) -> str:
    return ", ".join(f"#{i} {s.name} ({s.guess.text})" for i, s in enumerate(found, 1))


def grid_of(series: Series) -> tuple[Grid, tuple[Slice, ...]]:
    """The grid of an array [column, row, slice], and the slices in its order."""
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
    """Refuse where a slice within the stack lies beside the line of the others."""
    corners = np.array([s.corner for s in slices])
    beside = np.linalg.norm(corners - corners[0] - np.arange(len(slices))[:, None] * along, axis=1)
    if beside.max() > max(UNEVEN * float(np.linalg.norm(along)), UNEVEN_MM) * 2:
        raise GeometryError(
            "B45",
            "slices do not lie above one another",
            found=f"{beside.max():.2f} mm beside, {name}",
            do="export the whole series",
        )


def _even_step(depth: Vector, name: str) -> float:
    """The distance between slices (mm); refused where it is not the same everywhere."""
    if len(depth) == 1:
        return 1.0
    gaps = np.diff(depth)
    same = int(np.count_nonzero(gaps < SAME_PLACE))
    if same:
        raise ChannelError(
            "B46",
            f"{same} slices lie where another one lies",
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
    """Of a single slice, mm."""
    try:
        return float(number(header, "SliceThickness", "")) or 1.0
    except TumoarError:
        return 1.0


def read_series(series: Series) -> Image:
    """The values of a series, each slice scaled by its own slope and intercept."""
    grid, slices = grid_of(series)
    if 4 * int(np.prod(grid.shape)) > MAX_BYTES:
        raise ResourceError("B6", "image too large", found=series.name)
    is_whole = all(s.slope == 1 and s.intercept == int(s.intercept) for s in slices)
    is_whole &= all(s.bits <= 16 for s in slices)
    out = np.empty((len(slices), *slices[0].size), np.int32 if is_whole else np.float32)
    frames: tuple[Path, npt.NDArray[np.generic]] | None = None
    for k, s in enumerate(slices):
        if frames is None or frames[0] != s.path:
            with refusing(s.path):
                stored = pixels_of(open_dicom(s.path), s.path.name)
            frames = s.path, stored if stored.ndim == 3 else stored[None]
        if s.frame >= len(frames[1]) or frames[1].shape[1:] != s.size:
            raise UnreadableFileError("B48", "pixel data short or damaged", file=s.path.name)
        values = frames[1][s.frame]
        out[k] = values.astype(np.int32) + int(s.intercept) if is_whole else values * s.slope + s.intercept
    return Image(out.transpose(2, 1, 0), grid, series.name)


def digest_of(series: Series) -> str:
    """SHA-256 over the files of a series, whatever their names."""
    files = sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in {s.path for s in series.slices})
    return hashlib.sha256("".join(files).encode()).hexdigest()
