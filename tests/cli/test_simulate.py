"""`tumoar simulate` writes a patient that the rest of the package can read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from heads import analytic_head

from tumoar.cli.simulate import simulate
from tumoar.geometry.image import Grid
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.vocabulary.errors import UnreadableFileError, UsageError


@pytest.fixture(scope="module")
def label_file(tmp_path_factory):
    """A small head that claims to be at 1 mm."""
    label_map, grid = analytic_head(4.0)
    affine = grid.affine.copy()
    affine[:3] /= 4
    path = tmp_path_factory.mktemp("head") / "labels.nii.gz"
    write_nifti(path, label_map, Grid(grid.shape, affine))
    return path


def test_a_patient_with_its_truth(label_file, tmp_path):
    simulate(tmp_path / "a", contrast=["t1c", "CT"], labels=label_file, core_ml=0.3, slices=2.0, seed=4)
    simulate(tmp_path / "b", contrast=["T1c", "ct"], labels=label_file, core_ml=0.3, slices=2.0, seed=4)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    truth = ["truth.json", "truth_labels.nii.gz", "truth_segmentation.nii.gz", "truth_tumor.nii.gz"]
    assert names == ["CT.nii.gz", "T1c.nii.gz", "run.json", *truth]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    card = json.loads((tmp_path / "a" / "truth.json").read_text())
    tumor = read_nifti(tmp_path / "a" / "truth_tumor.nii.gz")
    assert card["core_ml"] == pytest.approx(
        (tumor.data == 2).sum() * tumor.grid.voxel_volume / 1000, abs=0.01
    )
    assert read_nifti(tmp_path / "a" / "T1c.nii.gz").grid.spacing[2] == pytest.approx(2)


def test_no_tumor(label_file, tmp_path):
    simulate(tmp_path, contrast=["T2"], labels=label_file, core_ml=0.0)
    assert not read_nifti(tmp_path / "truth_tumor.nii.gz").data.any()


def test_refusals(label_file, tmp_path):
    with pytest.raises(UsageError, match="PET"):
        simulate(tmp_path / "out", contrast=["PET"], labels=label_file)
    image = read_nifti(label_file)
    other = tmp_path / "other.nii.gz"
    write_nifti(other, np.where(image.data == 1, 41, image.data).astype(np.uint8), image.grid)
    with pytest.raises(UnreadableFileError, match="41"):
        simulate(tmp_path / "out", contrast=["T1"], labels=other)
    assert not (tmp_path / "out").exists()
