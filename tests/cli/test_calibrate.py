"""`tumoar calibrate`, on results and references whose displacements are known, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small_head
from scipy import ndimage as ndi
from small_result import small_result

from tumoar.app.calibrate import calibrate, compare_organs
from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.calibration import default_calibration, read_calibration, to_json, write_calibration
from tumoar.io.manifest import MANIFEST
from tumoar.io.manifest_schema import seal
from tumoar.io.models import default_model
from tumoar.io.nifti import write_nifti
from tumoar.model.calibration import digest_conditions
from tumoar.result.folder import Options, read_manifest, write_result
from tumoar.result.stored import Stored
from tumoar.review.session import Session
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import UnreadableFileError

GRID = Grid((small_head.SIZE,) * 3, np.eye(4))
NAMES = [f"p{n:02}" for n in range(10)]


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """Ten results; references are the truth, grown by a voxel for odd patients."""
    top = tmp_path_factory.mktemp("patients")
    (top / "results").mkdir()
    (top / "references").mkdir()
    _, z, y = small_head.truth()
    first = top / "results" / NAMES[0]
    manifest = {"key": "k", "reference": "T1c", "conditions": "a" * 64}
    manifest["inputs"] = [{"contrast": name} for name in ("T1c", "FLAIR")]
    write_result(first, small_result(), [], manifest, Options(), lambda m: "<html></html>", ["a line"])
    for number, name in enumerate(NAMES):
        if number:
            shutil.copytree(first, top / "results" / name)
        labels = sum(ndi.binary_dilation(m, iterations=1) if number % 2 else m for m in (z > 0, y > 0))
        write_nifti(top / "references" / f"{name}.nii.gz", np.asarray(labels, np.uint8), GRID)
    return top


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["calibrate", *map(str, arguments)])
    out, err = capfd.readouterr()
    return end.value.code, out, err


def test_a_calibration_is_learned_from_a_folder_of_references(patients, tmp_path, capfd):
    to = tmp_path / "own.json"
    code, out, err = call(capfd, patients / "results", "--references", patients / "references", "-o", to)
    assert code == 0, err
    (entry,) = read_calibration(to).entries
    assert entry.cases == "patients"
    assert entry.contrasts == ("FLAIR", "T1c")
    assert entry.conditions == "a" * 64
    for name in ("core", "whole"):
        displacements = entry.structures[name].displacements
        assert len(displacements) == 10
        assert displacements[-1] == pytest.approx(0.8, abs=0.4)
        assert displacements[0] == pytest.approx(0, abs=0.4)
    assert "note: core: with fewer than 19 references" in out
    code, _, err = call(capfd, patients / "results", "--references", patients / "references", "-o", to)
    assert code == 12
    assert err.startswith("E12-B57 the calibration file already exists")


@pytest.mark.slow
def test_organs_are_calibrated_on_masks_of_experts(patients, tmp_path, capfd):
    stored = Stored(patients / "results" / NAMES[0], read_manifest(patients / "results" / NAMES[0]))
    drawn, to, results = tmp_path / "organs", tmp_path / "own.json", tmp_path / "results"
    shutil.copytree(patients / "results", results)
    grown = ndi.binary_dilation(stored.mask("Brain"), iterations=1)
    for name in NAMES:
        (drawn / name).mkdir(parents=True)
        write_nifti(drawn / name / "whole brain.nii.gz", grown.astype(np.uint8), GRID)
    references = ("--references", patients / "references", "--organs", drawn)
    code, err = refusal(capfd, results, *references, "-o", to)
    assert "an earlier version" in err  # which did not say for which organs its numbers hold
    for path in results.glob(f"*/{MANIFEST}"):
        own = {"conditions": {"tumor": "a" * 64, "organs": "b" * 64}}
        path.write_text(seal(read_manifest(path.parent) | own))
    code, out, err = call(capfd, results, *references, "-o", to)
    assert code == 0, err
    tumor, organs = read_calibration(to).entries
    assert set(tumor.structures) == {"core", "whole"}
    assert len(organs.structures["Brain"].displacements) == 10
    assert organs.structures["Brain"].displacements[0] == pytest.approx(0.9, abs=0.3)
    assert "Brain: 10 references" in out
    shutil.copy(drawn / NAMES[1] / "whole brain.nii.gz", drawn / NAMES[1] / "Spleen.nii.gz")
    code, err = refusal(capfd, results, *references, "-o", tmp_path / "other.json")
    assert code == 2
    assert "not the name of an organ of the result" in err
    assert not (tmp_path / "other.json").exists()
    for name in NAMES[:2]:
        shutil.rmtree(drawn / name)
    code, err = refusal(capfd, results, *references, "-o", tmp_path / "other.json")
    assert "too few references" in err


def test_a_list_pairs_results_and_references(patients, tmp_path, capfd):
    rows = [f"{name},{patients / 'references' / name}.nii.gz" for name in NAMES[:9]]
    listed = tmp_path / "list.csv"
    listed.write_text("result,reference\n" + "\n".join(rows) + "\n")
    to = tmp_path / "own.json"
    code, out, err = call(capfd, patients / "results", "--references", listed, "-o", to, "--core", "2")
    assert code == 0, err
    assert "without a reference: p09" in out
    assert len(read_calibration(to).entries[0].structures["core"].displacements) == 9


def refusal(capfd, *arguments):
    code, _, err = call(capfd, *arguments)
    assert err.count("\n") == 1
    return code, err


def test_too_few_references_are_refused_with_the_reason(patients, tmp_path, capfd):
    few = tmp_path / "few"
    few.mkdir()
    for name in NAMES[:8]:
        shutil.copy(patients / "references" / f"{name}.nii.gz", few)
    code, err = refusal(capfd, patients / "results", "--references", few, "-o", tmp_path / "own.json")
    assert code == 2
    assert err.startswith("E2-calibration too few references for a 90 % interval | found: 8 results")
    assert (
        "at least 9: the farthest of n displacements bounds the next one with probability n / (n + 1)" in err
    )
    assert not (tmp_path / "own.json").exists()


def test_results_of_different_kinds_are_refused(patients, tmp_path, capfd):
    results = tmp_path / "results"
    shutil.copytree(patients / "results", results)
    other = results / NAMES[3]
    (other / MANIFEST).write_text(seal(read_manifest(other) | {"conditions": "b" * 64}))
    code, err = refusal(capfd, results, "--references", patients / "references", "-o", tmp_path / "own.json")
    assert code == 2
    assert "different models, settings or contrasts" in err


def test_a_patient_that_is_given_twice_is_refused(patients, tmp_path, capfd):
    results, to = tmp_path / "results", tmp_path / "own.json"
    shutil.copytree(patients / "results", results)
    for name, digest in zip(NAMES[:3], ("c" * 64, "d" * 64, "c" * 64)):
        inputs = [{"contrast": "T1c", "sha256": digest}, {"contrast": "FLAIR"}]
        (results / name / MANIFEST).write_text(seal(read_manifest(results / name) | {"inputs": inputs}))
    code, err = refusal(capfd, results, "--references", patients / "references", "-o", to)
    assert code == 2
    assert "two results are of the same image | found: p00 and p02" in err
    listed = tmp_path / "list.csv"
    rows = [f"{name},{patients / 'references' / NAMES[0]}.nii.gz" for name in NAMES]
    listed.write_text("result,reference\n" + "\n".join(rows) + "\n")
    code, err = refusal(capfd, patients / "results", "--references", listed, "-o", to)
    assert "two results have the same reference" in err
    assert not to.exists()


def test_rows_of_a_list_without_a_result_are_named(patients, tmp_path, capfd):
    listed = tmp_path / "list.csv"
    rows = [f"{name},{patients / 'references' / name}.nii.gz" for name in NAMES[:9]]
    listed.write_text("result,reference\n" + "\n".join(rows) + "\nP09,x.nii.gz\n")
    code, out, err = call(capfd, patients / "results", "--references", listed, "-o", tmp_path / "own.json")
    assert code == 0, err
    assert "without a reference: p09" in out
    assert "without a result: P09" in out


def test_references_of_other_patients_are_noticed(patients, tmp_path, capfd):
    far, to = tmp_path / "far", tmp_path / "own.json"
    shutil.copytree(patients / "references", far)
    corner = np.zeros(GRID.shape, np.uint8)
    corner[1:4, 1:4, 1:4] = 2
    write_nifti(far / "p04.nii.gz", corner, GRID)
    code, out, err = call(capfd, patients / "results", "--references", far, "-o", to)
    assert code == 0, err
    assert out.count("do not overlap") == 1
    assert "note: p04: outline and reference do not overlap" in out
    for name in NAMES:
        write_nifti(far / f"{name}.nii.gz", corner, GRID)
    code, err = refusal(capfd, patients / "results", "--references", far, "-o", tmp_path / "other.json")
    assert code == 2
    assert "no reference overlaps the outline of its result" in err


def test_corrected_results_are_refused(patients, tmp_path, capfd):
    session = Session.open(patients / "results" / NAMES[0])
    session.paint("GTV", True, np.array([[3, 3, 3]]))
    session.export(tmp_path / "results" / NAMES[0])
    shutil.rmtree(patients / "results" / NAMES[0] / "review")
    references = ("--references", patients / "references")
    code, err = refusal(capfd, tmp_path / "results", *references, "-o", tmp_path / "own.json")
    assert code == 2
    assert "the outlines of a result were corrected by a person | found: p00" in err


def test_other_refusals(patients, tmp_path, capfd):
    to = tmp_path / "own.json"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(capfd, empty, "--references", empty, "-o", to)[1].startswith("E2-calibration no results")
    table = tmp_path / "list.csv"
    table.write_text("subject,mask\np00,x.nii.gz\n")
    results = patients / "results"
    assert "no columns result and reference" in refusal(capfd, results, "--references", table, "-o", to)[1]
    table.write_text("result,reference\np00,\n")
    assert "row 2 of the list is incomplete" in refusal(capfd, results, "--references", table, "-o", to)[1]
    table.write_text("result,reference\np00,a.nii\np00,b.nii\n")
    assert "names a result again" in refusal(capfd, results, "--references", table, "-o", to)[1]
    write_nifti(empty / "p00.nii.gz", np.ones((9, 9, 9), np.uint8), Grid((9, 9, 9), np.eye(4)))
    code, err = refusal(capfd, results, "--references", empty, "-o", to)
    assert (code, err[:17]) == (4, "E4-evaluate-grid ")
    code, err = refusal(capfd, results, "--references", empty, "-o", to, "--core", "two")
    assert (code, err[:8]) == (2, "E2-core ")


# ---- files -------------------------------------------------------------------------------------------------


def test_the_calibration_in_the_package_is_enough_for_90_percent():
    found = default_calibration()
    for entry in found.entries:
        for numbers in entry.structures.values():
            low, high = numbers.interval(0.9)
            assert -np.inf < low < high < np.inf
            assert low < 0 < high or entry.cases != "patients"  # the outline is added to the others


def test_the_calibration_in_the_package_holds_for_its_model_and_settings():
    settings = Config().model_dump(mode="json")
    conditions = digest_conditions(default_model().sha256, settings, ("T1", "T1c", "T2", "FLAIR"))
    for name in ("core", "whole"):
        assert default_calibration().find(name, conditions) is not None, "run research/intervals.py fit"
    other = digest_conditions(default_model().sha256, settings, ("T1c",))
    assert default_calibration().find("core", other) is None


def test_a_file_is_read_as_it_was_written(tmp_path):
    write_calibration(tmp_path / "a.json", default_calibration())
    assert read_calibration(tmp_path / "a.json") == default_calibration()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def damage(table, *place, value):
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), "tumoar result"),
        (("date",), "yesterday"),
        (("entries", 0, "conditions"), "abc"),
        (("entries", 0, "chance"), 1.5),
        (("entries", 0, "structures"), {}),
        (("entries", 0, "structures", "core", "displacements_mm"), [0.0] * 8),
        (("entries", 0, "structures", "core", "displacements_mm"), [float("nan")] * 12),
        (("entries", 0, "structures", "core", "length_mm"), 0.0),
        (("entries", 0, "structures", "core", "more"), 1),
    ],
)
def test_damaged_files_are_refused(tmp_path, place, value):
    table = json.loads(to_json(default_calibration()))
    damage(table, *place, value=value)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(table))
    with pytest.raises(UnreadableFileError, match="E3-calibration not a calibration file"):
        read_calibration(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000])
def test_what_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UnreadableFileError):
        read_calibration(tmp_path / "a.json")


def test_organs_are_compared_with_references(patients):
    stored = Stored(patients / "results" / NAMES[0], read_manifest(patients / "results" / NAMES[0]))
    brain = stored.mask("Brain")
    grown = ndi.binary_dilation(brain, iterations=1)
    found = compare_organs(stored, {"Brain": grown, "Eye_L": grown}, np.random.default_rng(0))
    assert list(found.observed) == ["Brain"]
    assert found.observed["Brain"].displacement == pytest.approx(0.9, abs=0.3)
    (entry,) = calibrate([replace(found, conditions="b" * 64)] * 9, "simulated heads").entries
    assert entry.cases == "simulated heads"
    assert entry.structures["Brain"].roughness < 0.4
