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


@pytest.mark.parametrize("core_ml", [1e-300, 0.01, 301.0, 1e300])
def test_a_tumor_too_small_to_see_or_too_large_for_a_head_is_refused(label_file, tmp_path, core_ml):
    with pytest.raises(UsageError, match=r"E2-core .*0.1 to 300 ml"):
        simulate(tmp_path / "out", labels=label_file, core_ml=core_ml)
    assert not (tmp_path / "out").exists()


def test_a_contrast_given_twice_is_refused(label_file, tmp_path):
    with pytest.raises(UsageError, match="E2-contrast T1c is given twice"):
        simulate(tmp_path / "out", contrast=["T1c", "t1c"], labels=label_file)


def test_a_head_without_white_matter_has_no_place_for_a_tumor(tmp_path):
    write_nifti(tmp_path / "labels.nii.gz", np.zeros((40, 40, 40), np.uint8), Grid((40, 40, 40), np.eye(4)))
    with pytest.raises(UnreadableFileError, match=r"E3-labels-unknown .*no white matter"):
        simulate(tmp_path / "out", labels=tmp_path / "labels.nii.gz")


def test_refusals(label_file, tmp_path):
    with pytest.raises(UsageError, match="PET"):
        simulate(tmp_path / "out", contrast=["PET"], labels=label_file)
    image = read_nifti(label_file)
    other = tmp_path / "other.nii.gz"
    write_nifti(other, np.where(image.data == 1, 41, image.data).astype(np.uint8), image.grid)
    with pytest.raises(UnreadableFileError, match="41"):
        simulate(tmp_path / "out", contrast=["T1"], labels=other)
    assert not (tmp_path / "out").exists()


def test_a_patient_after_surgery(label_file, tmp_path):
    simulate(tmp_path, contrast=["T1c"], labels=label_file, core_ml=0.5, postop="partial", seed=4)
    card = json.loads((tmp_path / "truth.json").read_text())
    classes = read_nifti(tmp_path / "truth_tumor.nii.gz")
    assert card["cavity_ml"] == pytest.approx((classes.data == 3).sum() / 1000, abs=0.01)
    assert card["cavity_ml"] > 0
    with pytest.raises(UsageError, match=r"E2-postop .*gross"):
        simulate(tmp_path / "out", labels=label_file, postop="all of it")
    with pytest.raises(UsageError, match="E2-postop"):
        simulate(tmp_path / "out", labels=label_file, core_ml=0.0, postop="gross")
