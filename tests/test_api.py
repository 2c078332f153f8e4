"""The front door for Python."""

import subprocess
import sys

import numpy as np
import pytest
from small_run import run
from synthetic_heads import synthetic_head

import tumoar
from tumoar.io.nifti import write_nifti
from tumoar.result.folder import Options, write_result
from tumoar.vocabulary.errors import UnreadableFileError


def test_a_case_is_read_by_contrast(tmp_path):
    for name in ("T1c", "FLAIR"):
        head = synthetic_head(name)
        write_nifti(tmp_path / f"{name}.nii.gz", head.data, head.grid)
    case = tumoar.Case.from_files(t1c=tmp_path / "T1c.nii.gz", flair=tmp_path / "FLAIR.nii.gz")
    assert [c.name for c in case.contrasts] == ["T1c", "FLAIR"]
    assert case.reference == "T1c"


def test_names_are_what_the_documentation_says_in_any_order():
    """A module of the same name must not hide a function."""
    code = "from tumoar import Case, Model, segment, load_result; assert callable(segment)"
    for first in ("", "import tumoar.app.segment; "):
        subprocess.run([sys.executable, "-c", first + code], check=True)


def test_the_default_model_is_whole():
    model = tumoar.Model.default()
    assert model.labels.K == 18
    assert set(model.sha256) == {"atlas.npz", "shape.npz"}


def test_a_stored_result_is_read_back(tmp_path):
    result = run()
    write_result(tmp_path / "out", result, (), {"key": "k"}, Options(), lambda manifest: "", [])
    stored = tumoar.load_result(tmp_path / "out")
    assert np.array_equal(stored.labels, result.labels)
    assert np.array_equal(stored.mask("GTV"), result.mask("GTV"))
    assert np.allclose(stored.probability("GTV"), result.probability("GTV"), atol=1e-6)
    assert stored.volume("GTV")["mean_cm3"] == pytest.approx(result.volume("GTV").mean, abs=1e-4)
    with pytest.raises(KeyError, match="no 'Liver'"):
        stored.mask("Liver")
    with pytest.raises(UnreadableFileError):
        tumoar.load_result(tmp_path)


def test_unknown_names_are_errors():
    with pytest.raises(AttributeError, match="nothing"):
        _ = tumoar.nothing
