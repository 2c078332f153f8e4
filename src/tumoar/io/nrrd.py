"""Read NRRD images strictly: header and data in one file, a known space, no more data than the header states.

Position and type of the voxels must be unambiguous (https://teem.sourceforge.net/nrrd/format.html).
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.io.files import open_file
from tumoar.io.nifti_header import COPY_AGAIN, EXPORT_AGAIN
from tumoar.vocabulary.errors import GeometryError, ResourceError, UnreadableFileError, plain_name

Matrix = npt.NDArray[np.float64]

MAGIC = re.compile(rb"NRRD000[1-5]")
MOST_HEADER = 64 * 1024  # bytes
CHUNK = 1024**2
MOST_EXPANSION = 1032  # maximum ratio of a deflate stream
TYPES = {
    "i1": "signed char, int8, int8_t",
    "u1": "uchar, unsigned char, uint8, uint8_t",
    "i2": "short, short int, signed short, signed short int, int16, int16_t",
    "u2": "ushort, unsigned short, unsigned short int, uint16, uint16_t",
    "i4": "int, signed int, int32, int32_t",
    "u4": "uint, unsigned int, uint32, uint32_t",
    "i8": "longlong, long long, long long int, signed long long, signed long long int, int64, int64_t",
    "u8": "ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t",
    "f4": "float",
    "f8": "double",
}
DTYPES = {name: code for code, names in TYPES.items() for name in names.split(", ")}
TO_RAS = {  # signs of the axes of a space
    "right-anterior-superior": (1.0, 1.0, 1.0),
    "left-anterior-superior": (-1.0, 1.0, 1.0),
    "left-posterior-superior": (-1.0, -1.0, 1.0),
}
SHORT = {"ras": "right-anterior-superior", "las": "left-anterior-superior", "lps": "left-posterior-superior"}
NEEDED = ("type", "dimension", "space", "sizes", "spacedirections", "spaceorigin", "encoding")
PASSED_OVER = (
    "content", "number", "blocksize", "min", "max", "oldmin", "oldmax", "thicknesses", "axismins", "axismaxs",
    "centers", "centerings", "labels", "measurementframe", "spacedimension",
)  # fmt: skip
CHECKED = ("endian", "kinds", "spaceunits", "units", "sampleunits")
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")
VECTOR = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True)
class Header:
    """The fields of an accepted header that are used; `remarks` are its key:=value pairs."""

    grid: Grid
    dtype: np.dtype[np.generic]
    is_compressed: bool
    sample_units: str
    remarks: Mapping[str, str]

    @property
    def data_bytes(self) -> int:
        """Bytes of voxel data."""
        return math.prod(self.grid.shape) * self.dtype.itemsize


def read_nrrd(path: Path, what: str, most: int) -> tuple[Image, Header]:
    """Read a scalar 3-D image of at most `most` bytes, in its file and in memory, and its header."""
    with open_file(path, what, most) as file:
        header = parse_header(_head(file, path.name), path.name)
        if header.data_bytes > most:
            raise ResourceError("B6", f"{what} is too large", file=path.name, do="check the header")
        return Image(_values(file, header, path.name), header.grid, plain_name(str(path))), header


def parse_header(lines: list[str], name: str) -> Header:
    """Check the lines between magic and data; `name` appears in refusals."""
    fields, remarks = _fields(lines, name)
    absent = [field for field in NEEDED if field not in fields]
    if "space" in absent or "spacedirections" in absent or "spaceorigin" in absent:
        raise GeometryError(
            "B11", "orientation unknown", file=name, found="NRRD without space", do="save it with its space"
        )
    if absent:
        raise _damaged(name, f"no field {absent[0]}")
    if fields["dimension"] != "3" or fields.get("spacedimension", "3") != "3":
        raise _damaged(name, "not a scalar image of three dimensions")
    if set(fields.get("kinds", "domain").lower().split()) - {"domain", "space", "???", "none"}:
        raise _damaged(name, "not a scalar image of three dimensions")
    for field in ("spaceunits", "units"):
        if set(re.findall(r'"([^"]*)"', fields.get(field, ""))) - {"mm", "millimeter", "???", ""}:
            raise GeometryError("B16", "voxel size not in mm; units?", file=name, do=EXPORT_AGAIN)
    encoding = fields["encoding"].lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise _damaged(name, "an encoding other than raw or gzip")
    shape = _sizes(fields["sizes"], name)
    return Header(
        Grid(shape, _affine(fields, name)),
        _type(fields, name),
        encoding != "raw",
        fields.get("sampleunits", "").strip('" '),
        remarks,
    )


# ---- header ------------------------------------------------------------------------------------------------


def _head(file: BinaryIO, name: str) -> list[str]:
    """Lines of the header; afterwards the file is positioned at its data."""
    raw = file.read(MOST_HEADER)
    end = re.search(rb"\r?\n\r?\n", raw)
    if MAGIC.match(raw) is None:
        raise _damaged(name, "no NRRD magic")
    if end is None:
        raise _damaged(name, "no end of the header")
    file.seek(end.end())
    try:
        text = raw[: end.start()].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(name, "a header that is not text") from error
    lines = text.replace("\r\n", "\n").split("\n")
    if MAGIC.fullmatch(lines[0].encode()) is None:
        raise _damaged(name, "no NRRD magic")
    return lines[1:]


def _fields(lines: list[str], name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Fields by name without spaces, and key:=value pairs; unknown and repeated fields are refused."""
    fields: dict[str, str] = {}
    remarks: dict[str, str] = {}
    for line in lines:
        if line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if value.startswith("="):
            remarks[key.strip()] = value[1:].strip()
            continue
        field = key.replace(" ", "").lower()
        if field == "datafile":
            raise _damaged(name, "data outside the file", "save header and data in one .nrrd file")
        if field in ("lineskip", "byteskip") and value.strip() == "0":
            continue
        if not colon or field not in (*NEEDED, *PASSED_OVER, *CHECKED):
            raise _damaged(name, "an unknown field" if colon else "a line that is not a field")
        if field in fields:
            raise _damaged(name, f"field {field} twice")
        fields[field] = value.strip()
    return fields, remarks


def _sizes(text: str, name: str) -> tuple[int, int, int]:
    parts = text.split()
    if len(parts) != 3 or not all(re.fullmatch("[0-9]{1,9}", p) and int(p) > 0 for p in parts):
        raise _damaged(name, "sizes that are not three numbers")
    x, y, z = map(int, parts)
    return x, y, z


def _type(fields: Mapping[str, str], name: str) -> np.dtype[np.generic]:
    code = DTYPES.get(" ".join(fields["type"].lower().split()))
    if code is None:
        raise _damaged(name, "an unsupported voxel type")
    order = {"little": "<", "big": ">"}.get(fields.get("endian", "").lower())
    if order is None and code[1] != "1":
        raise _damaged(name, "no byte order")
    return np.dtype((order or "<") + code)


@np.errstate(all="ignore")
def _affine(fields: Mapping[str, str], name: str) -> Matrix:
    """4x4 affine to RAS from a space with known sides."""
    space = fields["space"].lower()
    signs = TO_RAS.get(SHORT.get(space, space))
    if signs is None:
        raise GeometryError(
            "B11",
            "orientation unknown",
            file=name,
            found="a space other than RAS, LAS and LPS",
            do="save it with its space",
        )
    vectors = VECTOR.findall(fields["spacedirections"])
    if len(vectors) != 3 or VECTOR.sub("", fields["spacedirections"]).strip():
        raise _misplaced(name, "space directions")
    columns = [_vector(v, name) for v in vectors]
    origin = VECTOR.fullmatch(fields["spaceorigin"])
    if origin is None:
        raise _misplaced(name, "space origin")
    affine = np.eye(4)
    affine[:3, :3] = np.array(columns).T
    affine[:3, 3] = _vector(origin[1], name)
    affine = np.diag([*signs, 1.0]) @ affine
    if not np.isfinite(affine).all() or not abs(np.linalg.det(affine[:3, :3])) > 1e-9:
        raise _misplaced(name, "space directions")
    return affine


def _vector(text: str, name: str) -> list[float]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(NUMBER.fullmatch(part) for part in parts):
        raise _misplaced(name, "a vector that is not three numbers")
    return [float(part) for part in parts]


# ---- data --------------------------------------------------------------------------------------------------


def _values(file: BinaryIO, header: Header, name: str) -> npt.NDArray[np.generic]:
    """Voxels, read to the end to verify the checksum; never more bytes than the header states."""
    start = file.tell()
    size = file.seek(0, 2) - start
    file.seek(start)
    expected = header.data_bytes
    if size * (MOST_EXPANSION if header.is_compressed else 1) < expected:
        raise _short(name, expected, size)
    # Pages of this buffer are allocated as bytes arrive, so a false size costs no memory.
    buffer = np.empty(expected, np.uint8)
    stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if header.is_compressed else file
    done = 0
    try:
        while done < expected and (chunk := stream.read(min(expected - done, CHUNK))):
            buffer[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        is_longer = bool(stream.read(1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFileError("B4", "gzip stream damaged", file=name, do=COPY_AGAIN) from error
    if done < expected:
        raise _short(name, expected, done)
    if is_longer:
        raise UnreadableFileError(
            "B5",
            "stream longer than header says",
            file=name,
            found=f"more than {expected} bytes",
            do=COPY_AGAIN,
        )
    values = buffer.view(header.dtype).reshape(header.grid.shape, order="F")
    return values.astype(header.dtype.newbyteorder("="), copy=False)


# ---- sentences ---------------------------------------------------------------------------------------------


def _damaged(name: str, found: str, do: str = COPY_AGAIN) -> UnreadableFileError:
    return UnreadableFileError("B7", "not a readable NRRD file", file=name, found=found, do=do)


def _misplaced(name: str, found: str) -> GeometryError:
    return GeometryError("B13", "position not usable", file=name, found=found, do=EXPORT_AGAIN)


def _short(name: str, expected: int, found: int) -> UnreadableFileError:
    return UnreadableFileError(
        "B3",
        "file shorter than header says",
        file=name,
        found=f"expected {expected} bytes, found {found}",
        do=COPY_AGAIN,
    )
