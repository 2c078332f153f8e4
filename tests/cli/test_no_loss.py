"""No command replaces, removes or half writes a file of the user's, whatever folder it is given."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import product

import pytest
import small_run
from synthetic_heads import synthetic_head

from tumoar.cli import main
from tumoar.io.manifest import read_manifest
from tumoar.io.nifti import write_nifti


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """`tumoar segment` runs on the small head, whatever images are named."""
    for place, name, value in small_run.stand_ins():
        monkeypatch.setattr(place, name, value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from small_head import case

    from tumoar.app.publish import Job, execute
    from tumoar.cli.watch import Watch

    out = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in small_run.stand_ins():
            patch.setattr(place, name, value)
        execute(case(), small_run.MODEL, Job(out, small_run.CONFIG, 0), Watch(quiet=True))
    return out


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in ("T1c", "FLAIR"):
        head = synthetic_head(name)
        write_nifti(folder / f"{name.lower()}.nii.gz", head.data, head.grid)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch, finished, scans):
    """A folder of scans with a finished result in it, as the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(scans, tmp_path / "scans")
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path


def everything(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    told = capfd.readouterr()
    assert "Traceback" not in told.err
    return end.value.code, told.out + told.err


SEGMENT = ("segment", "--t1c", "scans/t1c.nii.gz", "--flair", "scans/flair.nii.gz")


PLACES = ("scans", ".", "..", "/", "scans/t1c.nii.gz", "scans/..")
EXTRAS = ((), ("--overwrite",), ("--overwrite", "--dry-run"), ("--dry-run",))
OTHERS = ("out", "scans", ".", "/")


def every(*choices):
    """All combinations; those beside a covering diagonal are slow."""
    for at in product(*(range(len(c)) for c in choices)):
        is_slow = any((n - at[0]) % min(len(choices[0]), len(c)) for n, c in zip(at[1:], choices[1:]))
        yield pytest.param(*(c[n] for n, c in zip(at, choices)), marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize(("place", "extra"), every(PLACES, EXTRAS))
def test_segment_never_takes_a_folder_that_is_not_its_own(here, capfd, place, extra):
    before = everything(here)
    code, told = call(capfd, *SEGMENT, "-o", place, *extra)
    assert code in (2, 12), told
    assert told.startswith(("E12-B57", "E2-output")), told
    assert everything(here) == before


@pytest.mark.parametrize("option", ["--exclude", "--fix-tumor", "--config", "--model"])
def test_an_input_of_any_option_keeps_its_folder(here, capfd, option):
    shutil.move(here / "out", here / "kept")
    shutil.copytree(here / "kept", here / "out")
    shutil.copy(here / "scans" / "t1c.nii.gz", here / "out" / "given")
    before = everything(here)
    code, told = call(capfd, *SEGMENT, option, "out/given", "-o", "out", "--overwrite")
    assert (code, told.split(" |")[0]) == (12, "E12-B57 the output folder holds an input")
    assert everything(here) == before


@pytest.mark.slow
def test_a_result_is_replaced_on_request(here, capfd):
    code, told = call(capfd, *SEGMENT, "-o", "out", "--overwrite", "--seed", 5, "-q")
    assert code == 0, told
    assert read_manifest(here / "out")["seed"] == 5


@pytest.mark.parametrize("missing", ["segmentation.nii.gz", "structures/Brainstem.nii.gz", "run.json"])
@pytest.mark.parametrize(
    "command",
    [
        partial(lambda: (*SEGMENT, "-o", "out")),
        partial(lambda: ("report", "out")),
        partial(lambda: ("dose", "out", "--dose", "scans/t1c.nii.gz")),
        partial(lambda: ("evaluate", "out", "--reference", "scans/t1c.nii.gz", "--values", "GTV=1")),
        partial(lambda: ("export", "out", "--rtstruct", "--reference", "scans")),
    ],
    ids=["segment", "report", "dose", "evaluate", "export"],
)
def test_an_incomplete_result_is_refused_everywhere(here, capfd, command, missing):
    (here / "out" / missing).unlink()
    before = everything(here)
    code, told = call(capfd, *command())
    assert code in (3, 12), told
    assert everything(here) == before


@pytest.mark.parametrize("place", [".", "../here/out", "./"])
def test_a_result_is_found_from_inside_it(here, capfd, monkeypatch, place):
    (here / "here").mkdir()
    shutil.move(here / "out", here / "here" / "out")
    monkeypatch.chdir(here / "here" / "out" if place != "../here/out" else here / "here")
    code, told = call(capfd, "report", place)
    assert code == 0, told
    assert "out/report.html" in told
    read_manifest(here / "here" / "out")


@pytest.mark.parametrize("command", ["dose", "evaluate", "simulate"])
@pytest.mark.parametrize(("place", "extra"), every(OTHERS, EXTRAS[:2]))
def test_other_commands_take_no_folder_that_is_not_theirs(here, capfd, command, place, extra):
    words = {
        "dose": ("dose", "out", "--dose", "scans/t1c.nii.gz"),
        "evaluate": ("evaluate", "out", "--reference", "scans/t1c.nii.gz", "--values", "GTV=1"),
        "simulate": ("simulate",),
    }[command]
    before = everything(here)
    code, told = call(capfd, *words, "-o", place, *extra)
    assert code in (2, 12), told
    assert told.startswith(("E12-B57", "E2-output")), told
    assert everything(here) == before


def test_label_maps_are_not_prepared_over_themselves(here, capfd):
    before = everything(here)
    code, told = call(capfd, "train", "prepare", "scans/t1c.nii.gz", "-o", "scans", "--overwrite")
    assert (code, told.split()[0]) == (12, "E12-B57")
    assert everything(here) == before


@pytest.mark.parametrize(
    "words", [("train", "combine", "scans/t1c.nii.gz"), ("train", "atlas", "scans/t1c.nii.gz")]
)
def test_a_model_is_not_written_over_a_scan(here, capfd, words):
    before = everything(here)
    code, told = call(capfd, *words, "-o", "scans/t1c.nii.gz")
    assert (code, told.split()[0]) == (12, "E12-B57")
    assert everything(here) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--t1c", "scans/flair.nii.gz"), "E2-options --t1c is given 2 times"),
        (("--seed", "1", "--seed", "2"), "E2-options --seed is given 2 times"),
        (
            ("--skull-stripped", "--whole-head"),
            "E2-options --skull-stripped or --whole-head is given 2 times",
        ),
        (("--margins", "ctv=5,ctv=50"), "E2-margins ctv is given twice"),
        (("--margins", "ctv=5,CTV=50"), "E2-margins ctv is given twice"),
        (("--margins", "ctv=nan"), "E2-margins margins not usable"),
        (("--max-memory", "inf"), "E2-options --max-memory is not a finite number"),
    ],
)
def test_options_given_twice_or_without_a_finite_value_are_refused(here, capfd, words, sentence):
    code, told = call(capfd, *SEGMENT, "-o", "new", *words)
    assert code == 2
    assert sentence in told
    assert not (here / "new").exists()


@pytest.mark.parametrize("cm3", ["inf", "nan", "1e9", "-1"])
def test_a_minimum_beyond_any_speck_is_refused(here, capfd, cm3):
    code, _ = call(capfd, *SEGMENT, "-o", "new", "--min-volume", cm3)
    assert code == 2
    assert not (here / "new").exists()


def test_an_organ_that_is_removed_whole_needs_review(here, capfd):
    code, told = call(capfd, *SEGMENT, "-o", "new", "--min-volume", "5", "--strict")
    assert code == 13, told
    assert "min-volume" in told
    assert any(note["id"] == "min-volume" for note in read_manifest(here / "new")["notes"])
