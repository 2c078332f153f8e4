"""What strokes say about voxels that were not painted: what was said about voxels like them, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.review import evidence
from tumoar.review.evidence import PAINTED_IN, PAINTED_OUT, Outline, depth_in, weigh

SHAPE, MIDDLE, RADIUS = (36, 36, 36), 18, 9
AWAY = np.stack(np.indices(SHAPE)) - MIDDLE
FAR = np.linalg.norm(AWAY, axis=0)
BALL = FAR <= RADIUS
UNIT = (1.0, 1.0, 1.0)
EVERYWHERE = np.ones(SHAPE, bool)
SURE = np.where(BALL, 6, -6).astype(np.float32)


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, *SHAPE)).astype(np.float32)


def outline(D: np.ndarray, model: np.ndarray = SURE) -> Outline:
    return Outline(D, depth_in(BALL, UNIT), BALL, model, UNIT)


def told(**values: np.ndarray) -> np.ndarray:
    out = np.zeros(SHAPE, np.uint8)
    for name, mask in values.items():
        out[mask] = getattr(evidence, name)
    return out


def test_nothing_is_said_without_a_painted_voxel():
    assert not weigh(told(LEFT_IN=BALL, LEFT_OUT=~BALL), outline(noise()), EVERYWHERE).any()


@pytest.mark.parametrize("by", [-2, 2])
def test_a_border_that_was_moved_in_one_slice_moves_in_the_slices_beside_it(by):
    """The reader's ball is 2 mm smaller or larger; one slice of it was drawn, and the images are silent."""
    truth = RADIUS + by >= FAR
    drawn = AWAY[2] == 0
    says = told(PAINTED_IN=drawn & truth, PAINTED_OUT=drawn & ~truth)
    found = weigh(says, outline(noise()), EVERYWHERE) + SURE  # the model is sure, and wrong
    near = (np.abs(AWAY[2]) <= 2) & ~drawn
    moved = near & (truth != BALL)
    assert ((found[moved] > 0) == (by > 0)).mean() > 0.7
    same = near & (truth == BALL)
    assert ((found[same] > 0) == truth[same]).mean() > 0.95
    beyond = np.abs(AWAY[2]) > evidence.FAR * max(evidence.NEAR)
    assert np.array_equal(found[beyond], SURE[beyond]), "far from the slice the model is left as it is"


def test_what_agrees_with_the_outline_adds_nothing():
    drawn = AWAY[2] == 0
    says = told(PAINTED_IN=drawn & BALL, PAINTED_OUT=drawn & ~BALL)
    assert not weigh(says, outline(noise()), EVERYWHERE).any()


def test_an_error_that_predicts_nothing_stays_where_it_was_drawn():
    """Single voxels that were wrong, far from each other: what is beside them is right."""
    drawn = AWAY[2] == 0
    alone = drawn & (AWAY[0] % 6 == 0) & (AWAY[1] % 6 == 0)
    truth = BALL ^ alone
    says = told(PAINTED_IN=drawn & truth, PAINTED_OUT=drawn & ~truth)
    assert not weigh(says, outline(noise()), EVERYWHERE).any()


def test_voxels_unlike_those_that_were_painted_are_left_to_the_model():
    D = noise()
    like = AWAY[0] <= 0  # half of the head looks like what was painted
    D[:, like] += 12
    drawn, shell = AWAY[2] == 0, (FAR <= RADIUS + 3) & ~BALL
    says = told(PAINTED_IN=drawn & like & shell, LEFT_OUT=drawn & ~BALL & ~(like & shell))
    found = weigh(says, outline(D), EVERYWHERE)
    beside = (np.abs(AWAY[2]) == 1) & shell & (np.abs(AWAY[0]) > 1)
    assert np.median(found[beside & like]) > 5
    assert not found[beside & ~like].any()


@pytest.mark.parametrize("best", [(2.0, 0.5), (4.0, 5.0)])
def test_the_counts_are_those_of_the_definition(monkeypatch, best):
    """Twice the same: matrix products in blocks, and loops over pairs of voxels."""
    rng = np.random.default_rng(1)
    shape, spacing = (5, 4, 6), (1.0, 1.5, 2.0)
    D = rng.standard_normal((3, *shape)).astype(np.float32)
    deep, model = (rng.normal(0, 2, shape).astype(np.float32) for _ in range(2))
    says = rng.integers(0, 5, shape).astype(np.uint8)
    mask = deep > 0
    monkeypatch.setattr(evidence, "_whiten", lambda d, is_in: np.eye(3))
    monkeypatch.setattr(evidence, "_choose", lambda *about: best)
    near, prior = best
    found = weigh(says, Outline(D, deep, mask, model, spacing), np.ones(shape, bool))
    for x in np.ndindex(shape):
        count = [0.0, 0.0]
        for s in np.ndindex(shape):
            if not says[s]:
                continue
            far = (np.subtract(x, s) * spacing / near) ** 2
            unlike = ((D[(slice(None), *x)] - D[(slice(None), *s)]) / evidence.BRIGHT) ** 2
            depth = ((deep[x] - deep[s]) / evidence.DEEP) ** 2
            weight = 1 if says[s] in (PAINTED_IN, PAINTED_OUT) else evidence.LEFT
            is_in = says[s] in (PAINTED_IN, evidence.LEFT_IN)
            count[is_in] += weight * np.exp(-0.5 * (far.sum() + depth + unlike.sum()))
        p = 1 / (1 + np.exp(-model[x]))
        odds = np.log(count[1] + prior * p) - np.log(count[0] + prior * (1 - p))
        sign = -1 if mask[x] else 1
        wanted = sign * max(sign * (odds - model[x]), 0) if sign * odds > 0 else 0
        if abs(odds) > 1e-3:
            assert found[x] == pytest.approx(wanted, abs=2e-3)
    assert (found != 0).any()
