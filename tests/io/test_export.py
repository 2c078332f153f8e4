"""A result lands on the slices of a series where the anatomy is, or is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small_head
from rt_files import PLANTED, write_series
from small_run import run

from tumoar.errors import GeometryError
from tumoar.image import Grid, frame_digest
from tumoar.io.dicom import digest_of, grid_of, only_series
from tumoar.io.export import _changed, export, rois_on, same_voxels
from tumoar.io.nifti import read_nifti
from tumoar.io.results import Options, read_manifest, write_result
from tumoar.io.rois import Roi
from tumoar.io.rtstruct import read_rtstruct

N = small_head.SIZE
SHIFT = np.eye(4)
SHIFT[0, 3] = -5.0  # world of the FLAIR to world of the T1c


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A result; its T1c as a series in LPS; its FLAIR, moved by 5 mm, with thick slices."""
    folder = tmp_path_factory.mktemp("study")
    found = run()
    world = found.case.grid.affine
    flipped = Grid(
        (N, N, N), world @ np.array([[-1, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
    )
    affine = flipped.affine @ np.diag([1, 1, 2.0, 1])
    affine[0, 3] += 5.0
    thick = Grid((N, N, N // 2), affine)
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(folder / "t1c", values, flipped, frame="1.2.1")
    write_series(folder / "flair", values[:, :, : N // 2], thick, frame="1.2.2")
    every_third = Grid((N, N, -(-N // 3)), flipped.affine @ np.diag([1, 1, 3.0, 1]))
    every_other = Grid((N, N, N // 2), flipped.affine @ np.diag([1, 1, 2.0, 1]))
    write_series(folder / "later", values[:, :, ::3], every_third, frame="1.2.1")
    write_series(folder / "unknown", values[:, :, : N // 2], every_other)
    given = replace(found.case.input("FLAIR"), grid=thick, to_reference=SHIFT)
    result = replace(found, case=replace(found.case, inputs=(found.case.input("T1c"), given)))
    series = {name: only_series(folder / name) for name in ("t1c", "flair", "later", "unknown")}
    inputs = [
        {"contrast": "T1c", "sha256": "of a NIfTI file", "frame": frame_digest("1.2.1")},
        {"contrast": "FLAIR", "sha256": digest_of(series["flair"]), "frame": frame_digest("1.2.2")},
    ]
    manifest = {"key": "k", "reference": "T1c", "inputs": inputs}
    write_result(folder / "out", result, (), manifest, Options(), lambda whole: "", [])
    return folder / "out", series


def middle(mask, grid):
    return grid.world(np.argwhere(mask).mean(0))


@pytest.mark.parametrize("name", ["t1c", "flair", "later"])
def test_structures_lie_where_they_are_in_the_world(study, name):
    out, series = study
    manifest = read_manifest(out)
    grid, _ = grid_of(series[name])
    for roi in rois_on(out, manifest, series[name]):
        image = read_nifti(out / "structures" / f"{roi.name}.nii.gz")
        if image.data.sum() < 50:
            continue
        true = middle(image.data > 0, image.grid) + (np.array([5.0, 0, 0]) if name == "flair" else 0)
        assert middle(roi.mask, grid) == pytest.approx(true, abs=1.0), roi.name
        volumes = roi.mask.sum() * grid.voxel_volume, image.data.sum() * image.grid.voxel_volume
        assert volumes[0] == pytest.approx(volumes[1], rel=0.25)


def test_the_very_voxels_are_kept(study):
    out, series = study
    grid, _ = grid_of(series["t1c"])
    for roi in rois_on(out, read_manifest(out), series["t1c"]):
        image = read_nifti(out / "structures" / f"{roi.name}.nii.gz")
        assert roi.mask.sum() == (image.data > 0).sum()
        if roi.mask.any():
            there = np.rint(image.grid.index(grid.world(np.argwhere(roi.mask)))).astype(int)
            assert image.data[tuple(there.T)].all()


def test_files_are_added_to_the_result(study):
    out, series = study
    names, notes = export(out, series["t1c"], rtstruct=True, seg=True)
    assert notes == []
    assert names == ["dicom/RTSTRUCT.dcm", "dicom/SEG.dcm"]
    assert set(names) <= set(read_manifest(out)["files"])
    outlines = {o.name: o for o in read_rtstruct(out / "dicom" / "RTSTRUCT.dcm").outlines}
    assert "GTV" in outlines
    assert outlines["GTV"].slabs
    assert not any(planted.encode() in (out / "run.json").read_bytes() for planted in PLANTED)


def test_a_series_from_elsewhere_is_refused(study):
    out, series = study
    with pytest.raises(GeometryError, match="not known to lie in the space") as refusal:
        rois_on(out, read_manifest(out), series["unknown"])
    assert refusal.value.id == "B33"
    assert rois_on(out, read_manifest(out), series["unknown"], trust=True)


def test_voxels_too_coarse_are_told():
    coarse = Grid((4, 4, 4), np.diag([5.0, 5.0, 5.0, 1.0]))
    mask = np.zeros(coarse.shape, bool)
    mask[:2, :2, :2] = True
    roi = Roi("OpticChiasm", "ORGAN", "#ff3b30", mask)
    assert _changed({"name": "OpticChiasm", "outlined_cm3": 1.0}, [roi], coarse) is None
    assert "1.00 cm³ on the voxels" in _changed({"name": "OpticChiasm", "outlined_cm3": 0.4}, [roi], coarse)


def test_same_voxels():
    a = Grid((4, 5, 6), np.diag([1.0, 2, 3, 1]))
    flipped = Grid((4, 5, 6), a.affine @ np.array([[-1, 0, 0, 3], [0, 1, 0, 0], [0, 0, -1, 5], [0, 0, 0, 1]]))
    turned = Grid((6, 5, 4), a.affine @ np.eye(4)[:, [2, 1, 0, 3]])
    assert same_voxels(a, flipped)
    assert same_voxels(a, turned)
    moved = a.affine.copy()
    moved[0, 3] = 0.5
    assert not same_voxels(a, Grid((4, 5, 6), moved))
    assert not same_voxels(a, Grid((4, 5, 7), a.affine))
