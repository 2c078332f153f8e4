"""Simulated patients keep the rules of the model and the physics they are made from."""

from __future__ import annotations

import numpy as np
import pytest
from heads import analytic_head
from scipy import ndimage as ndi

from tumoar.simulate import Acquisition, draw_blob, draw_place, simulate
from tumoar.simulate.patient import displace
from tumoar.simulate.scanner import bias_shape, change_spacing
from tumoar.simulate.tissue import default_tissues
from tumoar.train.head_table import default_heads
from tumoar.vocabulary.contrasts import default_contrasts
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
TISSUES = default_tissues()


@pytest.fixture(scope="module")
def head():
    return analytic_head(3.0)


@pytest.fixture(scope="module")
def tumor(head):
    rng = np.random.default_rng(5)
    return draw_place(draw_blob(rng, core_ml=20, spacing=3.0), head[0], LABELS, rng)


def patient(head, tumor, acquisitions, seed=0, **options):
    return simulate(*head, tumor, acquisitions, LABELS, np.random.default_rng(seed), **options)


def of(labels_map, name):
    return labels_map == LABELS.indices[LABELS.l(name)]


def test_the_analytic_head_is_a_head(head):
    label_map = head[0]
    present = {s.name for s in LABELS.structures if of(label_map, s.name).any()}
    assert present == {s.name for s in LABELS.structures if s.trained}
    for s in LABELS.structures:
        if s.side == "left":
            left, right = (np.argwhere(of(label_map, n)).mean(0)[0] for n in (s.name, s.mirror))
            assert left < right
    for axis in range(3):
        assert not label_map.take([0, -1], axis).any()


@pytest.mark.parametrize(
    ("contrast", "order"),
    [
        ("T1", ["CSF", "necrosis", "gray matter", "white matter", "fat"]),
        ("T1c", ["CSF", "necrosis", "gray matter", "white matter", "enhancing tumor"]),
        ("T2", ["compact bone", "white matter", "gray matter", "edema", "CSF"]),
        ("FLAIR", ["CSF", "white matter", "gray matter", "edema"]),
        ("DIR", ["CSF", "white matter", "gray matter"]),
        ("CT", ["air", "fat", "CSF", "white matter", "gray matter", "marrow", "compact bone"]),
    ],
)
def test_contrasts_rank_tissues_as_radiologists_know_them(contrast, order):
    mean, _ = TISSUES.signals(contrast)
    values = [mean[TISSUES.index(name)] for name in order]
    assert values == sorted(values), dict(zip(order, values))


def test_tumor_signal_meets_the_mean_constraints_of_the_model():
    """Edema and enhancing core lie above or below white and gray matter where the contrast table says so."""
    tissue = {"edema": "edema", "core": "enhancing tumor", "GWM": "white matter", "GGM": "gray matter"}
    for contrast, row in default_contrasts().items():
        if contrast not in TISSUES.scans:
            continue
        mean, _ = TISSUES.signals(contrast)
        for c in row.constraints:
            if c.gmm in ("edema", "core"):
                signal, *refs = (mean[TISSUES.index(tissue[name])] for name in (c.gmm, *c.refs))
                bounds = np.array(refs) * np.exp(c.log_offset)
                assert signal >= bounds.max() if c.op == ">=" else signal <= bounds.min()


def test_truth_is_a_state_the_model_allows(head, tumor):
    _, truth = patient(head, tumor, [])
    in_brain = np.isin(truth.l, LABELS.indices[LABELS.in_brain])
    assert truth.y.any()
    assert (truth.z & ~truth.y).any()
    assert not (truth.y & ~truth.z).any()
    assert not (truth.z & ~in_brain).any()
    index = {t.name: t.index for t in LABELS.tumor}
    assert np.array_equal(truth.exclusive == index["core"], truth.y)
    assert np.array_equal(truth.exclusive == index["edema"], truth.z & ~truth.y)
    assert np.array_equal(truth.exclusive[~truth.z], truth.l[~truth.z])


def test_same_seed_same_bytes_and_a_contrast_more_changes_no_other(head, tumor):
    t1, flair = Acquisition("T1", (3, 3, 3)), Acquisition("FLAIR", (3, 3, 3))
    both, _ = patient(head, tumor, [t1, flair])
    again, _ = patient(head, tumor, [t1, flair])
    alone, _ = patient(head, tumor, [t1])
    other, _ = patient(head, tumor, [t1], seed=1)
    assert np.array_equal(both["FLAIR"].data, again["FLAIR"].data)
    assert np.array_equal(both["T1"].data, alone["T1"].data)
    assert not np.array_equal(alone["T1"].data, other["T1"].data)


def test_intensities_follow_the_table(head):
    """Without noise and bias the interior of each tissue has its tabulated mean."""
    images, truth = patient(head, None, [Acquisition("T2", (3, 3, 3), noise=0, bias=0, gain=1000.0)])
    mean, sd = TISSUES.signals("T2")
    for name in ("white matter", "brainstem", "left eye fluid"):
        core = ndi.binary_erosion(of(truth.l, name), iterations=2)
        k = TISSUES.index(TISSUES.structure[name])
        assert core.any()
        assert images["T2"].data[core].mean() == pytest.approx(1000 * float(mean[k]), abs=1000 * float(sd[k]))


def test_noise_is_rician_in_air_and_gaussian_in_ct(head):
    images, truth = patient(head, None, [Acquisition("T1", (3, 3, 3), bias=0), Acquisition("CT", (3, 3, 3))])
    air = np.zeros(truth.l.shape, bool)
    air[:, :, -2:] = True  # above the scalp
    t1 = images["T1"].data[air].astype(float)
    rayleigh = 600 * 0.03 * np.sqrt(np.pi / 2)
    assert t1.mean() == pytest.approx(rayleigh, rel=0.05)
    assert images["T1"].data.min() >= 1
    ct = images["CT"].data[air].astype(float)
    assert ct.mean() == pytest.approx(-1000, abs=3)
    assert ct.std() == pytest.approx(6, rel=0.15)


def test_bias_field_is_smooth_and_within_its_bounds(head):
    field = bias_shape(head[1], np.random.default_rng(0))
    assert np.abs(field).max() == pytest.approx(1)
    assert max(np.abs(np.diff(field, axis=a)).max() for a in range(3)) < 0.15


def test_thick_slices_cover_the_same_field(head):
    grid = head[1]
    thick = change_spacing(grid, (1.0, 1.0, 6.5))
    for corner in ((-0.5, -0.5, -0.5), np.array(grid.shape) - 0.5):
        at = np.array(corner, float)
        mine = thick.world(np.where(at < 0, -0.5, np.array(thick.shape) - 0.5))
        assert np.abs(mine - grid.world(at)).max() < 6.5 / 2 + 0.5
    images, _ = patient(head, None, [Acquisition("FLAIR", (1.5, 1.5, 6.5))])
    assert images["FLAIR"].grid.spacing == pytest.approx([1.5, 1.5, 6.5])


def test_a_shifted_scan_shows_the_same_head_elsewhere(head):
    still, moved = (
        patient(head, None, [Acquisition("T2", (3, 3, 3), noise=0, bias=0, shift=s)])[0]["T2"].data
        for s in ((0, 0, 0), (6, 0, 0))
    )
    # The patient lies two voxels of 3 mm to the left of where the first scan saw him.
    assert np.array_equal(moved[:-2], still[2:])


def test_core_pushes_tissue_away_but_not_the_skull(head):
    label_map, grid = head
    core = np.zeros(grid.shape, bool)
    center = np.round(grid.index([30.0, 10.0, 20.0])).astype(int)
    core[tuple(slice(c - 4, c + 5) for c in center)] = True
    brain = np.isin(label_map, LABELS.indices[LABELS.in_brain])
    ventricle = of(label_map, "CSF") & (grid.world(np.moveaxis(np.indices(grid.shape), 0, -1))[..., 0] > 0)
    ventricle &= np.abs(grid.world(np.moveaxis(np.indices(grid.shape), 0, -1)) - [10, 5, 8]).max(-1) < 20
    (pushed,) = displace((np.where(ventricle, 3, label_map).astype(np.uint8),), core, brain, grid, 8.0)
    assert np.array_equal(pushed[~brain], label_map[~brain])
    assert np.argwhere((pushed == 3) & ventricle).mean(0)[0] < np.argwhere(ventricle).mean(0)[0]
    (unmoved,) = displace((label_map,), core, brain, grid, 0.0)
    assert np.array_equal(unmoved, label_map)


def test_skull_stripped_keeps_brain_and_tumor_only(head, tumor):
    images, truth = patient(
        head, tumor, [Acquisition("FLAIR", (3, 3, 3)), Acquisition("CT", (3, 3, 3))], skull_stripped=True
    )
    inside = images["FLAIR"].data > 0
    tissue = np.isin(truth.l, LABELS.indices[LABELS.in_brain]) & ~of(truth.l, "CSF")
    allowed = np.isin(truth.l, LABELS.indices[LABELS.in_brain]) | of(truth.l, "optic chiasm")
    assert inside[tissue].mean() > 0.99
    assert inside[truth.z].all()
    assert not inside[~allowed].any()
    assert np.array_equal(images["CT"].data > -1024, inside)


def test_background_from_source_codes(head):
    source = np.where(head[0] == 0, 515, 0)
    images, _ = patient(head, None, [Acquisition("CT", (3, 3, 3), noise=0)], source=source)
    assert images["CT"].data[0].mean() == pytest.approx(1100, rel=0.1)


def test_every_source_code_but_air_is_made_of_something():
    """Preparation leaves voxels of any code in the background; left out here they would become air."""
    heads = default_heads()
    known = [c for codes in (*heads.structures.values(), *heads.tissue.values()) for c in codes]
    made = [c for codes in TISSUES.source.values() for c in codes]
    assert sorted(made) == sorted(set(known) - set(heads.tissue["air"]))


def test_a_blob_is_one_piece_with_core_inside_edema():
    blob = draw_blob(np.random.default_rng(3), core_ml=10)
    assert ndi.label(blob > 0)[1] == 1
    assert ndi.label(blob > 1)[1] == 1
    assert (blob > 1).sum() / 1000 == pytest.approx(10, rel=0.5)
    assert {0, 1, 2, 3} == set(np.unique(blob))
    assert not blob[[0, -1]].any()


def test_a_placed_tumor_lies_in_the_brain(head):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        placed = draw_place(draw_blob(rng, core_ml=15, spacing=3.0), head[0], LABELS, rng)
        brain = np.isin(head[0], LABELS.indices[LABELS.in_brain])
        assert (placed > 0)[brain].sum() > 0.85 * (placed > 0).sum()
