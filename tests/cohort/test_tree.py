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
from tumoar.io.nifti import read_nifti
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.errors import UsageError

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


@pytest.mark.slow
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
