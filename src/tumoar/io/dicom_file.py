"""Open one DICOM file, or refuse it in one sentence that quotes none of its text."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydicom import Dataset, dcmread
from pydicom.dataelem import RawDataElement
from pydicom.errors import InvalidDicomError
from pydicom.filereader import _read_file_meta_info, read_preamble
from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian

from tumoar.io.files import open_file, read_bytes
from tumoar.io.nifti_header import COPY_AGAIN, FARTHEST
from tumoar.vocabulary.errors import GeometryError, ResourceError, TumoarError, UnreadableFileError

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
MOST_BYTES = 1024**3  # of one file, and of its pixels unpacked
MOST_ITEMS, ITEM = 10**6, b"\xfe\xff\x00\xe0"  # in all sequences of a file; the tag that starts each
MOST_SIDE = 65535  # rows or columns: they are stored in 16 bits
PIXEL_SPACING = (1e-3, 1e3)  # mm; values outside are not lengths, whatever the image shows
CHUNK = 1024**2
UNCOMPRESSED = "export it uncompressed"

Matrix = npt.NDArray[np.float64]


def is_marked(start: bytes) -> bool:
    """Whether the first 132 bytes of a file have the DICOM magic after the preamble."""
    return start[128:132] == b"DICM"


UNDEFINED = 0xFFFFFFFF
"""Length of elements that end with a delimiter."""


def open_dicom(path: Path, *, pixels: bool = True) -> Dataset:
    """Read the data set of a file; DICOM files without a preamble are accepted."""
    with refusing(path), open_file(path, "the DICOM file", MOST_BYTES) as file:
        return parse_dicom(file, path.name, pixels=pixels)


def read_dicom(path: Path) -> tuple[Dataset, str]:
    """Read the data set of a file and the SHA-256 of the bytes it was read from."""
    with refusing(path):
        content = read_bytes(path, "the DICOM file", MOST_BYTES)
        return parse_dicom(io.BytesIO(content), path.name), hashlib.sha256(content).hexdigest()


def parse_dicom(file: BinaryIO, name: str, *, pixels: bool = True) -> Dataset:
    """Parse the data set of an open file; call it within `refusing`."""
    if _has_many_items(file):
        raise UnreadableFileError("B52", "file structure not plausible", file=name)
    file.seek(0)
    read_preamble(file, force=True)
    if _read_file_meta_info(file).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        # It would be inflated completely, whatever its size.
        raise UnreadableFileError("B48", "deflated DICOM is not read", file=name, do=UNCOMPRESSED)
    file.seek(0)
    data = dcmread(file, stop_before_pixels=not pixels, force=True)
    # Values are decoded on access: access this one here, where errors become refusals.
    if not str(data.get("SOPClassUID") or ""):
        raise UnreadableFileError("B48", "not a DICOM file", file=name, do="check the name")
    return data


def require_whole(data: Dataset, name: str) -> None:
    """Refuse a file that ends inside an element: pydicom reads truncated sequences without error."""
    for tag in data.keys():  # noqa: SIM118 - the elements themselves would be decoded
        element: Any = data.get_item(tag)
        if isinstance(element, RawDataElement):
            length = len(element.value) if isinstance(element.value, bytes) else element.length
            if element.length != UNDEFINED and length < element.length:
                raise UnreadableFileError(
                    "B48", "DICOM file damaged: it ends early", file=name, do=COPY_AGAIN
                )


def _has_many_items(file: BinaryIO) -> bool:
    if file.seek(0, io.SEEK_END) <= MOST_ITEMS * len(ITEM):
        return False
    file.seek(0)
    count, rest = 0, b""
    while chunk := file.read(CHUNK):
        count += (rest + chunk).count(ITEM)
        rest = chunk[1 - len(ITEM) :]  # too short to count a tag twice
    return count > MOST_ITEMS


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn any exception that pydicom raises on a damaged file into a refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings quote values of the file
            yield
    except TumoarError:
        raise
    except RecursionError as error:
        raise UnreadableFileError("B52", "file structure not plausible", file=path.name) from error
    except OSError as error:
        raise UnreadableFileError(
            "B1", "cannot read the file", file=path.name, do="check the name"
        ) from error
    except InvalidDicomError as error:
        raise UnreadableFileError("B48", "not a DICOM file", file=path.name, do="check the name") from error
    except Exception as error:  # pydicom raises many types
        raise UnreadableFileError(
            "B48", "DICOM file damaged", file=path.name, found=type(error).__name__, do=COPY_AGAIN
        ) from error


def pixels_of(data: Dataset, name: str) -> npt.NDArray[Any]:
    """Stored pixel values, (rows, columns) or (frames, rows, columns)."""
    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if "PixelData" not in data:
        raise UnreadableFileError("B48", "no pixel data", file=name, do=COPY_AGAIN)
    kind = str(data.get("PhotometricInterpretation") or "MONOCHROME2")
    if data.get("SamplesPerPixel", 1) != 1 or not kind.startswith("MONOCHROME"):
        raise UnreadableFileError("B48", "not a gray image", file=name)
    claimed = [
        float(data.get(keyword) or 1) for keyword in ("Rows", "Columns", "NumberOfFrames", "BitsAllocated")
    ]
    unpacked = float(np.prod(claimed)) / 8
    if not 0 < unpacked <= MOST_BYTES:
        raise ResourceError("B6", "image too large", file=name, do="export it in parts")
    if len(data.PixelData or b"") > 2 * unpacked + CHUNK:
        # RLE decoding expands all data, up to 64 times, before the size is compared with the header.
        raise UnreadableFileError("B48", "more pixel data than the header states", file=name, do=COPY_AGAIN)
    if syntax is None:
        data.file_meta.TransferSyntaxUID = (
            ImplicitVRLittleEndian  # required of a file without meta information
        )
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
    """A required number."""
    try:
        value = float(data[keyword].value)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableFileError("B48", f"no usable {keyword}", file=name, do=COPY_AGAIN) from error
    if not np.isfinite(value):
        raise UnreadableFileError("B48", f"{keyword} is not a number", file=name, do=COPY_AGAIN)
    return value


def count(data: Dataset, keyword: str, name: str, most: int = MOST_SIDE) -> int:
    """A required integer, at least 1."""
    value = number(data, keyword, name)
    if not (value.is_integer() and 1 <= value <= most):
        raise UnreadableFileError("B48", f"no usable {keyword}", file=name, do=COPY_AGAIN)
    return int(value)


def vector(data: Dataset, keyword: str, size: int, name: str) -> Matrix:
    """A required vector of numbers; geometry cannot be trusted without it."""
    try:
        value = np.array([float(v) for v in data[keyword].value])
    except (KeyError, TypeError, ValueError) as error:
        raise GeometryError("B47", f"no usable {keyword}", file=name, do="export the series again") from error
    if value.shape != (size,) or not (np.abs(value) <= FARTHEST).all():
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
    lengths = [*np.asarray(spacing, float), float(np.linalg.norm(step))]
    if not all(PIXEL_SPACING[0] <= length <= PIXEL_SPACING[1] for length in lengths):
        found = "×".join(f"{length:.3g}" for length in lengths) + " mm"
        raise GeometryError("B13", "voxel size not usable", found=found, do="export the series again")
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = pair[0] * spacing[1], pair[1] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, corner
    return LPS_TO_RAS @ affine
