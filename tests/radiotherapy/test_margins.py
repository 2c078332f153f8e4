"""Targets grow as far as they should, and not through what they should not."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.radiotherapy.margins import Margins, find_ventricles, grow, grow_within, parse_margins
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


def test_parsing():
    assert parse_margins("ctv=20,ptv=3") == Margins(20, 3)
    assert parse_margins("PTV=5") == Margins(None, 5)
    for text in ("ctv", "ctv=x", "gtv=3", "ctv=-1", "ctv=100", ""):
        with pytest.raises(UsageError):
            parse_margins(text)
