"""Hostile files: nothing is written elsewhere, no code is run, no memory is taken that a header asks for."""

from __future__ import annotations

import time
import tracemalloc
import zlib

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import DeflatedExplicitVRLittleEndian, RLELossless
from rt_files import save, write_series

from tumoar.geometry.image import Grid
from tumoar.io.images import read_image
from tumoar.io.manifest import MANIFEST, add_files, read_manifest, remove_leftovers
from tumoar.io.manifest_schema import seal
from tumoar.vocabulary.errors import IntegrityError, TumoarError

GRID = Grid((8, 6, 4), np.diag([-1.0, -1.5, 2.0, 1.0]))
GIGABYTE = 10**9


@pytest.fixture
def paths(tmp_path):
    return write_series(tmp_path / "s", np.ones(GRID.shape), GRID)


def refused(paths):
    """The id of the refusal; within seconds, and without a gigabyte."""
    start = time.process_time()
    tracemalloc.start()  # and not the most the process ever had: that depends on the tests before
    try:
        with pytest.raises(TumoarError) as refusal:
            read_image(paths[0].parent)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 10
    assert most < GIGABYTE
    return refusal.value.id


def body_start(whole):
    return 132 + 12 + int.from_bytes(whole[140:144], "little")


def test_a_bomb_of_deflated_elements(paths):
    data = dcmread(paths[0])
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    save(data, paths[0])
    whole = paths[0].read_bytes()
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    bomb = b"".join(packer.compress(bytes(10**7)) for _ in range(20)) + packer.flush()
    paths[0].write_bytes(whole[: body_start(whole)] + bomb)
    assert refused(paths) == "B48"


@pytest.mark.parametrize(("rows", "frames"), [(65535, None), (60000, 10**6), (16, 10**9)])
def test_pixels_that_claim_to_be_many(paths, rows, frames):
    data = dcmread(paths[0])
    data.file_meta.TransferSyntaxUID = RLELossless
    data.Rows = data.Columns = rows
    if frames:
        data.NumberOfFrames = frames
    data.PixelData = encapsulate([bytes(64)])
    data["PixelData"].is_undefined_length = True
    for path in paths[1:]:
        path.unlink()
    save(data, paths[0])
    assert refused(paths[:1]) == "B6"


def test_sequences_of_a_million_items(paths):
    whole = paths[0].read_bytes()
    item = b"\xfe\xff\x00\xe0\x00\x00\x00\x00"
    many = b"\x08\x00\x40\x11SQ\x00\x00\xff\xff\xff\xff" + item * (10**6 + 1) + b"\xfe\xff\xdd\xe0\0\0\0\0"
    paths[0].write_bytes(whole[: body_start(whole)] + many + whole[body_start(whole) :])
    assert refused(paths) == "B52"


def finished(out, files=None):
    out.mkdir()
    (out / MANIFEST).write_text(seal({"format": "tumoar result", "files": files or {}}))
    return out


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "structures/../../secret"])
def test_a_manifest_that_leads_elsewhere(tmp_path, name):
    (tmp_path / "secret").write_text("x")
    out = finished(tmp_path / "out", {name: "0" * 64})
    with pytest.raises(IntegrityError, match="names a file outside its folder"):
        read_manifest(out)


def test_a_folder_of_a_result_that_leads_elsewhere(tmp_path):
    out = finished(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (out / "dicom").symlink_to(tmp_path / "elsewhere")

    def add():
        with add_files(out) as folder:
            (folder / "dicom").mkdir()
            (folder / "dicom" / "RS.dcm").write_text("contours")

    with pytest.raises(IntegrityError, match="E12-link part of the output is a symbolic link"):
        add()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_tidying_follows_no_link(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tmp_path / (".out." + "0" * 32)).symlink_to(kept)
    remove_leftovers(tmp_path / "out")
    assert (kept / "file").is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
