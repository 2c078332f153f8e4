"""Every bad image gets its sentence and its exit code through the command line, and never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from nifti_files import SHAPE, content, head, header, put, put_pair

import tumoar.cli as cli
from tumoar.io import nifti

IDENTITY = np.diag([1.5, 1.5, 1.5, 1])


@pytest.fixture
def run(capsys):
    """Run the command through the real door; what it exits with and what it prints."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main(["inspect", *map(str, arguments)])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        assert "Jane" not in printed.out + printed.err
        return stop.value.code or 0, printed.out, printed.err

    return call


def raw(path, data):
    path.write_bytes(data)
    return path


def plain(data):
    return lambda folder: raw(folder / "a.nii", data)


def zipped(data):
    return lambda folder: raw(folder / "a.nii.gz", data)


def nii(data=None, *affine, **fields):
    return lambda folder: put(folder / "a.nii", data, *affine, **fields)


def broken_crc(data):
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


def with_signal(value, share):
    data = head(dtype=np.float32)
    data[(np.random.default_rng(0).random(SHAPE) < share) & (data > 100)] = value
    return data


def sheared(cosine):
    affine = IDENTITY.copy()
    affine[0, 1] = cosine * 1.5
    return affine


def scaled_axis(size):
    return np.diag([1.5, size, 1.5, 1])


def fifo(path):
    os.mkfifo(path)
    return path


def folder(path):
    path.mkdir()
    return path


GOOD = content(head())
ZIPPED = gzip.compress(GOOD)
HUGE = [3, 32767, 32767, 32767, 1, 1, 1, 1]
HUGER = [3, 2**40, 2**40, 2**40, 1, 1, 1, 1]
NO_PLANE = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
NAN = np.full(SHAPE, np.nan, np.float32)
# id, exit code, what the sentence holds, the bad file
REFUSED = {
    "missing": ("B1", 3, "cannot read the image: no such file", lambda d: d / "a.nii"),
    "empty folder": ("B1", 3, "in this folder", lambda d: folder(d / "a.nii")),
    "no regular file": ("B1", 3, "not a regular file", lambda d: fifo(d / "a.nii")),
    "through a file": ("B1", 3, "the disk or the name", lambda d: raw(d / "b.nii", GOOD) / "a.nii"),
    "name too long": ("B1", 3, "cannot read the image", lambda d: d / ("a" * 300)),
    "missing .img": ("B1", 3, "file: a.img", lambda d: raw(d / "a.hdr", header(NAN, single=False))),
    "empty": ("B2", 3, "empty file", plain(b"")),
    "empty .gz": ("B2", 3, "empty file", zipped(b"")),
    "cut": ("B3", 3, f"expected {len(GOOD)} bytes, found 20000", plain(GOOD[:20000])),
    "one byte short": ("B3", 3, "shorter than header", plain(GOOD[:-1])),
    "one byte short in gzip": ("B3", 3, "shorter", zipped(gzip.compress(GOOD[:-1]))),
    "cut header": ("B3", 3, "200 of 348 bytes", plain(GOOD[:200])),
    "hopeless gzip": ("B3", 3, "shorter", zipped(gzip.compress(header(NAN, dim_1=500, dim_2=500)))),
    "cut gzip": ("B4", 3, "gzip stream damaged", zipped(ZIPPED[:-9])),
    "cut gzip end": ("B4", 3, "gzip stream damaged", zipped(ZIPPED[:-1])),
    "broken sum": ("B4", 3, "gzip stream damaged", zipped(broken_crc(ZIPPED))),
    "junk after gzip": ("B4", 3, "gzip", zipped(ZIPPED + b"junk")),
    "bomb": ("B5", 3, "stream longer than", zipped(ZIPPED + gzip.compress(bytes(2**20)) * 2000)),
    "long": ("B5", 3, "stream longer than", plain(GOOD + b"\0")),
    "huge": ("B6", 10, "needs 281 TB, limit 4.29 GB", nii(bitpix=64, datatype=64, dim=HUGE)),
    "huge gzip": ("B6", 10, "needs", lambda d: put(d / "a.nii.gz", version=2, dim=HUGER)),
    "far data": ("B6", 10, "image too large", nii(vox_offset=2.0**40)),
    "text": ("B7", 3, "not a scalar NIfTI", plain(b"Jane Doe, born 1970")),
    "two bytes": ("B7", 3, "not a scalar NIfTI", plain(b"ab")),
    "magic": ("B7", 3, "not a scalar NIfTI", nii(magic=b"nii")),
    "line ends": ("B7", 3, "not a scalar NIfTI", nii(version=2, eol_check=[10, 10, 26, 10])),
    "RGB": ("B7", 3, "data type 128", nii(datatype=128, bitpix=24)),
    "complex": ("B7", 3, "data type 32", nii(datatype=32, bitpix=64)),
    "long double": ("B7", 3, "data type 1536", nii(datatype=1536, bitpix=128)),
    "bits": ("B7", 3, "data type 4 with 8 bits", nii(bitpix=8)),
    "no dimension": ("B7", 3, "0 dimensions", nii(dim_0=0)),
    "eight dimensions": ("B7", 3, "8 dimensions", nii(dim_0=8)),
    "negative dimension": ("B7", 3, "-36", nii(dim_2=-36)),
    "data in header": ("B7", 3, "data offset 0", nii(vox_offset=0)),
    "data between bytes": ("B7", 3, "data offset 352.5", nii(vox_offset=352.5)),
    "no data": ("B7", 3, "a header without its data", nii(single=False)),
    "Analyze": ("B10", 4, "Analyze has no left/right", lambda d: put_pair(d / "a.hdr", head(), magic=b"")),
    "no form": ("B11", 4, "neither sform nor qform is set", nii(q=False, s=False)),
    "unknown form": ("B11", 4, "sform_code 6", nii(sform_code=6)),
    "negative form": ("B11", 4, "qform_code -1", nii(qform_code=-1)),
    "two positions": ("B12", 4, "differ by up to 4.3 mm", nii(qoffset_x=30.25 + 4.3)),
    "two sides": ("B12", 4, "two different positions", nii(pixdim_0=1)),
    "two tilts": ("B12", 4, "two different positions", nii(affine=IDENTITY, quatern_b=0.01)),
    "voxel size 0": ("B13", 4, "voxel size not usable", nii(pixdim_2=0)),
    "voxel size below 0": ("B13", 4, "voxel size not usable", nii(pixdim_1=-1.5)),
    "voxel size NaN": ("B13", 4, "voxel size not usable", nii(pixdim_3=np.nan)),
    "affine NaN": ("B13", 4, "position not usable", nii(srow_y_1=np.nan)),
    "affine Inf": ("B13", 4, "position not usable", nii(s=False, qoffset_z=np.inf)),
    "far away": ("B13", 4, "position not usable", nii(q=False, srow_z_3=1e9)),
    "rotation": ("B13", 4, "rotation of the qform", nii(quatern_b=0.9, quatern_c=0.9)),
    "no side": ("B13", 4, "side of the qform", nii(s=False, pixdim_0=0)),
    "flat": ("B14", 4, "axes not independent", nii(q=False, srow_z=[0, 0, 0, 7])),
    "parallel": ("B14", 4, "axes not orthogonal", nii(affine=NO_PLANE, q=False)),
    "shear": ("B14", 4, "shear 0.002", nii(affine=sheared(2e-3), q=False)),
    "spacing": ("B15", 4, "1.5 vs 1.41 mm", nii(q=False, pixdim_1=1.41)),
    "meters": ("B16", 4, "units?", nii(xyzt_units=1)),
    "microns": ("B16", 4, "units?", nii(xyzt_units=3 | 8)),
    "size 0.001": ("B16", 4, "outside 0.2–10 mm; units?", nii(affine=scaled_axis(0.001))),
    "size 1000": ("B16", 4, "1.5×1000×1.5 mm", nii(affine=scaled_axis(1000.0))),
    "24 volumes": ("B17", 5, "4-D image with 24 volumes", nii(np.zeros((34, 36, 40, 24), np.int16))),
    "vectors": ("B17", 5, "5-D image with 3 volumes", nii(np.zeros((34, 36, 40, 1, 3), np.int16))),
    "1-D": ("B19", 5, "1-D, 64", nii(np.zeros(64, np.int16))),
    "2-D": ("B19", 5, "2-D, 256×256", nii(np.zeros((256, 256), np.int16))),
    "one slice": ("B19", 5, "found: 256×256×1", nii(head((256, 256, 1)), IDENTITY)),
    "small": ("B19", 5, "found: 31×40×40", nii(head((31, 40, 40)), IDENTITY)),
    "slope": ("B21", 3, "scaling invalid", nii(scl_slope=np.inf)),
    "intercept": ("B21", 3, "scaling invalid", nii(scl_slope=2, scl_inter=np.nan)),
    "NaN": ("B22", 5, "has no value in 100 % of the image", nii(NAN)),
    "zero": ("B23", 5, "no signal in image", nii(np.zeros(SHAPE, np.int16))),
    "constant": ("B23", 5, "found: 7.5 everywhere", nii(np.full(SHAPE, 7.5, np.float32))),
    "negative": ("B24", 5, "image is negative in", nii(with_signal(-9, 0.3))),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, run, tmp_path):
    id, code, text, make = REFUSED[case]
    path = make(tmp_path)
    exit_code, _, err = run(path)
    assert err.startswith(f"E{code}-{id} "), err
    assert text in err
    assert exit_code == code
    assert err.count("\n") == 1
    assert " | file: " in err
    assert str(tmp_path) not in err


def test_no_permission(run, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "denied", "/home/Jane Doe")

    monkeypatch.setattr(nifti, "open", refuse, raising=False)
    code, _, err = run(put(tmp_path / "a.nii"))
    assert code == 3
    assert err.startswith("E3-B1 cannot read the image: no permission | file: a.nii")


# What is read, and what is noted of it.
READ = {
    "big-endian": ("MR", [], nii(order=">")),
    "NIfTI-2": ("MR", [], lambda d: put(d / "a.nii.gz", version=2, order=">")),
    "pair": ("MR", [], lambda d: put_pair(d / "a.hdr", head())),
    "one volume": ("MR", [], nii(head().reshape(*SHAPE, 1))),
    "thick slices": ("MR", ["B20"], nii(affine=np.diag([1, 1, 6.5, 1]))),
    "slope 0": ("MR", [], nii(scl_slope=0, scl_inter=np.inf)),
    "slope NaN": ("MR", [], nii(scl_slope=np.nan)),
    "some NaN": ("MR", ["B22"], nii(with_signal(np.nan, 0.1))),
    "few negatives": ("MR", ["B25"], nii(with_signal(-9, 0.01))),
    "saturated": ("MR", ["B26"], nii(with_signal(4095, 0.2))),
    "CT": ("CT", [], nii(np.where(head() > 100, head() // 3, -1000).astype(np.int16))),
    "label map": ("label map", [], nii((head() // 100).astype(np.uint8))),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_read(case, run, tmp_path):
    kind, notes, make = READ[case]
    code, out, err = run("--json", make(tmp_path))
    (image,) = json.loads(out)["images"]
    assert (code, err) == (0, "")
    assert image["looks_like"] == kind
    assert [note.split()[0] for note in image["notes"]] == notes
    assert image["refused"] is None


def test_the_facts(run, tmp_path):
    code, out, _ = run("--json", put(tmp_path / "a.nii.gz"))
    (image,) = json.loads(out)["images"]
    data = head()
    assert code == 0
    assert image == {
        "file": "a.nii.gz",
        "shape": list(SHAPE),
        "spacing_mm": [1.5, 2.0, 1.25],
        "axes": "LAS",
        "type": "int16",
        "looks_like": "MR",
        "range": [int(data.min()), int(data.max())],
        "zeros": round(float(np.mean(data == 0)), 4),
        "notes": [],
        "refused": None,
    }


def test_a_folder_is_searched_and_one_bad_image_does_not_hide_the_others(run, tmp_path):
    put(folder(tmp_path / "p1") / "t1.nii.gz")
    put(tmp_path / "p1" / "b[red]t2.nii", scl_slope=np.inf)
    put(folder(tmp_path / "p2") / "t1.nii", q=False, s=False)
    raw(tmp_path / "p2" / "notes.txt", b"Jane Doe")
    code, out, err = run(tmp_path)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["file", "p1/b[red]t2.nii", "p1/t1.nii.gz", "p2/t1.nii"]
    assert "34×36×40" in lines[2]
    assert "LAS" in lines[2]
    assert "refused: scaling invalid" in lines[1]
    assert [line.split()[0] for line in err.splitlines()] == ["E3-B21", "E4-B11"]
    assert code == 3


# What is refused of an image that is given for a contrast it is not: contrasts, id, sentence, the file.
LARGE = np.diag([4, 4, 4, 1.0])
CT = np.where(head() > 100, head() // 3, -1000).astype(np.int16)
MISFITS = {
    "CT as MR": (["FLAIR"], "B27", "FLAIR looks like CT", nii(CT, LARGE)),
    "MR as CT": (["CT"], "B27", "CT does not look like CT", nii(head(), LARGE)),
    "labels": (["T1c"], "B29", "T1c looks like a label map", nii(head() // 100, LARGE)),
    "twice": (["T2", "FLAIR"], "B30", "T2 and FLAIR are the same image", nii(head(), LARGE)),
}


@pytest.mark.parametrize(
    "misfit", [pytest.param(m, marks=pytest.mark.slow) if m == "twice" else m for m in MISFITS]
)
def test_misfits(misfit, run, tmp_path):
    contrasts, id, text, make = MISFITS[misfit]
    path = make(tmp_path)
    code, out, err = run(*(part for contrast in contrasts for part in ("--image", f"{path}:{contrast}")))
    assert code == 5
    assert err.startswith(f"E5-{id} {text}")
    assert "a.nii" in out


def test_a_case_is_summed_up(run, tmp_path):
    path = put(tmp_path / "a.nii.gz", head(), LARGE)
    code, out, _ = run("--image", f"{path}:t1C", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["case"]["reference"] == "T1c"
    assert found["case"]["inputs"][0]["moved_mm"] == 0
    assert [image["file"] for image in found["images"]] == ["a.nii.gz"]
    code, out, _ = run("--image", f"{path}:t1C")
    assert code == 0
    assert "case on T1c: " in out


@pytest.mark.parametrize("given", [[], ["--image", "a.nii"], ["--image", "a.nii:T9"]])
def test_usage(given, run):
    code, _, err = run(*given)
    assert code == 2
    assert err.startswith("E2-")


@pytest.mark.parametrize(("fields", "code", "text"), [({}, 0, ""), ({"pixdim_1": 0}, 4, "E4-B13 voxel size")])
def test_as_a_process(tmp_path, fields, code, text):
    path = put(tmp_path / "a.nii.gz", **fields)
    ended = subprocess.run([sys.executable, "-m", "tumoar", "inspect", path], capture_output=True, text=True)
    assert ended.returncode == code
    assert ended.stderr.startswith(text)
    assert "a.nii.gz" in ended.stdout


def test_use_form_settles_two_positions(run, tmp_path):
    path = put(tmp_path / "a.nii", qoffset_x=40)
    assert run(path)[0] == 4
    assert run("--use-form", "s", path)[0] == 0
    assert run("--use-form", "q", path)[0] == 0
    assert run("--use-form", "x", path)[0] == 2


def test_the_form_asked_for_must_be_set(run, tmp_path):
    code, _, err = run("--use-form", "q", put(tmp_path / "a.nii", q=False))
    assert code == 4
    assert "qform is not set" in err


def test_an_odd_file_name_is_printed_harmlessly(run, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m\\a.nii")
    put(tmp_path / "good.nii").rename(path)
    code, out, _ = run(path)
    assert code == 0
    assert "\x1b" not in out


def test_a_bomb_is_not_unpacked(run, tmp_path, monkeypatch):
    """Reading stops with the first byte too many."""
    read = []
    original = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, n: read.append(n) or original(self, n))
    assert run(REFUSED["bomb"][3](tmp_path))[0] == 3
    assert sum(read) <= len(GOOD) + 1


def test_an_impossible_claim_is_refused_before_memory_is_taken(run, tmp_path, monkeypatch):
    paths = [REFUSED[case][3](tmp_path) for case in ("huge", "hopeless gzip")]

    def refuse(*_):
        raise AssertionError("allocated")

    monkeypatch.setattr(np, "empty", refuse)
    assert [run(path)[0] for path in paths] == [10, 3]


def test_series_of_a_study(run, tmp_path):
    """A table of what is there: guesses, frames by letter, and no word of the patient."""
    from rt_files import PLANTED, write_series

    from tumoar.image import Grid

    values = head().astype(float)
    where = Grid(values.shape, np.diag([-1.5, -1.5, 2.0, 1]))
    common = {"RepetitionTime": "9000", "EchoTime": "120"}
    write_series(tmp_path / "x", values, where, SeriesDescription="t2 Planted^Nameofpatient", **common)
    write_series(tmp_path / "y", values, where, frame="1.7", InversionTime="2400", **common)
    write_series(tmp_path / "z", values[:, :, ::9], where, frame="1.7", edit=uneven)
    code, out, err = run(tmp_path)
    lines = out.splitlines()
    assert code == 4
    assert err.startswith("E4-B45 ")
    assert sum("T2 95 %" in line for line in lines) == 1
    assert sum("FLAIR 70 %" in line for line in lines) == 1
    assert "refused: slices not evenly spaced" in out
    assert not any(planted in out + err for planted in PLANTED)
    code, out, _ = run(tmp_path, "--json")
    rows = json.loads(out)["images"]
    assert {row["contrast_guess"] for row in rows} == {"T2", "FLAIR", "other"}
    assert len({row["frame_of_reference"] for row in rows}) == 2


def uneven(data, k):
    if k == 2:
        data.ImagePositionPatient[2] = float(data.ImagePositionPatient[2]) + 0.7
