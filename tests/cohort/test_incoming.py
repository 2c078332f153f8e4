"""A watched folder: studies are taken up when they are complete, once, and without their names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import generate_uid
from rt_files import PLANTED, write_series

from tumoar.cli import main
from tumoar.cohort import incoming
from tumoar.cohort.incoming import Watched, choose_series, find_studies, name_of, sign, watch_folder
from tumoar.cohort.plan import Limits, Order
from tumoar.cohort.tree import begin_tree
from tumoar.geometry.image import Grid
from tumoar.io.dicom import find_series
from tumoar.vocabulary.errors import ChannelError, IntegrityError

FAKE = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from fake_segment import publish
words = sys.argv[2:]
out = Path(words[words.index("--output") + 1])
images = [words[n + 1] for n, word in enumerate(words) if word == "--image"]
with open({log!r}, "a") as file:
    file.write(" ".join(Path(i).name for i in images) + "\\n")
folder = Path(images[0].rpartition("#")[0])
if (folder / "slow.txt").exists():
    time.sleep(60)
if (folder / "bad.txt").exists():
    print(f"E5-B23 no signal in T1c | file: {{folder.name}}", file=sys.stderr)
    sys.exit(5)
publish(out, "T1c", "good")
"""
LOOKS = {
    "T1c": {"SeriesDescription": "t1 mprage gd", "EchoTime": 3, "RepetitionTime": 900},
    "FLAIR": {"SeriesDescription": "flair", "EchoTime": 90, "RepetitionTime": 9000, "InversionTime": 2500},
    "T2": {"SeriesDescription": "t2 tse", "EchoTime": 90, "RepetitionTime": 4000},
    "vague": {"SeriesDescription": "t2 tse", "EchoTime": 3, "RepetitionTime": 600},
    "localizer": {"SeriesDescription": "localizer"},
}


def study(folder, *contrasts, spacing=(1.0, 1.0, 2.0), uid=None):
    """A study with these series of three slices."""
    uid = uid or generate_uid()
    for number, contrast in enumerate(contrasts):
        size = spacing[number] if isinstance(spacing[0], tuple) else spacing
        grid = Grid((4, 5, 3), np.diag([-size[0], -size[1], size[2], 1.0]))
        values = np.ones((4, 5, 3)) * (number + 1)

        def edit(data, k, contrast=contrast, number=number):
            data.SeriesNumber = number + 1
            data.ContrastBolusAgent = "agent" if contrast == "T1c" else ""
            for keyword, value in LOOKS[contrast].items():
                setattr(data, keyword, value)

        write_series(folder / f"s{number}", values, grid, modality="MR", study=uid, frame="1.2.3", edit=edit)
    return folder


@pytest.fixture
def site(tmp_path):
    """A folder to watch, named as a clinic would, an order with a stand-in for `segment`, and its log."""
    place = tmp_path / "in"
    place.mkdir()
    log = tmp_path / "log"
    log.touch()
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE.format(tests=str(Path(__file__).parents[1]), log=str(log)))
    order = Order(str(tmp_path / "out"), limits=Limits(1, 4, 1, 0), command=(sys.executable, str(fake)))
    begin_tree(order)
    return place, order, log


def run(place, order, **rest):
    return list(watch_folder(Watched(place, 0.0, once=True, **rest), order))


def test_a_study_becomes_a_result_without_its_name(site, tmp_path):
    place, order, log = site
    study(place / "Planted Name", "T1c", "FLAIR", "T2", "localizer")
    ((subject, outcome),) = run(place, order)
    assert outcome.state == "done"
    assert set(subject.images) == {"T1c", "FLAIR", "T2"}
    assert len(log.read_text().splitlines()) == 1
    written = list(Path(order.out).rglob("*"))
    assert (Path(order.out) / "results" / subject.name / "run.json").is_file()
    for path in written:
        assert "Planted" not in path.name
        if path.is_file():
            text = path.read_bytes()
            assert not any(planted.encode() in text for planted in (*PLANTED, "Planted Name"))
    assert sorted(p.name for p in place.iterdir()) == ["Planted Name"]


def test_a_study_is_done_once_also_after_a_restart(site):
    place, order, log = site
    study(place / "one", "T1c", "FLAIR")
    assert len(run(place, order)) == 1
    assert run(place, order) == []
    (Path(order.out) / "logs" / "watch.json").unlink()
    assert [o.state for _, o in run(place, order)] == ["skipped"]
    assert len(log.read_text().splitlines()) == 1


def test_a_study_that_changes_is_another_one(site):
    place, order, log = site
    study(place / "one", "T1c")
    ((_, first),) = run(place, order)
    study(place / "one", "T1c", "FLAIR")
    shutil.rmtree(place / "one")
    study(place / "one", "T1c", "FLAIR")
    ((_, second),) = run(place, order)
    assert first.name != second.name
    assert len(log.read_text().splitlines()) == 2


def test_a_study_is_left_alone_while_it_arrives(site):
    """Slices come one after another, and none is taken up before the last."""
    place, order, log = site
    ready = study(place.parent / "ready", "T1c", "FLAIR")
    files = sorted(p for p in ready.rglob("*") if p.is_file())
    looks = iter(range(100))

    def arrive(seconds):
        time.sleep(0.02)
        number = next(looks)
        if number < len(files):
            target = place / "one" / files[number].relative_to(ready)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[number], target)

    arrive(0)
    ((subject, outcome),) = watch_folder(Watched(place, 0.3, once=True), order, pause=arrive)
    assert outcome.state == "done"
    assert set(subject.images) == {"T1c", "FLAIR"}
    assert len(log.read_text().splitlines()) == 1


def test_the_owner_can_look_up_which_result_belongs_to_which_folder(site, capfd):
    place, order, _ = site
    study(place / "one", "T1c")
    assert incoming.list_studies(place, order) == []
    ((subject, _),) = run(place, order)
    study(place / "two", "T1c")
    first, second = incoming.list_studies(place, order)
    assert first == ("one", subject.name, "done")
    assert (second[0], second[2]) == ("two", "waiting")
    code, _ = call(capfd, place, order.out, "--list")
    assert (code or 0) == 0
    assert [o.name for _, o in run(place, order)] == [second[1]]


def test_a_bad_study_is_set_aside_and_the_next_one_is_done(site):
    place, order, _ = site
    bad = study(place / "Planted bad", "T1c", "FLAIR")
    (bad / "bad.txt").touch()
    (place / "no images").mkdir()
    (place / "no images" / "letter.txt").write_text("hello")
    (place / "empty").mkdir()
    damaged = study(place / "Planted damaged", "T1c")
    next((damaged / "s0").iterdir()).write_bytes(b"\0" * 200)
    study(place / "zz good", "T1c")
    outcomes = [o for _, o in run(place, order)]
    assert sorted(o.state for o in outcomes) == ["done", "failed", "failed", "failed"]
    reasons = " ".join(o.reason for o in outcomes)
    assert "no signal in T1c" in reasons
    assert "no series with a known contrast" in reasons
    assert "Planted" not in reasons
    assert run(place, order) == []  # not tried again by itself
    (bad / "bad.txt").unlink()
    assert len(run(place, order)) == 1
    assert len(run(place, order, again=True)) == 2


def test_hidden_folders_links_and_loose_files_are_left_alone(site):
    place, _, _ = site
    study(place / ".partial", "T1c")
    (place / "link").symlink_to(place / ".partial")
    (place / "loose.dcm").write_bytes(b"x")
    assert find_studies(place) == []


# ---- choice of series --------------------------------------------------------------------------------------


def chosen(folder):
    return choose_series("x", find_series(folder), folder)


def test_the_finest_of_several_series_is_used_and_noted(tmp_path):
    folder = study(tmp_path / "a", "T1c", "T1c", spacing=((1.0, 1.0, 5.0), (1.0, 1.0, 1.0)))
    found = chosen(folder)
    assert found.images == {"T1c": f"{folder}#2"}
    assert "the finest of 2" in found.notes[0].text


def test_equally_fine_series_are_refused(tmp_path):
    with pytest.raises(ChannelError, match="2 series could be the T1c"):
        chosen(study(tmp_path / "a", "T1c", "T1c"))


def test_a_contradictory_series_is_not_used(tmp_path):
    assert set(chosen(study(tmp_path / "a", "T1c", "vague")).images) == {"T1c"}


def test_two_studies_in_one_folder_are_refused(tmp_path):
    study(tmp_path / "a" / "x", "T1c")
    study(tmp_path / "a" / "y", "FLAIR")
    with pytest.raises(ChannelError, match="holds 2 studies"):
        chosen(tmp_path / "a")


# ---- names and records -------------------------------------------------------------------------------------


def test_names_need_the_key_and_depend_on_the_files(tmp_path):
    folder = study(tmp_path / "a", "T1c")
    first = name_of(b"1" * 32, folder, sign(folder))
    assert first == name_of(b"1" * 32, folder, sign(folder))
    assert first != name_of(b"2" * 32, folder, sign(folder))
    (folder / "more.txt").touch()
    assert first != name_of(b"1" * 32, folder, sign(folder))


def test_the_key_is_for_its_owner_alone(site):
    _, order, _ = site
    key = incoming.read_key(order)
    path = Path(order.out) / "logs" / "watch.key"
    assert path.stat().st_mode & 0o077 == 0
    assert incoming.read_key(order) == key
    path.write_text("zz")
    with pytest.raises(IntegrityError, match=r"logs/watch\.key is damaged"):
        incoming.read_key(order)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "[" * 100_000])
def test_a_damaged_record_is_refused(site, text):
    _, order, _ = site
    (Path(order.out) / "logs" / "watch.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"logs/watch\.json is damaged"):
        incoming.read_record(order)


# ---- the command -------------------------------------------------------------------------------------------


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["watch", *map(str, arguments)])
    return end.value.code, capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("in", "in/out"), 2, "one folder is inside the other"),
        (("in/sub", "in"), 2, "one folder is inside the other"),
        (("absent", "out"), 3, "cannot read the folder of studies"),
        (("in", "out", "--", "--overwrite"), 2, "is set by the cohort"),
        (("in", "out", "--quiet-for", "nan"), 2, ""),
    ],
)
def test_unusable_arguments_are_refused(tmp_path, monkeypatch, capfd, arguments, code, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "sub").mkdir(parents=True)
    found, err = call(capfd, *arguments)
    assert found == code
    assert sentence in err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_images_ends_with_code_8(tmp_path, capfd):
    (tmp_path / "in" / "Planted").mkdir(parents=True)
    (tmp_path / "in" / "Planted" / "x.txt").write_text("x")
    code, err = call(capfd, tmp_path / "in", tmp_path / "out", "--once", "--quiet-for", 0)
    assert code == 8
    assert "set aside: E5-watch no series with a known contrast" in err
    assert "Planted" not in err


def test_ctrl_c_ends_it_and_its_study_and_the_next_start_continues(site, tmp_path):
    """A watcher in a process of its own, stopped while a study runs."""
    place, order, log = site
    slow = study(place / "one", "T1c")
    (slow / "slow.txt").touch()
    code = (
        "import sys\n"
        "from tumoar.cli.stop import end_when_stopped\n"
        "from tumoar.cohort.incoming import Watched, watch_folder\n"
        "from tumoar.cohort.plan import Limits, Order\n"
        "from pathlib import Path\n"
        f"order = Order({order.out!r}, limits=Limits(1, 4, 1, 0), command={order.command!r})\n"
        "end_when_stopped('stopped', once=True)\n"
        f"list(watch_folder(Watched(Path({str(place)!r}), 0.0), order))\n"
    )
    watcher = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    end = time.monotonic() + 120
    while not log.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(60) == 128 + signal.SIGINT
    record = Path(order.out) / "logs" / "watch.json"
    assert not record.exists() or json.loads(record.read_text()) == {}
    assert len(run(place, Order(order.out, limits=Limits(0.05, 4, 1, 0), command=order.command))) == 1
