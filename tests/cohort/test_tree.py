"""The BIDS-derivatives tree: content of the one writer, names of BIDS, and what the validator says of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_result import small_result

from tumoar.cohort.plan import Order
from tumoar.cohort.subjects import find_subjects
from tumoar.cohort.tree import begin_tree, publish_tree
from tumoar.io.manifest import read_manifest, write_manifest
from tumoar.io.nifti import read_nifti
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.errors import IntegrityError, UsageError

BESIDE = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
VALIDATOR = shutil.which("bids-validator-deno", path=BESIDE)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("result") / "one"
    write_result(out, small_result(), [], {"reference": "T1c"}, Options(), lambda manifest: "", [])
    return out


@pytest.fixture
def study(tmp_path, result):
    """A dataset of two, one with sessions, and their finished results."""
    raw = tmp_path / "raw"
    for name in ("sub-01", "sub-02/ses-a", "sub-02/ses-b"):
        folder = raw / name / "anat"
        folder.mkdir(parents=True)
        stem = name.replace("/", "_")
        for suffix in ("ce-gd_T1w", "FLAIR"):
            (folder / f"{stem}_{suffix}.nii.gz").write_bytes(b"")
    order = Order(str(raw / "derivatives" / "tumoar"), raw=str(raw))
    begin_tree(order)
    who = find_subjects(raw)
    for subject in who:
        shutil.copytree(result, order.result(subject.name))
        publish_tree(subject, order)
    return who, order


def test_the_tree_holds_what_the_writer_wrote(study):
    _, order = study
    out = Path(order.out)
    assert {p.name for p in out.iterdir()} == {
        ".bidsignore", "README", "dataset_description.json", "logs", "results", "sub-01", "sub-02",
    }  # fmt: skip
    anat = out / "sub-02" / "ses-a" / "anat"
    stem = "sub-02_ses-a_space-T1c"
    assert {"dseg.nii.gz", "dseg.tsv", "dseg.json"} <= {
        p.name.removeprefix(f"{stem}_seg-tumoar_") for p in anat.iterdir()
    }
    ours = order.result("sub-02_ses-a")
    pairs = {
        "segmentation.nii.gz": f"{stem}_seg-tumoar_dseg.nii.gz",
        "probabilities/GTV.nii.gz": f"{stem}_seg-tumoar_label-GTV_probseg.nii.gz",
        "structures/Hippocampus_L.nii.gz": f"{stem}_label-HippocampusL_mask.nii.gz",
    }
    for source, target in pairs.items():
        assert os.path.samefile(ours / source, anat / target)
    assert (read_nifti(anat / pairs["segmentation.nii.gz"]).data > 0).any()
    card = json.loads((anat / f"{stem}_seg-tumoar_dseg.json").read_text())
    assert card["SpatialReference"] == "bids:raw:sub-02/ses-a/anat/sub-02_ses-a_ce-gd_T1w.nii.gz"
    assert json.loads((out / "dataset_description.json").read_text())["DatasetLinks"] == {"raw": "../.."}


def test_sessions_do_not_disturb_each_other_and_copies_serve(study, monkeypatch):
    (_, a, b), order = study
    out = Path(order.out)
    other = out / "sub-02" / "ses-b" / "anat"
    before = sorted(p.stat().st_ino for p in other.iterdir())

    def no_links(source, target):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    shutil.rmtree(out / "sub-02" / "ses-a")
    publish_tree(a, order)
    files = sorted((out / "sub-02" / "ses-a" / "anat").iterdir())
    assert sum(p.name.endswith(".nii.gz") for p in files) > 20
    kept = [p.stat().st_ino for p in files]
    publish_tree(a, order)
    assert [p.stat().st_ino for p in files] == kept, "a good copy stays"
    publish_tree(b, order)
    assert sorted(p.stat().st_ino for p in other.iterdir()) == before


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="E2-output the output folder holds something else"):
        begin_tree(Order(str(tmp_path)))
    (tmp_path / "raw").mkdir()
    with pytest.raises(UsageError, match="E2-output the output is the dataset itself"):
        begin_tree(Order(str(tmp_path / "raw"), raw=str(tmp_path / "raw")))
    assert [p.name for p in tmp_path.rglob("*")] in (["thesis.txt", "raw"], ["raw", "thesis.txt"])


@pytest.mark.long
@pytest.mark.skipif(VALIDATOR is None, reason="needs bids-validator-deno")
def test_the_validator_finds_nothing_wrong(study):
    _, order = study
    for name in ("group.tsv", "group.html"):
        (Path(order.out) / name).write_text("participant_id\n")
    told = subprocess.run(
        [VALIDATOR, "--format", "json", order.out], capture_output=True, text=True, timeout=300
    )
    issues = json.loads(told.stdout)["issues"]["issues"]
    assert {i["code"] for i in issues} <= {"TOO_FEW_AUTHORS"}


@pytest.mark.parametrize("name", ["sub-01_space-T1c_label-GTV_mask.nii.gz", "notes.txt", "more/own.nii.gz"])
@pytest.mark.parametrize("is_new", [False, True])
def test_what_a_reader_has_corrected_or_added_is_never_replaced(study, name, is_new):
    who, order = study
    anat = Path(order.out) / "sub-01" / "anat"
    (anat / name).parent.mkdir(exist_ok=True)
    (anat / name).unlink(missing_ok=True)
    (anat / name).write_text("corrected by hand")
    if is_new:
        change_result(order.result("sub-01"))
    if is_new or "GTV" in name:
        with pytest.raises(IntegrityError, match=r"E12-B57 .*did not write"):
            publish_tree(who[0], order)
    else:
        publish_tree(who[0], order)  # the rest is in its place
    assert (anat / name).read_text() == "corrected by hand"


def test_a_new_result_replaces_the_one_before_in_the_tree(study):
    who, order = study
    change_result(order.result("sub-01"))
    publish_tree(who[0], order)
    assert (Path(order.out) / "sub-01/anat/sub-01_space-T1c_label-GTV_mask.nii.gz").read_text() == "another"


def change_result(folder):
    """As if it had been computed again from other images."""
    manifest = read_manifest(folder)
    (folder / "structures" / "GTV.nii.gz").unlink()
    (folder / "structures" / "GTV.nii.gz").write_text("another")
    write_manifest(folder, {name: value for name, value in manifest.items() if name != "files"})


def test_what_others_say_of_the_dataset_is_kept(study):
    _, order = study
    out = Path(order.out)
    (out / "README").write_text("who may use this")
    (out / ".bidsignore").write_text("mine\n")
    card = json.loads((out / "dataset_description.json").read_text()) | {"Authors": ["A"], "License": "CC0"}
    (out / "dataset_description.json").write_text(json.dumps(card))
    begin_tree(order)
    assert (out / "README").read_text() == "who may use this"
    assert (out / ".bidsignore").read_text() == "mine\n"
    assert json.loads((out / "dataset_description.json").read_text()) == card
