"""Scores against shapes whose agreement is known."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.result.scores import Scores, compare, compare_organs, dice, summarize
from tumoar.vocabulary.labels import default_labels


def ball(shape, spacing, center, radius):
    axes = np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing)], indexing="ij")
    return sum((a - c) ** 2 for a, c in zip(axes, center)) <= radius**2


SPACINGS = [(1.0, 1.0, 1.0), (0.7, 0.7, 2.0), (0.5, 1.0, 0.8), (2.0, 2.0, 2.0), (1.0, 1.0, 3.0)]


@pytest.mark.parametrize("spacing", SPACINGS)
def test_concentric_balls(spacing):
    shape = tuple(int(60 / s) for s in spacing)
    small, large = (ball(shape, spacing, (30, 30, 30), r) for r in (14.0, 19.0))
    scores = compare(small, large, spacing)
    assert scores.dice == pytest.approx(2 * 14**3 / (14**3 + 19**3), abs=0.02 * max(spacing))
    assert scores.hausdorff95 == pytest.approx(5.0, abs=0.5 * max(spacing))
    assert scores.mean_distance == pytest.approx(5.0, abs=0.5 * max(spacing))
    assert scores.surface_dice_1mm < 0.02
    assert scores.volume == pytest.approx(4 / 3 * np.pi * 1.4**3, rel=0.03 * max(spacing))


def test_shifted_box_by_hand():
    a = np.zeros((20, 20, 20), bool)
    a[5:10, 5:10, 5:10] = True
    b = np.roll(a, 2, axis=0)
    scores = compare(a, b, (1.0, 1.0, 1.0))
    assert scores.dice == 2 * 75 / 250
    assert scores.hausdorff95 == 2.0
    assert scores.surface_dice_2mm == 1.0


def test_identical_masks_are_perfect():
    a = ball((20, 20, 20), (1, 1, 1), (9, 9, 9), 6)
    assert compare(a, a, (1, 1, 1)) == Scores(1, 0, 0, 1, 1, a.sum() / 1000, a.sum() / 1000)


def test_robust_hausdorff_ignores_a_speck_and_hausdorff_is_symmetric():
    a = ball((40, 40, 40), (1, 1, 1), (20, 20, 20), 10)
    b = a.copy()
    b[1, 1, 1] = True
    assert compare(a, b, (1, 1, 1)).hausdorff95 == 0.0
    c = ball((40, 40, 40), (1, 1, 1), (22, 20, 20), 8)
    assert compare(a, c, (1, 1, 1)).hausdorff95 == compare(c, a, (1, 1, 1)).hausdorff95


def test_empty_masks_follow_the_rule():
    empty = np.zeros((8, 8, 8), bool)
    full = ball((8, 8, 8), (1, 1, 1), (4, 4, 4), 2)
    assert compare(empty, empty, (1, 1, 1)) == Scores(1, 0, 0, 1, 1, 0, 0)
    one = compare(empty, full, (1, 1, 1))
    assert (one.dice, one.hausdorff95, one.mean_distance, one.surface_dice_2mm) == (0, np.inf, np.inf, 0)


def test_structure_at_the_border_has_a_surface_there():
    a = np.ones((4, 4, 4), bool)
    b = np.ones((4, 4, 4), bool)
    b[3] = False
    assert compare(a, b, (1, 1, 1)).hausdorff95 == 1.0


def test_grids_must_agree():
    with pytest.raises(ValueError, match="share a grid"):
        compare(np.zeros((2, 2, 2), bool), np.zeros((2, 2, 3), bool), (1, 1, 1))


def test_organs_of_label_maps():
    labels = default_labels()
    truth = np.zeros((10, 10, 10), np.uint8)
    truth[2:5, 2:5, 2:5] = 11  # left eye tissue
    truth[3, 3, 3] = 13  # left eye fluid
    truth[6:8, 6:8, 6:8] = 18  # core
    found = truth.copy()
    found[found == 13] = 11
    scores = compare_organs(labels, found, truth, (1, 1, 1))
    assert set(scores) == {o.name for o in labels.organs}
    assert scores["Eye_L"].dice == 1.0
    assert scores["GTV"].volume == pytest.approx(0.008)
    assert scores["Eye_R"].dice == 1.0  # empty in both


def test_summary():
    rows = [Scores(d, h, 0, 0, 0, 0, 0) for d, h in ((0.2, 1.0), (0.4, np.inf), (0.9, 3.0))]
    summary = summarize(rows)
    assert summary["dice"] == (pytest.approx(0.5), 0.4)
    assert summary["hausdorff95"] == (np.inf, 3.0)


def test_dice_of_masks():
    a = np.array([True, True, False])
    assert dice(a, ~a) == 0.0
    assert dice(a, a) == 1.0
