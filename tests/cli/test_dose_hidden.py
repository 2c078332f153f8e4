"""`tumoar dose` and `evaluate`: nothing that a light or a score rests on is left unsaid."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from pydicom import dcmread
from rt_files import PLANTED, contour_set, save, write_rtdose
from small_study import build

from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.radiotherapy.export import export

DOSE = np.full((21, 21, 21), 50.0)
GRID = Grid(
    DOSE.shape,
    np.diag([-3.0, -3.0, 3.0, 1.0]) + np.array([[0, 0, 0, 30], [0, 0, 0, 30], [0, 0, 0, -30], [0] * 4]),
)


def box(x=0.0, planes=range(0, 11, 2)):
    """A cube of 1 cm³ as contours."""
    square = 10.0 * np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0.0]]) + [x, 0, 0]
    return [square + np.array([0.0, 0, z]) for z in planes]


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert "E1-" not in err
    assert not any(planted in out + err for planted in PLANTED)
    return end.value.code, out, err


def rows(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture
def plan(tmp_path):
    """A function that writes a structure set beside 50 Gy, and the command to judge it."""
    write_rtdose(tmp_path / "RD.dcm", DOSE, GRID, "1.2.3")

    def written(structures, edit=lambda data: None):
        data = contour_set(structures, "1.2.3")
        edit(data)
        save(data, tmp_path / "RS.dcm")
        return ["dose", tmp_path / "RS.dcm", "--dose", tmp_path / "RD.dcm"]

    return written


def lights(out):
    found = [line.split() for line in out.splitlines()]
    return [(words[1], words[0]) for words in found if words[0] in ("green", "amber", "red", "gray")]


def test_structures_without_contours_are_listed(plan, capfd):
    command = plan({"OpticChiasm": box(), "BRSTEM": [], "Ring 2": []})
    code, out, err = call(capfd, *command)
    assert code == 0, err
    assert "note: without contours in RS.dcm: BRSTEM, Ring 2" in out.splitlines()
    assert "not judged: Brainstem: it has no closed contours" in out.splitlines()


def test_a_structure_with_slices_missing_is_never_green(plan, tmp_path, capfd):
    command = plan({"Brainstem": box(planes=[0, 2, 8, 10]), "OpticChiasm": box(-12.0)})
    code, out, err = call(capfd, *command, "-o", tmp_path / "d")
    assert code == 0, err
    assert lights(out) == [("OpticChiasm", "green"), ("Brainstem", "gray")]
    verdict = next(row for row in rows(tmp_path / "d" / "limits.tsv") if row["structure"] == "Brainstem")
    assert "gap of 6 mm without contours: slices may be missing" in verdict["note"]


def test_parts_that_do_not_lie_over_one_another_are_judged(plan, capfd):
    command = plan({"Brainstem": [*box(planes=[0, 2, 4]), *box(-12.0, planes=[12, 14, 16])]})
    code, out, err = call(capfd, *command)
    assert code == 0, err
    assert lights(out) == [("Brainstem", "green")]


def test_a_structure_that_is_mapped_is_not_judged_under_its_old_name(plan, capfd):
    command = plan({"OpticNrv_L": box(), "Ring": box(-12.0)})
    code, out, err = call(capfd, *command, "--map", "OpticNrv_L=Brainstem")
    assert code == 0, err
    assert lights(out) == [("Brainstem", "green")]
    assert "not judged: OpticChiasm, OpticNrv_L, " in out


def test_sides_that_are_swapped_are_noted(plan, capfd):
    code, out, err = call(capfd, *plan({"OpticNrv_L": box(), "Opt Nrv R": box(-12.0)}))
    assert code == 0, err
    note = "note: OpticNrv_L does not lie left of OpticNrv_R: were the sides swapped?"
    assert note in out.splitlines()
    _, out, _ = call(capfd, *plan({"OpticNrv_L": box(-12.0), "Opt Nrv R": box()}))
    assert "swapped" not in out


@pytest.mark.parametrize("known", [("PatientSex",), ("PatientID",), ("PatientBirthDate", "PatientSex")])
def test_patients_that_cannot_be_compared_are_doubted(plan, tmp_path, capfd, known):
    def without(data, keywords):
        for keyword in keywords:
            setattr(data, keyword, "")

    fields = {"PatientID", "PatientName", "PatientBirthDate", "PatientSex"}
    command = plan({"Brainstem": box()}, lambda data: without(data, {"PatientID"}))
    data = dcmread(tmp_path / "RD.dcm")
    without(data, fields - set(known))
    save(data, tmp_path / "RD.dcm")
    code, out, err = call(capfd, *command, "-o", tmp_path / "d")
    assert code == 0, err
    note = "the patient of the dose could not be compared with that of the structures"
    assert f"note: {note}" in out
    assert all(note in row["note"] for row in rows(tmp_path / "d" / "limits.tsv") if row["light"] != "gray")


def test_a_structure_without_a_frame_of_reference_among_others_is_noted(plan, capfd):
    def edit(data):
        data.StructureSetROISequence[1].ReferencedFrameOfReferenceUID = ""

    code, out, err = call(capfd, *plan({"Brainstem": box(), "Ring": box(-12.0)}, edit))
    assert code == 0, err
    assert "note: Ring names no frame of reference: assumed to be that of the others" in out.splitlines()


def test_doubts_stand_beside_the_lights_in_the_table(plan, tmp_path, capfd):
    from nrrd_files import write_nrrd

    write_nrrd(tmp_path / "d.nrrd", DOSE.astype(np.float32), GRID)
    command = plan({"Brainstem": box()})
    code, _, err = call(capfd, "dose", command[1], "--dose", tmp_path / "d.nrrd", "-o", tmp_path / "d")
    assert code == 0, err
    verdict = next(row for row in rows(tmp_path / "d" / "limits.tsv") if row["light"] == "green")
    assert "names no patient" in verdict["note"]


# ---- names of files ----------------------------------------------------------------------------------------

LONG = "n" * 300


def test_names_that_no_disk_takes_are_refused(plan, tmp_path, capfd):
    command = plan({"Brainstem": box()})
    code, _, err = call(capfd, *command, "-o", tmp_path / LONG)
    assert (code, err.split()[0]) == (2, "E2-output")
    code, _, err = call(capfd, "dose", LONG, "--dose", tmp_path / "RD.dcm")
    assert (code, err.split()[0]) == (3, "E3-B1")
    code, _, err = call(capfd, "evaluate", LONG, "--reference", tmp_path / "RS.dcm")
    assert (code, err.split()[0]) == (3, "E3-B1")


def test_the_root_has_a_name_in_a_refusal(plan, capfd):
    code, _, err = call(capfd, *plan({"Brainstem": box()}), "-o", "/")
    assert code == 2
    assert "| file: / |" in err


# ---- results -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden")
    out, series = build(folder, organs=True)
    export(out, series["t1c"], rtstruct=True, seg=True)
    shutil.copytree(out / "dicom", folder / "dicom")
    return folder, out


def test_nothing_is_written_into_a_result(study, capfd):
    folder, out = study
    reference = folder / "dicom" / "RTSTRUCT.dcm"
    before = sorted(path.relative_to(out) for path in out.rglob("*"))
    for place in (out / "scores", out / "structures" / "scores"):
        code, _, err = call(capfd, "evaluate", out, "--reference", reference, "-o", place)
        assert (code, err.split()[0]) == (12, "E12-B57")
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == before


def test_results_of_one_name_are_told_apart(study, tmp_path, capfd):
    folder, out = study
    shutil.copytree(out, tmp_path / "out")
    reference = folder / "dicom" / "RTSTRUCT.dcm"
    code, _, err = call(
        capfd, "evaluate", out, tmp_path / "out", "--reference", reference, "--reference", reference,
        "-o", tmp_path / "s",
    )  # fmt: skip
    assert code == 0, err
    assert {row["result"] for row in rows(tmp_path / "s" / "scores.tsv")} == {"out", "out (2)"}


def test_notes_on_the_other_results_are_shown(study, capfd):
    folder, out = study
    code, text, err = call(
        capfd, "evaluate", out, "--reference", folder / "dicom" / "RTSTRUCT.dcm",
        "--against", out / "segmentation.nii.gz",
    )  # fmt: skip
    assert code == 0, err
    assert "note: segmentation.nii.gz: tumor hides organs in label maps" in text


def test_one_patient_gives_no_interval(study, tmp_path, capfd):
    folder, out = study
    code, text, err = call(
        capfd, "evaluate", out, "--reference", folder / "dicom" / "RTSTRUCT.dcm", "--against", out,
        "-o", tmp_path / "s",
    )  # fmt: skip
    assert code == 0, err
    assert "(1 patient: no interval)" in text
    assert "1 patients" not in text
    assert {(row["low"], row["high"]) for row in rows(tmp_path / "s" / "paired.tsv")} == {("nan", "nan")}


def test_references_that_name_nobody_are_noted(study, tmp_path, capfd):
    folder, out = study
    data = dcmread(folder / "dicom" / "RTSTRUCT.dcm")
    for roi in data.StructureSetROISequence:
        roi.ReferencedFrameOfReferenceUID = ""
    save(data, tmp_path / "RS.dcm")
    code, text, err = call(capfd, "evaluate", out, "--reference", tmp_path / "RS.dcm")
    assert code == 0, err
    assert "note: out: neither patient nor frame of reference of RS.dcm could be checked" in text


def test_a_label_map_may_be_named_in_capitals(study, tmp_path, capfd):
    _, out = study
    shutil.copy(out / "segmentation.nii.gz", tmp_path / "MAP.NII.GZ")
    code, text, err = call(capfd, "evaluate", out, "--reference", tmp_path / "MAP.NII.GZ")
    assert code == 0, err
    assert "dice 1.0" in text


# ---- values at a limit -------------------------------------------------------------------------------------


def own_limits(path, *lines):
    rows_ = (f'[[limit]]\nstructure = "Brainstem"\nmetric = "{m}"\nlimit = {v}\n' for m, v in lines)
    path.write_text("".join(rows_), encoding="utf-8")
    return path


def test_rounding_of_stored_doses_decides_nothing(plan, tmp_path, capfd):
    """50 Gy everywhere is at least 50 Gy to all of a structure."""
    own = own_limits(tmp_path / "l.toml", ("V50", 99.9))
    code, out, err = call(capfd, *plan({"Brainstem": box()}), "--limits", own)
    assert code == 0, err
    assert [light for _, light in lights(out)] == ["red"]
    assert "V50 100.0 (limit 99.9)" in out


@pytest.mark.parametrize(
    ("text", "found"),
    [("[other]\nx = 1\n", "other"), ("limit = []\n", "no rows"), ("rows = 1001", "1001 rows, at most 1000")],
)
def test_limits_that_are_not_used_say_why(plan, tmp_path, capfd, text, found):
    own = own_limits(
        tmp_path / "l.toml", *[("max", 1 + k / 10) for k in range(1001 if "rows" in text else 1)]
    )
    if "rows" not in text:
        own.write_text(own.read_text(encoding="utf-8") + text if "[other]" in text else text, "utf-8")
    code, _, err = call(capfd, *plan({"Brainstem": box()}), "--limits", own)
    assert (code, err.split()[0]) == (2, "E2-limits")
    assert f"found: {found}" in err


def test_a_structure_that_is_not_there_has_no_number(study, tmp_path, capfd):
    """As in a result without a chiasm."""
    from tumoar.io.manifest import digest_of_file
    from tumoar.io.manifest_schema import seal

    _, out = study
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "structures" / "OpticChiasm.nii.gz"
    image = read_nifti(path)
    write_nifti(path, np.zeros(image.grid.shape, np.uint8), image.grid)
    manifest = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))
    manifest["files"]["structures/OpticChiasm.nii.gz"] = digest_of_file(path)
    (tmp_path / "out" / "run.json").write_text(seal(manifest), "utf-8")
    write_rtdose(tmp_path / "RD.dcm", DOSE, GRID, "1.2.1")
    code, text, err = call(
        capfd, "dose", tmp_path / "out", "--dose", tmp_path / "RD.dcm", "-o", tmp_path / "d"
    )
    assert code == 0, err
    line = next(line for line in text.splitlines() if line.startswith("gray  OpticChiasm"))
    assert line == "gray  OpticChiasm    D0.03cc not known (limit 54.0); empty"


def test_a_mask_on_other_voxels_than_its_result_is_refused(study, tmp_path, capfd):
    from tumoar.io.manifest import digest_of_file
    from tumoar.io.manifest_schema import seal

    _, out = study
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out" / "structures" / "Brain.nii.gz"
    image = read_nifti(path)
    smaller = Grid((image.grid.shape[0] - 3, *image.grid.shape[1:]), image.grid.affine)
    write_nifti(path, np.asarray(image.data)[:-3], smaller)
    manifest = json.loads((tmp_path / "out" / "run.json").read_text("utf-8"))
    manifest["files"]["structures/Brain.nii.gz"] = digest_of_file(path)
    (tmp_path / "out" / "run.json").write_text(seal(manifest), "utf-8")
    reference = out / "structures" / "Brain.nii.gz"
    code, _, err = call(capfd, "evaluate", tmp_path / "out", "--reference", reference, "--values", "Brain=1")
    assert (code, err.split()[0]) == (12, "E12-result")


def test_a_manifest_that_is_no_table_is_named_plainly(tmp_path, capfd):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("[]", "utf-8")
    code, _, err = call(capfd, "report", tmp_path / "out")
    assert (code, err.split()[0]) == (12, "E12-result")
    assert "found: not the JSON of a manifest" in err


def test_an_output_that_is_a_link_to_itself_is_refused(plan, tmp_path, capfd):
    (tmp_path / "loop").symlink_to("loop")
    code, _, err = call(capfd, *plan({"Brainstem": box()}), "-o", tmp_path / "loop")
    assert (code, err.split()[0]) == (3, "E3-B1")


def test_names_that_differ_in_case_can_be_told_apart_as_the_refusal_says(plan, capfd):
    command = plan({"BRAINSTEM": box(), "Brainstem": box(-12.0)})
    code, _, err = call(capfd, *command)
    assert (code, err.split()[0]) == (2, "E2-map")
    assert "--map 'Brainstem=Brainstem'" in err
    code, out, err = call(capfd, *command, "--map", "Brainstem=Brainstem")
    assert code == 0, err
    assert lights(out) == [("Brainstem", "green")]
    assert "not judged: BRAINSTEM: no limit" in out


def test_a_structure_set_that_ends_early_is_refused(tmp_path):
    """Also where it ends between two structures, and would only seem to hold fewer."""
    from tumoar.io.rtstruct import read_rtstruct
    from tumoar.vocabulary.errors import TumoarError

    save(contour_set({"A": box(), "B": box(-12.0), "C": box(12.0)}, "1.2.3"), tmp_path / "RS.dcm")
    whole = (tmp_path / "RS.dcm").read_bytes()
    start = whole.index(b"DRAWN")
    for size in range(start + len(whole) // 3, len(whole)):
        (tmp_path / "cut.dcm").write_bytes(whole[:size])
        with pytest.raises(TumoarError):
            read_rtstruct(tmp_path / "cut.dcm")
