"""One subject: limits, retries, what is skipped, what is recorded."""

import json
import os
import time
from dataclasses import replace

import pytest
from small_cohort import order, subjects, turns

from tumoar.cohort import supervise as module
from tumoar.cohort.supervise import Usage, _classify_end, fingerprint, supervise
from tumoar.vocabulary.errors import ResourceError, UnreadableFileError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "POLL", 0.1)


def one(tmp_path, kind, **limits):
    (subject,) = subjects(tmp_path / "images", {"01": kind})
    return subject, order(tmp_path / "out", **limits)


def record(how):
    return json.loads(how.log("sub-01", ".json").read_text())


def test_a_good_subject_is_done_once_and_then_skipped(tmp_path):
    subject, how = one(tmp_path, "good")
    events = []
    first = supervise(subject, how, events.append)
    assert (first.state, first.code, first.attempts) == ("done", 0, 1)
    assert events == [{"name": "sub-01", "stage": "fit", "done": 1, "total": 4}]
    assert record(how)["state"] == "done"
    tree = tmp_path / "out/sub-01/anat/sub-01_space-T1c_seg-tumoar_dseg.nii.gz"
    assert os.path.samefile(tree, how.result("sub-01") / "segmentation.nii.gz")
    assert json.loads(tree.with_name(tree.name.replace(".nii.gz", ".json")).read_text())["Manual"] is False

    tree.unlink()
    assert supervise(subject, how).state == "skipped"
    assert turns(tmp_path / "out", "sub-01") == 1
    assert tree.exists(), "what is missing in the tree is put back"


def test_other_images_flags_or_a_damaged_result_are_not_skipped(tmp_path):
    subject, how = one(tmp_path, "good")
    supervise(subject, how)
    (tmp_path / "images/01.nii.gz").write_text("bad now")
    assert supervise(subject, how).state == "failed"
    (tmp_path / "images/01.nii.gz").write_text("good")
    assert supervise(subject, how).state == "skipped"
    assert record(how)["state"] == "done", "a record of failure does not outlive it"
    (tmp_path / "images/01.nii.gz").write_text("bad")
    assert supervise(subject, replace(how, digest="other")).state == "failed"
    (tmp_path / "images/01.nii.gz").write_text("good")
    (how.result("sub-01") / "segmentation.nii.gz").write_text("damaged")
    (tmp_path / "images/01.nii.gz").write_text("bad")
    assert supervise(subject, how).state == "failed"
    assert turns(tmp_path / "out", "sub-01") == 4


def test_a_refusal_is_final_and_its_sentence_is_kept(tmp_path):
    subject, how = one(tmp_path, "bad", retries=3)
    outcome = supervise(subject, how)
    assert (outcome.state, outcome.code, outcome.attempts) == ("failed", 5, 1)
    assert outcome.reason == "E5-B23 no signal in T1c | file: the T1c"
    assert not how.result("sub-01").exists()


@pytest.mark.parametrize("kind", ["crash", "busy"])
def test_what_may_help_is_tried_again(tmp_path, kind):
    subject, how = one(tmp_path, kind)
    outcome = supervise(subject, how)
    assert (outcome.state, outcome.attempts) == ("done", 2)
    subject, how = one(tmp_path / "never", kind, retries=0)
    outcome = supervise(subject, how)
    assert outcome.state == "failed"
    assert outcome.reason == (
        "ended by signal 11 (SIGSEGV)" if kind == "crash" else "E11-B59 another run works on this output"
    )


def test_a_hanging_subject_ends_at_its_limit(tmp_path):
    subject, how = one(tmp_path, "hang", minutes=0.02)
    start = time.monotonic()
    outcome = supervise(subject, how)
    assert time.monotonic() - start < 10
    assert (outcome.code, outcome.attempts) == (10, 1)
    assert outcome.reason.startswith("E10-time time limit exceeded | found: 0.02 minutes")
    pid = int((tmp_path / "out/turns/sub-01").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_greedy_subject_ends_at_its_limit(tmp_path):
    subject, how = one(tmp_path, "greedy", gb=0.2)
    outcome = supervise(subject, how)
    assert (outcome.state, outcome.code) == ("failed", 10)
    assert "E10-memory memory limit exceeded" in outcome.reason
    assert outcome.peak_gb >= 0.2


def test_a_subject_nobody_waits_for_is_stopped(tmp_path):
    subject, how = one(tmp_path, "hang")
    outcome = supervise(subject, how, stopped=lambda: turns(tmp_path / "out", "sub-01") == 1)
    assert outcome.state == "stopped"
    assert not how.log("sub-01", ".json").exists()


def test_a_subject_with_a_problem_is_recorded_without_a_process(tmp_path):
    subject, how = one(tmp_path, "good")
    outcome = supervise(replace(subject, code=3, problem="E3-B61 T1c: no such file"), how)
    assert (outcome.state, outcome.code, outcome.attempts) == ("failed", 3, 0)
    outcome = supervise(replace(subject, images={"T1c": str(tmp_path / "gone")}), how)
    assert (outcome.code, turns(tmp_path / "out", "sub-01")) == (3, 0)


def test_a_worker_of_another_version_does_nothing(tmp_path):
    subject, how = one(tmp_path, "good")
    outcome = supervise(subject, replace(how, version="9.9"))
    assert outcome.reason.startswith("E2-version this worker has another version")
    assert turns(tmp_path / "out", "sub-01") == 0


def test_fingerprints_are_of_contents(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.dcm").write_text("x")
    one, other = fingerprint(tmp_path / "a"), fingerprint(tmp_path / "b")
    assert one != other  # the number of a series is part of the name: FOLDER#2
    (tmp_path / "a" / "1.dcm").write_text("y")
    assert fingerprint(tmp_path / "a") != one
    with pytest.raises(UnreadableFileError):
        fingerprint(tmp_path / "gone.nii.gz")


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path):
    (who,) = subjects(tmp_path / "in", {"01": "good"})
    asked = order(tmp_path / "out")
    asked.log(who.name, ".txt").parent.mkdir()
    os.mkfifo(asked.log(who.name, ".txt"))
    assert supervise(who, asked).state == "done"


def test_names_that_are_no_text_are_no_fault(tmp_path):
    (tmp_path / os.fsdecode(b"a\xff.dcm")).write_text("x")
    one = fingerprint(tmp_path)
    (tmp_path / os.fsdecode(b"a\xff.dcm")).rename(tmp_path / os.fsdecode(b"a\xfe.dcm"))
    assert fingerprint(tmp_path) != one


def test_a_folder_of_too_many_files_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tumoar.cohort.supervise.MOST_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("x")
    with pytest.raises(ResourceError, match="E10-files more than 3 files"):
        fingerprint(tmp_path)


def test_every_signal_has_a_name():
    assert all(str(number) in _classify_end(-number, "", Usage()).reason for number in range(1, 65))
