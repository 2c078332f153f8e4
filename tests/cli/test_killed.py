"""The command itself, killed again and again: what it leaves can be resumed, to the same bits."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

SETTINGS = """
[gem]
levels = [{ spacing = 2, smoothing = 2 }]
em_iterations = 10
outer_iterations = 3
[gibbs]
burn_in = 30
samples = 20
"""
KILLS = (6, 13, 21, 30, 40, 52)  # seconds after the start, each of a run resumed


def command(*arguments, **rest):
    return subprocess.Popen([sys.executable, "-m", "tumoar", *map(str, arguments)], **rest)


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patient")
    (folder / "settings.toml").write_text(SETTINGS)
    made = command("simulate", "--contrast", "T1c", "--contrast", "FLAIR", "--skull-stripped", "-o", folder)
    assert made.wait() == 0
    return folder


def start(patient, out, *more):
    images = ("--t1c", patient / "T1c.nii.gz", "--flair", patient / "FLAIR.nii.gz")
    return command(
        "segment", *images, "--config", patient / "settings.toml", "-o", out, *more,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def bits(out):
    files = json.loads((out / "run.json").read_text())["files"]
    for name, digest in files.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    return {name: digest for name, digest in files.items() if name.endswith((".nii.gz", ".tsv"))}


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_at_any_moment_and_resumed_gives_the_same_bits(patient, tmp_path, record_property):
    whole = start(patient, tmp_path / "whole", "--threads", 2)
    assert whole.wait() == 0, whole.stderr.read()

    out = tmp_path / "killed"
    killed = 0
    for seconds in KILLS:
        run = start(patient, out, "--resume", "--threads", 1)
        time.sleep(seconds)
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            killed += 1
        run.wait()
        assert out.exists() == (run.returncode == 0), "a folder that is there is complete"
        if run.returncode == 0:
            break
    assert killed >= 3
    record_property("tried", killed)
    last = start(patient, out, "--resume", "--threads", 1)
    assert last.wait() == 0, last.stderr.read()
    assert bits(out) == bits(tmp_path / "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed", "whole"]
