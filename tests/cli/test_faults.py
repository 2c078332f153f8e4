"""Killed, or refused by the disk, at every step of writing: what can be seen is whole, the old or the new."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from faults import BROKEN, FULL, KILLED, READ_ONLY, REFUSED, WELL, count_steps, failing_at, killed_at
from small_result import small_result

from tumoar.io.checkpoint import Checkpoints
from tumoar.io.manifest import remove_leftovers
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.targets import add_margins
from tumoar.result.folder import Options, read_manifest, write_result

OPTIONS = Options(organs=("GTV", "Brain"))


@pytest.fixture(scope="module")
def result():
    return small_result()


def writing(result, out, key):
    manifest = {"key": key, "reference": "T1c", "inputs": []}
    return lambda: write_result(out, result, (), manifest, OPTIONS, lambda whole: "page", [])


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def steps_of(action, every):
    """All steps, or every so many; always the last ones, where folders change places."""
    count = count_steps(action)
    assert count > 20
    last = 4 if every == FEW else 8
    return [n for n in range(1, count + 1) if n % every == 0 or n > count - last]


FEW = 25
EVERY = {"few": FEW, "some": 7, "all": 1}
MARKS = {"few": (), "some": pytest.mark.slow, "all": pytest.mark.long}
SCOPES = [pytest.param(every, id=name, marks=MARKS[name]) for name, every in EVERY.items()]


@pytest.mark.parametrize("every", SCOPES)
def test_killed_while_publishing(result, tmp_path, every, record_property):
    fresh, out = tmp_path / "fresh", tmp_path / "there"
    writing(result, out, "old")()
    steps = steps_of(writing(result, fresh / "out", "new"), every)
    record_property("tried", 2 * len(steps))
    for step in steps:
        shutil.rmtree(fresh, ignore_errors=True)  # killed before it was made
        assert killed_at(writing(result, fresh / "out", "new"), step) in (KILLED, WELL)
        if (fresh / "out").exists():
            assert read_manifest(fresh / "out")["key"] == "new"
        assert killed_at(writing(result, out, "new"), step) in (KILLED, WELL)
        assert read_manifest(out)["key"] in ("old", "new"), "an older result is never lost"
        remove_leftovers(out)
        assert names(tmp_path) in (["fresh", "there"], ["there"])
        writing(result, out, "old")()


@pytest.mark.parametrize("every", SCOPES)
def test_killed_while_adding(result, tmp_path, every, record_property):
    out = tmp_path / "out"
    writing(result, out, "k")()
    shutil.copytree(out, tmp_path / "kept")
    add = lambda: add_margins(out, Margins(6, 2))  # noqa: E731
    steps = steps_of(add, every)
    record_property("tried", len(steps))
    for step in steps:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out)
        assert killed_at(add, step) in (KILLED, WELL)
        read_manifest(out)
        add()
        assert {"margins.tsv", "structures/CTV.nii.gz"} <= set(read_manifest(out)["files"])


@pytest.mark.parametrize(
    "error", [FULL, *(pytest.param(e, marks=pytest.mark.slow) for e in (READ_ONLY, BROKEN))]
)
@pytest.mark.parametrize("every", SCOPES)
def test_a_disk_that_fails(result, tmp_path, every, error, record_property):
    out = tmp_path / "out"
    writing(result, out, "old")()
    steps = steps_of(writing(result, out, "new"), every)
    record_property("tried", len(steps))
    writing(result, out, "old")()  # counting has written the new one
    for step in steps:
        state = failing_at(writing(result, out, "new"), step, error)
        assert state in (REFUSED, WELL), f"step {step}: {state}"
        assert read_manifest(out)["key"] == ("new" if state == WELL else "old")
        remove_leftovers(out)
        assert names(tmp_path) == ["out"]
        if state == WELL:
            writing(result, out, "old")()


def test_checkpoints_are_there_whenever_it_ends(tmp_path):
    keeper = Checkpoints(tmp_path / "c", "0" * 64)
    keeper.save("sample", {"a": np.array([1])})
    keeper.save("sample", {"a": np.array([2])})
    save = lambda: keeper.save("sample", {"a": np.array([3])})  # noqa: E731
    for step in range(1, count_steps(save) + 1):
        assert killed_at(save, step) in (KILLED, WELL)
        assert keeper.load("sample")["a"] in (1, 2, 3)
        for error in (FULL, BROKEN):
            assert failing_at(save, step, error) in (REFUSED, WELL)
            assert keeper.load("sample")["a"] in (1, 2, 3)
