"""The Python API does what the command does."""

import ast
import inspect
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import small_head
from small_run import CONFIG, MODEL, finished, stand_ins
from synthetic_heads import synthetic_head

import tumoar
from tumoar.api.options import Options
from tumoar.app.request import Request
from tumoar.app.segment import prepare
from tumoar.app.warm import Warming
from tumoar.app.watch import Listener
from tumoar.cli import main
from tumoar.cli.segment_options import Options as CommandOptions
from tumoar.io.nifti import write_nifti
from tumoar.numerics.threads import use_threads
from tumoar.result.folder import Options as FolderOptions
from tumoar.result.folder import read_manifest, write_result
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, UsageError


def test_a_case_is_read_by_contrast(tmp_path):
    for name in ("T1c", "FLAIR"):
        head = synthetic_head(name)
        write_nifti(tmp_path / f"{name}.nii.gz", head.data, head.grid)
    case = tumoar.Case.from_files(t1c=tmp_path / "T1c.nii.gz", flair=tmp_path / "FLAIR.nii.gz")
    assert [c.name for c in case.contrasts] == ["T1c", "FLAIR"]
    assert case.reference == "T1c"


def test_names_are_what_the_documentation_says_in_any_order():
    """A module of the same name must not hide a function."""
    code = "from tumoar import Case, Model, segment, load_result; assert callable(segment)"
    for first in ("", "import tumoar.app.segment; "):
        subprocess.run([sys.executable, "-c", first + code], check=True)


def test_the_default_model_is_whole():
    model = tumoar.Model.default()
    assert model.labels.K == 18
    assert set(model.sha256) == {"atlas.npz", "shape.npz", "location.npz"}


def test_a_stored_result_is_read_back(tmp_path):
    result = finished()
    write_result(tmp_path / "out", result, (), {"key": "k"}, FolderOptions(), lambda manifest: "", [])
    stored = tumoar.load_result(tmp_path / "out")
    assert np.array_equal(stored.labels, result.labels)
    assert np.array_equal(stored.mask("GTV"), result.mask("GTV"))
    assert np.allclose(stored.probability("GTV"), result.probability("GTV"), atol=1e-6)
    assert stored.volume("GTV").mean == pytest.approx(result.volume("GTV").mean, abs=1e-4)
    with pytest.raises(KeyError, match="no 'Liver'"):
        stored.mask("Liver")
    with pytest.raises(UnreadableFileError):
        tumoar.load_result(tmp_path)


def test_unknown_names_are_errors():
    with pytest.raises(AttributeError, match="nothing"):
        _ = tumoar.nothing


# ---- segment -----------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """`tumoar.segment` runs on the small head, whatever images are named."""
    for place, name, value in stand_ins():
        monkeypatch.setattr(place, name, value)


def bits(folder):
    """What must be equal between runs: everything but the manifest, log and report, which tell times."""
    files = read_manifest(folder)["files"]
    return {name: digest for name, digest in files.items() if name.endswith((".nii.gz", ".tsv"))}


def test_every_option_of_the_command_is_one_of_the_function():
    renamed = {
        "no_register": "register",
        "stripped": "skull_stripped",
        "no_tumor": "tumor",
        "image": "images",
    }
    shown = {"dry_run", "json", "strict", "quiet", "verbose"}
    asked = {renamed.get(f.name, f.name) for f in fields(CommandOptions)} - shown
    assert asked == set(inspect.signature(tumoar.segment).parameters) - {"case", "watch"}
    assert set(Options.__annotations__) == asked - {"output", "model", "config"}


@pytest.mark.slow
def test_command_and_function_write_the_same_bits(small, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["segment", "--t1c", "a", "--flair", "b", "-o", str(tmp_path / "a"), "--margins", "ctv=3", "-q"])
    assert end.value.code == 0
    result = tumoar.segment(t1c="a", flair="b", output=tmp_path / "b", margins="ctv=3")
    assert result.structures[-1] == "CTV"
    assert bits(tmp_path / "a") == bits(tmp_path / "b")
    one, other = (read_manifest(tmp_path / name) for name in "ab")
    assert one["key"] == other["key"]
    assert set(one) == set(other)


@pytest.mark.slow
def test_a_case_is_segmented_as_its_images_are(small, tmp_path):
    live = tumoar.segment(small_head.case(), MODEL, CONFIG, seed=3)
    assert np.array_equal(live.labels, finished().labels)
    live.save(tmp_path / "a")
    tumoar.segment(small_head.case(), MODEL, seed=3, output=tmp_path / "b")
    assert bits(tmp_path / "a") == bits(tmp_path / "b")
    assert read_manifest(tmp_path / "a")["key"] == read_manifest(tmp_path / "b")["key"]


def test_progress_goes_to_a_callback_and_nothing_is_printed(small, capfd):
    steps = []
    tumoar.segment(t1c="a", watch=steps.append)
    assert {step.stage for step in steps} == {"place", "fit", "sample"}
    last = steps[-1]
    assert last.done == last.total == 24
    assert last.figures["core"] > 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_an_interrupted_run_is_continued_to_the_same_bits(small, tmp_path):
    def stop(progress):
        if progress.stage == "sample" and progress.done == 9:
            raise KeyboardInterrupt

    tumoar.segment(t1c="a", output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tumoar.segment(t1c="a", output=tmp_path / "out", watch=stop)
    with pytest.raises(UsageError, match="E2-resume the output has an interrupted run"):
        tumoar.segment(t1c="a", output=tmp_path / "out")
    steps = []
    tumoar.segment(t1c="a", output=tmp_path / "out", resume=True, watch=steps.append)
    assert min(step.done for step in steps if step.stage == "sample") >= 9
    assert bits(tmp_path / "out") == bits(tmp_path / "whole")
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.slow
def test_the_same_result_is_returned_again_and_another_one_refused(small, tmp_path):
    first = tumoar.segment(t1c="a", output=tmp_path / "out")
    before = (tmp_path / "out" / "run.json").read_bytes()
    again = tumoar.segment(t1c="a", output=tmp_path / "out")
    assert np.array_equal(first.labels, again.labels)
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    with pytest.raises(IntegrityError, match="E12-B57"):
        tumoar.segment(t1c="a", output=tmp_path / "out", seed=1)
    assert tumoar.segment(t1c="a", output=tmp_path / "out", seed=1, overwrite=True).manifest["seed"] == 1


@pytest.mark.slow
def test_contrasts_are_left_out_one_by_one_on_request(small, tmp_path):
    result = tumoar.segment(t1c="a", output=tmp_path / "out", ablate=True)
    assert "ablation.tsv" in result.manifest["files"]


def test_a_drawn_tumor_and_an_excluded_part_are_kept(small):
    case = small_head.case()
    _, z, _ = small_head.truth()
    half = np.zeros(z.shape, np.uint8)
    half[:8] = 1
    result = tumoar.segment(case, fix_tumor=tumoar.Image(z, case.grid), exclude=tumoar.Image(half, case.grid))
    assert np.array_equal(result.votes.z, z)
    assert result.case.excluded[:8].all()


@pytest.mark.slow
def test_the_callers_threads_are_restored(small):
    before = use_threads(None)
    tumoar.segment(t1c="a", threads=1)
    assert use_threads(None) == before


def test_flair2_takes_the_place_of_both(monkeypatch):
    heads = {name: synthetic_head(name) for name in ("T1c", "FLAIR", "T2")}
    request = Request(images=heads, model=MODEL, flair2=True, register=False)
    ready = prepare(request, Listener(), Warming())
    assert [c.name for c in ready.case.contrasts] == ["T1c", "FLAIR2"]


def scan():
    """An image that is no mask."""
    case = small_head.case()
    return tumoar.Image(np.nan_to_num(100 * np.exp(case.D[0])).astype(np.int16), case.grid)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "E2-images no image given"),
        ({"t1c": "x", "images": {"T1C": "y"}}, "E2-images T1c is given twice"),
        ({"t1c": "x", "images": {"swi": "y"}}, "E2-contrast unknown contrast 'swi'"),
        ({"t1c": "nowhere.nii.gz"}, "E3-B1 cannot read the image"),
        ({"t1c": "x", "rtstruct": True}, "E2-output rtstruct needs an output folder"),
        ({"t1c": "x", "resume": True}, "E2-output resume needs an output folder"),
        ({"t1c": "x", "structures": "Liver"}, "E2-structures no structure 'Liver'"),
        ({"t1c": "x", "structures": "GTV", "margins": "ctv=3"}, "E2-margins margins need GTV and Brain"),
        ({"t1c": "x", "margins": "ctv=nan"}, "E2-margins margins not usable"),
        ({"t1c": "x", "tumor": False, "margins": "ctv=3"}, "E2-structures organs only, but margins is about"),
        ({"t1c": "x", "tumor": False, "fix_tumor": "y"}, "E2-structures organs only, but fix_tumor is about"),
        ({"t1c": "x", "tumor": False, "postop": True}, "E2-B55 a resection cavity is not found without"),
        ({"t1c": "x", "samples": 0}, "E2-B55 setting gibbs.samples"),
        ({"t1c": "x", "prior": "magic"}, "E2-B55 setting prior"),
        ({"t1c": "x", "fast": True, "config": CONFIG}, "E2-B55 both fast and a Config given"),
        ({"t1c": "x", "method": "paper", "config": CONFIG}, "E2-B55 both the method paper and a Config"),
        ({"t1c": "x", "method": "new"}, "E2-B55 unknown method 'new'"),
        ({"t1c": "x", "seed": -1}, "E2-options seed is out of range"),
        ({"t1c": "x", "min_volume": float("nan")}, "E2-options min_volume is out of range"),
        ({"t1c": "x", "max_memory": float("inf")}, "E2-options max_memory is out of range"),
        ({"case": small_head.case(), "fix_tumor": scan()}, "E5-mask not a mask"),
        ({"case": small_head.case(), "exclude": scan()}, "E5-mask not a mask"),
        ({"case": small_head.case(), "t1c": "x"}, "E2-images both a case and images given"),
        ({"case": small_head.case(), "max_memory": 0.2}, "E10-memory this case needs about"),
        ({"t1c": "x", "output": "/"}, "E2-output the output must be a folder of its own"),
    ],
)
def test_refusals_are_those_of_the_command(options, sentence):
    with pytest.raises(tumoar.TumoarError) as refusal:
        tumoar.segment(model=MODEL, **options)
    assert str(refusal.value).startswith(sentence)


def test_a_check_refuses_what_a_run_would_and_writes_nothing(monkeypatch, tmp_path):
    case = small_head.case()
    swapped = replace(case, contrasts=case.contrasts[::-1])
    for place, name, value in stand_ins():
        monkeypatch.setattr(place, name, value)
    assert tumoar.check(case, output=tmp_path / "out") is None
    with pytest.raises(tumoar.TumoarError, match="were FLAIR and T1c swapped"):
        tumoar.check(swapped, output=tmp_path / "out")
    assert inspect.signature(tumoar.check).parameters == inspect.signature(tumoar.segment).parameters
    assert list(tmp_path.iterdir()) == []


def test_a_misspelled_option_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'flar', did you mean 'flair'"):
        tumoar.segment(flar="x")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"case": "t1c.nii.gz"}, "case must be a Case, got str; give images by contrast"),
        ({"t1c": np.zeros((4, 4, 4))}, "T1c must be one of str, Path, Image, got ndarray"),
        ({"t1c": "x", "fix_tumor": np.zeros((4, 4, 4))}, "fix_tumor must be one of Image, Given"),
        ({"t1c": "x", "config": {"chains": 2}}, "config must be one of Config"),
        ({"t1c": "x", "output": 1}, "output must be one of"),
    ],
)
def test_a_value_of_another_type_is_a_type_error(options, sentence):
    with pytest.raises(TypeError) as error:
        tumoar.segment(**options)
    assert str(error.value).startswith(sentence)


def test_a_result_is_found_after_a_change_of_folder(tmp_path, monkeypatch):
    write_result(tmp_path / "out", finished(), (), {"key": "k"}, FolderOptions(), lambda manifest: "", [])
    monkeypatch.chdir(tmp_path)
    stored = tumoar.load_result("out")
    monkeypatch.chdir("/")
    assert stored.mask("GTV").any()


def test_names_are_listed_and_types_are_published():
    assert dir(tumoar) == sorted(tumoar.__all__)
    assert all(getattr(tumoar, name) is not None for name in tumoar.__all__)
    assert (Path(tumoar.__file__).parent / "py.typed").is_file()


def test_cases_and_models_are_short_in_text():
    case = tumoar.Case(**{f.name: getattr(small_head.case(), f.name) for f in fields(small_head.case())})
    assert repr(case) == "Case(T1c, FLAIR; whole head, 48×48×48 mm, in the space of T1c)"
    assert repr(tumoar.Model.default()).startswith("Model(GTV, Edema, ")


def test_the_command_is_made_of_short_functions():
    tree = ast.parse((Path(tumoar.__file__).parent / "cli" / "segment.py").read_text(encoding="utf-8"))
    lengths = {n.name: n.end_lineno - n.lineno + 1 for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert "segment" in lengths
    assert max(lengths.values()) <= 40, lengths
