"""Damaged files, made from good ones by a random generator; what comes of reading them."""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import numpy as np
from nibabel import nifti1, nifti2
from nifti_files import AFFINE, content
from pydicom import dcmread
from rt_files import PLANTED, write_rtdose, write_series

from tumoar.geometry.image import Grid, Image
from tumoar.io.dose import read_dose
from tumoar.io.images import read_image
from tumoar.io.nifti import read_nifti
from tumoar.vocabulary.errors import TumoarError

SLOW = 10.0  # seconds of a processor that no file may take
HANGING = 60.0  # seconds by the clock, on a machine that may be busy


def harmless(read) -> Image | None:
    """What was read, or None if it was refused; anything but a refusal comes through."""
    start, begin, found, told = time.process_time(), time.monotonic(), None, ""
    try:
        found = read()
    except TumoarError as refusal:
        told = str(refusal)
    assert not any(planted in told for planted in (*PLANTED, "Jane"))
    assert len(told) < 600
    assert time.process_time() - start < SLOW
    assert time.monotonic() - begin < HANGING
    return found


def flipped(whole: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(whole)
    for at in rng.integers(0, len(data), int(rng.integers(1, 12))):
        data[at] = int(rng.integers(0, 256))
    return bytes(data)


def cut(whole: bytes, rng: np.random.Generator) -> bytes:
    return whole[: int(rng.integers(0, len(whole)))]


# ---- NIfTI -------------------------------------------------------------------------------------------------

DATA = np.random.default_rng(0).integers(0, 500, (6, 7, 8)).astype(np.int16)
VERSIONS = {1: (nifti1.header_dtype, content(DATA)), 2: (nifti2.header_dtype, content(DATA, version=2))}
# What a field may be overwritten with: any bytes, and the numbers that trip programs.
TRAPS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, np.inf, -np.inf, np.nan, 0.99, 1.01, 2.0]


def field_changed(version: int, rng: np.random.Generator) -> bytes:
    """One field, or one element of it, holds something else."""
    layout, raw = VERSIONS[version]
    dtype, start = layout.fields[str(rng.choice(layout.names))][:2]
    element = dtype.base.itemsize if dtype.base.kind != "S" else dtype.itemsize
    at = start + element * int(rng.integers(dtype.itemsize // element))
    if dtype.base.kind == "f" and rng.random() < 0.5:
        change = struct.pack("<f" if element == 4 else "<d", float(rng.choice(TRAPS)))
    elif rng.random() < 0.5:
        at, change = start, rng.bytes(dtype.itemsize)
    else:
        change = rng.bytes(element)
    return raw[:at] + change + raw[at + len(change) :]


def damaged_nifti(path: Path, number: int) -> tuple[str, bool]:
    """One damaged NIfTI file: what was done to it, and whether it was read.

    A changed field, and a damaged stream, must leave the image where it is, or be refused.
    """
    rng = np.random.default_rng([1, number])
    how, version = ("field", "bytes", "gzip", "cut")[number % 4], 1 + number // 4 % 2
    raw = VERSIONS[version][1]
    if how == "field":
        raw = field_changed(version, rng)
    elif how == "bytes":
        raw = flipped(raw[:548], rng) + raw[548:]
    elif how == "gzip":
        raw = flipped(gzip.compress(raw, mtime=0), rng)
    else:
        raw = cut(gzip.compress(raw, mtime=0) if rng.random() < 0.5 else raw, rng)
    path.write_bytes(raw)
    image = harmless(lambda: read_nifti(path, max_bytes=10**7))
    assert image is None or how != "cut"
    if image is not None and how in ("field", "gzip"):
        np.testing.assert_allclose(image.grid.spacing, [1.5, 2.0, 1.25], rtol=0.01)
        assert np.abs((image.grid.affine - AFFINE) @ [5, 6, 7, 1]).max() <= 0.1
    return how, image is not None


# ---- DICOM -------------------------------------------------------------------------------------------------

GRID = Grid((10, 8, 5), np.diag([-1.0, -1.5, 2.0, 1.0]))
VALUES = np.random.default_rng(0).integers(0, 900, GRID.shape).astype(float)
KEYWORDS = (
    "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns", "BitsAllocated",
    "BitsStored", "PixelRepresentation", "SamplesPerPixel", "RescaleSlope", "RescaleIntercept", "Modality",
    "SOPClassUID", "SeriesInstanceUID", "FrameOfReferenceUID", "PixelData", "SeriesNumber", "ImageType",
    "PatientID", "PhotometricInterpretation", "SliceThickness", "NumberOfFrames", "SpecificCharacterSet",
)  # fmt: skip
WORDS = [b"", b"nan", b"inf", b"-1", b"0", b"1e999", b"1\\2", b"\\", b"\xff\xfe\0", b"x" * 40, b"99999999"]
NUMBERS = [
    b"0\\0\\0",
    b"3\\4\\5",
    b"1\\0\\0\\0\\1\\0",
    b"0\\1\\0\\0\\0\\1",
    b"-1\\0\\0\\0\\1\\0",
    b"2\\2",
    b"1\\1.5",
]
WAYS = ("flipped", "cut", "swapped", "retagged", "missing", "doubled")


def swapped(whole: bytes, rng: np.random.Generator) -> bytes:
    a, b = np.sort(rng.integers(132, len(whole), 2))
    return whole[:132] + whole[b:] + whole[a:b] + whole[132:a]


def _element(path: Path, whole: bytes, rng: np.random.Generator) -> tuple[int, int, int] | None:
    """Where an element of short length that counts begins, where its length stands, and where it ends."""
    data = dcmread(path)
    keyword = str(rng.choice(KEYWORDS))
    if keyword not in data or data[keyword].VR in ("OW", "OB", "SQ"):
        return None
    element = data[keyword]
    head = struct.pack("<HH", element.tag.group, element.tag.elem) + element.VR.encode()
    at = whole.find(head, 132)
    return None if at < 0 else (at, at + 6, at + 8 + int.from_bytes(whole[at + 6 : at + 8], "little"))


def spoiled(how: str, path: Path, whole: bytes, rng: np.random.Generator) -> bytes:
    """The bytes of a file with something wrong in them."""
    if how in ("flipped", "cut", "swapped"):
        return {"flipped": flipped, "cut": cut, "swapped": swapped}[how](whole, rng)
    found = _element(path, whole, rng)
    if found is None:
        return flipped(whole, rng)
    start, length, end = found
    if how == "missing":
        return whole[:start] + whole[end:]
    if how == "doubled":
        return whole[:end] + whole[start:end] + whole[end:]
    words = WORDS + NUMBERS
    word = words[int(rng.integers(len(words)))]
    word += b" " * (len(word) % 2)
    return whole[:length] + len(word).to_bytes(2, "little") + word + whole[end:]


class Study:
    """A small series and a dose, of which one file at a time is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "s"
        self.paths = write_series(self.folder, VALUES, GRID)
        self.dose = write_rtdose(folder / "RD.dcm", VALUES / 20, GRID, "1.2.3")
        self.wholes = {path: path.read_bytes() for path in (*self.paths, self.dose)}
        self.true = read_image(self.folder).grid

    def damaged(self, number: int) -> tuple[str, bool]:
        """One damaged file: what was done to it, and whether series or dose was read all the same.

        One slice of five cannot move the others: they contradict it. A dose stands alone, so that nothing
        contradicts what another sound file would say.
        """
        rng = np.random.default_rng([2, number])
        path = [*self.paths, self.dose][int(rng.integers(len(self.paths) + 1))]
        how, whole = WAYS[number % len(WAYS)], self.wholes[path]
        path.write_bytes(spoiled(how, path, whole, rng))
        try:
            is_dose = path == self.dose
            image = harmless(lambda: read_dose(path) if is_dose else read_image(self.folder))
            if image is not None and not is_dose:
                np.testing.assert_allclose(image.grid.spacing, self.true.spacing, rtol=0.03)
                # A slice at either end that calls itself something else leaves a shorter stack.
                first = self.true.index(image.grid.world([0, 0, 0]))
                np.testing.assert_allclose(first, [0, 0, np.rint(first[2])], atol=0.1)
                turn = np.linalg.solve(self.true.affine[:3, :3], image.grid.affine[:3, :3])
                np.testing.assert_allclose(turn, np.eye(3), atol=0.03)
        finally:
            path.write_bytes(whole)
        return how, image is not None
