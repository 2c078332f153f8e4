"""The examples do what they say."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import small_head
from small_run import CONFIG, MODEL, run

from tumoar.app import pipeline as line
from tumoar.io.nifti import write_nifti
from tumoar.placement.affine import AffineResult
from tumoar.preprocess.quality import Note
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.config import Config, GibbsConfig

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_all_are_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"first_case", "keep_a_correction", "read_result", "score_against_truth"}


def test_read_result(tmp_path, capsys):
    result = run()
    write_result(
        tmp_path / "out", result, [Note("B44", "large")], {"key": "k"}, Options(), lambda whole: "", []
    )
    example("read_result")["main"](tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["NEEDS REVIEW", "review: large"]
    assert lines[2].split()[:2] == ["GTV", f"{result.volume('GTV').outlined:.2f}"]


def test_keep_a_correction(monkeypatch):
    monkeypatch.setattr(line, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
    _, z, _ = small_head.truth()
    result = example("keep_a_correction")["around"](small_head.case(), z == 1, MODEL, CONFIG)
    assert np.array_equal(result.votes.z, z)
    assert 0 < result.votes.y.sum() < z.sum()


@pytest.mark.slow
def test_first_case(tmp_path, capsys):
    from tumoar.io.models import default_model
    from tumoar.simulate import Acquisition, draw_patient

    scans = [Acquisition(name, (1.0, 1.0, 1.0)) for name in ("T1c", "FLAIR")]
    images, truth = draw_patient(default_model(), scans, 1)
    for name, image in images.items():
        write_nifti(tmp_path / f"{name}.nii.gz", image.data, image.grid)
    page = tmp_path / "report.html"
    example("first_case")["main"](tmp_path / "T1c.nii.gz", tmp_path / "FLAIR.nii.gz", page)
    said = capsys.readouterr().out
    gtv = float(said.split("GTV: ")[1].split()[0])
    assert gtv == pytest.approx(truth.y.sum() / 1000, rel=0.5)
    assert "GTV" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_score_against_truth():
    short = Config(gibbs=GibbsConfig(burn_in=20, samples=10))
    scores = example("score_against_truth")["main"](2, short)
    assert scores["tumor"] > 0.8
