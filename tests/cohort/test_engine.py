"""Subjects here and on a cluster: a failure stops nobody, a lost worker is replaced, nobody else gets in."""

import json
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from ball_maps import shifted
from small_cohort import order, subjects, turns

from tumoar.cli import main
from tumoar.cohort.engine import Scheduler, connect, run, spread
from tumoar.cohort.local import run_here, spread_here
from tumoar.train.atlas import AtlasSettings, Level, train
from tumoar.vocabulary.errors import ResourceError, UsageError
from tumoar.vocabulary.labels import default_labels

TESTS = Path(__file__).resolve().parents[1]
RECIPE = TESTS.parent / "recipes" / "tls.sh"
CLIENT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from small_cohort import order, subjects
from tumoar.cohort.engine import Scheduler, connect, run
from tumoar.cohort.local import run_here
if __name__ == "__main__":
    who = subjects(Path({images!r}), {kinds!r})
    how = order(Path({out!r}), minutes={minutes})
    def show(outcomes):
        for outcome in outcomes:
            print(outcome.name, outcome.state, outcome.code, flush=True)
    if {place!r} == "local":
        show(run_here(who, how, 2, lambda event: None))
    else:
        with connect(Scheduler({address!r}, *map(Path, {tls!r}))) as client:
            show(run(client, who, how, lambda event: None))
"""


def finish(outcomes, then=lambda: None):
    out = []
    for outcome in outcomes:
        out.append(outcome)
        then()
    return {o.name: o for o in out}


def here(who, how, workers=2):
    return run_here(who, how, workers, lambda event: None)


def there(client, who, how):
    return run(client, who, how, lambda event: None)


def listening(root):
    """Sockets that a process and those below it listen on, or have bound to a name."""
    found = []
    for process in (root, *root.children(recursive=True)):
        try:
            found += [c for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN]
            found += [c for c in process.net_connections("unix") if c.laddr]
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


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


def test_a_failure_stops_nobody(tmp_path):
    kinds = {"1": "good", "2": "bad", "3": "good", "4": "hang", "5": "crash", "6": "slow"}
    who, how = subjects(tmp_path / "images", kinds), order(tmp_path / "out", minutes=0.1)
    found = finish(here(who, how))
    assert {n: o.state for n, o in found.items()} == {
        "sub-1": "done", "sub-2": "failed", "sub-3": "done", "sub-4": "failed", "sub-5": "done",
        "sub-6": "done",
    }  # fmt: skip
    assert [found[f"sub-{n}"].code for n in "24"] == [5, 10]
    assert [turns(tmp_path / "out", f"sub-{n}") for n in "123456"] == [1, 1, 1, 1, 2, 1]
    again = finish(here(who[:1], how))
    assert again["sub-1"].state == "skipped"


def test_a_fault_of_our_own_is_one_subjects_failure(tmp_path, monkeypatch):
    from tumoar.cohort import local

    def faulty(subject, *rest):
        if subject.label == "1":
            raise RuntimeError("/home/Jane Doe")
        return supervise(subject, *rest)

    supervise = local.supervise
    monkeypatch.setattr(local, "supervise", faulty)
    who, how = subjects(tmp_path / "images", {"1": "good", "2": "good"}), order(tmp_path / "out")
    found = finish(here(who, how))
    assert [found[f"sub-{n}"].state for n in "12"] == ["failed", "done"]
    assert found["sub-1"].reason == "E1-fault internal error: RuntimeError"


def test_nothing_listens_while_a_cohort_runs_here(tmp_path, monkeypatch):
    """Whoever could reach a socket of ours on a shared machine could hand us work to do."""
    from functools import partial

    from small_cohort import FAKE

    from tumoar.cohort import plan

    monkeypatch.setattr(plan, "Order", partial(plan.Order, command=FAKE))
    folder = tmp_path / "images"
    subjects(folder, {f"{n}": "slow" for n in range(4)})
    rows = [f"{n},{folder / f'{n}.nii.gz'}" for n in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["subject,t1c", *rows]))
    me, before, found, done = psutil.Process(), [], [], threading.Event()
    before += listening(me)

    def look():
        while not done.is_set():
            found.extend(c for c in listening(me) if c not in before)
            done.wait(0.05)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with pytest.raises(SystemExit) as end:
            main(
                ["cohort", str(tmp_path / "list.csv"), str(tmp_path / "out"), "participant", "--workers", "2"]
            )
    finally:
        done.set()
        watcher.join()
    assert end.value.code == 0
    assert found == []


def test_the_watch_for_sockets_sees_one():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        assert listening(psutil.Process())


def test_what_nobody_waits_for_is_stopped(tmp_path):
    who, how = subjects(tmp_path / "images", {"1": "good", "2": "hang", "3": "hang"}), order(tmp_path / "out")
    outcomes = here(who, how)
    assert next(outcomes).name == "sub-1"
    turn = tmp_path / "out" / "turns" / "sub-2"
    wait_for(lambda: turn.exists() and turn.read_text())
    outcomes.close()
    assert not is_alive(int(turn.read_text().split()[0]))


@pytest.mark.long
def test_two_hundred_subjects_leave_the_client_as_it_was(tmp_path):
    kinds = {f"{n:03}": "bad" if n % 10 == 3 else "good" for n in range(200)}
    who, how = subjects(tmp_path / "images", kinds), order(tmp_path / "out")
    client, memory = psutil.Process(), []
    found = finish(here(who, how), lambda: memory.append(client.memory_info().rss))
    states = [found[s.name].state for s in who]
    assert (states.count("done"), states.count("failed")) == (180, 20)
    assert all(turns(tmp_path / "out", s.name) == 1 for s in who)
    assert np.median(memory[-20:]) < 1.05 * np.median(memory[:20])


# ---- training ----------------------------------------------------------------------------------------------


def test_items_are_spread_over_processes_without_a_socket():
    me = psutil.Process()
    before = listening(me)
    with spread_here(2, 1) as each:
        assert each(operator.mul, (3,), [1, 2, 4]) == [3, 6, 12]
        assert [c for c in listening(me) if c not in before] == []
        workers = [p for p in me.children(recursive=True) if "spawn_main" in " ".join(p.cmdline())]
        assert workers
    wait_for(lambda: not any(is_alive(p.pid) for p in workers))


def test_a_lost_process_of_the_training_is_a_refusal():
    with (
        spread_here(1, 1) as each,
        pytest.raises(ResourceError, match="E10-worker a process of the training"),
    ):
        each(signal.raise_signal, (), [signal.SIGKILL])


MAPS = np.stack([shifted(-1), shifted(1)])
SETTINGS = AtlasSettings(levels=(Level((8.0,), 2),), collapses=0)


@pytest.mark.long
@pytest.mark.parametrize("place", ["local", "remote"])
def test_heads_of_an_atlas_are_fitted_elsewhere_to_the_same_bits(place, request):
    *_, (one, _) = train(MAPS, default_labels(), SETTINGS, 3)
    if place == "local":
        with spread_here(2, 1) as each:
            *_, (other, _) = train(MAPS, default_labels(), SETTINGS, 3, each=each)
    else:
        with connect(request.getfixturevalue("remote")) as client:
            *_, (other, _) = train(MAPS, default_labels(), SETTINGS, 3, each=spread(client, 1))
    assert other.positions.tobytes() == one.positions.tobytes()
    assert other.alpha.tobytes() == one.alpha.tobytes()


# ---- a cluster ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("tcp://127.0.0.1:9", "this connection is not encrypted"),
        ("127.0.0.1:9", "this connection is not encrypted"),
        ("ws://127.0.0.1:9", "the address must begin with tls://"),
        ("inproc://x", "the address must begin with tls://"),
        ("TLS://x", "the address must begin with tls://"),
    ],
)
def test_a_scheduler_without_tls_is_refused(address, sentence):
    with pytest.raises(UsageError, match=f"E2-scheduler {sentence}"), connect(Scheduler(address)):
        pass


def test_a_scheduler_without_tls_can_be_asked_for(monkeypatch):
    monkeypatch.setattr("tumoar.cohort.engine.PATIENCE", 1)
    scheduler = Scheduler("tcp://127.0.0.1:9", insecure=True)
    with pytest.raises(UsageError, match="E2-scheduler no Dask scheduler responds"), connect(scheduler):
        pass


def test_files_for_tls_are_looked_at_before_anything_is_sent(tmp_path):
    for name, mode in (("ca.pem", 0o644), ("cert.pem", 0o644), ("key.pem", 0o644)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(mode)
    ca, cert, key = (tmp_path / f"{name}.pem" for name in ("ca", "cert", "key"))
    for scheduler, sentence in (
        (Scheduler("tls://127.0.0.1:9"), "tls:// needs --tls-ca"),
        (Scheduler("tls://127.0.0.1:9", ca), "tls:// needs --tls-cert"),
        (Scheduler("tls://127.0.0.1:9", tmp_path / "no", cert, key), "cannot read the file of --tls-ca"),
        (Scheduler("tls://127.0.0.1:9", ca, cert, key), "other users can read the TLS key"),
        (Scheduler("tcp://127.0.0.1:9", ca, cert, key, True), "TLS files, but no tls:// scheduler"),
    ):
        with pytest.raises(UsageError, match=re.escape(sentence)), connect(scheduler):
            pass
    key.chmod(0o600)
    with (
        pytest.raises(UsageError, match="no Dask scheduler responds"),
        connect(Scheduler("tls://127.0.0.1:9", ca, cert, key)),
    ):
        pass


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """A scheduler and two workers of its own over TLS, with the certificates that the recipes make."""
    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run(["bash", str(RECIPE), str(folder / "tls")], check=True, capture_output=True)
    ca, cert, key = (folder / "tls" / f"{name}.pem" for name in ("ca", "cert", "key"))
    tls = ("--tls-ca-file", str(ca), "--tls-cert", str(cert), "--tls-key", str(key))
    log = open(folder / "cluster.txt", "w")  # noqa: SIM115
    dask = (sys.executable, "-m", "dask")
    file = folder / "scheduler.json"
    options = (
        "--scheduler-file",
        str(file),
        "--no-dashboard",
        "--host",
        "127.0.0.1",
        "--protocol",
        "tls",
        *tls,
    )
    processes = [subprocess.Popen([*dask, "scheduler", "--port", "0", *options], stdout=log, stderr=log)]
    try:
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        local = ("--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(folder))
        worker = (*dask, "worker", address, "--nthreads", "1", "--no-nanny", *local, *tls)
        processes += [subprocess.Popen(worker, stdout=log, stderr=log) for _ in range(2)]
        yield Scheduler(address, ca, cert, key)
    finally:
        for process in reversed(processes):
            process.kill()
        for process in processes:
            process.wait(30)
        log.close()


def test_a_cluster_over_tls_replaces_a_lost_worker(remote, tmp_path):
    assert remote.address.startswith("tls://127.0.0.1:")
    who, how = subjects(tmp_path / "images", {"1": "hang", "2": "good"}), order(tmp_path / "out")
    turn = tmp_path / "out" / "turns" / "sub-1"
    lost = []

    def kill_its_worker():
        if lost:
            return
        wait_for(lambda: turn.exists() and turn.read_text().split())
        child = int(turn.read_text().split()[0])
        worker = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        (tmp_path / "images" / "1.nii.gz").write_text("good")
        os.kill(worker, signal.SIGKILL)
        lost.append(child)
        wait_for(lambda: not is_alive(child))

    with connect(remote) as client:
        found = finish(there(client, who, how), kill_its_worker)
    assert {n: o.state for n, o in found.items()} == {"sub-1": "done", "sub-2": "done"}
    assert turns(tmp_path / "out", "sub-1") == 2


def test_a_cluster_over_tls_lets_in_nobody_with_another_key(remote, tmp_path, monkeypatch):
    monkeypatch.setattr("tumoar.cohort.engine.PATIENCE", 2)
    stranger = tmp_path / "stranger"
    subprocess.run(["bash", str(RECIPE), str(stranger)], check=True, capture_output=True)
    files = (stranger / f"{name}.pem" for name in ("ca", "cert", "key"))
    scheduler = Scheduler(remote.address, *files)
    with pytest.raises(UsageError, match="no Dask scheduler responds"), connect(scheduler):
        pass


@pytest.mark.long
@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_client_that_is_interrupted_leaves_nothing_running_and_continues(place, tmp_path, request):
    remote = request.getfixturevalue("remote") if place == "remote" else Scheduler("")
    out, images = tmp_path / "out", tmp_path / "images"
    kinds = {"1": "good", "2": "hang", "3": "good", "4": "good"}
    tls = [str(file) for file in (remote.ca, remote.cert, remote.key) if file]
    code = CLIENT.format(
        tests=str(TESTS), images=str(images), kinds=kinds, out=str(out), place=place,
        address=remote.address, tls=tls, minutes=1,
    )  # fmt: skip
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
