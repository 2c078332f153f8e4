"""`tumoar train location` on label maps made here."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from tumoar.cli import train_location
from tumoar.cli.train_location import count_tumors, location
from tumoar.io.models import default_model, require_working
from tumoar.io.store import Section, load_sections
from tumoar.model.location import Location
from tumoar.vocabulary.errors import GeometryError, ModelFileError, UsageError


@pytest.fixture
def maps(tmp_path):
    """Two patients, one of them with two time points; tumor left and in front of the middle."""
    affine = np.diag([4.0, 4, 4, 1])
    affine[:3, 3] = -80
    paths = []
    for name, x in (("a-000", 12), ("a-001", 12), ("b-000", 16)):
        labels = np.zeros((40, 40, 40), np.uint8)
        labels[x : x + 5, 20:26, 18:24] = 2
        paths.append(tmp_path / f"{name}.nii.gz")
        nib.save(nib.Nifti1Image(labels, affine), paths[-1])
    return paths


def test_time_points_of_a_patient_share_a_vote(maps):
    counts, grid, patients = count_tumors(maps, set())
    assert patients == ["a", "b"]
    assert counts.max() == pytest.approx(2)
    assert counts[13, 22, 20] == pytest.approx(1)
    assert grid.shape == (40, 40, 40)
    assert count_tumors(maps, {"a"})[2] == ["b"]


def test_the_file_is_part_of_a_model(maps, tmp_path, monkeypatch):
    monkeypatch.setattr(train_location, "place_on", lambda path, atlas: np.eye(4))
    out = tmp_path / "location.npz"
    location(maps, [maps[0]], output=out, left_out=["b"])
    sections = load_sections(out)
    card = sections["location"].card["provenance"]
    assert (card["subjects"], card["left_out"]) == (["a"], ["b"])
    assert sorted(require_working(sections, out)) == ["atlas", "shape_y", "shape_z"]
    found = Location(sections["location"].arrays["frequency"], sections["location"].arrays["affine"])
    at = np.linalg.inv(found.affine) @ [-80 + 4 * 14, -80 + 4 * 22, -80 + 4 * 20, 1]
    assert found.frequency[tuple(np.rint(at[:3]).astype(int))] == 1
    assert found.frequency.min() < 0.05


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"frequency": np.full((3, 3, 3), 2, np.float32), "affine": np.eye(4)},
        {"frequency": np.full((3, 3, 3), np.nan, np.float32), "affine": np.eye(4)},
        {"frequency": np.ones(3, np.float32), "affine": np.eye(4)},
        {"frequency": np.ones((3, 3, 3), np.float32), "affine": np.zeros((4, 4))},
    ],
)
def test_a_damaged_section_is_refused(arrays):
    with pytest.raises(ModelFileError, match=r"B54.*location"):
        require_working({"location": Section(arrays, {})}, "x.npz")


def test_the_model_in_the_package_has_one():
    model = default_model()
    assert model.location is not None
    middle = model.location.frequency[model.location.frequency.shape[0] // 2]
    assert middle.max() == 1


def test_label_maps_of_other_spaces_are_refused(maps, tmp_path):
    moved = nib.load(maps[0])
    affine = moved.affine.copy()
    affine[0, 3] += 3
    nib.save(nib.Nifti1Image(np.asarray(moved.dataobj), affine), tmp_path / "c-000.nii.gz")
    with pytest.raises(GeometryError, match="must share one grid"):
        count_tumors([*maps, tmp_path / "c-000.nii.gz"], set())


def test_label_maps_without_tumor_are_refused(maps, tmp_path):
    with pytest.raises(UsageError, match="no label map is left"):
        count_tumors(maps, {"a", "b"})
    empty = tmp_path / "e-000.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((40, 40, 40), np.uint8), nib.load(maps[0]).affine), empty)
    with pytest.raises(UsageError, match="no tumor in the label maps"):
        count_tumors([empty], set())
