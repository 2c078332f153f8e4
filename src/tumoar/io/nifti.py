"""Read and write NIfTI images: files are read to the last byte, and written atomically."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import nibabel as nib
import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.io.files import open_file, replace_file
from tumoar.io.nifti_header import (
    COPY_AGAIN,
    MAX_FORM_DISTANCE,
    SCALARS,
    Form,
    Header,
    header_size,
    parse_header,
)
from tumoar.version import __version__
from tumoar.vocabulary.errors import (
    IntegrityError,
    ResourceError,
    TumoarError,
    UnreadableFileError,
    plain_name,
)

MAX_VOXELS = 2**28  # 1024 x 1024 x 256, a head in voxels of 0.35 mm; at 1 mm it has 10 million
MAX_BYTES = 3 * 2**29  # of one image in memory, as stored and as scaled
MOST_FILE = MAX_BYTES + 2**28  # of a file: incompressible data grow slightly
MOST_EXTENSIONS = 2**26  # bytes between header and voxels
CHUNK = 1024**2
MOST_EXPANSION = 1032  # maximum ratio of a deflate stream

SUFFIXES = (".nii", ".nii.gz")

Array = npt.NDArray[np.generic]


# ---- reading -----------------------------------------------------------------------------------------------


def read_nifti(path: str | Path, *, use_form: Form | None = None, max_bytes: int = MAX_BYTES) -> Image:
    """Read one scalar 3-D image on its own grid; refuse files that are damaged, ambiguous or too large.

    NIfTI-1 and -2, either byte order, compressed or not, one file or a .hdr/.img pair. Values keep their
    stored type unless the header scales them. `use_form` selects a form if sform and qform differ.
    """
    return read_hashed(path, use_form=use_form, max_bytes=max_bytes)[0]


def read_hashed(
    path: str | Path, *, use_form: Form | None = None, max_bytes: int = MAX_BYTES
) -> tuple[Image, str]:
    """Like `read_nifti`, with the SHA-256 of the bytes that were read; of a pair, header first."""
    header_path, data_path = _pair(Path(path))
    digest = hashlib.sha256()
    with _opened(header_path, digest) as stream:
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
        elif stream.skip(CHUNK) == CHUNK:  # to the checksum at the end
            raise _long(stream, CHUNK)
    if not header.in_same_file:
        with _opened(data_path, digest) as stream:
            values = _values(stream, header, position=0)
    return Image(values, Grid(header.shape, header.affine), plain_name(str(path))), digest.hexdigest()


class _Hashed(io.RawIOBase):
    """A file whose bytes are hashed while they are read, once and in order."""

    def __init__(self, file: BinaryIO, digest: hashlib._Hash) -> None:
        super().__init__()
        self.file, self.digest, self.position = file, digest, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self.file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.digest.update(chunk)
        self.position += len(chunk)
        return len(chunk)


@dataclass(frozen=True)
class _Stream:
    """Decompressed content of a file."""

    content: IO[bytes]
    name: str
    size: int  # on disk
    is_compressed: bool

    def chunks(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes in chunks, fewer only at the end of the stream."""
        while count > 0 and (chunk := self.content.read(min(count, CHUNK))):
            yield chunk
            count -= len(chunk)

    def read(self, count: int) -> bytes:
        """The next `count` bytes."""
        return b"".join(self.chunks(count))

    def skip(self, count: int) -> int:
        """Skip the next `count` bytes; return how many there were."""
        return sum(len(chunk) for chunk in self.chunks(count))

    def fill(self, buffer: npt.NDArray[np.uint8]) -> int:
        """Fill the buffer; return how many bytes there were."""
        done = 0
        for chunk in self.chunks(buffer.size):
            buffer[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        return done


@contextmanager
def _opened(path: Path, digest: hashlib._Hash) -> Iterator[_Stream]:
    """Open a plain or compressed file, detected from its content; read errors become refusals."""
    name = plain_name(str(path))
    try:
        with open_file(path, "the image", MOST_FILE) as file:
            size = os.fstat(file.fileno()).st_size
            hashed = _Hashed(file, digest)
            content = io.BufferedReader(hashed, CHUNK)
            is_compressed = content.peek(2)[:2] == b"\x1f\x8b"
            try:
                stream = cast(IO[bytes], gzip.GzipFile(fileobj=content)) if is_compressed else content
                yield _Stream(stream, name, size, is_compressed)
            except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
                found = f"near byte {hashed.position} of {size}"
                raise UnreadableFileError(
                    "B4", "gzip stream damaged", file=name, found=found, do=COPY_AGAIN
                ) from damage
    except MemoryError as error:
        raise ResourceError("B6", "not enough memory for the image", file=name, do="free memory") from error


def _values(stream: _Stream, header: Header, position: int) -> Array:
    """The voxel values from a stream at `position`, read to the end so that its checksum is verified."""
    expected = header.offset + header.data_bytes
    if stream.size * (MOST_EXPANSION if stream.is_compressed else 1) < expected:
        raise _short(stream, expected, f"{stream.size}{' compressed' if stream.is_compressed else ''}")
    # Pages of this buffer are allocated as bytes arrive, so a false size costs no memory.
    buffer = np.empty(header.data_bytes, np.uint8)
    done = position + stream.skip(header.offset - position)
    done += stream.fill(buffer)
    if done < expected:
        raise _short(stream, expected, f"{done}")
    if stream.skip(1):
        # Do not read on: the rest may be endless, and a wrong size may misplace every voxel.
        raise _long(stream, expected)
    values = buffer.view(header.dtype).reshape(header.shape, order="F")
    if not header.is_scaled:
        native = header.dtype.newbyteorder("=")
        return values.byteswap(inplace=True).view(native) if values.dtype != native else values
    scaled = np.empty(header.shape, _scaled_type(header), order="F")
    with np.errstate(over="ignore", invalid="ignore"):  # infinite voxels are checked with the others
        for k in range(header.shape[2]):  # plane by plane: double precision takes eight times the memory
            scaled[..., k] = values[..., k].astype(np.float64) * header.slope + header.inter
    return scaled


def _scaled_type(header: Header) -> np.dtype[np.floating]:
    is_short = header.dtype.itemsize <= 2 or header.dtype == np.float32
    return np.dtype(np.float32 if is_short else np.float64)


def _require_room(header: Header, name: str, max_bytes: int) -> None:
    """Refuse sizes that no image of a head needs, from the header alone."""
    item = header.dtype.itemsize + (_scaled_type(header).itemsize if header.is_scaled else 0)
    voxels = math.prod(header.shape)
    limits = (
        (voxels * item > max_bytes, f"needs {_size(voxels * item)}, limit {_size(max_bytes)}"),
        (voxels > MAX_VOXELS, f"{voxels / 1e6:.0f} million voxels, limit {MAX_VOXELS / 1e6:.0f}"),
        (
            header.offset > MOST_EXTENSIONS,
            f"{_size(header.offset)} before the voxels, limit {_size(MOST_EXTENSIONS)}",
        ),
    )
    for is_over, found in limits:
        if is_over:
            raise ResourceError(
                "B6", "image too large", file=name, found=found, do="check the header, or crop the image"
            )


def _pair(path: Path) -> tuple[Path, Path]:
    """Header and data file: the same file, except for .hdr/.img pairs."""
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
    """Write an image, read it back and only then move it into place; a failure leaves nothing behind.

    Both forms are set and equal; the only text in the header is our name and version.
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
    with replace_file(path) as temporary:
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
        # The qform cannot express the slight shear of such a grid; two different forms would be ambiguous.
        image.set_qform(None, code=0)
    if compressed:
        # Without name and time, equal images are equal bytes. Level 4 takes 18 % less space, twice as long.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=1, mtime=0) as stream:
            image.to_stream(cast(io.IOBase, stream))
    else:
        image.to_stream(cast(io.IOBase, file))


def _require_same(written: Path, data: Array, grid: Grid, path: Path) -> None:
    try:
        image = read_nifti(written)
        moved = np.abs(image.grid.affine - grid.affine) @ [*(np.array(grid.shape) - 1), 1]
        # Bits, not values: an array that is written has no other NaN than the one that is read.
        read, meant = image.data.T.view(np.uint8), data.T.view(np.uint8)
        same = image.data.dtype == data.dtype and np.array_equal(read, meant)
        fault = None if same and moved.max() <= 1e-3 else "other values" if not same else "another position"
    except TumoarError as refusal:
        fault = refusal.what
    if fault:
        raise IntegrityError(
            "written",
            "written file differs from the image",
            file=path,
            found=fault,
            do="check the disk",
        )


# ---- sentences ---------------------------------------------------------------------------------------------


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
