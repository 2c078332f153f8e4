"""`tumoar segment` up to where the work begins: what it refuses and says, that it leaves nothing behind."""

import json
from dataclasses import replace

import numpy as np
import pytest
import small_head
from small_run import stand_ins
from synthetic_heads import synthetic_head

from tumoar.app import segment as use_case
from tumoar.app.settings import resolve
from tumoar.cli import main
from tumoar.io.nifti import write_nifti
from tumoar.placement.affine import AffineResult
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import UsageError


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in ("T1c", "FLAIR"):
        head = synthetic_head(name)
        write_nifti(folder / f"{name}.nii.gz", head.data, head.grid)
    return folder


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    return end.value.code, out, err


@pytest.fixture
def placeable(monkeypatch):
    """The atlas fits these heads, which are too small for it."""
    place = AffineResult(np.eye(4), {})
    monkeypatch.setattr(use_case, "place", lambda *a, **k: place)


def test_a_dry_run_finds_that_the_atlas_does_not_fit(images, tmp_path, capfd):
    code, _, err = call(capfd, "segment", "--t1c", images / "T1c.nii.gz", "-o", tmp_path / "out", "--dry-run")
    assert code == 7
    assert err.splitlines()[-1].startswith("E7-B3")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["--dry-run"], []], ids=["dry run", "run"])
def test_swapped_contrasts_are_refused_before_any_work(command, tmp_path, capfd, monkeypatch):
    case = small_head.case()
    case = replace(case, contrasts=case.contrasts[::-1])
    for place, name, value in stand_ins(case):
        monkeypatch.setattr(place, name, value)
    code, _, err = call(capfd, "segment", "--t1c", "a", "--flair", "b", "-o", tmp_path / "out", *command)
    assert code == 5
    assert "were FLAIR and T1c swapped?" in err.splitlines()[-1]
    assert "fitting" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_trusted_contrasts_are_said_before_the_fit(tmp_path, capfd, monkeypatch):
    case = small_head.case()
    for place, name, value in stand_ins(replace(case, contrasts=case.contrasts[::-1])):
        monkeypatch.setattr(place, name, value)
    given = ("--t1c", "a", "--flair", "b", "-o", tmp_path / "out", "--trust-contrasts")
    code, _, err = call(capfd, "segment", *given, "--strict")
    assert code == 13
    assert err.index("check whether FLAIR and T1c were swapped") < err.index("fitting")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["notes"][0]["id"] == "swapped"


@pytest.mark.usefixtures("placeable")
def test_dry_run_checks_and_writes_nothing(images, tmp_path, capfd):
    code, _, err = call(
        capfd, "segment", "--t1c", images / "T1c.nii.gz", "--flair", images / "FLAIR.nii.gz",
        "-o", tmp_path / "out", "--dry-run",
    )  # fmt: skip
    assert code == 0, err
    assert "in the space of T1c" in err
    assert "nothing was written" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("placeable")
def test_events_are_json_lines(images, tmp_path, capfd):
    code, out, err = call(
        capfd, "segment", "--t1c", images / "T1c.nii.gz", "-o", tmp_path / "out", "--dry-run", "--json"
    )
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert {e["event"] for e in events} == {"progress", "message"}
    assert any("GB of memory" in e.get("text", "") for e in events)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "E2-images no image given"),
        (["--t1c", "nowhere.nii.gz"], 3, "E3-B1 cannot read the image"),
        (["--image", "x.nii.gz"], 2, "E2-images image without a contrast"),
        (["--t1c", "T1c.nii.gz", "--image", "T1c.nii.gz:T1c"], 2, "E2-images T1c is given twice"),
        (["--t1c", "T1c.nii.gz", "--structures", "Liver"], 2, "E2-structures no structure 'Liver'"),
        (["--t1c", "T1c.nii.gz", "--structures", "GTV, Liver"], 2, "E2-structures no structure 'Liver'"),
        (["--t1c", "T1c.nii.gz", "--flair2"], 2, "E2-images FLAIR² needs both"),
        (["--t1c", "T1c.nii.gz", "--reference", "CT"], 2, "E2-reference reference 'CT' is not given"),
        (["--t1c", "T1c.nii.gz", "--method", "paper", "--fast"], 2, "E2-B55 both fast and the method paper"),
        (["--t1c", "T1c.nii.gz", "--samples", "0"], 2, "E2-B55 setting gibbs.samples"),
        (["--t1c", "T1c.nii.gz", "--chains", "9"], 2, "E2-B55 setting values: value error, chains times"),
        (["--t1c", "T1c.nii.gz", "--max-memory", "0.2"], 10, "E10-memory this case needs about"),
    ],
)
def test_refusals(images, tmp_path, capfd, monkeypatch, arguments, code, sentence):
    monkeypatch.chdir(images)
    found, _, err = call(capfd, "segment", "-o", tmp_path / "out", *arguments)
    assert found == code
    assert err.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def settings(tmp_path, text, **flags):
    path = tmp_path / "run.toml"
    path.write_text(text)
    flags = {"fast": False, "tumor": True, "prior": None, "gtv": None, "chains": None, "gibbs": {}} | flags
    return resolve(path, **flags)


def test_flags_go_before_the_file_before_the_defaults(tmp_path):
    found = settings(tmp_path, "chains = 2\n[gibbs]\nsamples = 20\nburn_in = 7", gibbs={"burn_in": 9})
    assert (found.chains, found.gibbs.samples, found.gibbs.burn_in) == (2, 20, 9)
    assert found.gem == Config().gem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[gibbs]\nburnin = 3", "unknown setting 'gibbs.burnin', did you mean 'burn_in'"),
        ("[gem]\nw = 1.5", "setting gem.w"),
        ("chains = ", "the settings file is not valid TOML"),
    ],
)
def test_wrong_settings_are_told(tmp_path, text, sentence):
    with pytest.raises(UsageError, match=sentence):
        settings(tmp_path, text)
