"""Simulated resections leave what they should, and are open to the surface."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.simulate import Acquisition, Surgery, simulate
from tumoar.simulate.patient import AIR, BLOOD, EDEMA, ENHANCING, FLUID, NECROSIS, REMOVED, WALL
from tumoar.simulate.surgery import WAYS, open_skull, resect
from tumoar.simulate.tissue import default_tissues
from tumoar.vocabulary.labels import add_cavity, default_labels

SHAPE = (70, 70, 60)
GRID = Grid(SHAPE, np.eye(4))
LABELS = add_cavity(default_labels())


def ball(center, radius):
    return np.linalg.norm(np.stack(np.indices(SHAPE), -1) - np.array(center), axis=-1) <= radius


BRAIN = ball((35, 35, 30), 28)
TUMOR = np.zeros(SHAPE, np.uint8)
TUMOR[ball((48, 38, 36), 14) & BRAIN] = EDEMA
TUMOR[ball((48, 38, 36), 9) & BRAIN] = ENHANCING
TUMOR[ball((48, 38, 36), 6) & BRAIN] = NECROSIS


def removed(way, **more):
    after = resect(TUMOR, BRAIN, GRID, Surgery(way, **more), np.random.default_rng(0))
    return after, np.isin(after, tuple(REMOVED))


@pytest.mark.parametrize("way", WAYS)
def test_every_cavity_is_one_piece_of_brain_and_open_to_the_surface(way):
    _, cavity = removed(way)
    assert ndi.label(cavity)[1] == 1
    assert not (cavity & ~BRAIN).any()
    assert ndi.distance_transform_edt(BRAIN)[cavity].min() <= 1.5
    assert cavity.sum() > 400


def test_what_is_left():
    core = TUMOR > EDEMA
    left = {}
    for way in WAYS:
        after, _ = removed(way)
        left[way] = np.isin(after, (NECROSIS, ENHANCING)).sum() / core.sum()
        assert not (np.isin(after, (NECROSIS, ENHANCING)) & ~core).any()
    assert left["gross"] == left["collapsed"] == left["blood"] == 0
    assert 0.1 < left["partial"] < 0.35
    assert removed("collapsed")[1].sum() < 0.7 * removed("gross")[1].sum()


def test_blood_lies_at_the_back_and_air_in_front():
    after, cavity = removed("blood", air=True)
    y = np.indices(SHAPE)[1]
    assert y[after == BLOOD].max() <= y[after == FLUID].min()
    assert y[after == AIR].min() >= y[after == FLUID].max()
    assert 0.2 < (after == BLOOD).sum() / cavity.sum() < 0.45


def test_the_wall_enhances_but_is_no_tumor():
    after, cavity = removed("gross", wall=True)
    wall = after == WALL
    assert wall.any()
    assert ndi.distance_transform_edt(~cavity)[wall].max() <= 1.5


def test_the_skull_is_cut_around_the_entry():
    table = default_tissues()
    tissue = np.full(SHAPE, table.index("air"), np.uint8)
    bone = ball((35, 35, 30), 32) & ~BRAIN
    tissue[bone] = table.index("compact bone")
    _, cavity = removed("gross")
    after = open_skull(tissue, cavity, BRAIN, GRID, table)
    assert 0 < (after != tissue).sum() < 0.2 * bone.sum()
    assert (after[after != tissue] == table.index("soft tissue")).all()


def test_truth_and_images_of_a_patient_after_surgery():
    label_map = np.where(BRAIN, LABELS.indices[LABELS.l("white matter")], 0).astype(np.uint8)
    scans = [Acquisition(name) for name in ("T1", "T1c", "CT")]
    images, truth = simulate(
        label_map, GRID, TUMOR, scans, LABELS, np.random.default_rng(0), push=0.0, surgery=Surgery("blood")
    )
    assert not (truth.cavity & truth.z).any()
    index = LABELS.structures[LABELS.cavity].index
    assert np.array_equal(truth.exclusive == index, truth.cavity)
    inner = ndi.binary_erosion(truth.cavity, iterations=2)
    y = np.indices(SHAPE)[1]
    old = inner & (y < np.quantile(y[truth.cavity], 0.2))
    fresh = inner & (y > np.quantile(y[truth.cavity], 0.4))
    white = ndi.binary_erosion(BRAIN & ~truth.z & ~truth.cavity, iterations=3)
    t1, t1c = (images[name].data for name in ("T1", "T1c"))
    assert np.median(t1[fresh]) < 0.6 * np.median(t1[white])
    assert np.median(t1[old]) > 1.1 * np.median(t1[white])
    assert np.median(t1c[fresh]) < 0.6 * np.median(t1c[white])


def test_ct_shows_the_flap_around_the_cavity_and_air_in_it():
    label_map = np.where(BRAIN, LABELS.indices[LABELS.l("white matter")], 0).astype(np.uint8)
    images = {}
    for how in (None, Surgery("surface", air=True)):
        scan, truth = simulate(
            label_map,
            GRID,
            TUMOR,
            [Acquisition("CT")],
            LABELS,
            np.random.default_rng(0),
            push=0.0,
            surgery=how,
        )
        images[how is not None] = scan["CT"].data
    before, after = images[False], images[True]
    outside = ~ndi.binary_dilation(BRAIN, iterations=1)
    opened = outside & (before > 600) & (after < 200)
    assert opened.any()
    assert opened.sum() < 0.2 * (outside & (before > 600)).sum()
    middle = np.argwhere(truth.cavity).mean(0)
    assert np.linalg.norm(np.argwhere(opened).mean(0) - middle) < np.linalg.norm(
        np.argwhere(outside & (before > 600)).mean(0) - middle
    )
    air = ndi.binary_erosion(truth.cavity) & (after < -500)
    y = np.indices(SHAPE)[1]
    assert air.any()
    assert y[air].mean() > y[truth.cavity].mean()  # patients lie on their backs
    assert (before[truth.cavity] > -100).all()
