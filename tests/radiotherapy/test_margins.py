"""Targets grow as far as they should, and not through what they should not."""

from __future__ import annotations

from itertools import product
from math import gcd

import numpy as np
import pytest

from tumoar.geometry.image import Grid
from tumoar.model.compartments import BELOW, JOINED, LEFT, RIGHT, UNKNOWN, are_separate
from tumoar.radiotherapy.margins import PRESETS, Margins, find_ventricles, grow, grow_within, parse_margins
from tumoar.radiotherapy.targets import Anatomy, grow_ctv, grow_targets
from tumoar.vocabulary.errors import UsageError


def ball(shape, spacing, center, radius):
    points = np.stack(np.indices(shape), -1) * spacing
    return np.linalg.norm(points - np.asarray(center), axis=-1) <= radius


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.2, 2.5)], ids=str)
def test_in_free_space_both_ways_give_a_ball(spacing):
    shape = tuple(int(60 / s) for s in spacing)
    seed = ball(shape, spacing, (30, 30, 30), 8)
    wide, within = grow(seed, 15, spacing), grow_within(seed, np.ones(shape, bool), 15, spacing)
    assert not (within & ~wide).any()
    assert within.sum() >= 0.98 * wide.sum()
    assert wide.sum() * np.prod(spacing) == pytest.approx(4 / 3 * np.pi * 23**3, rel=0.06)


def test_walls_are_not_crossed_but_walked_around():
    spacing, shape = (1.0, 1.0, 1.0), (50, 50, 50)
    seed = ball(shape, spacing, (25, 25, 25), 5)
    wall = np.ones(shape, bool)
    wall[33:35] = False
    assert not grow_within(seed, wall, 15, spacing)[33:].any()
    door = wall.copy()
    door[33:35, 23:28, 23:28] = True
    through = grow_within(seed, door, 15, spacing)
    assert 0 < through[35:].sum() < grow(seed, 15, spacing)[35:].sum()
    assert not (through & ~door).any()


def test_outside_the_brain_nothing_grows():
    seed = ball((30, 30, 30), 1.0, (15, 15, 15), 4)
    brain = ball((30, 30, 30), 1.0, (15, 15, 15), 9)
    assert np.array_equal(grow_within(seed, brain, 20, (1, 1, 1)), brain)


def test_nothing_stays_nothing():
    empty = np.zeros((8, 8, 8), bool)
    assert not grow(empty, 5, (1, 1, 1)).any()
    assert not grow_within(empty, ~empty, 5, (1, 1, 1)).any()


def test_ventricles_are_deep_fluid():
    shape = (80, 80, 80)
    brain = ball(shape, 1.0, (40, 40, 40), 38)
    deep, sulcus = ball(shape, 1.0, (40, 40, 40), 6), brain & ~ball(shape, 1.0, (40, 40, 40), 34)
    crack = brain.copy()
    crack[:, :39] = crack[:, 40:] = False
    found = find_ventricles(brain, deep | sulcus | crack, (1, 1, 1))
    assert (found & deep).sum() > 0.9 * deep.sum()
    assert not (found & ~grow(deep, 1.5, (1, 1, 1))).any()


def hemispheres(shape, spacing, joined=0.0):
    """Two hemispheres above a cerebellum, joined in the middle of the plane between them."""
    x, y, z = np.moveaxis(np.stack(np.indices(shape), -1) * spacing, -1, 0)
    middle = (np.array(shape) - 1) * spacing / 2
    out = np.where(x < middle[0], LEFT, RIGHT).astype(np.uint8)
    out[(abs(x - middle[0]) <= 3) & (np.hypot(y - middle[1], z - middle[2]) <= joined)] = JOINED
    out[z < 0.3 * middle[2]] = BELOW
    return out


def shifted(values, step, fill):
    """Values at the voxel one step farther."""
    out = np.full(values.shape, fill, values.dtype)
    here = tuple(slice(max(-d, 0), min(n - d, n)) for d, n in zip(step, values.shape))
    there = tuple(slice(max(d, 0), min(n + d, n)) for d, n in zip(step, values.shape))
    out[here] = values[there]
    return out


def walk(seed, domain, parts, spacing):
    """Lengths of shortest paths by brute force, over all steps of up to two voxels that cross no wall."""
    ways = []
    for step in (s for s in product(range(-2, 3), repeat=3) if gcd(*s) == 1):
        half = tuple(int(d / 2) for d in step)  # rounded toward zero
        to, between = (shifted(parts, s, UNKNOWN) for s in (step, half))
        is_open = domain & shifted(domain, step, False) & shifted(domain, half, False)
        for a, b in ((parts, to), (parts, between), (between, to)):
            is_open &= ~are_separate(a, b)
        ways.append((step, np.where(is_open, np.linalg.norm(np.multiply(step, spacing)), np.inf)))
    reach, before = np.where(seed, 0.0, np.inf), None
    while before is None or not np.array_equal(reach, before):
        before = reach
        for step, length in ways:
            reach = np.minimum(reach, shifted(reach, step, np.inf) + length)
    return reach


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 1.0, 2.0)], ids=str)
@pytest.mark.parametrize("joined", [0.0, 8.0])
def test_growth_is_that_of_a_walk(spacing, joined):
    """Against brute force: differences are at most a voxel deep, and nothing is beyond the falx.

    Behind the edge of an opening paths are up to 1.3 voxels longer: the wall is one voxel thick there.
    """
    spacing = np.array(spacing)
    shape = tuple((np.array([36, 30, 30]) / spacing).astype(int))
    parts = hemispheres(shape, spacing, joined)
    brain = ball(shape, spacing, (18, 15, 15), 16)
    seed = ball(shape, spacing, (11, 15, 17), 4) & brain
    found = grow_within(seed, brain, 12, spacing, parts)
    reach = walk(seed, brain, parts, spacing)
    assert not (found & (reach > 12 + 0.6 * spacing.max())).any()
    assert not (~found & (reach <= 12 - (1.3 if joined else 0.6) * spacing.max())).any()
    if joined == 0:
        assert not (found & np.isin(parts, (RIGHT, BELOW))).any()
        assert (found & (parts == LEFT)).sum() > 0.97 * (
            grow(seed, 12, spacing) & brain & (parts == LEFT)
        ).sum()
    else:
        assert (found & (parts == RIGHT)).any()
        assert not (found & (parts == BELOW)).any()


def test_growth_reaches_the_falx_itself():
    parts = hemispheres((40, 30, 30), 1.0)
    seed = ball((40, 30, 30), 1.0, (14, 15, 20), 3)
    found = grow_within(seed, np.ones(seed.shape, bool), 8, (1, 1, 1), parts)
    assert found[19, 15, 20]
    assert not found[20:].any()


def test_a_tumor_that_seems_to_cross_the_falx_by_a_little_does_not_grow_there():
    parts = hemispheres((50, 40, 40), 1.0)
    seed = ball((50, 40, 40), 1.0, (19, 20, 25), 8)  # three millimeters of it beyond
    every = np.ones(seed.shape, bool)
    assert np.array_equal(grow_within(seed, every, 10, (1, 1, 1), parts)[25:], seed[25:])
    butterfly = seed | seed[::-1]
    assert grow_within(butterfly, every, 10, (1, 1, 1), parts)[45, 20, 25]


def test_which_compartments_are_separate():
    def apart(a, b):
        return bool(are_separate(np.uint8(a), np.uint8(b)))

    every = (UNKNOWN, LEFT, RIGHT, BELOW, JOINED)
    pairs = {(LEFT, RIGHT), (LEFT, BELOW), (RIGHT, BELOW), (BELOW, JOINED)}
    for a in every:
        for b in every:
            assert apart(a, b) == ((a, b) in pairs or (b, a) in pairs)


def test_targets_stay_out_of_the_brainstem_and_say_what_stopped_them():
    shape = (40, 40, 40)
    brain, seed = ball(shape, 1.0, (20, 20, 20), 19), ball(shape, 1.0, (12, 20, 25), 4)
    stem = ball(shape, 1.0, (20, 20, 14), 5)
    anatomy = Anatomy(brain, np.zeros(shape, bool), stem, hemispheres(shape, 1.0))
    grid = Grid(shape, np.eye(4))
    (ctv, grown), (ptv, wide) = grow_targets(seed, anatomy, grid, PRESETS["estro-eano"])
    assert not (grown & stem).any()
    assert not grown[20:].any()
    assert (ctv["margin_mm"], ptv["margin_mm"]) == (15, 3)
    barriers = "brainstem, ventricles, falx (of the atlas), tentorium (of the atlas)"
    assert ctv["how"] == f"GTV + 15 mm in the brain, not across {barriers}; at most 5 mm into ventricles"
    assert wide[20:].any()
    unknown = Anatomy(brain, np.zeros(shape, bool), stem)
    assert "falx" not in grow_targets(seed, unknown, grid, Margins(15))[0][0]["how"]


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.0, 2.0, 1.0)], ids=str)
def test_the_ctv_ends_five_millimeters_inside_a_ventricle(spacing):
    """Against brute force on both sides of the wall; the far side of the ventricle is not reached through it.

    Steps of up to two voxels make straight paths up to 3 % longer.
    """
    spacing = np.array(spacing)
    shape = tuple((np.array([60, 56, 56]) / spacing).astype(int))
    brain = ball(shape, spacing, (30, 28, 28), 27)
    ventricle = ball(shape, spacing, (32, 28, 28), 9) & (np.indices(shape)[0] >= 26)
    seed = ball(shape, spacing, (18, 28, 28), 4)
    none = np.zeros(shape, bool)
    found = grow_ctv(seed, Anatomy(brain, ventricle, none), 15, spacing)
    deep, parts = find_ventricles(brain, ventricle, spacing), np.zeros(shape, np.uint8)
    tissue, every = (walk(seed, where, parts, spacing) for where in (brain & ~deep, brain))
    voxel = 0.6 * spacing.max()
    assert not (found & ~deep & (tissue > 1.03 * 15 + voxel)).any()
    assert not (~found & (tissue <= 15 - voxel)).any()
    entry = walk(tissue <= 15, deep | (tissue <= 15), parts, spacing)
    assert not (found & deep & ((entry > 1.03 * 5 + voxel) | (every > 1.03 * 15 + voxel))).any()
    assert not (~found & deep & (entry <= 5 - voxel) & (every <= 15 - voxel)).any()
    assert (found & deep).any()
    dry = grow_ctv(seed, Anatomy(brain, none, none), 15, spacing)
    assert (found <= dry).all()
    assert (dry & ~found).any()


def test_a_small_margin_does_not_grow_farther_in_a_ventricle():
    shape = (60, 56, 56)
    brain, ventricle = ball(shape, 1.0, (30, 28, 28), 27), ball(shape, 1.0, (30, 28, 28), 8)
    seed = ball(shape, 1.0, (18, 28, 28), 4)
    anatomy = Anatomy(brain, ventricle, np.zeros(shape, bool))
    found = grow_ctv(seed, anatomy, 3, np.ones(3))
    assert not (found & ~grow(seed, 3, (1, 1, 1))).any()


def test_parsing():
    assert parse_margins("ESTRO-EANO") == Margins(15, 3)
    assert parse_margins("ctv=20,ptv=3") == Margins(20, 3)
    assert parse_margins("PTV=5") == Margins(None, 5)
    for text in ("ctv", "ctv=x", "gtv=3", "ctv=-1", "ctv=100", ""):
        with pytest.raises(UsageError):
            parse_margins(text)
