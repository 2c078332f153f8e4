"""The examples do what they say."""

import re
import runpy
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import small_head
from rt_files import write_series
from small_run import CONFIG, MODEL, finished, stand_ins

import tumoar
from tumoar.app import pipeline as line
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti
from tumoar.placement.affine import AffineResult
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.config import Config, GibbsConfig
from tumoar.vocabulary.notes import Note

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_all_are_tested():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"first_case", "keep_a_correction", "read_result", "score_against_truth"}


def test_read_result(tmp_path, capsys):
    result = finished()
    write_result(
        tmp_path / "out", result, [Note("B44", "large")], {"key": "k"}, Options(), lambda whole: "", []
    )
    example("read_result")["main"](tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["NEEDS REVIEW", "review: B44 large"]
    assert lines[2].split()[:2] == ["GTV", f"{result.volume('GTV').outlined:.2f}"]


@pytest.mark.slow
def test_keep_a_correction(monkeypatch):
    monkeypatch.setattr(line, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
    _, z, _ = small_head.truth()
    result = example("keep_a_correction")["around"](small_head.case(), z == 1, MODEL, CONFIG)
    assert np.array_equal(result.votes.z, z)
    assert 0 < result.votes.y.sum() < z.sum()


@pytest.mark.long
def test_first_case(tmp_path, capsys):
    from tumoar.io.models import default_model
    from tumoar.simulate import Acquisition, draw_patient

    scans = [Acquisition(name, (1.0, 1.0, 1.0)) for name in ("T1c", "FLAIR")]
    images, truth = draw_patient(default_model(), scans, 1)
    for name, image in images.items():
        write_nifti(tmp_path / f"{name}.nii.gz", image.data, image.grid)
    out = tmp_path / "out"
    example("first_case")["main"](tmp_path / "T1c.nii.gz", tmp_path / "FLAIR.nii.gz", out)
    said = capsys.readouterr().out
    gtv = float(said.split("GTV: ")[1].split()[0])
    assert gtv == pytest.approx(truth.y.sum() / 1000, rel=0.5)
    assert "GTV" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_score_against_truth():
    short = Config(gibbs=GibbsConfig(burn_in=20, samples=10))
    scores = example("score_against_truth")["main"](2, short)
    assert scores["tumor"] > 0.8


@pytest.mark.slow
def test_the_page_on_the_api_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """On the small head, whatever files it names."""
    N = small_head.SIZE
    flip = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
    write_series(tmp_path / "t1c_dicom", np.ones((N, N, N)), Grid((N, N, N), flip), frame="1.2.1")
    grid = Grid((20, 20, 20), np.diag([3.0, 3.0, 3.0, 1.0]))
    write_nifti(tmp_path / "dose.nii.gz", np.full(grid.shape, 60.0, np.float32), grid)
    small = small_head.case()
    case = tumoar.Case(**{f.name: getattr(small, f.name) for f in fields(small)})
    for place, name, value in (*stand_ins(), (tumoar.Case, "from_files", lambda **files: case)):
        monkeypatch.setattr(place, name, value)
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLES.parent / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 7
    names = {}
    for block in blocks:
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "B57 12" in said
    assert "sample done" in said
    assert "StoredResult: OK" in said
    assert names["found"].dvh.mean == pytest.approx(60)
    assert len(names["found"].samples) == 10
    assert (tmp_path / "RS.dcm").is_file()
