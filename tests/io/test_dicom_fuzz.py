"""Damaged and hostile DICOM files: a refusal or the same image, never anything else."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pydicom import dcmread
from rt_files import PLANTED, save, write_rtdose, write_series

from tumoar.errors import TumoarError
from tumoar.image import Grid
from tumoar.io.dose import read_dose
from tumoar.io.images import read_image

GRID = Grid((10, 8, 5), np.diag([-1.0, -1.5, 2.0, 1.0]))
VALUES = np.random.default_rng(0).integers(0, 900, GRID.shape).astype(float)
KEYWORDS = (
    "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns", "BitsAllocated",
    "BitsStored", "PixelRepresentation", "SamplesPerPixel", "RescaleSlope", "RescaleIntercept", "Modality",
    "SOPClassUID", "SeriesInstanceUID", "FrameOfReferenceUID", "PixelData", "SeriesNumber", "ImageType",
    "PatientID", "PhotometricInterpretation", "SliceThickness", "NumberOfFrames", "SpecificCharacterSet",
)  # fmt: skip
WORDS = [b"", b"nan", b"inf", b"-1", b"0", b"1e999", b"1\\2", b"\\", b"\xff\xfe\0", b"x" * 40, b"99999999"]


def flipped(whole, rng):
    data = bytearray(whole)
    for at in rng.integers(0, len(data), int(rng.integers(1, 12))):
        data[at] = int(rng.integers(0, 256))
    return bytes(data)


def cut(whole, rng):
    return whole[: int(rng.integers(0, len(whole)))]


def swapped(whole, rng):
    a, b = np.sort(rng.integers(132, len(whole), 2))
    return whole[:132] + whole[b:] + whole[a:b] + whole[132:a]


def retagged(path, whole, rng):
    """A value of another kind under a tag that counts, in the bytes themselves."""
    data = dcmread(path)
    keyword = str(rng.choice(KEYWORDS))
    if keyword not in data or rng.random() < 0.3:
        return cut(whole, rng)
    element = data[keyword]
    head = bytes(
        [element.tag.group & 255, element.tag.group >> 8, element.tag.elem & 255, element.tag.elem >> 8]
    )
    at = whole.find(head + element.VR.encode(), 132)
    if at < 0 or element.VR in ("OW", "OB", "SQ"):
        return flipped(whole, rng)
    size = int.from_bytes(whole[at + 6 : at + 8], "little")
    word = WORDS[int(rng.integers(len(WORDS)))]
    word += b" " * (len(word) % 2)
    return whole[: at + 6] + len(word).to_bytes(2, "little") + word + whole[at + 8 + size :]


def harmless(read):
    """What was read or refused; anything but a refusal would come through."""
    start, found, told = time.monotonic(), None, ""
    try:
        found = read()
    except TumoarError as refusal:
        told = str(refusal)
    assert not any(planted in told for planted in PLANTED)
    assert len(told) < 600
    assert time.monotonic() - start < 10
    return found


def fuzz(folder, seeds):
    paths = write_series(folder / "s", VALUES, GRID)
    dose = write_rtdose(folder / "RD.dcm", VALUES / 20, GRID, "1.2.3")
    wholes = {path: path.read_bytes() for path in (*paths, dose)}
    true = read_image(folder / "s").grid
    accepted = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        path = [*paths, dose][int(rng.integers(len(paths) + 1))]
        how = (flipped, cut, swapped, None)[int(rng.integers(4))]
        whole = wholes[path]
        path.write_bytes(how(whole, rng) if how else retagged(path, whole, rng))
        image = harmless(lambda path=path: read_dose(path) if path == dose else read_image(folder / "s"))
        if image is not None and path != dose and image.grid.shape == true.shape:
            accepted += 1
            spacing = np.abs(image.grid.spacing - true.spacing).max()
            moved = np.abs(image.grid.world([5, 5, 2]) - true.world([5, 5, 2])).max()
            # One slice of five cannot change the grid: its neighbors contradict it.
            assert spacing < 0.05
            assert moved < 0.5 or np.array_equal(np.sign(image.grid.affine), np.sign(true.affine))
        path.write_bytes(whole)
    assert accepted > 0


def test_damaged_files(tmp_path):
    fuzz(tmp_path, range(250))


@pytest.mark.slow
def test_ten_thousand_damaged_files(tmp_path):
    fuzz(tmp_path, range(1000, 11_000))


def test_one_slice_with_other_pixels_is_read_as_it_is(tmp_path):
    """What the standard allows is not damage: a slice of zeros is a slice of zeros."""
    paths = write_series(tmp_path, VALUES, GRID)
    data = dcmread(paths[1])
    data.PixelData = bytes(len(data.PixelData))
    save(data, paths[1])
    assert (read_image(tmp_path).data == 0).all((0, 1)).sum() == 1
