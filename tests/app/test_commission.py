"""`tumoar commission`: what is right passes, and every planted error is found."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from small_study import build

from tumoar.app import acceptance, installation, known_answers, phantom
from tumoar.app import commission as use_case
from tumoar.app.acceptance import Finding, judge, read_tolerances, tolerance_for
from tumoar.app.commission import Order, check_cases, commission, find_cases
from tumoar.cli import main
from tumoar.geometry.image import Grid, Image
from tumoar.io.rtstruct import StructureSet
from tumoar.simulate.orders import ORDERS
from tumoar.vocabulary.errors import UsageError

TOLERANCES = read_tolerances()
FEW = [ORDERS[0], ORDERS[13], ORDERS[38]]


def failed(findings):
    """What did not pass, as pairs of structure and check."""
    return {(c.finding.structure, c.finding.what) for c in judge(findings, TOLERANCES) if not c.passed}


# ---- files -------------------------------------------------------------------------------------------------


def test_bodies_in_nifti_files_pass(tmp_path):
    checks = judge(phantom.check_nifti(tmp_path, FEW), TOLERANCES)
    assert len(checks) == 4 * len(phantom.BODIES)
    assert [c.finding for c in checks if not c.passed] == []
    assert all(c.times == 2 * len(FEW) for c in checks)


def altered(read, change):
    """A reader whose grids are changed: what a wrong program would do."""

    def reader(path):
        image = read(path)
        return replace(image, grid=Grid(image.grid.shape, change @ image.grid.affine))

    return reader


MIRROR, LARGER, SHIFT = np.diag([-1.0, 1, 1, 1]), np.diag([1.0, 1, 1.03, 1]), np.eye(4)
SHIFT[1, 3] = 0.5


@pytest.mark.parametrize(
    ("change", "what"),
    [(MIRROR, "left/right, front/back, up/down"), (LARGER, "volume"), (SHIFT, "center")],
    ids=["mirrored", "wrong spacing", "shifted"],
)
def test_a_reader_that_misplaces_voxels_fails(tmp_path, monkeypatch, change, what):
    monkeypatch.setattr(phantom, "read_nifti", altered(phantom.read_nifti, change))
    wrong = failed(phantom.check_nifti(tmp_path, FEW[:1]))
    assert ("GTV", what) in wrong
    assert ("GTV", "voxels unlike formula") in wrong


def test_bodies_in_dicom_series_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "PLANES", phantom.PLANES[3:5])
    assert failed(phantom.check_dicom(tmp_path)) == set()


def test_exchanged_sides_in_dicom_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "PLANES", phantom.PLANES[:1])
    read = phantom.read_series

    def swapped(series):
        image = read(series)
        values = np.asarray(image.data).copy()
        left, right = values == phantom.HU, values == 2 * phantom.HU
        values[left], values[right] = 2 * phantom.HU, phantom.HU
        return replace(image, data=values)

    monkeypatch.setattr(phantom, "read_series", swapped)
    assert {name for name, _ in failed(phantom.check_dicom(tmp_path))} == {"Eye_L", "Eye_R"}


# ---- contours and doses ------------------------------------------------------------------------------------


def test_contours_pass_and_shifted_ones_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "SERIES", phantom.SERIES[1:2])
    assert failed(phantom.check_contours(tmp_path / "right")) == set()
    read = phantom.read_rtstruct

    def shifted(path):
        found = read(path)
        away = np.array([0.4, 0, 0])
        moved = [replace(o, polygons=tuple(p + away for p in o.polygons)) for o in found.outlines]
        return StructureSet(tuple(moved), "1.2.3")

    monkeypatch.setattr(phantom, "read_rtstruct", shifted)
    wrong = failed(phantom.check_contours(tmp_path / "wrong"))
    assert {(body.name, "center") for body in phantom.BODIES} <= wrong
    assert ("all", "frame of reference") in wrong


def test_doses_pass_and_shifted_ones_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(phantom, "BODIES", phantom.BODIES[-2:])
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    assert failed(phantom.check_doses(tmp_path / "right")) == set()
    read = phantom.read_dose

    def shifted(path):
        dose = read(path)
        affine = dose.grid.affine.copy()
        affine[:3, 3] += 0.5
        return Image(dose.data, Grid(dose.grid.shape, affine))

    monkeypatch.setattr(phantom, "read_dose", shifted)
    wrong = failed(phantom.check_doses(tmp_path / "wrong"))
    assert {("GTV", name) for name in ("D2", "D50", "D95", "mean")} <= wrong


# ---- margins, scores, head ---------------------------------------------------------------------------------


def test_margins_and_scores_pass():
    assert failed(known_answers.check_margins()) == set()
    assert failed(known_answers.check_scores()) == set()


def test_margins_in_voxels_fail(monkeypatch):
    grow = known_answers.grow
    monkeypatch.setattr(known_answers, "grow", lambda mask, mm, spacing: grow(mask, mm, (1, 1, 1)))
    assert {what for _, what in failed(known_answers.check_margins())} == {"outside"}


def test_margins_through_walls_fail(monkeypatch):
    grow = known_answers.grow
    monkeypatch.setattr(known_answers, "grow_within", lambda mask, domain, mm, step: grow(mask, mm, step))
    wrong = failed(known_answers.check_margins())
    assert ("CTV 20 mm", "voxels behind a closed wall") in wrong
    assert ("CTV 20 mm", "outside") in wrong


def test_margins_that_stop_at_an_open_wall_fail(monkeypatch):
    grow = known_answers.grow_within

    def timid(mask, domain, mm, spacing):
        grown = grow(mask, domain, mm, spacing)
        last = np.flatnonzero(mask.any((1, 2)))[-1]
        grown[last + 8 :] = False
        return grown

    monkeypatch.setattr(known_answers, "grow_within", timid)
    assert ("CTV 20 mm", "inside") in failed(known_answers.check_margins())


def test_distances_in_voxels_fail(monkeypatch):
    compare = known_answers.compare
    monkeypatch.setattr(known_answers, "compare", lambda a, b, spacing: compare(a, b, spacing * 1.3))
    assert ("balls", "HD95") in failed(known_answers.check_scores())


def test_the_phantom_head_is_segmented_twice_alike():
    assert failed(installation.check_head()) == set()


@pytest.mark.slow
def test_runs_that_differ_fail(monkeypatch):
    seeds = iter((3, 4))
    segment = installation.segment
    monkeypatch.setattr(installation, "segment", lambda *a, **k: segment(*a, **{**k, "seed": next(seeds)}))
    assert ("all", "bits that differ between two runs") in failed(installation.check_head())


def test_a_changed_file_of_the_package_fails(tmp_path, monkeypatch):
    """A record as pip writes it, of a package in another folder."""
    package, info = tmp_path / "tumoar", tmp_path / "tumoar-1.dist-info"
    for folder in (package, info):
        folder.mkdir()
    (package / "a.py").write_text("x = 1\n")
    (package / "b.py").write_text("y = 1\n")
    digests = {name: installation._record((package / name).read_bytes()) for name in ("a.py", "b.py")}
    lines = [f"tumoar/{name},sha256={value},6" for name, value in digests.items()]
    (info / "RECORD").write_text("\n".join([*lines, "tumoar-1.dist-info/RECORD,,"]) + "\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tumoar\nVersion: 1\n")
    monkeypatch.setattr(installation, "files", lambda name: package)
    monkeypatch.setattr(installation, "distribution", lambda name: installation.Distribution.at(info))
    assert installation.changed_files() == (0, 2)
    (package / "b.py").write_text("y = 2\n")
    assert installation.changed_files() == (1, 2)
    (package / "a.py").unlink()
    assert installation.changed_files() == (2, 2)


# ---- tolerances --------------------------------------------------------------------------------------------


def finding(value, tolerance="center"):
    return Finding("part", "GTV", "what", "where", value, tolerance)


def test_the_worst_of_several_findings_is_judged():
    (check,) = judge([finding(0.1), finding(0.3), finding(0.0)], TOLERANCES)
    assert (check.finding.value, check.times, check.passed) == (0.3, 3, False)
    (check,) = judge([finding(0.9, "head"), finding(0.96, "head")], TOLERANCES)
    assert (check.finding.value, check.passed) == (0.9, False)


@pytest.mark.parametrize("tolerance", ["center", "head", "exact"])
def test_what_is_not_a_number_fails(tolerance):
    (check,) = judge([finding(0.0, tolerance), finding(math.nan, tolerance)], TOLERANCES)
    assert not check.passed


def test_every_tolerance_has_a_reason():
    assert all(len(t.reason) > 20 for t in TOLERANCES.values())


def test_own_tolerances_replace_and_narrow(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        '[center]\nlimit = 0.1\nunit = "mm"\nreason = "ours"\n'
        '["case dice GTV"]\nleast = 0.9\nreason = "ours"\n'
    )
    found = read_tolerances(path)
    assert found["center"].limit == 0.1
    assert tolerance_for(found, "case dice", "GTV") == "case dice GTV"
    assert tolerance_for(found, "case dice", "Brainstem") == "case dice"
    assert found["volume"] == TOLERANCES["volume"]


@pytest.mark.parametrize(
    "text",
    [
        "[center", '[centre]\nlimit = 1\nreason = "x"\n', "[center]\nlimit = 1\n",
        '[center]\nlimit = "1"\nreason = "x"\n', '[center]\nlimit = nan\nreason = "x"\n',
        '[center]\nlimit = 1\nleast = 1\nreason = "x"\n', "center = 1\n",
        '[center]\nlimit = true\nreason = "x"\n', '[center]\nlimit = 1\nreason = "x"\ntypo = 1\n',
    ],
)  # fmt: skip
def test_unusable_tolerances_are_refused(tmp_path, text):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UsageError, match="E2-tolerances"):
        read_tolerances(tmp_path / "own.toml")


# ---- own cases, report -------------------------------------------------------------------------------------


@pytest.fixture
def cases(tmp_path):
    """One case whose reference is the result itself."""
    folder = tmp_path / "cases" / "Planted Name 4711"
    folder.mkdir(parents=True)
    out, _ = build(tmp_path, organs=True)
    out.rename(folder / "result")
    reference = (folder / "result" / "segmentation.nii.gz").read_bytes()
    (folder / "reference.nii.gz").write_bytes(reference)
    return tmp_path / "cases"


def test_own_cases_are_scored(cases):
    order, notes = Order(cases=cases, meaning={"GTV": [23], "Edema": [22]}), []
    table = find_cases(cases)
    from tumoar.vocabulary.labels import default_labels

    index = {t.name: t.index for t in default_labels().tumor}
    order = Order(cases=cases, meaning={"GTV": [index["core"]], "Edema": [index["edema"]]})
    findings = list(check_cases(table, order, TOLERANCES, notes))
    assert failed(findings) == set()
    swapped = Order(cases=cases, meaning={"GTV": [index["edema"]]})
    assert ("GTV", "Dice") in failed(check_cases(table, swapped, TOLERANCES, notes))


def test_a_case_without_reference_is_refused(cases):
    (cases / "Planted Name 4711" / "reference.nii.gz").unlink()
    with pytest.raises(UsageError, match="folder 1 of the cases") as refusal:
        find_cases(cases)
    assert "Planted" not in str(refusal.value)


def few(monkeypatch, *, passing=True):
    """Only the quick parts."""
    for name in ("check_installation", "check_nifti", "check_dicom", "check_contours", "check_doses"):
        monkeypatch.setattr(use_case, name, lambda *a: iter(()))
    value = 0.0 if passing else 1.0
    monkeypatch.setattr(use_case, "check_head", lambda: iter([finding(value, "exact")]))
    monkeypatch.setattr(use_case, "check_margins", lambda: iter(()))


def test_the_report_has_every_check_and_no_name(cases, tmp_path, monkeypatch):
    few(monkeypatch)
    checks = commission(tmp_path / "out", Order(cases=cases), lambda progress: None)
    made = {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}
    assert set(made) == {"acceptance.html", "acceptance.tsv", "acceptance.json", "run.json"}
    told = json.loads(made["acceptance.json"])
    assert len(told["checks"]) == len(checks) == len(made["acceptance.tsv"].splitlines()) - 1
    assert told["passed"] == all(c.passed for c in checks)
    assert not any("Planted" in text or str(tmp_path) in text for text in made.values())
    assert "Research use only" in made["acceptance.html"]
    for reason in {c.tolerance.reason for c in checks}:
        assert reason.replace("'", "&#39;") in made["acceptance.html"]


@pytest.mark.parametrize("passing", [True, False])
def test_the_exit_code_is_0_only_if_all_pass(tmp_path, monkeypatch, capfd, passing):
    few(monkeypatch, passing=passing)
    with pytest.raises(SystemExit) as end:
        main(["commission", str(tmp_path / "out")])
    err = capfd.readouterr().err
    assert (end.value.code or 0) == (0 if passing else 7)
    page = (tmp_path / "out" / "acceptance.html").read_text()
    assert ("NOT PASSED" in page) == (not passing)
    assert ("E7-acceptance" in err) == (not passing)


def test_an_existing_report_is_kept(tmp_path, monkeypatch, capfd):
    few(monkeypatch)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["commission", str(tmp_path / "out")])
    assert end.value.code == 12
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_the_tolerances_of_the_package_are_all_used():
    from pathlib import Path

    folder = Path(acceptance.__file__).parent
    code = "".join(
        (folder / f"{n}.py").read_text() for n in ("phantom", "known_answers", "installation", "commission")
    )
    assert [name for name in TOLERANCES if f'"{name}"' not in code] == []
