"""Every bad input through the command line: its sentence, its exit code, nothing published, nobody named."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import small_head
from bad_sets import ROWS
from rt_files import PLANTED
from small_run import MODEL, stand_ins

import tumoar.cli as cli
from tumoar.app import segment as use_case
from tumoar.cli.watch import Watch
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti
from tumoar.placement.affine import AffineResult
from tumoar.result.folder import read_manifest

SENTENCE = re.compile(r"E(\d+)-([\w-]+) [^|]+( \| (file|found|do): [^|]+)*")
NAMES = ("Jane", "Doe", *PLANTED)


def parameters():
    for name, row in ROWS.items():
        yield pytest.param(row, id=name, marks=[pytest.mark.slow] if row.slow else [])


@pytest.mark.parametrize("row", list(parameters()))
def test_bad_input(row, tmp_path, capfd, monkeypatch):
    place = AffineResult(np.eye(4), {})  # the heads are too small for the atlas
    monkeypatch.setattr(use_case, "place", lambda *a, **k: place)
    arguments = [str(a) for a in row.make(tmp_path)]
    if "-o" not in arguments:
        arguments += ["-o", str(tmp_path / "out")]
    if row.code == 0:
        arguments.append("--dry-run")
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    with pytest.raises(SystemExit) as stop:
        cli.main(["segment", *arguments])
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err
    assert not any(name in told.out + told.err for name in NAMES)
    assert str(tmp_path) not in told.out + told.err
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before, "something was left"
    last = told.err.splitlines()[-1]
    assert stop.value.code == row.code, last
    if row.code:
        assert SENTENCE.fullmatch(last), last
        assert last.split()[0] in {f"E{row.code}-{id}" for id in (row.id, *row.others)}, last
        assert row.text in last
    else:
        assert "dry run: all checks passed" in last
        found = re.findall(r"note: (B\d+) \w+: ", told.err)
        assert tuple(found) == row.notes


def test_three_variants_of_each():
    counts = Counter(row.id for row in ROWS.values())
    assert sum(counts.values()) >= 150
    assert {id: n for id, n in counts.items() if n < 3} == {}


# ---- what a run finds where it is to write -----------------------------------------------------------------


@pytest.fixture
def segment(monkeypatch, tmp_path, capfd):
    """`tumoar segment` on the small head with its small model; code and last line."""

    def call(*arguments, case=None, model=None, out="out", watch=None):
        with monkeypatch.context() as patch:
            for place, name, value in stand_ins(case, model):
                patch.setattr(place, name, value)
            if watch:
                patch.setattr(Watch, "__call__", watch)
            with pytest.raises(SystemExit) as stop:
                cli.main(["segment", "--t1c", "x", "-o", str(tmp_path / out), *map(str, arguments)])
        told = capfd.readouterr()
        assert "Traceback" not in told.err
        return stop.value.code, told.err

    return call


def state(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_the_same_again_changes_nothing_and_others_are_refused(segment, tmp_path):
    assert segment()[0] == 0
    before = state(tmp_path)
    for more in ((), ("--resume",), ("--threads", 1)):
        code, err = segment(*more)
        assert code == 0  # B56
        assert "already done" in err
    for more in (("--seed", 4), ("--min-volume", 1), ("--structures", "GTV,Brain")):
        code, err = segment(*more)
        assert (code, err.splitlines()[-1].split()[0]) == (12, "E12-B57")
    assert state(tmp_path) == before
    (tmp_path / "out" / "volumes.tsv").write_text("changed")
    assert segment()[0] == 12


@pytest.mark.parametrize(
    "left", [b"pid 1", *(pytest.param(x, marks=pytest.mark.slow) for x in (b"", b"\xff" * 100))], ids=len
)
def test_another_run_on_the_same_output(segment, tmp_path, left):
    """B59, as long as the other one lives; what a dead one left is no lock."""
    lock = tmp_path / ".out.lock"
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        for more in ((), ("--resume",), ("--overwrite",)):
            found, err = segment(*more)
            assert (found, err.splitlines()[-1].split()[0]) == (11, "E11-B59")
        assert not (tmp_path / "out").exists()
        other.kill()
    lock.write_bytes(left)
    assert segment("--overwrite")[0] == 0
    assert not lock.exists()


def stopping(stage, after):
    """A watch in which somebody presses Ctrl-C in a stage."""

    def call(self, progress):
        if progress.stage == stage and progress.done >= after:
            signal.raise_signal(signal.SIGINT)

    return call


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param((), id="none", marks=pytest.mark.slow),
        # the newest is passed over for the one before
        pytest.param(("sample*.ckpt",), id="samples", marks=pytest.mark.slow),
        pytest.param(("*",), id="all", marks=pytest.mark.slow),
    ],
)
def test_checkpoints_damaged_or_of_another_run(segment, tmp_path, spoiled):
    assert segment(out="whole")[0] == 0
    whole = read_manifest(tmp_path / "whole")["files"]
    folder = tmp_path / ".out.checkpoints"

    def spoil(*names):
        for path in [p for name in names for p in folder.glob(name)]:
            path.write_bytes(path.read_bytes()[:-40] + bytes(40))

    assert segment(watch=stopping("sample", 15))[0] == 130
    assert not (tmp_path / "out").exists()
    assert any(folder.iterdir())
    code, err = segment()  # B60: the output has an interrupted run
    assert (code, err.splitlines()[-1].split()[0]) == (2, "E2-resume")
    assert segment("--resume", "--seed", 9)[0] == 12
    spoil(*spoiled)
    assert segment("--resume")[0] == 0
    found = read_manifest(tmp_path / "out")["files"]
    assert {n: d for n, d in found.items() if n.endswith((".gz", ".tsv"))} == {
        n: d for n, d in whole.items() if n.endswith((".gz", ".tsv"))
    }


def test_an_interrupted_run_is_continued_only_on_request_and_as_it_was(segment, tmp_path):
    assert segment(watch=stopping("sample", 1))[0] == 130
    code, err = segment()
    assert (code, err.splitlines()[-1].split()[0]) == (2, "E2-resume")
    assert segment("--resume", "--seed", 9)[0] == 12
    assert not (tmp_path / "out").exists()


def cropped(case, shape):
    """The same head in a smaller field of view."""
    D = np.ascontiguousarray(case.D[:, : shape[0], : shape[1], : shape[2]])
    return replace(case, D=D, grid=Grid(shape, case.grid.affine))


def with_eyes(*sides):
    """The small model with eyes in front of the head, where the image may not reach."""
    atlas = MODEL.atlas
    alpha = atlas.alpha.copy()
    for side, x in (("left", 12.0), ("right", 35.0)):
        inside = np.linalg.norm((atlas.nodes - [x, 47.0, 24.0]) / [9, 4, 9], axis=1) < 1
        if side in sides:
            alpha[inside] = np.eye(atlas.labels.K, dtype=np.float32)[atlas.labels.l(f"{side} eye fluid")]
    return replace(MODEL, atlas=replace(atlas, alpha=alpha))


def tumor_within(radius):
    """A tumor that somebody has drawn."""

    def make(folder):
        points = np.stack(np.indices((small_head.SIZE,) * 3), -1)
        mask = (small_head.radius(points) < radius).astype(np.uint8)
        write_nifti(folder / "tumor.nii.gz", mask, Grid(mask.shape, np.eye(4)))
        return ["--fix-tumor", folder / "tumor.nii.gz"]

    return make


NOTHING = lambda folder: []  # noqa: E731
WHOLE, HEALTHY = small_head.case(), small_head.case(tumor=False)
SHORT = cropped(WHOLE, (48, 43, 48))
# id, what its note says, case, model, further arguments
FLAGS = {
    "left eye outside": ("B37", "Eye_L: NOT SEEN", SHORT, with_eyes("left"), NOTHING),
    "right eye outside": ("B37", "Eye_R: NOT SEEN", SHORT, with_eyes("right"), NOTHING),
    "both eyes outside": ("B37", "Eye_R: NOT SEEN", SHORT, with_eyes("left", "right"), NOTHING),
    "FLAIR alone": ("B42", "NOT IDENTIFIABLE", WHOLE.select_channels((1,)), MODEL, NOTHING),
    "FLAIR alone, other noise": (
        "B42", "NOT ID", small_head.case(seed=4).select_channels((1,)), MODEL, NOTHING
    ),
    "FLAIR alone, moved": (
        "B42", "NOT ID", small_head.case((1.5, 0, -1)).select_channels((1,)), MODEL, NOTHING
    ),
    "no tumor": ("B43", "no tumor found", HEALTHY, MODEL, NOTHING),
    "no tumor and no T1c": ("B43", "no tumor found", HEALTHY.select_channels((1,)), MODEL, NOTHING),
    "no tumor, a field": ("B43", "no tumor found", small_head.case(tumor=False, bias=0.2), MODEL, NOTHING),
    "most is tumor": ("B44", "of the brain", WHOLE, MODEL, tumor_within(18)),
    "nearly all is tumor": ("B44", "of the brain", HEALTHY, MODEL, tumor_within(19.5)),
    "tumor at the border": ("B44", "reaches the border", cropped(WHOLE, (33, 48, 48)), MODEL, NOTHING),
}  # fmt: skip
FAST = {"no tumor"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in FLAGS]
)
def test_flags_of_a_result(segment, tmp_path, name):
    """Written, told, and code 13 with --strict."""
    id, text, case, model, make = FLAGS[name]
    code, err = segment("--strict", *make(tmp_path), case=case, model=model)
    assert code == 13, err
    assert any(line.partition("review: ")[2].startswith(id) and text in line for line in err.splitlines())
    assert any(note["id"] == id for note in read_manifest(tmp_path / "out")["notes"])


# ---- links -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "wanted"), [(".out.lock", "E9-B58"), (".out.checkpoints", "E12-link")])
def test_links_beside_an_output_are_not_followed(segment, tmp_path, place, wanted):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / place).symlink_to(elsewhere / "file" if place == ".out.lock" else elsewhere)
    code, err = segment("--resume")
    assert (code, err.splitlines()[-1].split()[0]) == (int(wanted[1:].split("-")[0]), wanted)
    assert list(elsewhere.iterdir()) == []
    assert not (tmp_path / "out").exists()
