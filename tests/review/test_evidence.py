"""What a stroke says about voxels around it: as thick as it is wide, and never the opposite of what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.review.evidence import Clue, weigh_clue

SHAPE, MIDDLE, RADIUS = (33, 33, 33), 16, 7
AWAY = np.stack(np.indices(SHAPE)) - MIDDLE
WRONG = (np.hypot(AWAY[0], AWAY[1]) <= RADIUS) & (AWAY[2] == 0)
RING = (np.hypot(AWAY[0], AWAY[1]) <= RADIUS + 8) & (AWAY[2] == 0) & ~WRONG
BALL = np.linalg.norm(AWAY, axis=0)
UNIT = (1.0, 1.0, 1.0)


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, *SHAPE)).astype(np.float32)


@pytest.mark.parametrize("inside", [True, False])
def test_without_help_from_the_images_a_disk_is_a_section_of_a_ball(inside):
    sign = 1 if inside else -1
    model = np.full(SHAPE, -20.0 * sign, np.float32)
    found = sign * (weigh_clue(Clue(WRONG, RING, inside), noise(), model, UNIT) + model)
    assert found[BALL <= 2].min() > -3
    assert np.median(found[BALL <= 3]) > -1, "the likelihood that misled the sampler is taken back"
    assert found[MIDDLE, MIDDLE, MIDDLE] > 0
    assert np.median(found[(BALL > RADIUS + 3)]) < -15, "beyond the ball the model is left as it is"
    assert (sign * weigh_clue(Clue(WRONG, RING, inside), noise(), model, UNIT) >= 0).all()


def test_voxels_unlike_those_that_were_wrong_are_left_to_the_model():
    D = noise()
    like = AWAY[0] <= 0  # half of the head looks like what was wrong
    D[0, like] += 8
    wrong, right = WRONG & like, RING & ~like
    model = np.full(SHAPE, -10, np.float32)
    found = weigh_clue(Clue(wrong, right, True), D, model, UNIT)
    near = np.linalg.norm(AWAY + np.array([3, 0, 0])[:, None, None, None], axis=0) <= 3
    assert np.median(found[near & like]) > 8
    assert np.abs(found[~like]).max() < 0.5


def test_a_stroke_that_only_confirms_says_nothing_about_others():
    nothing = np.zeros(SHAPE, bool)
    assert not weigh_clue(Clue(nothing, RING, True), noise(), np.ones(SHAPE, np.float32), UNIT).any()


def test_a_stroke_never_weakens_what_it_says():
    model = np.full(SHAPE, 30.0, np.float32)  # the model was right already
    assert (weigh_clue(Clue(WRONG, RING, True), noise(), model, UNIT) >= 0).all()
