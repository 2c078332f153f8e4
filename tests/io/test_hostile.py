"""Files made to do harm: nothing is written elsewhere, no code is run, no memory taken that they ask for."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from nifti_files import head, header, put, put_pair
from pydicom import dcmread
from rt_files import save, write_series
from small_cohort import order as small_order
from small_cohort import subjects

from tumoar.cohort.names import label_of
from tumoar.cohort.supervise import supervise
from tumoar.cohort.tree import begin_tree
from tumoar.geometry.image import Grid
from tumoar.io import store
from tumoar.io.checkpoint import Checkpoints
from tumoar.io.images import read_image
from tumoar.io.manifest import MANIFEST, publish_folder, read_manifest, write_manifest
from tumoar.io.manifest_schema import seal
from tumoar.vocabulary.errors import IntegrityError, ModelFileError, TumoarError, UsageError

GRID = Grid((8, 6, 4), np.diag([-1.0, -1.5, 2.0, 1.0]))
LITTLE = 64 * 2**20  # bytes of memory that a refusal may take


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that nothing may touch, with a file that nothing may read."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    yield folder
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"secret": "secret"}


@contextmanager
def refused_with_little_memory(kind=TumoarError, match=None):
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=match):
            yield
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


# ---- names -------------------------------------------------------------------------------------------------

NAMES = (
    "..", ".", "/", "../x", "../../etc/passwd", "a/../../x", "/etc/passwd", "a/b", "..\\x", "C:\\x",
    "\\\\host\\x", "CON\u0000", "a\tb",
    "%2e%2e%2fx", "~", "~root/x", "$(id)", "`id`", "; rm -rf x", "| id", "&& id", "x\0y", "x\ny", "\x1b[31mx",
    "\u202egpj.exe", "\uff0e\uff0e\uff0fx", "x" * 65, "x" * 100_000, "", " ", "-", "--output=x",
)  # fmt: skip


def test_names_that_lead_elsewhere(record_property):
    """A label is letters and digits, or there is none."""
    for name in NAMES:
        for what in ("subject", "session"):
            try:
                told = label_of(name, what)
                is_plain = re.fullmatch("[A-Za-z0-9]{1,64}", told)
            except UsageError as refusal:
                told = str(refusal)
                is_plain = told.isprintable() and len(told) < 400
            assert is_plain, told
    record_property("tried", 2 * len(NAMES))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "..", "a/..", "//x", "../out/../x"]
)
def test_a_manifest_that_leads_elsewhere(tmp_path, elsewhere, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(seal({"format": "tumoar result", "files": {name: "0" * 64}}))
    with pytest.raises(IntegrityError, match="names a file outside its folder"):
        read_manifest(out)


# ---- links -------------------------------------------------------------------------------------------------

PLACES = ("results", "logs", "sub-01", "sub-01/anat", "results/sub-01", "logs/sub-01.txt")


@pytest.mark.parametrize("place", PLACES)
def test_a_cohort_follows_no_link(tmp_path, elsewhere, place):
    (who,) = subjects(tmp_path / "raw", {"01": "good"})
    order = small_order(tmp_path / "out")
    begin_tree(order)
    link = tmp_path / "out" / place
    if link.is_dir():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    target = elsewhere / "secret" if place.endswith(".txt") else elsewhere
    link.symlink_to(target)
    if place in ("results", "logs"):
        with pytest.raises(IntegrityError, match="E12-link part of the output is a symbolic link"):
            begin_tree(order)
    else:
        ended = supervise(who, order)
        assert (ended.state, ended.code) == ("failed", 12)
        assert "is a symbolic link" in ended.reason
    assert link.is_symlink()


def test_a_result_takes_the_place_of_a_link(tmp_path, elsewhere):
    """The link goes, what it led to stays."""
    (tmp_path / "out").symlink_to(elsewhere)
    with publish_folder(tmp_path / "out", "the result") as work:
        write_manifest(work, {"key": "k"})
    assert read_manifest(tmp_path / "out")["key"] == "k"
    assert not (tmp_path / "out").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "out"]


# ---- bombs -------------------------------------------------------------------------------------------------


def zeros(megabytes: int) -> bytes:
    """A gzip stream of so many megabytes of nothing."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(megabytes)) + packer.flush()


BOMB = zeros(200)


def bomb_pair(folder, which):
    put_pair(folder / "a.hdr", head())
    packed = folder / f"a{which}.gz"
    whole = (folder / f"a{which}").read_bytes()
    (folder / f"a{which}").unlink()
    packed.write_bytes(gzip.compress(whole) + BOMB)
    return folder / "a.hdr" if which == ".img" else packed


BOMBS = {
    "nothing but zeros": lambda d: (d / "a.nii.gz", BOMB),
    "behind an image": lambda d: (d / "a.nii.gz", put(d / "b.nii.gz").read_bytes() + BOMB),
    "a thousand streams": lambda d: (d / "a.nii.gz", put(d / "b.nii.gz").read_bytes() + zeros(1) * 1000),
    "in the header": lambda d: (d / "a.nii.gz", gzip.compress(header(head(), vox_offset=4e8)) + BOMB),
    "a header that claims all": lambda d: (
        d / "a.nii.gz", gzip.compress(header(head(), dim=[3, 800, 800, 800, 1, 1, 1, 1])) + BOMB[:1000]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_of_images(tmp_path, elsewhere, kind):
    path, content = BOMBS[kind](tmp_path)
    path.write_bytes(content)
    with refused_with_little_memory():
        read_image(path)


@pytest.mark.parametrize("which", [".hdr", ".img"])
def test_bombs_in_a_pair(tmp_path, elsewhere, which):
    path = bomb_pair(tmp_path, which)
    with refused_with_little_memory():
        read_image(path)


def zipped(path, entries, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


ZIPS = {
    "a large card": [("model.json", bytes(2**26))],
    "many parts": [(f"a/x{n}.npy", b"") for n in range(5000)],
    "one part twice": [("model.json", b"{}"), ("model.json", b"{}")],
    "a zip in a zip": [("a/x.npy", b"PK\x03\x04" * 1000)],
    "deep JSON": [("model.json", b"[" * 100_000)],
    "a long number": [("model.json", b'{"format":' + b"9" * 100_000 + b"}")],
    "sections without end": [("model.json", json.dumps({"sections": {"a" * 10**6: 1}}).encode())],
    "an absolute name": [("/etc/passwd", b"x"), ("model.json", b"{}")],
    "a name above": [("../x.npy", b"x"), ("model.json", b"{}")],
    "a name with NUL": [("a\0/x.npy", b"x"), ("model.json", b"{}")],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ZIPS)
def test_model_files_with_bad_parts(tmp_path, elsewhere, kind):
    path = zipped(tmp_path / "m.npz", ZIPS[kind])
    with refused_with_little_memory(ModelFileError, "E6-B54"):
        store.load_sections(path)


@pytest.mark.parametrize(
    "shape", ["(10**9, 10**9)", "(-1,)", "(0,) * 6", "__import__('os').system('x')", "(2, 3"]
)
def test_array_headers_are_no_programs(tmp_path, elsewhere, shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(8)
    with pytest.raises(ModelFileError, match="plain array"):
        store._array(content, "a/x", tmp_path / "m.npz")


# ---- pickles -----------------------------------------------------------------------------------------------


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def payload(tmp_path):
    path = tmp_path / "code was run"
    yield Payload(path)
    assert not path.exists()


def saved(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["m.npz", "a.nii", "a.nii.gz"])
def test_pickles_are_never_read(tmp_path, payload, protocol, name):
    content = pickle.dumps(payload, protocol)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(TumoarError):
        store.load_sections(tmp_path / name) if name == "m.npz" else read_image(tmp_path / name)


@pytest.mark.parametrize("part", ["nodes", "tetrahedra", "alpha_node", "alpha_label", "alpha_value"])
def test_pickles_among_arrays(tmp_path, payload, part):
    section = store.Section({part: np.zeros(3)}, {})
    store.save_sections(tmp_path / "m.npz", {"atlas": section})
    with zipfile.ZipFile(tmp_path / "m.npz") as archive:
        card = json.loads(archive.read("model.json"))
    entries = {f"atlas/{part}.npy": saved(np.array([payload], object))}
    card.pop("sha256")
    card["sha256"] = store._digest(card, entries)
    zipped(tmp_path / "m.npz", [*entries.items(), ("model.json", json.dumps(card))])
    with pytest.raises(ModelFileError, match="plain array"):
        store.load_sections(tmp_path / "m.npz")


def archived(save, array) -> bytes:
    stream = io.BytesIO()
    save(stream, a=array)
    return stream.getvalue()


def sealed(folder, content):
    """A checkpoint whose checksum is right, whatever it holds."""
    folder.mkdir()
    (folder / "sample.ckpt").write_bytes(b"0" * 64 + hashlib.sha256(content).hexdigest().encode() + content)
    return Checkpoints(folder, "0" * 64)


@pytest.mark.parametrize("kind", ["pickle", "npy", "pickle in npz", "bomb", "text", "empty"])
def test_checkpoints_of_others(tmp_path, payload, kind):
    content = {
        "pickle": lambda: pickle.dumps(payload),
        "npy": lambda: saved(np.array([payload], object)),
        "pickle in npz": lambda: archived(np.savez, np.array([payload], object)),
        "bomb": lambda: archived(np.savez_compressed, np.zeros(10**8, np.uint8)),
        "text": lambda: b"Jane Doe",
        "empty": lambda: b"",
    }[kind]()
    keeper = sealed(tmp_path / "c", content)
    tracemalloc.start()
    assert keeper.load("sample") is None
    assert tracemalloc.get_traced_memory()[1] < LITTLE
    tracemalloc.stop()


# ---- DICOM -------------------------------------------------------------------------------------------------

PREAMBLES = {
    "MZ": b"MZ\x90", "ELF": b"\x7fELF\x02", "Mach-O": b"\xcf\xfa\xed\xfe", "class": b"\xca\xfe\xba\xbe",
    "PDF": b"%PDF-1.7\n", "zip": b"PK\x03\x04", "gzip": b"\x1f\x8b\x08", "script": b"#!/bin/sh\nid\n",
    "HTML": b"<script>alert(1)</script>", "TIFF": b"II*\0", "PNG": b"\x89PNG\r\n\x1a\n",
    "pickle": b"\x80\x04cos\nsystem\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", PREAMBLES)
def test_a_preamble_changes_nothing(tmp_path, elsewhere, kind):
    values = np.arange(np.prod(GRID.shape), dtype=float).reshape(GRID.shape)
    paths = write_series(tmp_path / "s", values, GRID)
    plain = read_image(tmp_path / "s")
    for path in paths:
        path.write_bytes(PREAMBLES[kind].ljust(128, b"\0")[:128] + path.read_bytes()[128:])
    found = read_image(tmp_path / "s")
    assert np.array_equal(found.data, plain.data)
    assert found.grid == plain.grid


@pytest.mark.parametrize(
    "keyword",
    ["ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "RescaleSlope", "ImageType"],
)
def test_values_of_twenty_thousand_parts(tmp_path, elsewhere, keyword):
    paths = write_series(tmp_path / "s", np.ones(GRID.shape), GRID)
    data = dcmread(paths[0])
    many = b"\\".join([b"1"] * 20_000)
    data.ImageType = ["ORIGINAL", "PRIMARY"]
    save(data, paths[0])
    whole = paths[0].read_bytes()
    element = data[keyword]
    start = whole.find(element.tag.group.to_bytes(2, "little") + element.tag.elem.to_bytes(2, "little"), 132)
    end = start + 8 + int.from_bytes(whole[start + 6 : start + 8], "little")
    paths[0].write_bytes(
        whole[: start + 6] + len(many + b" ").to_bytes(2, "little") + many + b" " + whole[end:]
    )
    if keyword == "ImageType":  # may have any number of parts
        assert read_image(tmp_path / "s").data.shape == GRID.shape
        return
    with pytest.raises(TumoarError):
        read_image(tmp_path / "s")


@pytest.mark.parametrize(
    "name", ["DICOMDIR", "../x.dcm", "evil\n.dcm", "$(id).dcm", "-rf", "a" * 200 + ".dcm"]
)
def test_names_of_slices_are_only_read(tmp_path, elsewhere, name):
    paths = write_series(tmp_path / "s", np.ones(GRID.shape), GRID)
    paths[0].rename(tmp_path / "s" / name.replace("../", "..%2f"))
    expected = GRID.shape[2] - (name == "DICOMDIR")
    found = read_image(tmp_path / "s")
    assert found.data.shape[2] == expected
    assert name not in found.source
