"""Adding a contrast, as docs/adding.md says: one row in a file of the clinic's own, `--contrasts FILE`."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import small_head
from hypothesis import given, settings
from hypothesis import strategies as st
from small_run import stand_ins

import tumoar
from tumoar.cli import main
from tumoar.cohort.subjects import find_subjects
from tumoar.io.contrasts import read_contrasts
from tumoar.io.nifti import write_nifti
from tumoar.placement.tissue_order import contradictions
from tumoar.report import read_page
from tumoar.report.group import thumbnails
from tumoar.result.folder import read_manifest
from tumoar.vocabulary.contrasts import (
    Contrast,
    Darker,
    default_contrasts,
    extend_contrasts,
    find_contrast,
)
from tumoar.vocabulary.errors import ModelFileError, TumoarError
from tumoar.vocabulary.labels import default_labels

ROW = """
[SWI]
bias_field = true
transform = "log"
tumor_start = "like-normal"
darker = [{ tissue = "GGM", than = "CSF" }]
bids = ["swi"]
reference_rank = 1
picture_rank = 1
"""
MEANS = {"background": 1.0, "GWM": 5.2, "GGM": 5.0, "CSF": 5.6, "edema": 5.5, "core": 4.6}


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "contrasts.toml"
    path.write_text(ROW, encoding="utf-8")
    return path


def swi():
    """What an SWI of the small head shows."""
    labels, (l, z, y) = small_head.LABELS, small_head.truth()
    x = labels.x_of_l[l]
    x[z == 1], x[y == 1] = labels.edema, labels.core
    mean = np.zeros(labels.X)
    for name, value in MEANS.items():
        mean[labels.x_named(name)] = value
    return np.exp(mean[x] + small_head.SD * np.random.default_rng(1).standard_normal(l.shape))


def command(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


@pytest.fixture
def images(tmp_path):
    case = small_head.case()
    files = {name: tmp_path / f"{name}.nii.gz" for name in ("T1c", "FLAIR", "SWI")}
    for path, values in zip(files.values(), (*np.exp(case.D), swi())):
        write_nifti(path, values.astype(np.float32), case.grid)
    return files


@pytest.mark.slow
def test_an_image_of_an_own_contrast_goes_through_segment_and_report(images, own, tmp_path, monkeypatch):
    for place, name, value in stand_ins():
        if name not in ("read", "assemble"):
            monkeypatch.setattr(place, name, value)
    given = ("--t1c", images["T1c"], "--flair", images["FLAIR"], "--image", f"{images['SWI']}:SWI")
    out = tmp_path / "out"
    rest = ("--contrasts", own, "--no-register", "--whole-head", "--quiet")
    assert command("segment", *given, "-o", out, *rest[2:]) == 2, "there is no such contrast without the row"
    assert command("segment", *given, "-o", out, *rest) == 0
    manifest = read_manifest(out)
    assert [given["contrast"] for given in manifest["inputs"]] == ["T1c", "FLAIR", "SWI"]
    assert manifest["reference"] == "SWI"  # by its rank
    assert manifest["contrasts"]["SWI"]["darker"] == [{"tissue": "GGM", "than": "CSF", "weak": False}]
    assert command("report", out) == 0
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "SWI" in [row["name"] for row in read_page(out / "report.html")["contrasts"]]
    assert {picture["contrast"] for picture in thumbnails(html)} == {"SWI"}  # by its rank
    # The same images with another row are another run.
    own.write_text(ROW.replace("reference_rank = 1", "reference_rank = 99"), encoding="utf-8")
    assert command("segment", *given, "-o", out, *rest) != 0


def test_python_takes_the_same_file(images, own):
    files = {name.lower(): path for name, path in images.items()}
    case = tumoar.Case.from_files(**files, contrasts=own, register=False, skull_stripped=False)
    assert [contrast.name for contrast in case.contrasts] == ["T1c", "FLAIR", "SWI"]
    assert case.contrasts[2].bids == ("swi",)


def test_inspect_takes_the_same_file(images, own, capfd):
    words = ("inspect", "--image", f"{images['SWI']}:swi", "--json")
    assert command(*words) == 2
    capfd.readouterr()
    command(*words, "--contrasts", own)
    assert json.loads(capfd.readouterr().out)


def test_a_cohort_finds_images_by_the_suffix_of_a_row(tmp_path, own, capfd):
    anat = tmp_path / "raw" / "sub-1" / "anat"
    anat.mkdir(parents=True)
    for suffix in ("FLAIR", "swi"):
        (anat / f"sub-1_{suffix}.nii.gz").touch()
    (found,) = find_subjects(tmp_path / "raw")
    assert list(found.images) == ["FLAIR"]
    (found,) = find_subjects(tmp_path / "raw", (), read_contrasts(own))
    assert list(found.images) == ["FLAIR", "SWI"]
    plan = ("cohort", tmp_path / "raw", tmp_path / "out", "participant", "--dry-run")
    assert command(*plan, "--", "--contrasts", own) == 0
    assert "FLAIR SWI" in capfd.readouterr().out


def test_a_row_says_which_tissues_are_darker(own):
    row = find_contrast("SWI", read_contrasts(own))
    (found,) = contradictions([row], [{("GGM", "CSF"): 0.3}])
    assert found.text == "gray matter is brighter than fluid in the image given as SWI"
    assert found.margin == 0.3


def test_a_row_of_the_same_name_replaces_ours_and_others_stay():
    table = extend_contrasts({"T2": {"bias_field": False, "transform": "log"}}, default_labels())
    assert table["T2"] == Contrast("T2", "log", False)
    ours = default_contrasts()
    assert {name: row for name, row in table.items() if name != "T2"} == {
        n: r for n, r in ours.items() if n != "T2"
    }


def test_a_row_like_another_may_change_some_of_it():
    row = {"like": "T1c", "bias_field": False, "darker": [{"tissue": "CSF", "than": "GGM", "weak": True}]}
    late, ours = extend_contrasts({"late": row}, default_labels())["late"], default_contrasts()["T1c"]
    assert late == replace(
        ours, name="late", bias_field=False, darker=(Darker("CSF", "GGM", True),), bids=(),
        reference_rank=None, picture_rank=None, tumor_deviation=None,
    )  # fmt: skip


def test_ours_fit_our_labels():
    assert extend_contrasts({}, default_labels()) == default_contrasts()


LOG = {"bias_field": True, "transform": "log"}
BROKEN = {
    "unknown key 'bias'; known keys: transform": {**LOG, "bias": 1},
    "transform is missing": {"bias_field": True},
    "bias_field cannot be 1": {"bias_field": 1, "transform": "log"},
    "a contrast must be a table, not 3": 3,
    "FLAIR already has the BIDS suffix 'FLAIR'": {**LOG, "bids": ["FLAIR"]},
    "a BIDS suffix must be letters": {**LOG, "bids": ["../x"]},
    "reference_rank 0 is not between 1 and 1000": {**LOG, "reference_rank": 0},
    "tissue 'bone' is not one of": {**LOG, "darker": [{"tissue": "bone", "than": "CSF"}]},
    "CSF is compared with itself": {**LOG, "darker": [{"tissue": "CSF", "than": "CSF"}]},
    "darker must be a list of tables": {**LOG, "darker": ["CSF"]},
    "has the unknown contrast 'T7'": {
        **LOG, "ratio_below": [{"tissue": "CSF", "to": "GGM", "contrasts": ["T7"]}],
    },
    "core cannot be nan": {**LOG, "tumor_start": {"core": float("nan"), "edema": 0}},
    "factor and divisor must be positive": {
        **LOG, "constraints": [{"gmm": "core", "op": ">=", "refs": ["GWM"], "divisor": 0}],
    },
    "without 'like'; DIR has one": {"like": "DIR"},
    "must name another contrast, not 'new'": {"like": "new"},
}  # fmt: skip


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_row_is_refused_in_one_sentence(sentence):
    with pytest.raises(ModelFileError) as refusal:
        extend_contrasts({"new": BROKEN[sentence]}, default_labels())
    assert sentence in refusal.value.what
    assert refusal.value.what.startswith("invalid contrast 'new': ")


def test_names_that_differ_in_letters_alone_or_are_no_names_are_refused():
    for name in ("flair", "../x", "a-2", "a_b", "", "ü", "x" * 40, "Subject", "session"):
        with pytest.raises(ModelFileError, match="invalid contrast"):
            extend_contrasts({name: LOG}, default_labels())


def test_the_refusal_names_the_file(own):
    own.write_text("[SWI]\nbias_feild = true\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"unknown key 'bias_feild'.* file: contrasts.toml"):
        read_contrasts(own)


VALUE = st.one_of(
    st.sampled_from(["log", "hounsfield", "like-normal", "GWM", "CSF", "core", ">=", "FLAIR", "all", ""]),
    st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=3), st.none(),
)  # fmt: skip
WORDS = """transform bias_field tumor_start constraints darker ratio_below bids agent like reference_rank
picture_rank gmm op refs factor divisor component tissue than to contrasts weak core edema"""
KEY = st.sampled_from(WORDS.split())
NESTED = st.recursive(
    VALUE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=4), max_leaves=6
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.dictionaries(KEY, NESTED, max_size=4), st.sampled_from(["SWI", "FLAIR", "a b"]), st.booleans())
def test_a_row_of_anything_is_read_or_refused(row, name, whole):
    row = {**LOG, **row} if whole and "like" not in row else row
    try:
        found = extend_contrasts({name: row}, default_labels())[name]
    except TumoarError:
        return
    assert isinstance(found, Contrast)
    assert found.transform in ("log", "hounsfield")
