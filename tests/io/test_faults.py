"""Killed, or refused by the disk, at every step of writing: what can be seen is whole, the old or the new.

Folders of small files stand for results here; tests/cli/test_faults.py does the same with real ones.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from faults import BROKEN, FULL, KILLED, READ_ONLY, REFUSED, WELL, count_steps, failing_at, killed_at

from tumoar.io import manifest as module
from tumoar.io.files import replace_file
from tumoar.io.manifest import (
    MANIFEST,
    add_files,
    publish_folder,
    read_manifest,
    remove_leftovers,
    write_manifest,
)
from tumoar.vocabulary.errors import IntegrityError, OutputError


def writing(out: Path, key: str, size: int = 10):
    """What a run does with its result, on files of `size` bytes."""

    def action() -> None:
        with publish_folder(out, "the result") as work:
            (work / "structures").mkdir()
            for name in ("a.tsv", "structures/GTV.nii.gz"):
                with replace_file(work / name) as temporary:
                    temporary.write_bytes(key.encode() * size)
            write_manifest(work, {"key": key})

    return action


def adding(out: Path, text: str):
    def action() -> None:
        with add_files(out, more=text) as folder:
            (folder / "a.tsv").write_text(text)
            (folder / "dicom").mkdir()
            (folder / "dicom" / "RS.dcm").write_text(text)

    return action


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def steps_of(count: int, every: int) -> list[int]:
    """All steps, or every so many; always the last ones, where folders change places."""
    return [n for n in range(1, count + 1) if n % every == 0 or n > count - 6]


EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
ERRORS = pytest.mark.parametrize(
    "error", [FULL, *(pytest.param(e, marks=pytest.mark.slow) for e in (READ_ONLY, BROKEN))]
)


@pytest.fixture(params=["at once", "in two steps"])
def exchanging(request, monkeypatch):
    """With and without a system that can exchange two names."""
    if request.param == "in two steps":
        monkeypatch.setattr(module, "exchange_names", lambda one, other: False)


@EVERY
def test_killed_at_every_step_of_publishing(tmp_path, every, exchanging, request, record_property):
    fresh, out = tmp_path / "fresh", tmp_path / "there"
    fresh.mkdir()
    steps = count_steps(writing(fresh / "out", "new")) + 6
    assert steps > 20
    chosen = steps_of(steps, every)
    record_property("tried", 2 * len(chosen))
    for step in chosen:
        shutil.rmtree(fresh)
        fresh.mkdir()
        assert killed_at(writing(fresh / "out", "new"), step) in (KILLED, WELL)
        if (fresh / "out").exists():
            assert read_manifest(fresh / "out")["key"] == "new"
        remove_leftovers(fresh / "out")
        assert set(names(fresh)) <= {"out"}
        writing(out, "old")()
        assert killed_at(writing(out, "new"), step) in (KILLED, WELL)
        if "at once" in request.node.callspec.id:
            assert read_manifest(out)["key"] in ("old", "new"), "an older result never goes away"
        remove_leftovers(out)
        assert read_manifest(out)["key"] in ("old", "new")
        assert names(tmp_path) == ["fresh", "there"]


@EVERY
def test_killed_at_every_step_of_adding(tmp_path, every, record_property):
    out = tmp_path / "out"
    writing(out, "k")()
    for text in ("one", "two"):  # a new file, then a file that changes
        steps = steps_of(count_steps(adding(out, text)), every)
        record_property("tried", len(steps))
        for step in steps:
            shutil.rmtree(out)
            writing(out, "k")()
            if text == "two":
                adding(out, "one")()
            assert killed_at(adding(out, text), step) in (KILLED, WELL)
            read_manifest(out)
            adding(out, text)()
            found = read_manifest(out)
            assert set(found["files"]) == {"a.tsv", "structures/GTV.nii.gz", "dicom/RS.dcm"}
            assert found["more"] == text
            assert "coming" not in json.loads((out / MANIFEST).read_text())


@ERRORS
@EVERY
def test_a_disk_that_fails_at_any_step(tmp_path, error, every, exchanging, record_property):
    out = tmp_path / "out"
    writing(out, "old")()
    steps = steps_of(count_steps(writing(out, "new")), every)
    record_property("tried", len(steps))
    for step in steps:
        writing(out, "old")()
        state = failing_at(writing(out, "new"), step, error)
        assert state in (REFUSED, WELL), f"step {step}: {state}"
        remove_leftovers(out)
        assert read_manifest(out)["key"] in ("old", "new") if state == WELL else ("old",)
        assert names(tmp_path) == ["out"]


@ERRORS
@EVERY
def test_a_disk_that_fails_while_adding(tmp_path, error, every, record_property):
    out = tmp_path / "out"
    writing(out, "k")()
    steps = steps_of(count_steps(adding(out, "one")), every)
    record_property("tried", len(steps))
    for step in steps:
        assert failing_at(adding(out, "one"), step, error) in (REFUSED, WELL)
        read_manifest(out)


@pytest.mark.parametrize("most", [0, 1000, 39_000])
def test_files_that_may_not_grow(tmp_path, most):
    """A quota: writing stops in the middle of a file."""
    out = tmp_path / "out"
    writing(out, "old", 20_000)()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OutputError, match="E9-B58"):
            writing(out, "new", 20_000)()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_manifest(out)["key"] == "old"
    assert names(tmp_path) == ["out"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, one megabyte large."""
    place = tmp_path / "disk"
    place.mkdir()
    may = os.geteuid() == 0 and shutil.which("mount")
    if not may or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_and_one_that_is_read_only(small_disk, record_property):
    out, filler = small_disk / "out", small_disk / "filler"
    writing(out, "old", 20_000)()
    refused = 0
    for left in range(0, 300_000, 10_000):
        filler.write_bytes(bytes(max(shutil.disk_usage(small_disk).free - left, 0)))
        told = ""
        try:
            writing(out, "new", 20_000)()
        except OutputError as refusal:
            told = str(refusal)
        filler.unlink()
        refused += bool(told)
        assert not told or "no space left" in told
        assert read_manifest(out)["key"] == ("old" if told else "new")
        assert names(small_disk) == ["out"]
        writing(out, "old", 20_000)()
    assert 0 < refused < 30
    record_property("tried", 31)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OutputError, match="read-only"):
        writing(out, "new")()
    assert read_manifest(out)["key"] == "old"
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)


def test_what_others_changed_is_not_taken_for_what_is_joining(tmp_path):
    out = tmp_path / "out"
    writing(out, "k")()
    adding(out, "one")()
    (out / "a.tsv").write_text("something else")
    with pytest.raises(IntegrityError, match="E12-result"):
        read_manifest(out)


def test_what_is_not_ours_stays(tmp_path):
    out = tmp_path / "out"
    writing(out, "k")()
    for other in (".out.lock", ".out.checkpoints", ".outer." + "0" * 32, ".out.0123"):
        (tmp_path / other).mkdir()
    (tmp_path / (".out." + "a" * 32)).mkdir()
    remove_leftovers(out)
    assert names(tmp_path) == sorted(
        [".out.lock", ".out.checkpoints", ".outer." + "0" * 32, ".out.0123", "out"]
    )
