"""After surgery, through the commands: what is said, written, exported and scored."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
import small_head
import small_surgery
from pydicom import dcmread
from rt_files import write_series
from small_run import CONFIG, MODEL

from tumoar.app import pipeline as line
from tumoar.app.publish import Job, execute, summarize
from tumoar.cli import main
from tumoar.cli.watch import Watch
from tumoar.geometry.image import Grid
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.placement.affine import AffineResult
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.targets import add_margins
from tumoar.result.folder import read_manifest

N = small_head.SIZE
FLIP = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
PARTS = ("Cavity", "GTV_residual", "GTV")


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return end.value.code, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A result after a partial resection, with a series of its voxels, and what was said at its end."""
    path = tmp_path_factory.mktemp("postop")
    config = CONFIG.model_copy(update={"postop": True, "least_tumor": 0.0})
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
        patch.setattr(Watch, "say", lambda self, text, **more: said.append(text))
        case = small_surgery.case_of(small_surgery.remove_core()[0])
        found = execute(case, MODEL, Job(path / "out", config, 3), Watch(quiet=True))
        summarize(*found, path / "out", Watch(quiet=True))
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(path / "t1c", values, Grid((N, N, N), FLIP), frame="1.2.1")
    (path / "said.txt").write_text("\n".join(said))
    return path


def table(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def masks(out):
    return {name: np.asarray(read_nifti(out / "structures" / f"{name}.nii.gz").data) > 0 for name in PARTS}


def test_the_gtv_is_cavity_and_residual_tumor(folder):
    found = masks(folder / "out")
    assert found["Cavity"].sum() > 200
    assert not (found["Cavity"] & found["GTV_residual"]).any()
    assert np.array_equal(found["Cavity"] | found["GTV_residual"], found["GTV"])
    volumes = {row["name"]: row for row in table(folder / "out" / "volumes.tsv")}
    for name in PARTS:
        assert float(volumes[name]["outlined_cm3"]) == pytest.approx(found[name].sum() / 1000, abs=1e-3)
    assert volumes["GTV"]["made_of"] == "resection cavity and enhancing core"


def test_no_residual_enhancement_is_an_answer_everywhere(folder):
    """Less core than is measurable is left of the small head."""
    said, page = (folder / "said.txt").read_text(), (folder / "out" / "report.html").read_text("utf-8")
    for text in (said, page, str(read_manifest(folder / "out"))):
        assert "no residual enhancement found" in text
    for name in PARTS:
        assert any(line.startswith(f"{name} ") for line in said.splitlines())
        assert name in page
    assert "GTV_residual" in {row["name"] for row in table(folder / "out" / "volumes.tsv")}


def test_structures_of_the_export(folder, capfd):
    code, _, err = call(capfd, "export", folder / "out", "--rtstruct", "--seg", "--reference", folder / "t1c")
    assert code == 0, err
    drawn = folder / "out" / "dicom" / "RTSTRUCT.dcm"
    data = dcmread(drawn)
    names = {r.ROINumber: r.ROIName for r in data.StructureSetROISequence}
    kinds = {names[o.ReferencedROINumber]: o.RTROIInterpretedType for o in data.RTROIObservationsSequence}
    assert [kinds[name] for name in PARTS] == ["CAVITY", "GTV", "GTV"]
    shutil.copy(drawn, folder / "own.dcm")
    code, _, err = call(
        capfd, "evaluate", folder / "out", "--reference", folder / "own.dcm", "-o", folder / "same"
    )
    assert code == 0, err
    scores = {row["structure"]: float(row["dice"]) for row in table(folder / "same" / "scores.tsv")}
    assert {name: scores[name] for name in PARTS} == dict.fromkeys(PARTS, 1.0)


def test_cavities_of_others_are_compared(folder, capfd, tmp_path):
    """A structure set with a clinic's name for it, and a label map with values of its own."""
    call(capfd, "export", folder / "out", "--rtstruct", "--reference", folder / "t1c")
    data = dcmread(folder / "out" / "dicom" / "RTSTRUCT.dcm")
    for roi in data.StructureSetROISequence:
        roi.ROIName = {"Cavity": "Resection cavity"}.get(roi.ROIName, roi.ROIName)
    data.save_as(tmp_path / "clinic.dcm")
    code, _, err = call(
        capfd, "evaluate", folder / "out", "--reference", tmp_path / "clinic.dcm", "-o", tmp_path / "a"
    )
    assert code == 0, err
    assert {r["structure"]: float(r["dice"]) for r in table(tmp_path / "a" / "scores.tsv")}["Cavity"] == 1
    found = masks(folder / "out")
    grid = read_nifti(folder / "out" / "structures" / "GTV.nii.gz").grid
    values = np.where(found["Cavity"], 4, np.where(found["GTV_residual"], 1, 0)).astype(np.uint8)
    write_nifti(tmp_path / "map.nii.gz", values, grid)
    code, _, err = call(
        capfd,
        *("evaluate", folder / "out", "--reference", tmp_path / "map.nii.gz", "-o", tmp_path / "b"),
        *("--values", "Cavity=4", "--values", "GTV_residual=1", "--values", "GTV=1,4"),
    )
    assert code == 0, err
    scores = {row["structure"]: float(row["dice"]) for row in table(tmp_path / "b" / "scores.tsv")}
    assert {name: scores[name] for name in PARTS} == dict.fromkeys(PARTS, 1.0)


def test_margins_grow_around_both(folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    ctv, ptv = add_margins(out, Margins(5, 3))
    found, grown = masks(out), np.asarray(read_nifti(out / "structures" / "CTV.nii.gz").data) > 0
    assert (grown >= found["GTV"]).all()
    assert ctv["outlined_cm3"] < ptv["outlined_cm3"]
