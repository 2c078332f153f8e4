"""Small files that ask for much: refused before memory is taken, and what is no file is not waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
import zlib

import numpy as np
import pytest
from nifti_files import header
from pydicom import dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, RLELossless
from rt_files import save, write_series

from tumoar.geometry.image import Grid
from tumoar.io.checkpoint import Checkpoints
from tumoar.io.images import read_image, read_scan
from tumoar.io.nifti import read_hashed
from tumoar.io.store import load_sections
from tumoar.vocabulary.errors import TumoarError

MEGABYTE = 2**20
MOST_GB = 0.6  # of which the interpreter and its libraries take a third


class Claim:
    """Stands for an array of this shape and type."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)


def gzip_of(start: bytes, megabytes: int) -> bytes:
    """A gzip stream of `start` and so many megabytes of zeros, made without packing them all."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    end, check = packer.flush(), zlib.crc32(start)
    for _ in range(megabytes):
        check = zlib.crc32(bytes(MEGABYTE), check)
    size = (len(start) + megabytes * MEGABYTE) % 2**32
    tail = check.to_bytes(4, "little") + size.to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + head + block * megabytes + end + tail


def image_bomb(path, shape, dtype, **fields):
    start = header(Claim(shape, dtype), **fields) + bytes(4)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    path.write_bytes(gzip_of(start, size // MEGABYTE))


def model_bomb(path, parts, megabytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("model.json", "{}")
        for number in range(parts):
            archive.writestr(f"atlas/x{number}.npy", bytes(megabytes * MEGABYTE))


def series_bomb(folder, make):
    """One slice whose pixels, packed or not, are far more than its size says."""
    grid = Grid((8, 6, 1), np.diag([-1.0, -1.5, 2.0, 1.0]))
    (path,) = write_series(folder, np.ones(grid.shape), grid)
    data = dcmread(path)
    make(data)
    save(data, path)


def run_lengths(data):
    data.file_meta.TransferSyntaxUID = RLELossless
    segment = b"\x81\0" * (8 * MEGABYTE)  # 128 bytes of two
    offsets = (
        (2).to_bytes(4, "little") + (64).to_bytes(4, "little") + (64 + len(segment)).to_bytes(4, "little")
    )
    data.PixelData = encapsulate([offsets.ljust(64, b"\0") + segment * 2])
    data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True


def many_frames(data):
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.NumberOfFrames = 10**6
    data.Rows = data.Columns = 512


CODE = """
import json, re, sys
from tumoar.vocabulary.errors import TumoarError
from tumoar.io.images import read_image
from tumoar.io.store import load_sections
told = []
for path in sys.argv[1:]:
    try:
        (load_sections if path.endswith(".npz") else read_image)(path)
        told.append(path)
    except TumoarError as refusal:
        told.append(refusal.id)
# Not ru_maxrss, which begins with what the process that started this one has.
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())
print(json.dumps({"told": told, "gb": int(peak[1]) / 1e6}))
"""


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")


@needs_proc
def test_hostile_files_take_little_memory(tmp_path):
    image_bomb(tmp_path / "scaled.nii.gz", (1024, 1024, 800), "u1", scl_slope=0.5)
    image_bomb(tmp_path / "bytes.nii.gz", (1024, 1024, 700), "u1")
    image_bomb(tmp_path / "doubles.nii.gz", (1024, 1024, 100), "f8", scl_slope=0.5, scl_inter=1)
    (tmp_path / "far.nii.gz").write_bytes(
        gzip_of(header(Claim((64, 64, 64), "u1"), vox_offset=float(700 * MEGABYTE)) + bytes(4), 700)
    )
    model_bomb(tmp_path / "parts.npz", 4, 150)
    model_bomb(tmp_path / "ratio.npz", 1, 200)
    series_bomb(tmp_path / "rle", run_lengths)
    series_bomb(tmp_path / "frames", many_frames)
    paths = sorted(p for p in tmp_path.iterdir())
    sizes = [p.stat().st_size for p in paths if p.is_file()]
    assert max(sizes) < 4 * MEGABYTE
    done = subprocess.run([sys.executable, "-c", CODE, *paths], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    told = dict(zip((p.name for p in paths), found["told"]))
    assert {name: id for name, id in told.items() if id not in ("B6", "B48", "B54")} == {}
    assert found["gb"] < MOST_GB


@needs_proc
def test_an_image_of_the_largest_size_is_read(tmp_path):
    """The bound is beyond what scanners make, and reading takes what the bound says and no more."""
    image_bomb(
        tmp_path / "a.nii.gz", (512, 512, 256), "i2", affine=np.diag([0.5, 0.5, 1.0, 1.0]), scl_slope=0.5
    )
    done = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path / "a.nii.gz"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["told"] == [str(tmp_path / "a.nii.gz")]
    assert found["gb"] < 0.3 + 6 * 512 * 512 * 256 / 1e9


# ---- what is no file ---------------------------------------------------------------------------------------


def in_time(read):
    """What a call raises or returns; it has to come at once."""
    found: list[object] = []

    def run():
        try:
            found.append(read())
        except BaseException as error:  # handed over to the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it waits"
    return found[0]


def heads(path):
    from tumoar.cli.train import align_maps
    from tumoar.vocabulary.labels import default_labels

    return align_maps([path, path], default_labels())


def table(path):
    from tumoar.cli.train import _labels

    return _labels(path, None)


def masks(path):
    from tumoar.cli.train_shape import read_shapes

    return read_shapes([path], [1])


def resumed(path):
    from tumoar.cli.train import load_state

    return load_state(path, "x")


READERS = {
    "image": read_image, "scan": read_scan, "model": load_sections, "heads": heads, "table": table,
    "masks": masks, "checkpoint of training": resumed,
}  # fmt: skip


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/null", "directory", "loop", "nothing"])
def test_what_is_no_file_is_refused_at_once(tmp_path, what, kind):
    path = tmp_path / "a.nii"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind != "nothing":
        path.symlink_to(kind)
    assert isinstance(in_time(lambda: READERS[what](path)), TumoarError)


def test_a_pipe_in_the_place_of_a_checkpoint_counts_as_absent(tmp_path):
    os.mkfifo(tmp_path / "fit.ckpt")
    assert in_time(lambda: Checkpoints(tmp_path, "a" * 64).load("fit")) is None


def test_a_model_in_the_place_of_a_checkpoint_is_refused(tmp_path):
    from tumoar.cli.train import load_state
    from tumoar.io.store import Section, save_sections

    for sections in ({"atlas": Section({}, {})}, {"training": Section({}, {})}):
        save_sections(tmp_path / "m.npz", sections)
        with pytest.raises(TumoarError, match="E12-checkpoint"):
            load_state(tmp_path / "m.npz", "x")


# ---- what was hashed is what was read ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_the_digest_is_that_of_the_file(tmp_path, name):
    import hashlib

    from nifti_files import put

    path = put(tmp_path / name)
    assert read_hashed(path)[1] == hashlib.sha256(path.read_bytes()).hexdigest()
    if name.endswith("gz"):  # padding behind the stream, as tapes leave it, is part of the file
        path.write_bytes(path.read_bytes() + bytes(1000))
        assert read_hashed(path)[1] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_of_a_pair_is_that_of_both_files(tmp_path):
    from nifti_files import head, put_pair

    first = read_hashed(put_pair(tmp_path / "a.hdr", head()))[1]
    assert read_hashed(put_pair(tmp_path / "a.hdr", head(seed=1)))[1] != first
    put_pair(tmp_path / "a.hdr", head())
    assert read_hashed(tmp_path / "a.img")[1] == first
