"""A result lands on the slices of a series where the anatomy is, or is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from pydicom import dcmread
from rt_files import PLANTED, write_series
from small_study import build

from tumoar.cli import main
from tumoar.cli.dose import _judge_limits
from tumoar.geometry.image import Grid, Image
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.dose import GivenDose
from tumoar.io.identity import seal_identity
from tumoar.io.manifest import digest_of_file
from tumoar.io.nifti import read_nifti
from tumoar.io.rois import Roi
from tumoar.io.rtstruct import read_rtstruct
from tumoar.radiotherapy.export import UNCHECKED, _note_changed, export, is_identity_checked, rois_on
from tumoar.radiotherapy.limits import Limit
from tumoar.radiotherapy.structures import Measured, _of_result
from tumoar.result.folder import read_manifest
from tumoar.result.masks import rearrange, same_voxels
from tumoar.simulate.orders import ORDERS, stored
from tumoar.vocabulary.errors import GeometryError, IntegrityError
from tumoar.vocabulary.notes import CONVENTION, INCOMPLETE, Note


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return build(tmp_path_factory.mktemp("study"))


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


def test_what_an_organ_lacks_goes_with_it_and_leaves_its_dose_unjudged(study):
    out, series = study
    manifest = read_manifest(out)
    note = Note(CONVENTION, "has no cerebellum", level="info", where="Brain")
    noted = with_note(manifest, note)
    grid, _ = grid_of(series["t1c"])
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world([-5, -5, -5])
    wide = Grid(tuple(n + 10 for n in grid.shape), affine, grid.frame)
    dose = Image(np.full(wide.shape, 10.0, np.float32), wide)
    for given, expected in ((manifest, ""), (noted, "has no cerebellum")):
        rois = {roi.name: roi.made_of for roi in rois_on(out, given, series["t1c"])}
        assert rois["Brain"] == expected
        assert rois["Hippocampus_L"] == ""
        dosed = {item.name: item for item in _of_result(out, given, dose)}
        assert dosed["Brain"].lacking == expected
        limit = Limit("Brain", "D0.03cc", 54.0)
        verdict = _judge_limits([limit], Measured((dosed["Brain"],)), GivenDose(dose), is_own=False)
        assert verdict[0].light == ("gray" if expected else "green")
        assert expected in verdict[0].note


def with_note(manifest, note):
    return {**manifest, "notes": [*manifest["notes"], note.to_dict()]}


@pytest.mark.parametrize("id", INCOMPLETE)
def test_an_organ_that_may_be_incomplete_is_never_within_a_limit(study, id):
    out, _ = study
    manifest = read_manifest(out)
    image = read_nifti(out / "structures" / "Brain.nii.gz")
    affine = image.grid.affine.copy()
    affine[:3, 3] = image.grid.world([-5, -5, -5])
    wide = Grid(tuple(n + 10 for n in image.grid.shape), affine, image.grid.frame)
    lights = {}
    for level in ("review", "info"):
        noted = with_note(manifest, Note(id, "may miss a part", level=level, where="Brain"))
        for gray in (10.0, 54.5, 60.0):
            dose = Image(np.full(wide.shape, gray, np.float32), wide)
            (organ,) = _of_result(out, noted, dose, "Brain")
            limit = Limit("Brain", "D0.03cc", 54.0, 55.0)
            (verdict,) = _judge_limits([limit], Measured((organ,)), GivenDose(dose), is_own=False)
            lights[level, gray] = verdict.light
            assert ("may miss a part" in verdict.note) == (level == "review")
            is_above = "what is outlined is above the limit" in verdict.note
            assert is_above == (level == "review" and gray == 54.5)
    assert [lights["review", gray] for gray in (10.0, 54.5, 60.0)] == ["gray", "gray", "red"]
    assert [lights["info", gray] for gray in (10.0, 54.5, 60.0)] == ["green", "amber", "red"]


def test_skull_stripped_images_leave_the_doses_of_eyes_unjudged(study):
    out, _ = study
    manifest = read_manifest(out)
    image = read_nifti(out / "structures" / "Eye_L.nii.gz")
    dose = Image(np.full(image.grid.shape, 10.0, np.float32), image.grid)
    for stripped in (False, True):
        found = {d.name: d.lacking for d in _of_result(out, manifest | {"skull_stripped": stripped}, dose)}
        assert ("do not show it" in found["Eye_L"]) == stripped
        assert found["Brainstem"] == ""


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
    assert _note_changed({"name": "OpticChiasm", "outlined_cm3": 1.0}, [roi], coarse) is None
    note = _note_changed({"name": "OpticChiasm", "outlined_cm3": 0.4}, [roi], coarse)
    assert note.where == "OpticChiasm"
    assert note.text.startswith("1.00 cm³ on the voxels")


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


@pytest.mark.parametrize(("axes", "flips"), ORDERS)
def test_every_storage_order_is_rearranged(axes, flips):
    rng = np.random.default_rng(0)
    affine = np.diag([1.0, 2, 3, 1])
    affine[:3, :3] = np.linalg.qr(rng.normal(size=(3, 3)))[0] @ affine[:3, :3]
    affine[:3, 3] = 5, -70, 31
    image = Image(rng.integers(0, 9, (4, 5, 6)), Grid((4, 5, 6), affine))
    other = stored(image, axes, flips)
    assert np.array_equal(rearrange(other.data, other.grid, image.grid), image.data)
    assert np.array_equal(rearrange(image.data, image.grid, other.grid), other.data)
    moved = other.grid.affine.copy()
    moved[:3, 3] += 0.2
    assert rearrange(other.data, Grid(other.grid.shape, moved), image.grid) is None


# ---- what is exported, and for whom ------------------------------------------------------------------------


def test_only_what_the_manifest_lists_is_exported(study, tmp_path):
    out, series = study
    copy = shutil.copytree(out, tmp_path / "out")
    known = {roi.name for roi in rois_on(copy, read_manifest(copy), series["t1c"])}
    shutil.copy(copy / "structures" / "GTV.nii.gz", copy / "structures" / "CTV_evil.nii.gz")
    manifest = read_manifest(copy)
    assert {roi.name for roi in rois_on(copy, manifest, series["t1c"])} == known
    # Not even if it is a file of the result, but none of its structures.
    manifest["files"]["structures/CTV_evil.nii.gz"] = digest_of_file(copy / "structures" / "CTV_evil.nii.gz")
    assert {roi.name for roi in rois_on(copy, manifest, series["t1c"])} == known


def test_a_structure_that_is_missing_stops_the_export(study, tmp_path):
    out, series = study
    copy = shutil.copytree(out, tmp_path / "out")
    manifest = read_manifest(copy)
    name = "structures/Brainstem.nii.gz"
    unlisted = manifest | {"files": {k: v for k, v in manifest["files"].items() if k != name}}
    with pytest.raises(IntegrityError, match="missing") as refusal:
        rois_on(copy, unlisted, series["t1c"])
    assert refusal.value.file == "Brainstem.nii.gz"
    (copy / name).unlink()
    shutil.rmtree(copy / "dicom", ignore_errors=True)
    with pytest.raises(IntegrityError, match="missing"):
        rois_on(copy, manifest, series["t1c"])
    with pytest.raises(IntegrityError):
        export(copy, series["t1c"], rtstruct=True, seg=True)
    assert not (copy / "dicom").exists()


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A result of NIfTI images, which names nobody, and a series that has its voxels by chance."""
    folder = tmp_path_factory.mktemp("strangers")
    out, series = build(folder, linked=False)
    grid, _ = grid_of(series["t1c"])
    write_series(folder / "other", np.ones(grid.shape), grid)
    return out, folder / "other"


def test_an_identity_that_cannot_be_checked_is_told(strangers):
    out, folder = strangers
    _, notes = export(out, only_series(folder), rtstruct=True, seg=True)
    assert notes == [UNCHECKED]
    contours, segments = (dcmread(out / "dicom" / f"{n}.dcm") for n in ("RTSTRUCT", "SEG"))
    assert "identity could not be checked" in contours.StructureSetDescription
    for text in (contours.SeriesDescription, contours.StructureSetName, segments.SeriesDescription,
                 segments.ContentDescription):  # fmt: skip
        assert "identity not checked" in text
        assert len(text) <= 64


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 13)])
def test_strict_export(strangers, capfd, strict, code):
    out, folder = strangers
    with pytest.raises(SystemExit) as end:
        main(["export", str(out), "--rtstruct", "--reference", str(folder), *strict])
    assert end.value.code == code
    assert f"note: {UNCHECKED}" in capfd.readouterr().out
    assert (out / "dicom" / "RTSTRUCT.dcm").is_file()


def test_when_an_identity_is_checked(study, strangers):
    """By the digest of a series, its frame of reference, or the patient that both name."""
    out, series = study
    _, folder = strangers
    manifest, other = read_manifest(out), only_series(folder)
    assert is_identity_checked(manifest, series["t1c"])  # by the frame of reference
    assert is_identity_checked(manifest, series["flair"])
    assert not is_identity_checked(manifest, other)
    assert is_identity_checked(manifest | {"patient": seal_identity(other.person, "k")}, other)
    assert not is_identity_checked(manifest | {"patient": {}}, other)


def test_what_the_slices_of_a_series_do_not_cover_is_told(tmp_path):
    """A few slices of the brain: too little to change its volume much, and enough to miss."""
    out, series = build(tmp_path)
    whole, _ = grid_of(series["t1c"])
    brain = next(r for r in rois_on(out, read_manifest(out), series["t1c"]) if r.name == "Brain")
    first = int(np.flatnonzero(brain.mask.any((0, 1)))[0]) + 2
    affine = whole.affine.copy()
    affine[:3, 3] = whole.world([0, 0, first])
    grid = Grid((*whole.shape[:2], whole.shape[2] - first), affine)
    write_series(tmp_path / "cut", np.zeros(grid.shape), grid, frame="1.2.1")
    _, notes = export(out, only_series(tmp_path / "cut"), rtstruct=True, seg=False)
    lost = brain.mask[:, :, :first].sum() / brain.mask.sum()
    assert 0 < lost < 0.1
    text = f"{100 * lost:.1f} % of it lies outside the series, where it is not drawn"
    assert notes == [Note("export", text, where="Brain")]
