"""Subjects on a cluster: a failure stops nobody, a lost worker is replaced, an interruption resumes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from ball_maps import shifted
from small_cohort import order, subjects, turns

from tumoar.cohort.engine import connect, run, spread
from tumoar.errors import UsageError
from tumoar.labels import default_labels
from tumoar.train.atlas import AtlasSettings, Level, train

TESTS = Path(__file__).resolve().parents[1]
CLIENT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from small_cohort import order, subjects
from tumoar.cohort.engine import connect, run
if __name__ == "__main__":
    who = subjects(Path({images!r}), {kinds!r})
    with connect(2, {scheduler!r}) as client:
        for outcome in run(client, who, order(Path({out!r}), minutes={minutes}), lambda event: None):
            print(outcome.name, outcome.state, outcome.code, flush=True)
"""


@pytest.fixture(scope="module")
def local():
    with connect(2, None) as client:
        yield client


def finish(client, who, how, then=lambda: None):
    out = []
    for outcome in run(client, who, how, lambda event: None):
        out.append(outcome)
        then()
    return {o.name: o for o in out}


def is_alive(pid):
    """Whether a process runs, and is not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def test_a_failure_stops_nobody(local, tmp_path):
    kinds = {"1": "good", "2": "bad", "3": "good", "4": "hang", "5": "crash", "6": "slow"}
    who, how = subjects(tmp_path / "images", kinds), order(tmp_path / "out", minutes=0.1)
    found = finish(local, who, how)
    assert {n: o.state for n, o in found.items()} == {
        "sub-1": "done", "sub-2": "failed", "sub-3": "done", "sub-4": "failed", "sub-5": "done",
        "sub-6": "done",
    }  # fmt: skip
    assert [found[f"sub-{n}"].code for n in "24"] == [5, 10]
    assert [turns(tmp_path / "out", f"sub-{n}") for n in "123456"] == [1, 1, 1, 1, 2, 1]
    again = finish(local, who[:1], how)
    assert again["sub-1"].state == "skipped"


def test_a_lost_workers_subject_is_taken_up_by_another(local, tmp_path):
    who, how = subjects(tmp_path / "images", {"1": "hang", "2": "good"}), order(tmp_path / "out")
    turn = tmp_path / "out" / "turns" / "sub-1"
    lost = []

    def kill_its_worker():
        if lost:
            return
        wait_for(turn.exists)
        child = int(turn.read_text().split()[0])
        worker = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        (tmp_path / "images" / "1.nii.gz").write_text("good")
        os.kill(worker, signal.SIGKILL)
        lost.append(child)
        wait_for(lambda: not is_alive(child))

    found = finish(local, who, how, kill_its_worker)
    assert {n: o.state for n, o in found.items()} == {"sub-1": "done", "sub-2": "done"}
    assert turns(tmp_path / "out", "sub-1") == 2


@pytest.mark.slow
def test_two_hundred_subjects_leave_the_client_as_it_was(local, tmp_path):
    kinds = {f"{n:03}": "bad" if n % 10 == 3 else "good" for n in range(200)}
    who, how = subjects(tmp_path / "images", kinds), order(tmp_path / "out")
    client, memory = psutil.Process(), []
    found = finish(local, who, how, lambda: memory.append(client.memory_info().rss))
    states = [found[s.name].state for s in who]
    assert (states.count("done"), states.count("failed")) == (180, 20)
    assert all(turns(tmp_path / "out", s.name) == 1 for s in who)
    assert np.median(memory[-20:]) < 1.05 * np.median(memory[:20])


@pytest.mark.slow
def test_heads_of_an_atlas_are_fitted_on_the_cluster_to_the_same_bits(local):
    maps = np.stack([shifted(-1), shifted(1)])
    settings = AtlasSettings(levels=(Level((8.0,), 2),), collapses=0)
    *_, (here, _) = train(maps, default_labels(), settings, 3)
    *_, (there, _) = train(maps, default_labels(), settings, 3, each=spread(local, 1))
    assert there.positions.tobytes() == here.positions.tobytes()
    assert there.alpha.tobytes() == here.alpha.tobytes()


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr("tumoar.cohort.engine.PATIENCE", 1)
    with (
        pytest.raises(UsageError, match="E2-scheduler no Dask scheduler answers"),
        connect(1, "tcp://127.0.0.1:9"),
    ):
        pass


@pytest.fixture
def remote(tmp_path):
    """A scheduler and two workers of its own, over TCP."""
    log = open(tmp_path / "cluster.txt", "w")  # noqa: SIM115
    dask = (sys.executable, "-m", "dask")
    file = tmp_path / "scheduler.json"
    options = ("--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1")
    processes = [subprocess.Popen([*dask, "scheduler", "--port", "0", *options], stdout=log, stderr=log)]
    try:
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        local = ("--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(tmp_path))
        worker = (*dask, "worker", address, "--nthreads", "1", *local)
        processes += [subprocess.Popen(worker, stdout=log, stderr=log) for _ in range(2)]
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
        log.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_client_that_is_interrupted_leaves_nothing_running_and_continues(place, tmp_path, request):
    scheduler = request.getfixturevalue("remote") if place == "remote" else None
    out, images = tmp_path / "out", tmp_path / "images"
    kinds = {"1": "good", "2": "hang", "3": "good", "4": "good"}
    code = CLIENT.format(
        tests=str(TESTS), images=str(images), kinds=kinds, out=str(out), scheduler=scheduler, minutes=1
    )
    script = tmp_path / "client.py"
    script.write_text(code)
    client = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: (out / "turns" / "sub-2").exists() and (out / "logs" / "sub-1.json").exists(), 60)
    child = int((out / "turns" / "sub-2").read_text().split()[0])
    client.send_signal(signal.SIGKILL if place == "local" else signal.SIGINT)
    client.wait(30)
    wait_for(lambda: not is_alive(child))
    before = {n: turns(out, f"sub-{n}") for n in "134"}

    script.write_text(code.replace("'hang'", "'good'"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    states = dict(line.split()[:2] for line in done.stdout.splitlines())
    assert set(states.values()) <= {"done", "skipped"}, done
    assert set(states) == {"sub-1", "sub-2", "sub-3", "sub-4"}
    assert states["sub-1"] == "skipped"
    assert turns(out, "sub-1") == before["1"] == 1
