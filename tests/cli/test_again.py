"""A second run on the same output: what counts as done, what is continued, and what is never mixed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small_head
import small_run

from tumoar.app.publish import Job, run_key
from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.manifest import add_files, publish_folder, read_manifest, write_manifest
from tumoar.vocabulary.errors import IntegrityError


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    told = capfd.readouterr()
    assert "Traceback" not in told.err
    return end.value.code, told.out + told.err


@pytest.fixture
def segment(tmp_path, monkeypatch, capfd):
    """`tumoar segment` on the small head, with one image and these flags."""
    for place, name, value in small_run.stand_ins():
        monkeypatch.setattr(place, name, value)
    monkeypatch.chdir(tmp_path)
    return lambda *flags: call(capfd, "segment", "--t1c", "scan.nii.gz", "-o", "out", *flags)


def key_of(case):
    return run_key(case, small_run.MODEL, Job(None, small_run.CONFIG), None)


def test_another_grid_to_deliver_on_is_another_result():
    case = small_head.case()
    turned = np.diag([-1.0, 1.0, 1.0, 1.0])
    turned[0, 3] = case.grid.shape[0] - 1
    first, *rest = case.inputs
    others = [
        replace(case, reference="FLAIR"),
        replace(case, inputs=(replace(first, grid=Grid(case.grid.shape, turned)), *rest)),
        replace(case, inputs=(replace(first, grid=replace(first.grid, frame="1.2.3")), *rest)),
    ]
    assert key_of(case) == key_of(small_head.case())
    assert len({key_of(c) for c in (case, *others)}) == 4


def test_to_continue_and_to_replace_at_once_is_refused(segment, tmp_path):
    checkpoints = tmp_path / ".out.checkpoints"
    checkpoints.mkdir()
    (checkpoints / "fit.ckpt").write_text("hours of work")
    code, told = segment("--resume", "--overwrite")
    assert (code, told.split(" | ")[0]) == (2, "E2-options --resume and --overwrite exclude each other")
    assert (checkpoints / "fit.ckpt").exists()


def test_an_interrupted_run_that_cannot_be_removed_is_not_continued(segment, tmp_path, monkeypatch):
    (tmp_path / ".out.checkpoints").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    code, told = segment("--overwrite")
    assert code == 9
    assert "E9-B58 cannot remove the interrupted run" in told


def test_an_ablation_of_a_finished_result_is_never_passed_over_in_silence(segment, monkeypatch):
    monkeypatch.setattr("tumoar.app.segment.execute", lambda *_: None)  # as where it is done already
    monkeypatch.setattr("tumoar.app.segment.read_manifest", lambda *_: {"status": "OK"})
    code, told = segment("--ablate")
    assert code == 0
    assert "no ablation" in told


def test_an_interrupted_demo_is_continued(monkeypatch, tmp_path, capfd):
    asked = {}
    monkeypatch.setattr(
        "tumoar.app.segment.execute", lambda case, model, job, watch, given: asked.update(r=job)
    )
    monkeypatch.setattr("tumoar.simulate.draw_patient", lambda *_: ({}, None))
    monkeypatch.setattr("tumoar.preprocess.case.build_case", lambda *_: small_head.case())
    assert call(capfd, "demo", "-o", tmp_path / "out")[0] == 0
    assert asked["r"].resume


@pytest.mark.parametrize("command", ["report", "segment"])
def test_what_is_closed_to_us_is_refused_in_one_sentence_without_its_folder(
    command, segment, capfd, tmp_path, monkeypatch
):
    folder = tmp_path / "MUELLER_HANS" / "closed"
    folder.mkdir(parents=True)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, *rest: "closed" not in str(path) and allowed(path, *rest))
    words = {"report": ("report", folder), "segment": ("segment", "--t1c", "x", "-o", folder, "--dry-run")}[
        command
    ]
    _, told = call(capfd, *words)
    assert "MUELLER" not in told


def test_nothing_read_from_one_result_is_added_to_another(tmp_path):
    def write(text):
        with publish_folder(tmp_path / "out", "the result") as work:
            (work / "a.tsv").write_text(text)
            write_manifest(work, {"key": text})

    write("one")
    seen = read_manifest(tmp_path / "out")
    write("two")
    refused = pytest.raises(IntegrityError, match=r"E12-result .*replaced meanwhile")
    with refused, add_files(tmp_path / "out", seen) as work:
        (work / "made_from_one.tsv").write_text("x")
    assert sorted(read_manifest(tmp_path / "out")["files"]) == ["a.tsv"]
    assert not list(tmp_path.glob("out/*made*"))
