"""Prediction intervals of a result: where they hold, what they are called, and that everything agrees."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from small_result import small_result

from tumoar.api.inputs import as_kind
from tumoar.api.live import Segmentation
from tumoar.api.stored import load_result
from tumoar.app.publish import describe_volume, render_report
from tumoar.geometry.image import Image
from tumoar.io.nifti import read_nifti
from tumoar.model.calibration import NOWHERE, Calibration, Conditions, Entry, digest_conditions
from tumoar.model.expert import Learned
from tumoar.radiotherapy.export import describe_roi_interval
from tumoar.report import read_page
from tumoar.result.folder import Options, read_manifest, write_result
from tumoar.result.prediction import describe_interval, draw_predictions
from tumoar.result.segmentation import Volume
from tumoar.vocabulary.case_name import CaseName

NUMBERS = Learned(tuple(np.linspace(-0.8, 0.6, 15)), 0.3, 0.2, 5.0)
OFFSET = replace(NUMBERS, displacements=tuple(np.linspace(0.5, 1.0, 12)))
HOLDS = Conditions("a" * 64, "b" * 64)
HEADS = "15 simulated held-out heads"


def calibration():
    contrasts, tumor = ("FLAIR", "T1c"), {"core": NUMBERS, "whole": OFFSET}
    return Calibration(
        "2026-01-01",
        (
            Entry("patients", contrasts, HOLDS.tumor, tumor, 0.3),
            Entry("simulated held-out heads", contrasts, HOLDS.organs, {"Brain": NUMBERS}),
        ),
    )


@pytest.fixture(scope="module")
def result():
    return replace(small_result(), calibration=calibration(), conditions=HOLDS)


@pytest.fixture(scope="module")
def out(result, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "out"
    page = partial(render_report, result, True, case_name=CaseName())
    write_result(
        folder, result, [], {"key": "k", "reference": "T1c", "seed": result.seed}, Options(), page, ["a line"]
    )
    return folder


def rows(path):
    with open(path, encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


def test_words():
    assert describe_interval("18 patients") == "90 % prediction interval (calibrated on 18 patients)"
    assert describe_interval("18 patients", 0.5).startswith("50 % prediction interval")
    assert describe_interval("") == "spread of the samples"


def test_a_volume_says_what_its_interval_is(result):
    gtv, edema = result.volume("GTV"), result.volume("Edema")
    assert "90 % prediction interval (calibrated on 15 patients)" in repr(gtv)
    assert "spread of the samples" in repr(edema)
    assert "interval" not in repr(edema)
    assert "90 % prediction interval (calibrated on 15 patients)" in describe_volume(gtv)
    with pytest.raises(ValueError, match="no calibration holds"):
        edema.interval()
    with pytest.raises(ValueError, match=r"0\.5 and 0\.9"):
        gtv.interval(0.8)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_outline_lies_in_its_interval_and_intervals_are_nested(result, share):
    for volume in (result.volume("GTV"), result.whole_tumor(), result.volume("Brain")):
        low, high = volume.interval(share)
        assert low <= volume.outlined <= high
        assert volume.interval(0.9)[0] <= low < high <= volume.interval(0.9)[1]


def test_nothing_is_predicted_under_other_conditions(result):
    assert not replace(result, conditions=Conditions("b" * 64, "a" * 64)).volume("Brain").predicted
    other = replace(result, conditions=NOWHERE)
    assert not other.volume("GTV").predicted
    assert not other.tumor_predictions
    assert other.prediction("Brain") is None
    assert not small_result().volume("GTV").predicted


def test_what_is_empty_is_not_predicted(result):
    none = replace(small_result(tumor=False), calibration=result.calibration, conditions=HOLDS)
    assert not none.tumor_predictions
    assert not none.volume("GTV").predicted


def test_an_outline_that_small_parts_left_empty_has_no_interval(result, tmp_path):
    page = partial(render_report, result, True, case_name=CaseName())
    asked = Options(organs=("GTV",), least_cm3=9.0)
    write_result(tmp_path / "out", result, [], {"key": "k", "reference": "T1c"}, asked, page, ["a line"])
    row = rows(tmp_path / "out" / "volumes.tsv")["GTV"]
    assert float(row["outlined_cm3"]) == 0
    assert row["interval"] == "spread of the samples"
    assert not load_result(tmp_path / "out").volume("GTV").predicted


def test_core_is_never_more_probable_than_the_whole_tumor_that_samples_contain(result):
    for drawn in draw_predictions(result.tumor_predictions, 10, np.random.default_rng(0)):
        assert not (drawn["core"] & ~drawn["whole"]).any()


def test_tables_maps_and_stored_results_agree(result, out):
    table, stored = rows(out / "volumes.tsv"), load_result(out)
    for name, on in (("GTV", "15 patients"), ("Brain", HEADS)):
        volume = result.volume(name)
        low, high = volume.interval(0.9)
        assert float(table[name]["low90_cm3"]) == pytest.approx(low, abs=1e-4)
        assert float(table[name]["high90_cm3"]) == pytest.approx(high, abs=1e-4)
        assert table[name]["interval"] == f"90 % prediction interval (calibrated on {on})"
        assert stored.volume(name).interval(0.5) == pytest.approx(volume.interval(0.5), abs=1e-4)
        assert stored.volume(name).calibrated_on == on
        assert np.allclose(stored.predicted(name), result.prediction(name).probability(), atol=1e-5)
    assert table["Edema"]["interval"] == "spread of the samples"
    assert table["Edema"]["low90_cm3"] == ""
    assert stored.whole_tumor().interval() == pytest.approx(result.whole_tumor().interval(), abs=1e-4)
    assert not (out / "predicted" / "Edema.nii.gz").exists()
    with pytest.raises(KeyError):
        stored.predicted("Edema")
    votes = read_nifti(out / "probabilities" / "GTV.nii.gz").data
    assert np.allclose(votes, result.probability("GTV"), atol=1e-5)


def test_the_report_shows_intervals_and_bands(result, out):
    page = read_page(out / "report.html")
    shown = {row["name"]: row for row in page["volumes"]}
    assert shown["GTV"]["predicted"] == pytest.approx(
        [*result.volume("GTV").interval(0.5), *result.volume("GTV").interval(0.9)]
    )
    assert shown["Edema"]["predicted"] is None
    assert shown["whole tumor"]["calibrated_on"] == "12 patients"
    assert [(b["name"], b["plane"]) for b in page["bands"]][:3] == [
        ("tumor core", plane) for plane in ("axial", "coronal", "sagittal")
    ]
    organs = [(b["name"], b["plane"]) for b in page["bands"]][6:]
    assert organs == [("Brain", plane) for plane in ("axial", "coronal", "sagittal")]
    text = re.sub(r"<script.*?</script>", "", (out / "report.html").read_text(encoding="utf-8"), flags=re.S)
    assert "GTV: prediction intervals calibrated on 15 patients" in text
    assert f"Brain: prediction intervals calibrated on {HEADS}" in text
    assert "not calibrated" in text


def test_only_requested_structures_are_predicted_and_pictured(result, tmp_path):
    page = partial(render_report, result, True, case_name=CaseName())
    asked = Options(organs=("GTV", "Edema"))
    write_result(tmp_path / "out", result, [], {"key": "k", "reference": "T1c"}, asked, page, ["a line"])
    assert set(read_manifest(tmp_path / "out")["prediction"]) == {"core", "whole"}
    assert [p.name for p in (tmp_path / "out" / "predicted").iterdir()] == ["GTV.nii.gz"]
    assert {b["name"] for b in read_page(tmp_path / "out" / "report.html")["bands"]} == {
        "tumor core",
        "whole tumor",
    }
    none = replace(result, calibration=Calibration("2026-01-01", calibration().entries[1:]))
    write_result(tmp_path / "none", none, [], {"key": "k", "reference": "T1c"}, asked, page, ["a line"])
    assert not (tmp_path / "none" / "predicted").exists()


def test_contours_are_described_with_their_interval(result):
    text = describe_roi_interval(result.volume("GTV"))
    assert text.isascii()
    assert text.startswith("90 % prediction interval (calibrated on 15 patients) ")
    assert HEADS in describe_roi_interval(result.volume("Brain"))
    assert describe_roi_interval(result.volume("Edema")) == ""
    assert describe_roi_interval(Volume(1.0)) == ""


def test_conditions_are_model_settings_and_the_set_of_contrasts():
    config, both = {"gtv": "auto", "gibbs": {"tau": "images"}}, ["T1c", "FLAIR"]
    model = {"a.npz": "1", "b.npz": "2"}
    first = digest_conditions(model, config, both)
    assert first.tumor != first.organs
    assert first == digest_conditions(
        {"x": "2", "y": "1"}, config | {"gtv": "flair"}, ["FLAIR", "T1c", "T1c-2"]
    )
    for other in (
        digest_conditions({"a.npz": "1"}, config, both),
        digest_conditions(model, config, ["T1c"]),
        digest_conditions(model, {"gibbs": {"tau": 1.0}}, both),
    ):
        assert first.tumor != other.tumor
        assert first.organs != other.organs


def test_only_organs_hold_for_other_numbers_of_sweeps():
    def digests(**gibbs):
        return digest_conditions({"a.npz": "1"}, {"gibbs": gibbs, "postop": False}, ["T1c"])

    default, fast = digests(burn_in=200, samples=50, tau=1.0), digests(burn_in=40, samples=30, tau=1.0)
    assert default.tumor != fast.tumor
    assert default.organs == fast.organs
    assert default.organs != digests(burn_in=200, samples=50, tau=0.5).organs
    postop = digest_conditions({"a.npz": "1"}, {"gibbs": {"tau": 1.0}, "postop": True}, ["T1c"])
    assert default.organs != postop.organs


def test_dose_bands_of_core_and_whole_tumor_belong_together(result):
    live = as_kind(Segmentation, result)
    dose = Image(np.full(result.case.grid.shape, 10.0, np.float32), result.case.grid)
    found = live.dvh("GTV", dose)
    assert found.calibrated_on == "15 patients"
    assert len(found.samples) == 50
    low, high = np.quantile([s.volume for s in found.samples], [0.05, 0.95])
    assert (low, high) == pytest.approx(live.volume("GTV").interval(0.9), abs=0.02)
    assert live.dvh("Edema", dose).calibrated_on == ""


def test_a_stored_result_draws_the_same_dose_band(result, out):
    live = as_kind(Segmentation, result)
    dose = Image(np.full(result.case.grid.shape, 10.0, np.float32), result.case.grid)
    for name, on in (("GTV", "15 patients"), ("Brain", HEADS)):
        found = load_result(out).dvh(name, dose)
        assert found.calibrated_on == on
        volumes = [[s.volume for s in curves.samples] for curves in (found, live.dvh(name, dose))]
        assert volumes[0] == pytest.approx(volumes[1], abs=0.002)
    assert load_result(out).dvh("Edema", dose).calibrated_on == ""
