"""`tumoar simulate --independent`: images with their truth, the same head again, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from source_head import GRID, head

from tumoar.cli.simulate import simulate
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.vocabulary.errors import TumoarError, UsageError


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """The drawn head in the codes of source label maps."""
    path = tmp_path_factory.mktemp("source") / "head.nii.gz"
    write_nifti(path, head().astype(np.int16), GRID)
    return path


def test_images_and_truth_are_the_same_for_the_same_seed(codes, tmp_path):
    given = {"contrast": ["T2", "CT"], "labels": codes, "core_ml": 0.5, "slices": 3.0, "seed": 4}
    given["independent"] = True
    simulate(tmp_path / "a", **given)
    simulate(tmp_path / "b", **given)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == [
        "CT.nii.gz", "T2.nii.gz", "run.json", "truth.json", "truth_organs.nii.gz", "truth_tumor.nii.gz"
    ]  # fmt: skip
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    card = json.loads((tmp_path / "a" / "truth.json").read_text())
    organs = read_nifti(tmp_path / "a" / "truth_organs.nii.gz")
    assert set(np.unique(organs.data)) == {0, *card["organs"].values()}
    left, right = (np.argwhere(organs.data == card["organs"][f"Eye_{s}"])[:, 0].mean() for s in "LR")
    assert left < right
    image = read_nifti(tmp_path / "a" / "T2.nii.gz")
    assert image.grid.spacing.tolist() == [1, 1, 3]


@pytest.mark.slow
def test_a_second_scan_shows_the_same_head_turned_and_its_truth_with_it(codes, tmp_path):
    given = {"contrast": ["T2"], "labels": codes, "core_ml": 0.0, "seed": 4, "independent": True}
    given["orientation"] = "sagittal"
    simulate(tmp_path / "a", **given)
    simulate(tmp_path / "b", turn=10.0, **given)
    cards = [json.loads((tmp_path / name / "truth.json").read_text()) for name in "ab"]
    assert np.linalg.norm(cards[1]["turned_degrees"]) == pytest.approx(10)
    for name, card in zip("ab", cards):
        image, truth = (read_nifti(tmp_path / name / f"{f}.nii.gz") for f in ("T2", "truth_organs"))
        for side in "LR":
            middle = np.argwhere(truth.data == card["organs"][f"Eye_{side}"]).mean(0)
            at = np.rint(image.grid.index(truth.grid.world(middle))).astype(int)
            assert image.data[tuple(at)] > 1000  # vitreous
    volumes = [np.bincount(read_nifti(tmp_path / n / "truth_organs.nii.gz").data.ravel()) for n in "ab"]
    np.testing.assert_allclose(volumes[1][1:], volumes[0][1:], rtol=0.12)


def test_refusals(codes, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"E2-independent .*--labels"):
        simulate(out, independent=True)
    with pytest.raises(UsageError, match=r"E2-independent .*--labels"):
        simulate(out, independent=True, labels=codes, postop="gross")
    with pytest.raises(UsageError, match=r"E2-independent .*--independent"):
        simulate(out, turn=5.0)
    with pytest.raises(UsageError, match=r"E2-independent .*oblique.*axial, sagittal, coronal"):
        simulate(out, independent=True, labels=codes, orientation="oblique")
    with pytest.raises(UsageError, match=r"E2-independent .*7 T.*1.5 or 3"):
        simulate(out, independent=True, labels=codes, field=7.0)
    with pytest.raises(UsageError, match="DIR"):
        simulate(out, independent=True, labels=codes, contrast=["DIR"])
    other = tmp_path / "other.nii.gz"
    write_nifti(other, np.full(GRID.shape, 999, np.int16), GRID)
    with pytest.raises(TumoarError, match="999"):
        simulate(out, independent=True, labels=other)
    assert not out.exists()
