"""Read dose distributions in Gy from RTDOSE, NIfTI or NRRD files.

The file type is detected from the content, never from the name. Every dose passes the same checks of
geometry, unit and extent, because a dose that is misplaced, relative or partial would make a plan look safe.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydicom import Dataset

from tumoar.geometry.image import Grid, Image
from tumoar.io.dicom_file import (
    MOST_BYTES,
    affine_of,
    directions,
    number,
    open_dicom,
    pixels_of,
    refusing,
    vector,
)
from tumoar.io.files import open_file
from tumoar.io.identity import Person, person_of
from tumoar.io.nifti import read_nifti
from tumoar.io.nifti_header import COPY_AGAIN, FARTHEST, LAYOUTS, MAX_SHEAR, SPACING
from tumoar.io.nrrd import MAGIC, read_nrrd
from tumoar.vocabulary.errors import (
    ChannelError,
    GeometryError,
    ResourceError,
    UnreadableFileError,
    UsageError,
    plain_name,
)

LEAST_GY, MOST_GY = 5.0, 500.0  # maximum dose of a course: less is a fraction or relative, more is cGy
UNIT = "check the file; divide a dose in cGy by 100"
LEAST_OF_ALL_GY = 0.1  # maximum dose of a file declared as a whole course
MOST_VOXELS = 2**27  # 512 x 512 x 512
MOST_FRACTIONS = 100
RTDOSE = "1.2.840.10008.5.1.4.1.1.481.2"
GRAYS = ("", "gy", "gray", "grays")

# Dose Summation Type (3004,000A) by what the dose covers. A fraction group may be the whole course or part of
# it, an overview may cover some fractions, and a record those that were delivered: the user has to say.
WHOLE = ("PLAN", "MULTI_PLAN")
SOME_FRACTIONS = ("FRACTION", "FRACTION_SESSION", "BRACHY", "BRACHY_SESSION", "RECORD", "PLAN_OVERVIEW", "")
PART_OF_A_FRACTION = ("BEAM", "BEAM_SESSION", "CONTROL_POINT")
SAY_FRACTIONS = (
    "use --fractions N if it is one of N equal fractions, --fractions 1 if it covers the whole course"
)
NAMELESS = "the dose file names no patient or no frame of reference: check that it belongs to this patient"
EXPORT_PLAN = "export the dose of the whole plan, absolute, in Gy"


@dataclass(frozen=True, eq=False)
class GivenDose:
    """Dose of a whole course in Gy, and the patient that its file names.

    `notes` describe its values, `doubt` says what could not be checked about its identity. If `is_low`, the
    file claims to be a whole course but its dose is too low for one: it must not make anything look safe.
    """

    image: Image
    person: Person = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    doubt: str = ""
    is_low: bool = False


@dataclass(frozen=True, eq=False)
class _Read:
    """A dose as stored in its file."""

    image: Image
    person: Person = field(default=(), repr=False)
    summation: str | None = None  # None if the format has no field for it
    notes: tuple[str, ...] = ()


def read_dose(path: str | Path, *, fractions: int | None = None) -> Image:
    """Read a dose in Gy on its grid; relative, partial or misplaced doses are refused."""
    return load_dose(path, fractions=fractions).image


def load_dose(path: str | Path, *, fractions: int | None = None) -> GivenDose:
    """Read a dose with its patient and notes; it is multiplied by `fractions` if it is for one fraction."""
    if fractions is not None and not 1 <= fractions <= MOST_FRACTIONS:
        raise UsageError("fractions", f"not a number of fractions: {fractions}", do=f"1 to {MOST_FRACTIONS}")
    path = Path(path)
    kind = _kind(path)
    if kind == "NIfTI":
        found = _Read(read_nifti(path, max_bytes=8 * MOST_VOXELS))
    elif kind == "NRRD":
        found = _read_nrrd(path)
    else:
        found = _read_rtdose(path)
    _require_place(found.image.grid, path.name)
    _require_whole(found.summation, fractions, path.name)
    values = _in_gray(found.image, path.name)
    times = fractions or 1
    values *= np.float32(times)
    _require_range(values, path.name, f"is it for one of {times} fractions?" if times > 1 else UNIT)
    is_low = fractions is None and bool(values.max() < LEAST_GY)
    notes = list(found.notes)
    if is_low:
        notes.append(_note_low_dose(values, found.summation, path.name))
    if times > 1:
        notes.append(f"the dose is for one fraction, multiplied by {times}")
    is_named = any(found.person) and found.image.grid.frame is not None
    image = Image(values, found.image.grid, plain_name(str(path)))
    return GivenDose(image, found.person, tuple(notes), "" if is_named else NAMELESS, is_low)


def require_dose(dose: Image) -> None:
    """Refuse an image in memory that cannot be a dose in Gy: misplaced, negative or with missing values."""
    _require_place(dose.grid, dose.source)
    _in_gray(dose, dose.source)


# ---- kinds of files ----------------------------------------------------------------------------------------


def _kind(path: Path) -> str:
    """RTDOSE, NIfTI or NRRD, detected from the content; an ambiguous file is refused."""
    with open_file(path, "the dose", MOST_BYTES) as file:
        start = file.read(4096)
    is_packed = start[:2] == b"\x1f\x8b"
    plain = _unpack_start(start) if is_packed else start
    magics = {(size, plain[344:348] if size == 348 else plain[4:12]) for size in _header_sizes(plain)}
    kinds = [
        kind
        for kind, is_one in (
            ("RTDOSE", plain[128:132] == b"DICM"),
            ("NRRD", MAGIC.match(plain) is not None),
            ("NIfTI", any(LAYOUTS.get(magic, False) for magic in magics)),
        )
        if is_one
    ]
    if len(kinds) > 1:
        raise UnreadableFileError(
            "dose", "file type is ambiguous", file=path.name, found=" and ".join(kinds), do=COPY_AGAIN
        )
    if is_packed and kinds != ["NIfTI"]:
        raise UnreadableFileError(
            "dose", "not a readable dose", file=path.name, found="a compressed file", do="unpack it"
        )
    return kinds[0] if kinds else "RTDOSE"  # DICOM files may lack their preamble


def _unpack_start(start: bytes, most: int = 4096) -> bytes:
    """The first bytes of a gzip stream, as far as they can be decompressed."""
    try:
        return zlib.decompressobj(wbits=31).decompress(start, most)
    except zlib.error:
        return b""


def _header_sizes(start: bytes) -> set[int]:
    return {int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")} & {348, 540}


def _read_nrrd(path: Path) -> _Read:
    image, header = read_nrrd(path, "the dose", 8 * MOST_VOXELS)
    _require_voxels(image.grid.shape, path.name)
    if header.sample_units.casefold() not in GRAYS or _says_other_units(header.remarks):
        raise ChannelError("dose", "dose not in Gy", file=path.name, do=EXPORT_PLAN)
    return _Read(image)


def _says_other_units(remarks: Mapping[str, str]) -> bool:
    """Whether a remark on dose units, as some programs write them, names another unit than Gy."""
    for key, value in remarks.items():
        name = key.casefold().replace("_", "").replace(" ", "")
        if ("dose" in name and "unit" in name) and value.strip('" ').casefold() not in GRAYS:
            return True
    return False


# ---- RTDOSE ------------------------------------------------------------------------------------------------


def _read_rtdose(path: Path) -> _Read:
    with refusing(path):
        header = open_dicom(path, pixels=False)
        if header.SOPClassUID != RTDOSE:
            raise UnreadableFileError("dose", "not an RTDOSE file", file=path.name)
        if _term(header, "DoseUnits") != "GY":
            raise ChannelError("dose", "dose not in Gy", file=path.name, do=EXPORT_PLAN)
        kind = _term(header, "DoseType")
        if kind not in ("PHYSICAL", "EFFECTIVE"):
            found = {"ERROR": "a difference of doses"}.get(kind, "no usable Dose Type")
            raise ChannelError("dose", "not a dose", file=path.name, found=found, do=EXPORT_PLAN)
        shape = tuple(int(header.get(k) or 1) for k in ("Columns", "Rows", "NumberOfFrames"))
        _require_voxels(shape, path.name)
        scaling = number(header, "DoseGridScaling", path.name)
        if scaling <= 0:
            raise ChannelError(
                "dose", "not a dose: no usable DoseGridScaling", file=path.name, do=EXPORT_PLAN
            )
        frame = str(header.get("FrameOfReferenceUID") or "")
        affine = _dose_affine(header, shape[2], path.name)
        data = open_dicom(path)
        frames = pixels_of(data, path.name)
        _require_all_pixels(data, frames, shape[::-1], path.name)
        with np.errstate(all="ignore"):  # overflows are checked with the other values
            values = (frames * scaling).transpose(2, 1, 0)
        grid = Grid(values.shape, affine, frame or None)
        summation, person = _term(header, "DoseSummationType"), person_of(header)
    notes = (
        ("the dose is weighted by biological effect (Dose Type EFFECTIVE)",) if kind == "EFFECTIVE" else ()
    )
    return _Read(Image(values, grid), person, summation, notes)


def _term(data: Dataset, keyword: str) -> str:
    """A code string; empty if absent or not a single text."""
    value = data.get(keyword)
    return value.strip().upper() if isinstance(value, str) else ""


def _require_all_pixels(data: Dataset, frames: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    """Refuse pixel data that do not match the header: their position would be unknown."""
    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    is_plain = syntax is None or not syntax.is_compressed
    if frames.shape != shape or (is_plain and len(data.PixelData) > frames.nbytes + 1):
        raise UnreadableFileError(
            "B5", "more pixel data than the header states", file=name, do="export the dose again"
        )


def _dose_affine(data: Dataset, count: int, name: str) -> np.ndarray:
    pair = directions(data, name)
    corner = vector(data, "ImagePositionPatient", 3, name)
    normal = np.cross(*pair)
    if count < 2:
        raise GeometryError("dose", "the dose has one plane only", file=name, do=EXPORT_PLAN)
    offsets = vector(data, "GridFrameOffsetVector", count, name)
    steps = np.diff(offsets)
    if np.ptp(steps) > 0.01 * abs(steps.mean()) + 1e-6 or abs(steps.mean()) < 1e-3:
        raise GeometryError("dose", "planes of the dose not evenly spaced", file=name, do="export it again")
    # Offsets that do not start at zero are z positions, which requires transverse planes and the position of
    # the first plane as first offset.
    if offsets[0] != 0 and (
        abs(abs(normal[2]) - 1) > 1e-3 or abs(offsets[0] - corner[2]) > 0.1 * abs(steps.mean())
    ):
        raise GeometryError(
            "dose", "positions of the dose's planes not usable", file=name, do="export it again"
        )
    direction = normal if offsets[0] == 0 else np.array([0.0, 0.0, 1.0])
    spacing = vector(data, "PixelSpacing", 2, name)
    _require_spacing([*spacing, abs(steps.mean())], name)
    return affine_of(pair, spacing, corner, direction * steps.mean())


# ---- requirements for every dose ---------------------------------------------------------------------------


def _require_place(grid: Grid, name: str) -> None:
    """Apply the bounds for images: 3-D, voxels of 0.2 to 10 mm, orthogonal axes, near the origin."""
    if min(grid.shape) < 2:
        raise GeometryError("dose", "the dose has one plane only", file=name, do=EXPORT_PLAN)
    _require_spacing(grid.spacing.tolist(), name)
    axes = grid.affine[:3, :3] / grid.spacing
    if not np.abs(axes.T @ axes - np.eye(3)).max() <= MAX_SHEAR:
        raise GeometryError("B14", "axes not orthogonal", file=name, do="resample to orthogonal axes")
    if not np.abs(grid.affine[:3, 3]).max() <= FARTHEST:
        raise GeometryError("B13", "position not usable", file=name, do="export the dose again")


def _require_spacing(spacing: Sequence[float], name: str) -> None:
    if not SPACING[0] <= min(spacing) <= max(spacing) <= SPACING[1]:
        raise GeometryError(
            "B16",
            f"voxel size outside {SPACING[0]:g}–{SPACING[1]:g} mm; units?",
            file=name,
            found=f"{'×'.join(f'{s:g}' for s in spacing)} mm",
            do="export the dose again",
        )


def _require_voxels(shape: tuple[int, ...], name: str) -> None:
    if min(shape) < 1:
        raise UnreadableFileError("B48", "no usable number of voxels", file=name, do=COPY_AGAIN)
    if math.prod(shape) > MOST_VOXELS:
        raise ResourceError("B6", "the dose is too large", file=name, do="export it on a coarser grid")


def _require_whole(summation: str | None, fractions: int | None, name: str) -> None:
    """Refuse a dose that is not known to cover the whole course, to which limits apply."""
    if summation is None:
        return
    if summation in PART_OF_A_FRACTION:
        found = f"Dose Summation Type {summation}"
        raise ChannelError("dose", "dose of some beams only", file=name, found=found, do=EXPORT_PLAN)
    if summation in WHOLE:
        if fractions is not None and fractions > 1:
            raise UsageError(
                "fractions",
                "the dose covers the whole plan",
                file=name,
                found=f"Dose Summation Type {summation}",
                do="leave out --fractions",
            )
        return
    if fractions is None:
        known = summation if summation in SOME_FRACTIONS else "that is not in the standard"
        found = f"Dose Summation Type {known}" if summation else "no Dose Summation Type"
        raise ChannelError(
            "dose", "not known to cover the whole course", file=name, found=found, do=SAY_FRACTIONS
        )


def _note_low_dose(values: np.ndarray, summation: str | None, name: str) -> str:
    """Note a dose too low for a whole course if its file claims to be one; refuse it otherwise."""
    found = f"at most {values.max():.3g} Gy"
    if summation in WHOLE and values.max() >= LEAST_OF_ALL_GY:
        return f"the dose is low for a whole course, {found}: use --fractions 1 if it is one"
    raise ChannelError(
        "dose", "too low for the dose of a whole course", file=name, found=found, do=SAY_FRACTIONS
    )


def _in_gray(image: Image, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = np.array(image.data, np.float32)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() == 0:
        raise ChannelError("dose", "not a dose: values negative, missing or zero everywhere", file=name)
    _require_range(values, name)
    return values


def _require_range(values: np.ndarray, name: str, do: str = UNIT) -> None:
    if not values.max() <= MOST_GY:
        raise ChannelError(
            "dose",
            "dose not in Gy, or no dose",
            file=name,
            found=f"up to {values.max():.0f}",
            do=do,
        )
