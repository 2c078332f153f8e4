"""`tumoar demo` on the small head: the same run as `tumoar segment`, then a comparison with the truth."""

import csv

import numpy as np
import pytest
import small_head
from small_run import CONFIG, MODEL

from tumoar.app import pipeline
from tumoar.cli import main
from tumoar.cli.demo import describe_coverage
from tumoar.placement.affine import AffineResult
from tumoar.result.folder import read_manifest
from tumoar.simulate.patient import Truth


@pytest.fixture
def small(monkeypatch):
    case = small_head.case()
    l, z, y = small_head.truth()
    indices = small_head.LABELS.indices[l]
    truth = Truth(case.grid, indices, z.astype(bool), y.astype(bool), indices, np.zeros_like(z, bool))
    monkeypatch.setattr(pipeline, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
    monkeypatch.setattr("tumoar.io.models.default_model", lambda: MODEL)
    monkeypatch.setattr("tumoar.vocabulary.config.FAST", CONFIG)
    monkeypatch.setattr("tumoar.simulate.draw_patient", lambda model, scans, seed: ({}, truth))
    monkeypatch.setattr("tumoar.preprocess.case.build_case", lambda images: case)


@pytest.mark.usefixtures("small")
def test_a_demo_writes_a_result_and_its_comparison_with_the_truth(tmp_path, capfd):
    with pytest.raises(SystemExit) as end:
        main(["demo", "--fast", "-o", str(tmp_path / "demo"), "--seed", "3"])
    err = capfd.readouterr().err
    assert end.value.code == 0, err
    manifest = read_manifest(tmp_path / "demo")
    assert manifest["stamps"] == ["demo: a synthetic patient", "fast: fewer sweeps than the default"]
    with open(tmp_path / "demo" / "truth.tsv", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert float(rows["GTV"]["dice"]) > 0.85
    assert err.index("OK: demo/report.html") < err.index("GTV            Dice")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_demo_says_how_often_the_truth_lies_in_its_interval(tmp_path, capfd):
    with pytest.raises(SystemExit):
        main(["demo", "--fast", "-o", str(tmp_path / "demo"), "--seed", "3"])
    said = " ".join(capfd.readouterr().err.split())
    with open(tmp_path / "demo" / "truth.tsv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if float(row["true_cm3"]) > 0]
    covered = sum(row["covered"] == "yes" for row in rows)
    count = f"{covered} of {len(rows)} structures"
    assert f"intervals contain the true volume of {count}: spread of the samples" in said
    gtv = next(row for row in rows if row["name"] == "GTV")
    assert f"truth {float(gtv['true_cm3']):.2f} cm³ spread of the samples" in said


def test_coverage_is_counted_over_all_structures_and_by_kind_of_interval():
    kinds = ("90 % prediction interval (calibrated on 12 heads)", "spread of the samples")
    rows = [
        {"true_cm3": true, "interval": kinds[kind], "covered": covered}
        for true, kind, covered in ((1, 0, "yes"), (2, 0, "yes"), (3, 0, "no"), (4, 1, "no"), (0, 1, "yes"))
    ]
    assert describe_coverage(rows) == (
        f"intervals contain the true volume of 2 of 4 structures: {kinds[0]} 2 of 3; {kinds[1]} 0 of 1"
    )
