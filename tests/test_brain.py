"""The second model: what is done with a result, done with many structures, on the head of balls."""

from __future__ import annotations

import csv
from dataclasses import replace

import brain_head
import numpy as np
import one_more_organ
import pytest
import small_head
from pydicom import dcmread
from rt_files import write_series
from small_run import CONFIG, MODEL, Memory, run, stand_ins

import tumoar
from tumoar.app.pipeline import segment
from tumoar.cohort import group
from tumoar.geometry.image import Case, Grid, Input
from tumoar.inference.gem import place_atlas
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.manifest import read_manifest
from tumoar.io.manifest_schema import Manifest
from tumoar.io.models import find_model, shipped_model
from tumoar.model.atlas import pi, place
from tumoar.model.compartments import find_compartments
from tumoar.model.generative import select_atlas
from tumoar.report import read_page
from tumoar.result.under import structure_under
from tumoar.review.export import relabel
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.labels import add_cavity
from tumoar.web.reviews import Review

N = small_head.SIZE
LABELS = brain_head.LABELS
FINE = replace(MODEL, atlas=brain_head.atlas())
PARTS = [s for s in LABELS.structures if s.part_of and s.side]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A patient segmented with both tables; the finer one with a T1c as a DICOM series."""
    folder = tmp_path_factory.mktemp("brain")
    flip = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
    case = small_head.case()
    write_series(folder / "t1c", np.exp(case.D[0])[::-1, ::-1], Grid((N, N, N), flip), frame="1.2.1")
    t1c, flair = case.inputs
    t1c = replace(t1c, grid=grid_of(only_series(folder / "t1c"))[0], orientation="LPS")
    case = replace(case, grid=replace(case.grid, frame="1.2.1"), inputs=(t1c, flair))
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in stand_ins(case, FINE):
            patch.setattr(place, name, value)
        asked = {"t1c": folder / "t1c", "flair": "b", "seed": 3, "margins": "ctv=3,ptv=1"}
        live = tumoar.segment(**asked)
        stored = tumoar.segment(**asked, output=folder / "out")
    return live, stored, run(), folder


def merged(l):
    return LABELS.whole_of_l[l]


def test_tumor_and_tissue_are_those_of_the_first_model(done):
    fine, _, coarse, _ = done
    np.testing.assert_allclose(fine.fit.theta.mu, coarse.fit.theta.mu, atol=1e-3)
    assert small_head.dice(fine.votes.z == 1, coarse.votes.z == 1) > 0.95
    assert small_head.dice(fine.votes.y == 1, coarse.votes.y == 1) > 0.95
    assert (merged(fine.votes.l) == coarse.votes.l).mean() > 0.98


def test_left_structures_lie_to_the_left(done):
    fine = done[0]
    x = np.indices(fine.votes.l.shape)[0]
    for s in PARTS:
        found = x[fine.votes.l == LABELS.l(s.name)]
        if len(found):
            assert (np.median(found) < N / 2) == (s.side == "left"), s.name
    assert not [note for note in fine.notes if note.id == "B36"]


def test_every_structure_has_a_mask_a_volume_and_a_row(done):
    _, stored, _, folder = done
    rows = list(csv.DictReader((folder / "out/volumes.tsv").open(encoding="utf-8"), delimiter="\t"))
    names = [row[next(iter(row))] for row in rows]
    assert {organ.name for organ in LABELS.organs} <= set(names)
    assert {organ.name for organ in LABELS.organs} <= set(stored.structures)
    assert "not calibrated" not in repr(stored.volume("Cortex_L"))
    assert "spread of the samples" in repr(stored.volume("Cortex_L"))
    known = {
        row["name"]: row["tg263"]
        for row in csv.DictReader((folder / "out/segmentation.tsv").open(encoding="utf-8"), delimiter="\t")
    }
    assert known["left cerebral cortex"] == "Cortex_L"
    assert known["right cerebellar cortex"] == "CerebellumGM_R"
    union = stored.mask("Cerebellum")
    parts = [stored.mask(f"Cerebellum{kind}_{side}") for kind in ("GM", "WM") for side in "LR"]
    assert np.array_equal(union, np.any(parts, 0))


def test_contours_have_their_names_and_colors(done):
    stored, folder = done[1], done[3]
    stored.to_rtstruct(folder / "t1c", folder / "RTSTRUCT.dcm")
    data = dcmread(folder / "RTSTRUCT.dcm")
    numbers = {roi.ROIName: roi.ROINumber for roi in data.StructureSetROISequence}
    assert {"GTV", "Cortex_L", "WhiteMatter_R"} <= set(numbers)
    colors = {item.ReferencedROINumber: list(item.ROIDisplayColor) for item in data.ROIContourSequence}
    expected = LABELS.structures[LABELS.l("left cerebral cortex")].color
    assert bytes(colors[numbers["Cortex_L"]]).hex() == expected[1:]


def test_the_report_lists_all_and_draws_tissue_only_when_asked(done):
    page = read_page(done[3] / "out/report.html")
    shown = {row["name"]: row["shown"] for row in page["legend"]}
    assert not shown["left cerebral cortex"]
    assert not shown["right cerebral white matter"]
    assert {row["name"] for row in page["volumes"]} >= {organ.name for organ in LABELS.organs}


def test_a_review_opens_all_structures(done):
    described = Review(done[3] / "out").describe()["structures"]
    rows = {row["name"]: row for row in described}
    assert len(rows) > 32  # more than there are bits in a word of the page
    assert [name for name, row in rows.items() if row["whole"]] == [
        "Brain",
        *(
            f"{kind}_{side}"
            for kind in ("WhiteMatter", "CerebellumWM", "Cortex", "CerebellumGM")
            for side in "LR"
        ),
        "Cerebellum",
    ]
    assert rows["Thalamus_L"]["color"] == LABELS.structures[LABELS.l("left thalamus")].color


def test_what_tumor_loses_in_a_review_stays_on_its_side(done):
    fine = done[0]
    masks = {organ.name: fine.mask(organ.name) for organ in LABELS.organs}
    tumor = masks["GTV"] | masks["Edema"]
    masks |= {"GTV": np.zeros_like(tumor), "Edema": np.zeros_like(tumor)}
    out = relabel(fine.labels, LABELS, masks, frozenset({"GTV", "Edema"}))
    x = np.indices(out.shape)[0]
    sides = {s.index: s.side for s in LABELS.structures}
    assert {sides[v] for v in np.unique(out[tumor & (x < N / 2 - 2)])} <= {"left", None}
    assert {sides[v] for v in np.unique(out[tumor & (x > N / 2 + 2)])} <= {"right", None}
    bare = {name: mask for name, mask in masks.items() if name in ("GTV", "Edema")}
    out = relabel(fine.labels, LABELS, bare, frozenset(bare))
    white = {s: LABELS.structures[LABELS.l(f"{s} cerebral white matter")].index for s in ("left", "right")}
    assert (out[tumor & (x < N / 2 - 2)] == white["left"]).all()
    assert (out[tumor & (x > N / 2 + 2)] == white["right"]).all()
    coarse = done[2]
    where = coarse.votes.z == 1
    assert (structure_under(coarse.table, coarse.votes.l, where) == 1).all()


def test_a_cohort_of_it_has_a_box_of_every_structure(done):
    manifest = Manifest.model_validate(read_manifest(done[3] / "out"))
    row = {"name": "one", **group._figures(manifest, 1.0)}
    assert set(row["volumes"]) >= {organ.name for organ in LABELS.organs}
    assert row["targets"] == ["GTV", "Edema"]


def test_sides_of_the_brain_are_compartments_of_it(done):
    fine, _, coarse, _ = done
    placed = place_atlas(fine.case, FINE.atlas, np.eye(4), fine.config.gem)
    other = place_atlas(coarse.case, MODEL.atlas, np.eye(4), coarse.config.gem)
    assert np.array_equal(
        find_compartments(placed, placed.reference), find_compartments(other, other.reference)
    )


def test_the_method_of_the_paper_has_one_mixture_of_gray_matter():
    plain = select_atlas(FINE, Config(deep_gray=False))
    assert not plain.labels.has_gmm("deep gray")
    assert plain.labels.structures[plain.labels.l("left thalamus")].gmm == "GGM"
    assert plain.labels.K == LABELS.K


def test_a_cavity_can_be_added_to_it():
    opened = add_cavity(LABELS)
    assert opened.K == LABELS.K + 1
    assert len({s.index for s in opened.structures} | {t.index for t in opened.tumor}) == opened.K + 2


def test_models_in_the_package_are_found_by_name():
    assert find_model(None) is shipped_model("default")
    assert find_model("brain") is shipped_model("brain")
    assert tumoar.Model.default("brain").labels == LABELS
    assert set(shipped_model("brain").sha256) == {"brain.npz", "shape.npz", "location.npz"}
    with pytest.raises(UsageError, match="no such model"):
        tumoar.Model.default("heart")


# ---- the atlas in the package ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shipped_atlas_outlines_a_head_that_was_drawn_from_it():
    """A third of the natural size, with a tumor on the right; the atlas tells alike nuclei apart."""
    shipped, rng = shipped_model("brain").atlas, np.random.default_rng(0)
    atlas = replace(shipped, nodes=shipped.nodes / 3)
    low, high = atlas.box
    affine = np.eye(4)
    affine[:3, 3] = low + 0.5
    n = (high - low).astype(int)
    grid = Grid((int(n[0]), int(n[1]), int(n[2])), affine)
    placed = place(atlas, np.eye(4), grid)
    l = pi(placed, placed.reference).argmax(-1)
    away = np.linalg.norm(grid.world(np.moveaxis(np.indices(grid.shape), 0, -1)) - [11, -8, 8], axis=-1)
    z, y = ((away < r) & LABELS.in_brain[l] for r in (6, 3.5))
    x = np.where(y, LABELS.core, np.where(z, LABELS.edema, LABELS.x_of_l[l]))
    mean = np.zeros((LABELS.X, 2))
    for name, value in one_more_organ.MEANS.items():
        if LABELS.has_gmm(name):
            mean[LABELS.x_named(name)] = value
    D = np.moveaxis(mean[x] + 0.08 * rng.standard_normal((*x.shape, 2)), -1, 0)
    inputs = tuple(Input(c, c, grid, "RAS", np.eye(4)) for c in ("T1c", "FLAIR"))
    contrasts = tuple(find_contrast(c) for c in ("T1c", "FLAIR"))
    case = Case(D.astype(np.float32), contrasts, grid, "T1c", inputs, skull_stripped=False)
    result = segment(case, replace(FINE, atlas=atlas), CONFIG, seed=3, keeper=Memory())
    assert small_head.dice(result.votes.z == 1, z) > 0.8
    for s in LABELS.structures:
        true = (l == LABELS.l(s.name)) & ~z
        if s.part_of and true.sum() >= 60 and s.name not in ("left choroid plexus", "right choroid plexus"):
            assert small_head.dice((result.votes.l == LABELS.l(s.name)) & ~z, true) > 0.7, s.name
