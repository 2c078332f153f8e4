"""The output folder: complete, checked, published at once, in the space of every input."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_head
from small_result import small_result
from small_run import finished

from tumoar.geometry.image import Grid
from tumoar.io.nifti import read_nifti
from tumoar.result.folder import Options, add_table, read_manifest, write_result
from tumoar.result.native import deliver, remove_small_parts
from tumoar.result.state import read_state
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import IntegrityError, OutputError, UnreadableFileError
from tumoar.vocabulary.notes import Note

ORGANS = ["GTV", "Edema", "Brainstem", "Hippocampus_L", "Hippocampus_R", "OpticChiasm"]
ORGANS += ["OpticNrv_L", "OpticNrv_R", "Eye_L", "Eye_R", "Brain"]


@pytest.fixture(scope="module")
def result():
    """A result whose FLAIR came as 2 mm slices, flipped, and elsewhere."""
    found = finished()
    case = found.case
    affine = np.diag([-1.0, 1.0, 2.0, 1.0])
    affine[:3, 3] = [small_head.SIZE - 1 + 5.0, 0.0, 0.3]  # no slice halfway between two of ours: ties
    shift = np.eye(4)
    shift[0, 3] = -5.0
    given = case.input("FLAIR")
    grid = Grid((small_head.SIZE, small_head.SIZE, small_head.SIZE // 2), affine)
    moved = replace(given, grid=grid, orientation="LAS", to_reference=shift)
    return replace(found, case=replace(case, inputs=(case.input("T1c"), moved)))


def written(out, result, notes=(), options=None, report=lambda manifest: "<html></html>"):
    write_result(out, result, notes, {"key": "k"}, options or Options(), report, ["a line"])
    return out


def rows(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_folder_is_what_the_interface_says(tmp_path, result):
    out = written(tmp_path / "out", result)
    names = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    expected = {"segmentation.nii.gz", "segmentation.tsv", "uncertainty.nii.gz", "volumes.tsv"}
    expected |= {
        "compartments.nii.gz",
        "report.html",
        "run.json",
        "log.txt",
        "transforms/FLAIR_to_T1c.txt",
        "state.npz",
    }
    expected |= {f"{kind}/{organ}.nii.gz" for kind in ("structures", "probabilities") for organ in ORGANS}
    expected |= {f"native/{name}_segmentation.nii.gz" for name in ("T1c", "FLAIR")}
    assert names == expected
    assert [p for p in tmp_path.iterdir() if p != out] == []
    manifest = read_manifest(out)
    assert manifest["status"] == "OK"
    assert set(manifest["files"]) == names - {"run.json"}
    page = (Path(__file__).resolve().parents[2] / "docs" / "first-case.md").read_text("utf-8")
    shown = set(re.findall(r"`([\w.]+)/?`", page.split("## Output")[1].split("\n## ")[0]))
    assert {name.split("/")[0] for name in names} - {"segmentation.tsv"} <= shown


def test_the_pages_on_privacy_say_which_files_hold_images(tmp_path, result):
    """Only these files have values of the images; the others are labels, votes, tables and transforms."""
    state = read_state(written(tmp_path / "out", result) / "state.npz")
    box = tuple(slice(a, a + n) for a, n in zip(state.first, state.D.shape[1:]))
    has_data = state.use > 0
    np.testing.assert_allclose(state.D[0][has_data], result.case.D[0][box][has_data], atol=1e-3)
    root = Path(__file__).resolve().parents[2]
    for name in ("README.md", "SECURITY.md", "docs/report.md"):
        assert "`state.npz`" in (root / name).read_text("utf-8"), name


def test_values_are_those_of_the_result(tmp_path, result):
    out = written(tmp_path / "out", result, [Note("B44", "large")])
    assert np.array_equal(read_nifti(out / "segmentation.nii.gz").data, result.labels)
    assert np.array_equal(read_nifti(out / "structures/GTV.nii.gz").data, result.mask("GTV"))
    share = read_nifti(out / "probabilities/GTV.nii.gz").data
    assert np.allclose(share, result.probability("GTV"), atol=1e-6)
    by_name = {row["name"]: row for row in rows(out / "volumes.tsv")}
    assert list(by_name) == [*ORGANS, "whole tumor"]
    assert {row["interval"] for row in by_name.values()} == {"spread of the samples"}
    gtv = by_name["GTV"]
    assert list(gtv)[:6] == ["name", "outlined_cm3", "mean_cm3", "sd_cm3", "p05_cm3", "p95_cm3"]
    assert float(gtv["mean_cm3"]) == pytest.approx(result.volume("GTV").mean, abs=1e-4)
    assert float(gtv["outlined_cm3"]) == pytest.approx(result.mask("GTV").sum() / 1000, abs=1e-4)
    assert float(by_name["Brain"]["under_tumor_cm3"]) > 0
    codes = {int(row["index"]): row for row in rows(out / "segmentation.tsv")}
    assert set(np.unique(result.labels)) <= set(codes)
    assert json.loads((out / "run.json").read_text())["status"] == "NEEDS REVIEW"


def test_native_labels_lie_where_the_reference_has_them(tmp_path, result):
    out = written(tmp_path / "out", result)
    ours, theirs = (read_nifti(out / f"native/{n}_segmentation.nii.gz") for n in ("T1c", "FLAIR"))
    core = next(t.index for t in result.table.tumor if t.name == "core")
    center = [im.grid.world(np.argwhere(im.data == core).mean(0)) for im in (ours, theirs)]
    assert np.allclose(center[0], center[1] + [-5.0, 0, 0], atol=0.5)
    volume = [(im.data == core).sum() * im.grid.voxel_volume for im in (ours, theirs)]
    assert volume[1] == pytest.approx(volume[0], rel=0.15)


def test_on_the_same_grid_delivery_is_the_vote(result):
    assert np.array_equal(deliver(result, "T1c").labels, result.labels)


def test_older_result_survives_a_failure(tmp_path, result):
    out = written(tmp_path / "out", result)
    before = (out / "run.json").read_bytes()

    def broken(manifest):
        raise OSError(28, "no space")

    with pytest.raises(OutputError, match="E9-B58 cannot write the result"):
        written(out, result, report=broken)
    assert (out / "run.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_changed_files_are_noticed(tmp_path, result):
    out = written(tmp_path / "out", result)
    (out / "volumes.tsv").write_text("x")
    with pytest.raises(IntegrityError, match="result changed"):
        read_manifest(out)


def test_a_folder_without_manifest_is_no_result(tmp_path):
    with pytest.raises(UnreadableFileError, match="no finished result"):
        read_manifest(tmp_path)


def test_only_the_structures_asked_for(tmp_path, result):
    out = written(tmp_path / "out", result, options=Options(("GTV", "Brain")))
    assert sorted(p.name for p in (out / "structures").iterdir()) == ["Brain.nii.gz", "GTV.nii.gz"]


def test_further_tables_join_the_manifest(tmp_path, result):
    out = written(tmp_path / "out", result)
    add_table(out, "truth.tsv", [{"name": "GTV", "dice": 0.9}])
    assert "truth.tsv" in read_manifest(out)["files"]


def test_small_parts_are_removed_and_counted():
    mask = np.zeros((20, 20, 20), bool)
    mask[2:12, 2:12, 2:12] = True
    mask[15, 15, 15:17] = True
    grid = Grid((20, 20, 20), np.eye(4))
    kept, parts, removed = remove_small_parts(mask, grid, 0.01)
    assert (parts, removed, kept.sum()) == (1, 2, 1000)
    kept, parts, removed = remove_small_parts(mask, grid, 0.0)
    assert (parts, removed) == (2, 0)
    assert np.array_equal(kept, mask)


def test_specks_of_tumor_are_left_out_and_counted(tmp_path):
    """In outlines, labels and native grids alike; shares and volumes of the samples stay as drawn."""
    whole = small_result()
    size = whole.votes.z.sum() * whole.case.grid.voxel_volume / 1000
    bare = replace(whole, config=whole.config.model_copy(update={"least_tumor": 2 * size}))
    assert bare.islands.sum() == bare.left_out("GTV") + bare.left_out("Edema") > 0
    assert not bare.votes.z.any()
    assert not bare.votes.y.any()
    assert not deliver(bare, bare.case.reference).votes.z.any()
    assert bare.volume("GTV").mean == whole.volume("GTV").mean
    out = written(tmp_path / "out", bare)
    by_name = {row["name"]: row for row in rows(out / "volumes.tsv")}
    assert int(by_name["GTV"]["removed_voxels"]) == whole.mask("GTV").sum()
    assert not read_nifti(out / "structures" / "GTV.nii.gz").data.any()
    kept = replace(whole, config=whole.config.model_copy(update={"least_tumor": 0.5 * size}))
    assert np.array_equal(kept.labels, replace(kept, config=Config(least_tumor=0)).labels)
