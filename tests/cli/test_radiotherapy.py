"""From a result to DICOM files and doses, through the commands; nobody's name leaves the DICOM files."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
import small_head
from pydicom import dcmread
from rt_files import PLANTED, planted_in, write_rtdose, write_series
from small_run import CONFIG, MODEL

from tumoar.app import pipeline as line
from tumoar.app.publish import Job, execute
from tumoar.app.segment import add_targets, series_among, to_dicom
from tumoar.cli import main
from tumoar.cli.watch import Watch
from tumoar.geometry.image import Grid
from tumoar.io.dicom import only_series
from tumoar.io.dose import read_dose
from tumoar.io.identity import merge_people, seal_identity
from tumoar.io.manifest_schema import seal
from tumoar.placement.affine import AffineResult
from tumoar.radiotherapy.limits import default_limits
from tumoar.radiotherapy.margins import Margins
from tumoar.report import grid_of_page, read_data
from tumoar.report.volumes import unpack
from tumoar.result.folder import Options, read_manifest
from tumoar.vocabulary.errors import UsageError

N = small_head.SIZE
FLIP = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert not any(planted in out + err for planted in PLANTED)
    return end.value.code, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A result with its samples, its T1c as a series, a dose that rises from left to right."""
    path = tmp_path_factory.mktemp("rt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
        job = Job(path / "out", CONFIG, 3, options=Options(samples=True))
        case = small_head.case()  # with noise, so that the samples differ
        noise = 0.3 * np.random.default_rng(1).standard_normal(case.D.shape)
        case = replace(case, D=(case.D + noise).astype(np.float32))
        execute(case, MODEL, job, Watch(quiet=True))
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(path / "t1c", values, Grid((N, N, N), FLIP), frame="1.2.1")
    grid = Grid((20, 20, 20), np.diag([3.0, 3.0, 3.0, 1.0]) @ np.diag([-1, -1, 1, 1.0]) + _at(55, 55, -2))
    gray = np.broadcast_to(30 + grid.world(np.stack(np.indices(grid.shape), -1))[..., 0], grid.shape)
    write_rtdose(path / "RD.dcm", gray, grid, "1.2.1")
    write_rtdose(path / "elsewhere.dcm", gray, grid, "1.2.9")
    return path


def _at(x, y, z):
    out = np.zeros((4, 4))
    out[:3, 3] = x, y, z
    return out


def rows(path):
    with open(path, encoding="utf-8") as file:
        return {(r["name"], r["from"]): r for r in csv.DictReader(file, delimiter="\t")}


def test_export_then_dose(folder, capfd):
    out = folder / "out"
    code, told, err = call(capfd, "export", out, "--rtstruct", "--seg", "--reference", folder / "t1c")
    assert code == 0, err
    *names, note = told.splitlines()
    assert names == [f"out/dicom/{n}.dcm: automatic, unreviewed" for n in ("RTSTRUCT", "SEG")]
    assert note.startswith("note: B34 patient identity could not be checked")  # the result is of NIfTI images
    drawn = out / "dicom" / "RTSTRUCT.dcm"
    code, told, err = call(capfd, "dose", out, "--dose", folder / "RD.dcm", "--reference", drawn)
    assert code == 0, err
    figures = rows(out / "dose.tsv")
    for name in ("GTV", "Edema", "Brain"):
        ours, contours = figures[name, "result"], figures[name, "reference"]
        for key in ("volume_cm3", "mean_Gy", "D5_Gy", "D50_Gy", "D95_Gy"):
            assert float(ours[key]) == pytest.approx(float(contours[key]), rel=0.004)
        assert float(ours["mean_p05"]) - 0.3 <= float(ours["mean_Gy"]) <= float(ours["mean_p95"]) + 0.3
    # The tumor lies 31 mm from the left border: 30 Gy there and 1 Gy per mm
    assert float(figures["GTV", "result"]["mean_Gy"]) == pytest.approx(61, abs=0.7)
    assert figures["OpticChiasm", "result"]["mean_Gy"] == "nan"
    manifest = read_manifest(out)
    assert {"dose.tsv", "dvh.png", "dvh.svg", "limits.tsv", "report.html"} <= set(manifest["files"])
    page = (out / "report.html").read_text(encoding="utf-8")
    with open(out / "limits.tsv", encoding="utf-8") as file:
        judged = list(csv.DictReader(file, delimiter="\t"))
    for row in judged:
        assert f'<i class="{row["light"]}"></i>{row["light"]}</td><td>{row["structure"]}</td>' in page
    assert all(row["value"] == row["value"] for row in read_data(page)["limits"])  # a browser cannot read NaN
    curves = {c["name"]: c for c in read_data(page)["dose"]}
    assert {"GTV", "Edema", "Brain"} <= set(curves)
    widths = [np.array(c["high"]) - np.array(c["low"]) for c in curves.values()]
    assert min(w.min() for w in widths) >= 0
    assert max(w.max() for w in widths) > 0


def test_nobody_is_named_outside_the_dicom_files(folder, capfd):
    call(capfd, "export", folder / "out", "--rtstruct", "--seg", "--reference", folder / "t1c")
    call(capfd, "dose", folder / "out", "--dose", folder / "RD.dcm")
    call(capfd, "dose", folder / "out", "--dose", folder / "RD.dcm", "-o", folder / "doses")
    drawn = folder / "out" / "dicom" / "RTSTRUCT.dcm"
    call(capfd, "evaluate", folder / "out", "--reference", drawn, "-o", folder / "scores")
    call(capfd, "report", folder / "out")
    files = [p for f in ("out", "doses", "scores") for p in (folder / f).rglob("*") if p.is_file()]
    assert any(p.suffix == ".dcm" for p in files)
    for path in files:
        assert bool(planted_in(path)) == (path.suffix == ".dcm"), path.name


def test_planted_texts_are_found_within_compressed_parts(tmp_path):
    hidden = gzip.compress(f"an image of {PLANTED[0]}".encode() * 3)
    (tmp_path / "a.nii.gz").write_bytes(hidden)
    (tmp_path / "b.html").write_bytes(b"data: '" + b64encode(hidden) + b"'")
    assert planted_in(tmp_path / "a.nii.gz") == planted_in(tmp_path / "b.html") == [PLANTED[0]]


def test_outlines_of_a_structure_set_as_reference(folder, capfd):
    """Against its own contours every structure is found again, to the voxel."""
    drawn = folder / "own.dcm"
    call(capfd, "export", folder / "out", "--rtstruct", "--reference", folder / "t1c")
    drawn.write_bytes((folder / "out" / "dicom" / "RTSTRUCT.dcm").read_bytes())
    code, _, err = call(capfd, "evaluate", folder / "out", "--reference", drawn, "-o", folder / "same")
    assert code == 0, err
    with open(folder / "same" / "scores.tsv", encoding="utf-8") as file:
        found = {r["structure"]: r for r in csv.DictReader(file, delimiter="\t")}
    assert {"GTV", "Edema"} <= set(found)
    assert all(float(found[name]["dice"]) == 1.0 for name in ("GTV", "Edema"))
    data = dcmread(drawn)
    for contour in data.ROIContourSequence[0].ContourSequence:
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        points[:, 0] += 3.0
        contour.ContourData = [f"{v:.6g}" for v in points.ravel()]
    data.save_as(drawn)
    _, told, _ = call(capfd, "evaluate", folder / "out", "--reference", drawn)
    assert "dice 1.0 " not in next(line for line in told.splitlines() if " GTV " in line)


def test_another_patient_is_refused(folder, capfd, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    series = only_series(folder / "t1c")
    manifest = json.loads((out / "run.json").read_text())
    key = manifest["key"]
    manifest["patient"] = seal_identity(series.person, key)
    (out / "run.json").write_text(seal(manifest))
    assert len(manifest["patient"]) == 3
    assert not any(text in (out / "run.json").read_text() for text in PLANTED)
    code, _, err = call(capfd, "export", out, "--rtstruct", "--reference", folder / "t1c")
    assert code == 0, err
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    more = {"PatientID": "OTHER-ID"}
    write_series(tmp_path / "other", values, Grid((N, N, N), FLIP), frame="1.2.1", **more)
    write_rtdose(tmp_path / "RD.dcm", np.ones((8, 8, 8)), Grid((8, 8, 8), np.eye(4)), "1.2.1", **more)
    drawn = out / "dicom" / "RTSTRUCT.dcm"
    other = dcmread(drawn)
    other.PatientID, other.PatientName = "", "Somebody^Else"
    other.save_as(tmp_path / "RS.dcm")
    for arguments in (
        ["export", out, "--rtstruct", "--reference", tmp_path / "other"],
        ["export", out, "--rtstruct", "--trust-headers", "--reference", tmp_path / "other"],
        ["dose", out, "--dose", tmp_path / "RD.dcm"],
        ["dose", drawn, "--dose", tmp_path / "RD.dcm"],
        ["evaluate", out, "--reference", tmp_path / "RS.dcm"],
    ):
        code, _, err = call(capfd, *arguments)
        assert (code, err.split()[0]) == (4, "E4-B34")
        assert not any(text in err for text in ("OTHER", "Somebody"))


def test_digests_of_a_patient():
    person = ("4711", "planted", "19410313", "f")
    assert seal_identity(person, "k") == seal_identity((*person[:3], ""), "k")
    assert seal_identity(person, "k")["id"] != seal_identity(person, "other")["id"]
    assert set(seal_identity(("", "planted", "", "f"), "k")) == set()
    assert seal_identity((), "k") == {}
    assert merge_people([(), ("", "a", "", ""), ("1", "a", "2", "")]) == ("1", "a", "2", "")


def test_limits_of_ones_own(folder, capfd, tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[[limit]]\nstructure = "Brain"\nmetric = "mean"\nlimit = 5\n'
        '[[limit]]\nstructure = "GTV"\nmetric = "D0.03cc"\nlimit = 60\nhard = 90\n'
        '[[limit]]\nstructure = "Edema"\nmetric = "V70"\nlimit = 50\n'
    )
    arguments = ("dose", folder / "out", "--dose", folder / "RD.dcm", "-o", tmp_path / "doses")
    code, told, _ = call(capfd, *arguments, "--limits", tmp_path / "mine.toml")
    assert code == 0
    lights = [text.split()[:3] for text in told.splitlines() if text.startswith(("green", "amber", "red"))]
    assert lights == [["red", "Brain", "mean"], ["amber", "GTV", "D0.03cc"], ["green", "Edema", "V70"]]
    assert "above it in 100 % of the samples" in told
    (tmp_path / "mine.toml").write_text('[[limit]]\nstructure = "Brain"\nmetric = "D0.03"\n')
    code, _, err = call(capfd, *arguments, "--limits", tmp_path / "mine.toml", "--overwrite")
    assert (code, err.split()[0]) == (2, "E2-limits")


@pytest.mark.slow
def test_a_light_of_a_result_is_the_worse_of_outline_and_samples(folder, capfd, tmp_path):
    """The tumor lies where the dose rises: its samples differ, and some exceed what the outline keeps."""
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    arguments = ("dose", out, "--dose", folder / "RD.dcm")
    own = '[[limit]]\nstructure = "{}"\nmetric = "{}"\nlimit = {}\nhard = 100\n'
    lights = set()
    for name, metric, limit in [("GTV", "max", 64), ("GTV", "max", 66), ("Edema", "max", 80)]:
        (tmp_path / "mine.toml").write_text(own.format(name, metric, limit))
        code, _, err = call(capfd, *arguments, "--limits", tmp_path / "mine.toml")
        assert code == 0, err
        with open(out / "limits.tsv", encoding="utf-8") as file:
            (row,) = csv.DictReader(file, delimiter="\t")
        is_green = float(row["value"]) <= limit and float(row["share_of_samples_above"]) <= 0.05
        assert row["light"] == ("green" if is_green else "amber")
        differs = (float(row["value"]) <= limit) != (float(row["samples_p95"]) <= limit)
        said, *doubts = row["note"].split("; ")
        assert ("samples" in said) == differs
        assert any("name no patient" in text for text in (said, *doubts))
        lights.add(row["light"])
        assert said in read_data((out / "report.html").read_text(encoding="utf-8"))["limits"][0]["note"]
    assert lights == {"green", "amber"}


@pytest.mark.slow
def test_notes_and_sources_stand_in_the_report(folder, capfd, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    gray = read_dose(folder / "RD.dcm")
    path = write_rtdose(tmp_path / "F.dcm", gray.data / 30, gray.grid, "1.2.1", DoseSummationType="FRACTION")
    code, _, err = call(capfd, "dose", out, "--dose", path, "--fractions", 30)
    assert code == 0, err
    page = (out / "report.html").read_text(encoding="utf-8")
    for limit in default_limits():
        assert limit.source in page
    (tmp_path / "mine.toml").write_text('[[limit]]\nstructure = "GTV"\nmetric = "max"\nlimit = 90\n')
    call(capfd, "dose", out, "--dose", path, "--fractions", 30, "--limits", tmp_path / "mine.toml")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "the dose is for one fraction, multiplied by 30" in page


def test_refusals(folder, capfd):
    out = folder / "out"
    drawn = out / "dicom" / "RTSTRUCT.dcm"
    call(capfd, "export", out, "--rtstruct", "--reference", folder / "t1c")
    for arguments, code, id in [
        (["export", out, "--reference", folder / "t1c"], 2, "E2-export"),
        (["export", out, "--rtstruct", "--reference", folder / "nowhere"], 3, "E3-B1"),
        (["dose", drawn, "--dose", folder / "elsewhere.dcm"], 4, "E4-B33"),
        (["dose", drawn, "--dose", drawn], 3, "E3-dose"),
        (["dose", out, "--dose", folder / "RD.dcm", "--map", "Brain=GTV"], 2, "E2-map"),
        (["dose", folder / "RD.dcm", "--dose", folder / "RD.dcm"], 3, "E3-rtstruct"),
        (["segment", "--t1c", folder / "out" / "segmentation.nii.gz", "-o", "x", "--rtstruct"], 5, "E5-B29"),
    ]:
        found, _, err = call(capfd, *arguments)
        assert (found, err.splitlines()[-1].split()[0]) == (code, id)


def test_contours_need_a_series_to_be_drawn_on(folder):
    paths = {"T1c": folder / "out" / "segmentation.nii.gz", "CT": folder / "t1c"}
    assert series_among(paths, "T1c") == folder / "t1c"
    with pytest.raises(UsageError, match="no DICOM series"):
        series_among({"T1c": paths["T1c"]}, "T1c")


def test_a_case_gets_a_name_keeps_it_and_loses_it(folder, capfd):
    """In the page and nowhere else; what is not safe changes nothing."""
    out = folder / "out"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    name = "Phantom 7"
    assert call(capfd, "report", out, "--case-name", name, "--case-date", "2026-11-18")[0] == 0
    shown = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>Phantom 7 · 2026-11-18</h1>" in shown
    holding = [path.name for path in out.rglob("*") if path.is_file() and name.encode() in path.read_bytes()]
    assert holding == ["report.html"]
    for wrong in (("--case-name", "<b>x"), ("--case-name", "../x"), ("--case-date", "18.11.2026")):
        code, _, err = call(capfd, "report", out, *wrong)
        assert (code, err.split()[0]) == (2, "E2-case-name")
    assert (out / "report.html").read_text(encoding="utf-8") == shown
    call(capfd, "report", out, "--case-date", "")
    assert "<h1>Phantom 7</h1>" in (out / "report.html").read_text(encoding="utf-8")
    call(capfd, "report", out, "--case-name", "")
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    changed = [path.name for path in before if before[path] != after[path]]
    assert set(changed) <= {"run.json", "report.html"}
    assert "Phantom" not in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_targets_are_part_of_everything(folder, capfd):
    watch = Watch(quiet=True)
    add_targets(folder / "out", Margins(6, 2), watch)
    page = read_data((folder / "out" / "report.html").read_text(encoding="utf-8"))
    assert [(row["name"], row["outlined"]) for row in page["targets"]] == [
        (row["name"], row["outlined_cm3"]) for row in read_manifest(folder / "out")["margins"]
    ]
    for row in page["lines"][-2:]:
        shown = unpack(row["nifti"], grid_of_page(page)) > 0
        assert shown.sum() / 1000 == pytest.approx(
            next(t["outlined"] for t in page["targets"] if t["name"] == row["name"])
        )
    to_dicom(folder / "out", series_among({"T1c": folder / "t1c"}, "T1c"), True, True, watch)
    assert sum("automatic, unreviewed" in text for text in watch.lines) == 2
    call(capfd, "export", folder / "out", "--rtstruct", "--smooth", "--reference", folder / "t1c")
    call(
        capfd,
        "dose",
        folder / "out" / "dicom" / "RTSTRUCT.dcm",
        "--dose",
        folder / "RD.dcm",
        "-o",
        folder / "t",
    )
    call(capfd, "dose", folder / "out", "--dose", folder / "RD.dcm", "-o", folder / "u")
    drawn, kept = rows(folder / "t" / "dose.tsv"), rows(folder / "u" / "dose.tsv")
    volumes = [float(kept[name, "result"]["volume_cm3"]) for name in ("GTV", "CTV", "PTV")]
    assert volumes[0] < volumes[1] < volumes[2]
    for name in ("CTV", "PTV"):
        smooth, sharp = drawn[name, "structures"], kept[name, "result"]
        assert float(smooth["mean_Gy"]) == pytest.approx(float(sharp["mean_Gy"]), abs=0.3)
    types = {
        o.RTROIInterpretedType
        for o in dcmread(folder / "out" / "dicom" / "RTSTRUCT.dcm").RTROIObservationsSequence
    }
    assert {"GTV", "CTV", "PTV", "ORGAN"} <= types
