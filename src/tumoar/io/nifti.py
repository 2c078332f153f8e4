"""NIfTI images in and out: read to the last byte before use, written whole or not at all."""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import nibabel as nib
import numpy as np
import numpy.typing as npt

from tumoar import __version__
from tumoar.errors import IntegrityError, ResourceError, TumoarError, UnreadableFileError, plain_name
from tumoar.image import Grid, Image
from tumoar.io.files import beside
from tumoar.io.nifti_header import (
    COPY_AGAIN,
    MAX_FORM_DISTANCE,
    SCALARS,
    Form,
    Header,
    header_size,
    parse_header,
)

MAX_BYTES = 4 * 1024**3  # of one image in memory; a 1 mm head needs 0.1 GB
CHUNK = 1024**2
MOST_EXPANSION = 1032  # bytes that one byte of a deflate stream can hold at most

SUFFIXES = (".nii", ".nii.gz")

Array = npt.NDArray[np.generic]


# ---- reading -----------------------------------------------------------------------------------------------


def read_nifti(path: str | Path, *, use_form: Form | None = None, max_bytes: int = MAX_BYTES) -> Image:
    """Read one scalar 3-D image on its own grid; refuse whatever is damaged, ambiguous or too large.

    NIfTI-1 and -2, either byte order, compressed or not, one file or a .hdr/.img pair. Values keep their
    stored type unless the header scales them. `use_form` settles a header whose two forms differ.
    """
    header_path, data_path = _pair(Path(path))
    with _opened(header_path) as stream:
        raw = stream.read(4)
        raw += stream.read(header_size(raw, stream.name) - len(raw))
        header = parse_header(raw, stream.name, use_form)
        _require_room(header, stream.name, max_bytes)
        if header.in_same_file:
            values = _values(stream, header, position=len(raw))
        elif data_path == header_path:
            raise UnreadableFileError(
                "B7",
                "not a scalar NIfTI image",
                file=stream.name,
                found="a header without its data",
                do="name the pair .hdr and .img",
            )
        elif stream.skip(CHUNK) == CHUNK:  # to the end, where the checksum is
            raise _long(stream, CHUNK)
    if not header.in_same_file:
        with _opened(data_path) as stream:
            values = _values(stream, header, position=0)
    return Image(values, Grid(header.shape, header.affine), plain_name(str(path)))


@dataclass(frozen=True)
class _Stream:
    """The content of a file after decompression."""

    content: IO[bytes]
    name: str
    size: int  # on disk
    is_compressed: bool

    def chunks(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes in pieces, fewer only where the stream ends."""
        while count > 0 and (chunk := self.content.read(min(count, CHUNK))):
            yield chunk
            count -= len(chunk)

    def read(self, count: int) -> bytes:
        """The next `count` bytes."""
        return b"".join(self.chunks(count))

    def skip(self, count: int) -> int:
        """Read over the next `count` bytes; how many there were."""
        return sum(len(chunk) for chunk in self.chunks(count))

    def fill(self, buffer: npt.NDArray[np.uint8]) -> int:
        """Fill the buffer; how many bytes there were."""
        done = 0
        for chunk in self.chunks(buffer.size):
            buffer[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        return done


@contextmanager
def _opened(path: Path) -> Iterator[_Stream]:
    """Open a file, plain or compressed by its content; what goes wrong while it is read is a refusal."""
    name = plain_name(str(path))
    if "\0" in str(path):
        raise _unreadable(name, "not a file name")
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise _unreadable(name, "is a directory" if stat.S_ISDIR(mode) else "not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise UnreadableFileError("B2", "empty file", file=name, found="0 bytes", do=COPY_AGAIN)
            is_compressed = file.peek(2)[:2] == b"\x1f\x8b"
            try:
                stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_compressed else file
                yield _Stream(stream, name, size, is_compressed)
            except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
                found = f"near byte {file.tell()} of {size}"
                raise UnreadableFileError(
                    "B4", "gzip stream damaged", file=name, found=found, do=COPY_AGAIN
                ) from damage
    except MemoryError as error:
        raise ResourceError("B6", "not enough memory for the image", file=name, do="free memory") from error
    except OSError as error:
        reasons = {FileNotFoundError: "no such file", PermissionError: "no permission"}
        raise _unreadable(name, reasons.get(type(error), "the disk or the name does not allow it")) from error


def _values(stream: _Stream, header: Header, position: int) -> Array:
    """The voxel values from a stream at `position`, read to the end so that its checksum is verified."""
    expected = header.offset + header.data_bytes
    if stream.size * (MOST_EXPANSION if stream.is_compressed else 1) < expected:
        raise _short(stream, expected, f"{stream.size}{' compressed' if stream.is_compressed else ''}")
    # Pages of this buffer are taken only as bytes arrive, so a false claim costs no memory.
    buffer = np.empty(header.data_bytes, np.uint8)
    done = position + stream.skip(header.offset - position)
    done += stream.fill(buffer)
    if done < expected:
        raise _short(stream, expected, f"{done}")
    if stream.skip(1):
        # Never read further: the rest may be endless, and a header that miscounts may misplace every voxel.
        raise _long(stream, expected)
    values = buffer.view(header.dtype).reshape(header.shape, order="F")
    if not header.is_scaled:
        return values.astype(header.dtype.newbyteorder("="), copy=False)
    with np.errstate(over="ignore"):  # an infinite voxel is judged with the other voxels
        return (values.astype(np.float64) * header.slope + header.inter).astype(
            _scaled_type(header), copy=False
        )


def _scaled_type(header: Header) -> np.dtype[np.floating]:
    is_short = header.dtype.itemsize <= 2 or header.dtype == np.float32
    return np.dtype(np.float32 if is_short else np.float64)


def _require_room(header: Header, name: str, max_bytes: int) -> None:
    item = max(header.dtype.itemsize, _scaled_type(header).itemsize if header.is_scaled else 0)
    needed = header.offset + math.prod(header.shape) * item
    if needed > max_bytes:
        raise ResourceError(
            "B6",
            "image too large",
            file=name,
            found=f"needs {_size(needed)}, limit {_size(max_bytes)}",
            do="check the header, or raise the limit",
        )


def _pair(path: Path) -> tuple[Path, Path]:
    """Header and data file: the same, but for .hdr/.img, which stand side by side."""
    name, zipped = path.name.removesuffix(".gz"), ".gz" if path.name.endswith(".gz") else ""
    stem, suffix = name[:-4], name[-4:]
    if suffix not in (".hdr", ".img"):
        return path, path

    def partner(suffix: str) -> Path:
        names = [path.with_name(f"{stem}{suffix}{end}") for end in (zipped, "", ".gz")]
        return next((p for p in names if os.path.isfile(p)), names[0])

    return (path, partner(".img")) if suffix == ".hdr" else (partner(".hdr"), path)


# ---- writing -----------------------------------------------------------------------------------------------


def write_nifti(path: str | Path, array: Array, grid: Grid) -> None:
    """Write an image on its grid, read it back and only then put it in place; nothing is left on failure.

    Both forms are set and equal; the header holds no text but our own name and version.
    """
    path = Path(path)
    data = np.asfortranarray(array)  # the order of the file
    data = data.view(np.uint8) if data.dtype == np.bool_ else data
    if data.shape != grid.shape:
        raise ValueError(f"array must have the grid's shape {grid.shape}, got {data.shape}")
    if data.dtype.str[1:] not in SCALARS.values():
        raise ValueError(f"array must be of a type NIfTI knows, got {data.dtype}")
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"path must end in one of {SUFFIXES}, got '{path.suffix}'")
    with beside(path) as temporary:
        with open(temporary, "xb") as file:
            _write(file, data, grid, compressed=path.name.endswith(".gz"))
        _require_same(temporary, data, grid, path)


def _write(file: IO[bytes], data: Array, grid: Grid, *, compressed: bool) -> None:
    image = nib.Nifti1Image(data, grid.affine, dtype=data.dtype)
    image.header["descrip"] = f"tumoar {__version__}".encode()
    image.header.set_xyzt_units("mm")
    image.set_sform(grid.affine, code=1)
    image.set_qform(grid.affine, code=1)
    corner = np.array(grid.shape) - 1
    tilt = np.abs((image.get_qform() - grid.affine)[:3, :3]) @ corner
    if np.linalg.norm(tilt) > MAX_FORM_DISTANCE / 2:
        # A rotation cannot express the slight shear of such a grid; two forms that differ would be ambiguous.
        image.set_qform(None, code=0)
    if compressed:
        # Without name and time the same image is the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=4, mtime=0) as stream:
            image.to_stream(cast(io.IOBase, stream))
    else:
        image.to_stream(cast(io.IOBase, file))


def _require_same(written: Path, data: Array, grid: Grid, path: Path) -> None:
    try:
        image = read_nifti(written)
        moved = np.abs(image.grid.affine - grid.affine) @ [*(np.array(grid.shape) - 1), 1]
        same = image.data.dtype == data.dtype and np.array_equal(
            image.data, data, equal_nan=data.dtype.kind == "f"
        )
        fault = None if same and moved.max() <= 1e-3 else "other values" if not same else "another position"
    except TumoarError as refusal:
        fault = refusal.what
    if fault:
        raise IntegrityError(
            "written",
            "written file is not what it should be",
            file=path,
            found=fault,
            do="check the disk",
        )


# ---- sentences ---------------------------------------------------------------------------------------------


def _unreadable(name: str, reason: str) -> UnreadableFileError:
    return UnreadableFileError(
        "B1", f"cannot read the image: {reason}", file=name, do="check the name and the folder"
    )


def _short(stream: _Stream, expected: int, found: str) -> UnreadableFileError:
    return UnreadableFileError(
        "B3",
        "file shorter than header says",
        file=stream.name,
        found=f"expected {expected} bytes, found {found}",
        do=COPY_AGAIN,
    )


def _long(stream: _Stream, expected: int) -> UnreadableFileError:
    found = f"more than {expected} bytes"
    return UnreadableFileError(
        "B5", "stream longer than header says", file=stream.name, found=found, do=COPY_AGAIN
    )


def _size(count: int) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(str(count)) - 1, 3 * len(units) - 1) // 3
    return f"{count / 1000**power:.3g} {units[power]}"
