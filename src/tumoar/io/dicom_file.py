"""One DICOM file: opened, or refused in one sentence that repeats nothing of its text."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydicom import Dataset, dcmread
from pydicom.errors import InvalidDicomError
from pydicom.filereader import read_file_meta_info
from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian

from tumoar.errors import GeometryError, ResourceError, TumoarError, UnreadableFileError
from tumoar.io.nifti_header import COPY_AGAIN

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
MOST_BYTES = 2 * 1024**3  # of one file, and of its pixels unpacked
MOST_ITEMS, ITEM = 10**6, b"\xfe\xff\x00\xe0"  # of all sequences of a file; the tag that each begins with
UNCOMPRESSED = "export it uncompressed"

Matrix = npt.NDArray[np.float64]


def is_dicom(path: Path) -> bool:
    """Whether a file carries the mark of DICOM behind its preamble."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def open_dicom(path: Path, *, pixels: bool = True) -> Dataset:
    """The data set of a file; files without a preamble are read if they are DICOM all the same."""
    with refusing(path):
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise UnreadableFileError("B48", "DICOM file too large", file=path.name, do=COPY_AGAIN)
        if size > MOST_ITEMS * len(ITEM) and path.read_bytes().count(ITEM) > MOST_ITEMS:
            raise UnreadableFileError("B52", "file structure not plausible", file=path.name)
        if is_dicom(path) and _syntax(path) == DeflatedExplicitVRLittleEndian:
            # It would be unpacked whole, however large it claims to be.
            raise UnreadableFileError("B48", "deflated DICOM is not read", file=path.name, do=UNCOMPRESSED)
        data = dcmread(path, stop_before_pixels=not pixels, force=True)
        # Values are decoded when they are asked for: this one here, where what is wrong with it is a refusal.
        if not str(data.get("SOPClassUID") or ""):
            raise UnreadableFileError("B48", "not a DICOM file", file=path.name, do="check the name")
        return data


def _syntax(path: Path) -> str:
    return str(read_file_meta_info(path).get("TransferSyntaxUID") or "")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes pydicom raise, as a refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they quote values of the file
            yield
    except TumoarError:
        raise
    except FileNotFoundError as error:
        raise UnreadableFileError(
            "B1", "cannot read the file: no such file", file=path.name, do="check the name"
        ) from error
    except RecursionError as error:
        raise UnreadableFileError("B52", "file structure not plausible", file=path.name) from error
    except OSError as error:
        raise UnreadableFileError(
            "B1", "cannot read the file", file=path.name, do="check the name"
        ) from error
    except InvalidDicomError as error:
        raise UnreadableFileError("B48", "not a DICOM file", file=path.name, do="check the name") from error
    except Exception as error:  # pydicom raises what its many parsers raise
        raise UnreadableFileError(
            "B48", "DICOM file damaged", file=path.name, found=type(error).__name__, do=COPY_AGAIN
        ) from error


def pixels_of(data: Dataset, name: str) -> npt.NDArray[Any]:
    """Stored pixel values, (rows, columns) or (frames, rows, columns)."""
    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if "PixelData" not in data:
        raise UnreadableFileError("B48", "no pixel data", file=name, do=COPY_AGAIN)
    if data.get("SamplesPerPixel", 1) != 1:
        raise UnreadableFileError("B48", "not a gray image", file=name)
    claimed = [
        float(data.get(keyword) or 1) for keyword in ("Rows", "Columns", "NumberOfFrames", "BitsAllocated")
    ]
    if np.prod(claimed) / 8 > MOST_BYTES:
        raise ResourceError("B6", "image too large", file=name, do="export it in parts")
    if syntax is None:
        data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian  # what a file without a header has to be
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(data.pixel_array)
    except (RuntimeError, NotImplementedError) as error:
        kind = syntax.name if syntax is not None else "unknown"
        raise UnreadableFileError("B48", f"codec for {kind} missing", file=name, do=UNCOMPRESSED) from error
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise UnreadableFileError("B48", "pixel data short or damaged", file=name, do=COPY_AGAIN) from error


def number(data: Dataset, keyword: str, name: str) -> float:
    """A value that has to be there and to be a number."""
    try:
        value = float(data[keyword].value)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableFileError("B48", f"no usable {keyword}", file=name, do=COPY_AGAIN) from error
    if not np.isfinite(value):
        raise UnreadableFileError("B48", f"{keyword} is not a number", file=name, do=COPY_AGAIN)
    return value


def vector(data: Dataset, keyword: str, size: int, name: str) -> Matrix:
    """Several numbers that have to be there; geometry cannot be trusted without them."""
    try:
        value = np.array([float(v) for v in data[keyword].value])
    except (KeyError, TypeError, ValueError) as error:
        raise GeometryError("B47", f"no usable {keyword}", file=name, do="export the series again") from error
    if value.shape != (size,) or not np.isfinite(value).all():
        raise GeometryError("B47", f"no usable {keyword}", file=name, do="export the series again")
    return value


def directions(data: Dataset, name: str) -> Matrix:
    """(2, 3) LPS unit vectors along a row and along a column; refused unless unit and orthogonal."""
    pair = vector(data, "ImageOrientationPatient", 6, name).reshape(2, 3)
    if np.abs(pair @ pair.T - np.eye(2)).max() > 1e-3:
        raise GeometryError(
            "B47", "directions of rows and columns not usable", file=name, do="export the series again"
        )
    return pair / np.linalg.norm(pair, axis=1, keepdims=True)


def affine_of(pair: Matrix, spacing: Matrix, corner: Matrix, step: Matrix) -> Matrix:
    """RAS affine of an array [column, row, slice] with LPS directions `pair` and `step` between slices.

    `spacing` is the PixelSpacing of the standard: between rows, then between columns.
    """
    if not (np.asarray(spacing) > 0).all():
        raise GeometryError("B13", "voxel size not usable", found="pixel spacing of zero or less")
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = pair[0] * spacing[1], pair[1] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, corner
    return LPS_TO_RAS @ affine
