"""A result for organs alone has no targets: what was not looked for is missing, not empty."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import small_head
from small_result import small_result
from small_run import CONFIG, run

from tumoar.app.calibrate import compare_tumor
from tumoar.app.publish import render_report
from tumoar.app.request import Request
from tumoar.app.segment import prepare
from tumoar.app.warm import Warming
from tumoar.app.watch import Listener
from tumoar.radiotherapy.agreement import score
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.targets import add_margins
from tumoar.radiotherapy.viewers import export_labels
from tumoar.report import read_page
from tumoar.result.folder import REPORT, Options, read_manifest, write_result
from tumoar.result.parts import drop_targets
from tumoar.result.stored import Stored
from tumoar.review.session import Session
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.errors import UsageError

TARGETS = ("GTV", "Edema", "whole tumor")
PARTS = ("core", "edema")
MANIFEST = {
    "key": "k",
    "reference": "T1c",
    "conditions": {},
    "inputs": [{"contrast": c} for c in ("T1c", "FLAIR")],
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    whole = small_result(tumor=False)
    config = whole.config.model_copy(update={"tumor": False})
    result = replace(whole, config=config, table=drop_targets(whole.table))
    folder = tmp_path_factory.mktemp("organs") / "out"
    page = partial(render_report, result, False, case_name=CaseName())
    write_result(folder, result, [], MANIFEST, Options(), page, ["a line"])
    return folder


def test_a_run_for_organs_has_no_targets():
    result = run(config=CONFIG.model_copy(update={"tumor": False}), case=small_head.case(tumor=False))
    names = [organ.name for organ in result.table.organs]
    assert names == [o.name for o in small_head.LABELS.organs if not o.tumor]
    with pytest.raises(KeyError, match="no 'GTV'"):
        result.volume("GTV")


def test_no_file_names_a_target(out):
    for name in ("volumes.tsv", "segmentation.tsv"):
        words = {word for row in (out / name).read_text().splitlines() for word in row.split("\t")}
        assert not words & {*TARGETS, *PARTS}, name
    manifest = read_manifest(out)
    assert not any(target in file for file in manifest["files"] for target in TARGETS)
    assert manifest["whole_tumor"] is None
    assert not any(organ["tumor"] for organ in manifest["labels"]["organ"] if "tumor" in organ)


def test_the_report_shows_organs_alone(out):
    data = read_page(out / REPORT)
    assert not {row["name"] for row in data["volumes"]} & set(TARGETS)
    assert data["convergence"]["chains"] == []
    assert not any(part in json.dumps(data["intensity"]) for part in ('"core', '"edema'))
    html = (out / REPORT).read_text()
    assert "whole tumor</span>" not in html


def test_exports_and_reviews_hold_organs_alone(out):
    for name in export_labels(out, slicer=True, itksnap=True):
        text = (out / name).read_bytes()
        assert not any(word in text for word in (b"GTV", b"edema", b"core")), name
    session = Session.open(out)
    assert not set(TARGETS) & set(Stored(out, read_manifest(out)).structures)
    assert session.mask("Brain").any()


def test_margins_and_scores_of_a_target_are_refused(out):
    with pytest.raises(UsageError, match="margins need GTV"):
        add_margins(out, Margins(15, 3))
    with pytest.raises(UsageError, match="the result has no GTV"):
        score(out, out / "segmentation.nii.gz", {"GTV": (1,)}, {})


def test_a_target_cannot_be_asked_for():
    request = Request(case=small_head.case(tumor=False), tumor=False, structures=("GTV",))
    with Warming() as kernels, pytest.raises(UsageError, match="no structure 'GTV'"):
        prepare(request, Listener(), kernels)


def test_its_tumor_says_nothing_about_a_calibration(out):
    result = Stored(out, read_manifest(out))
    _, z, y = small_head.truth()
    compared = compare_tumor(result, y > 0, z > 0, np.random.default_rng(0))
    assert not compared.observed
