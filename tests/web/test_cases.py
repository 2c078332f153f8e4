"""New cases: what is uploaded and chosen, how a case runs, stops, goes on, and ends with the server."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import fake_segment
import numpy as np
import psutil
import pytest
from starlette.testclient import TestClient

from tumoar.cli import main
from tumoar.vocabulary.errors import BusyError, TumoarError, UsageError
from tumoar.web import uploads as uploads_module
from tumoar.web.app import work_app
from tumoar.web.cases import Cases
from tumoar.web.findings import guess_contrast
from tumoar.web.progress import Progress
from tumoar.web.server import bind

COMMAND = (sys.executable, fake_segment.__file__)
PATIENCE = 120
PORT = 8124


def until(condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it never happened")


@pytest.fixture
def cases(tmp_path):
    found = Cases(tmp_path / "work", threads=1, command=COMMAND)
    yield found
    found.close()


@pytest.fixture
def image(tmp_path):
    def write(kind):
        path = tmp_path / f"Doe^Jane {kind}.nii"
        path.write_text(kind)
        return {"T1c": str(path)}

    return write


def states(cases):
    return {row["name"]: row["state"] for row in cases.describe()}


def test_a_case_runs_to_its_result(cases, image):
    assert cases.start("01", image("good"), {"fast": True}) == "sub-01"
    until(lambda: states(cases)["sub-01"] == "done")
    assert (cases.work / "results" / "sub-01" / "run.json").is_file()
    turns = (cases.work / "turns" / "sub-01").read_text()
    assert "--fast" in turns
    with pytest.raises(UsageError, match="exists"):
        cases.start("01", image("good"), {})


def test_a_case_is_watched_stopped_and_resumed_by_another_server(tmp_path, image):
    first = Cases(tmp_path / "work", threads=1, command=COMMAND)
    first.start("01", image("hang"), {})
    first.start("02", image("good"), {})
    row = until(lambda: next((r for r in first.describe() if r["progress"] and r["progress"]["stage"]), None))
    assert row["progress"]["stage"] == "fit"
    assert 0.1 < row["progress"]["share"] < 0.4
    assert states(first) == {"sub-01": "running", "sub-02": "waiting"}
    with pytest.raises(BusyError):
        first.resume("sub-01")
    first.cancel("sub-01")
    until(lambda: states(first) == {"sub-01": "stopped", "sub-02": "done"})
    first.close()
    (tmp_path / "Doe^Jane hang.nii").write_text("good")
    second = Cases(tmp_path / "work", threads=1, command=COMMAND)
    assert states(second)["sub-01"] == "stopped"
    second.resume("sub-01")
    until(lambda: states(second)["sub-01"] == "done")
    second.close()


def test_a_failed_case_says_why_without_the_name_of_a_file(cases, image):
    cases.start("01", image("bad"), {})
    row = until(lambda: next((r for r in cases.describe() if r["state"] == "failed"), None))
    assert "no signal in T1c" in row["reason"]
    told = json.dumps(cases.describe()) + (cases.work / "logs" / "sub-01.txt").read_text()
    assert "Doe" not in told


def test_closing_ends_the_processes(tmp_path, image):
    cases = Cases(tmp_path / "work", threads=1, command=COMMAND)
    cases.start("01", image("hang"), {})
    turn = cases.work / "turns" / "sub-01"
    until(lambda: turn.exists() and turn.read_text())
    pid = int(turn.read_text().split()[0])
    cases.close()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert states(cases) == {"sub-01": "stopped"}


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a b", "Doe^Jane", "x" * 65, "\0"])
def test_names_that_are_no_file_names_are_refused(cases, image, name):
    with pytest.raises(TumoarError):
        cases.start(name, image("good"), {})
    assert states(cases) == {}


@pytest.mark.parametrize("name", ["sub-99", "..", "../logs/sub-01", "sub-../../x"])
def test_unknown_cases_are_refused(cases, name):
    with pytest.raises(TumoarError):
        cases.resume(name)


def test_slices_of_a_case_in_progress_are_shown(cases, image):
    cases.start("01", image("hang"), {})
    assert cases.live("sub-01") is None
    (row,) = cases.describe()
    assert row["live"] is None
    folder = cases.work / "results" / ".sub-01.checkpoints"
    folder.mkdir(parents=True)
    (folder / "live.png").write_bytes(b"picture")
    (row,) = cases.describe()
    assert row["live"]
    assert cases.live("sub-01") == b"picture"
    with pytest.raises(TumoarError):
        cases.live("../sub-01")


# ---- the routes --------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path):
    (tmp_path / "images").mkdir()
    app = work_app(tmp_path / "work", [tmp_path / "images"], "t", PORT, threads=1, command=COMMAND)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"Authorization": "Bearer t"}) as found:
        yield found


def write_nifti(path):
    import nibabel as nib

    nib.save(nib.Nifti1Image(np.random.default_rng(0).normal(100, 20, (20, 20, 20)), np.eye(4)), path)


def test_from_files_to_a_case(client, tmp_path):
    source = tmp_path / "source.nii.gz"
    write_nifti(source)
    key = client.post("/api/uploads").json()["upload"]
    for name in ("Doe_T1c.nii.gz", "../../../evil_flair.nii.gz"):
        answer = client.put(f"/api/uploads/{key}", params={"name": name}, content=source.read_bytes())
        assert answer.status_code == 200
    kept = sorted(p.relative_to(tmp_path / "work").as_posix() for p in (tmp_path / "work").rglob("*.nii.gz"))
    assert kept == [f".uploads/{key}/000001.nii.gz", f".uploads/{key}/000002.nii.gz"]
    assert stat.S_IMODE(os.stat(tmp_path / "work" / kept[0]).st_mode) == 0o600
    for place in (".uploads", f".uploads/{key}"):
        assert stat.S_IMODE(os.stat(tmp_path / "work" / place).st_mode) == 0o700
    found = client.post("/api/inspect", json={"upload": key}).json()
    assert [row["name"] for row in found["images"]] == ["Doe_T1c.nii.gz", "evil_flair.nii.gz"]
    assert [row["guess"] for row in found["images"]] == ["T1c", "FLAIR"]
    assert str(tmp_path) not in json.dumps(found)
    order = {"name": "01", "found": found["found"], "options": {}}
    for rows in ([], [(7, "T1c")], [(0, "X")], [(0, "T1c"), (1, "T1c")]):
        images = [{"row": row, "contrast": contrast} for row, contrast in rows]
        assert client.post("/api/cases", json={**order, "images": images}).status_code == 422
    (tmp_path / "work" / kept[0]).write_text("good")  # what the stand-in for a segmentation reads
    answer = client.post("/api/cases", json={**order, "images": [{"row": 0, "contrast": "T1c"}]})
    assert answer.json() == {"name": "sub-01"}
    rows = until(lambda: client.get("/api/list").json()["results"])
    assert [row["name"] for row in rows] == ["sub-01"]


def test_only_the_chosen_folders_are_shown(client, tmp_path):
    (tmp_path / "images" / "study").mkdir()
    (tmp_path / "images" / "out").symlink_to("/etc")
    about = client.get("/api").json()
    assert about["folders"] == ["work", "images"]
    assert str(tmp_path) not in json.dumps(about)
    shown = client.get("/api/folders", params={"number": 1}).json()["entries"]
    assert shown == [{"name": "study", "folder": True}]
    for name in ("..", "../work", "/etc", "out", "study/../.."):
        assert client.get("/api/folders", params={"number": 1, "name": name}).status_code == 422
        assert client.post("/api/inspect", json={"number": 1, "name": name}).status_code == 422
    assert client.get("/api/folders", params={"number": -1}).status_code == 422


def test_uploads_have_limits_and_leave_nothing_behind(client, tmp_path, monkeypatch):
    key = client.post("/api/uploads").json()["upload"]
    monkeypatch.setattr(uploads_module, "MOST_FILE", 1000)
    monkeypatch.setattr(uploads_module, "MOST_ALL", 1500)
    send = lambda n: client.put(f"/api/uploads/{key}", params={"name": "a.nii"}, content=b"x" * n)  # noqa: E731
    assert send(1001).status_code == 422
    assert send(900).status_code == 200
    assert send(700).status_code == 422
    monkeypatch.setattr(uploads_module, "MOST_FILES", 3)
    assert send(1).status_code == 422
    assert [p.stat().st_size for p in (tmp_path / "work" / ".uploads").rglob("*.nii")] == [900]
    for other in ("nothing", "..", "%2e%2e"):
        assert client.put(f"/api/uploads/{other}", content=b"x").status_code in (404, 405, 422)


def test_a_damaged_result_is_listed_and_does_not_open(client, tmp_path):
    folder = tmp_path / "images" / "broken"
    folder.mkdir()
    (folder / "run.json").write_text("{")
    (row,) = client.get("/api/list").json()["results"]
    assert row["state"] == "damaged"
    answer = client.get(f"/api/reviews/{row['key']}")
    assert answer.status_code == 422
    assert str(tmp_path) not in answer.text


# ---- parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "contrast"),
    [
        ("sub-01_T1c.nii.gz", "T1c"),
        ("BraTS_t1ce.nii.gz", "T1c"),
        ("x-FLAIR.nii", "FLAIR"),
        ("t2w.nii", "T2"),
        ("t1_t2.nii", ""),
        ("image.nii", ""),
        ("flairs.nii", ""),
    ],
)
def test_contrasts_are_guessed_from_whole_words_only(name, contrast):
    assert guess_contrast(name) == contrast


def test_progress_never_goes_back_and_gives_no_time_too_early():
    progress = Progress()
    assert progress.describe()["left"] is None
    shares = []
    for stage, done in (
        ("read", 1),
        ("place", 1),
        ("fit", 5),
        ("fit", 2),
        ("sample", 3),
        ("start", 1),
        ("write", 10),
    ):
        progress.tell({"stage": stage, "done": done, "total": 10, "figures": {"core": 1.5}})
        shares.append(progress.describe()["share"])
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1
    assert progress.describe()["left"] is not None
    assert progress.describe()["figures"] == {"core": 1.5}


# ---- the whole command -------------------------------------------------------------------------------------


def test_a_taken_port_is_refused(tmp_path, capfd):
    taken = bind(0)
    taken.listen()
    with taken, pytest.raises(SystemExit) as end:
        main(["app", str(tmp_path / "work"), "--no-browser", "--port", str(taken.getsockname()[1])])
    assert end.value.code == 2
    assert capfd.readouterr().err.startswith("E2-port cannot listen on this port")


@pytest.mark.slow
def test_ctrl_c_ends_the_server_quietly_and_a_taken_port_is_refused(tmp_path):
    words = [sys.executable, "-m", "tumoar", "app", str(tmp_path / "work"), "--no-browser"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = server.stdout.readline().split()[-1]
    port = address.rpartition(":")[2].partition("/")[0]
    assert address.startswith("http://127.0.0.1:")
    listening = [c.laddr for c in psutil.Process(server.pid).net_connections("inet") if c.status == "LISTEN"]
    assert {place.ip for place in listening} == {"127.0.0.1"}
    again = subprocess.run([*words, "--port", port], capture_output=True, text=True, check=False)
    assert again.returncode in (2, 11)
    other = [*words[:4], str(tmp_path / "other"), "--no-browser", "--port", port]
    taken = subprocess.run(other, capture_output=True, text=True, check=False)
    assert taken.returncode == 2
    assert "port" in taken.stderr
    server.send_signal(signal.SIGINT)
    _, error = server.communicate(timeout=PATIENCE)
    assert "Traceback" not in error
    assert server.returncode in (0, 128 + signal.SIGINT)
    assert not list(Path(tmp_path).glob(".*.lock"))
