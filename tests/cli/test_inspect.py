"""Every bad image gets its sentence and its exit code through the command line, and never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import small_head
from bad_nifti import GOOD, READ, REFUSED, folder, nii, raw
from nifti_files import SHAPE, head, put
from small_run import MODEL

import tumoar.cli as cli
from tumoar.app import pipeline
from tumoar.io import models
from tumoar.placement.affine import AffineResult

inspect = sys.modules["tumoar.cli.inspect"]  # the name in the package is the command itself


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
    path, real = put(tmp_path / "a.nii"), os.open

    def refuse(name, *arguments, **more):
        if str(name) == str(path):
            raise PermissionError(13, "denied", "/home/Jane Doe")
        return real(name, *arguments, **more)

    monkeypatch.setattr(os, "open", refuse)
    code, _, err = run(path)
    assert code == 3
    assert err.startswith("E3-B1 cannot read the image: no permission | file: a.nii")


@pytest.mark.parametrize("case", READ)
def test_read(case, run, tmp_path):
    kind, notes, make = READ[case]
    code, out, err = run("--json", make(tmp_path))
    (image,) = json.loads(out)["images"]
    assert (code, err) == (0, "")
    assert image["looks_like"] == kind
    assert [note["id"] for note in image["notes"]] == notes
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


def test_contrasts_whose_names_could_not_be_checked_are_noted(run, tmp_path):
    path = put(tmp_path / "a.nii.gz", head(), LARGE)
    _, out, _ = run("--image", f"{path}:t1C", "--json")
    (note,) = json.loads(out)["case"]["notes"]
    assert "contrasts not checked: no head found that the atlas fits" in note["text"]


@pytest.mark.parametrize("trusted", [True, False])
def test_swapped_contrasts(trusted, run, tmp_path, monkeypatch):
    case = small_head.case()
    case = replace(case, contrasts=case.contrasts[::-1]) if not trusted else case
    monkeypatch.setattr(inspect, "_bring_together", lambda *_: case)
    monkeypatch.setattr(models, "default_model", lambda: MODEL)
    monkeypatch.setattr(pipeline, "place_affine", lambda *_: AffineResult(np.eye(4), {}))
    path = put(tmp_path / "a.nii.gz", head(), LARGE)
    code, _, err = run("--image", f"{path}:FLAIR", "--image", f"{path}:T1c")
    assert code == (0 if trusted else 5)
    assert "placing the atlas" in err
    assert ("were FLAIR and T1c swapped?" in err) == (not trusted)


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

    from tumoar.geometry.image import Grid

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
