"""What strokes say about voxels that were not painted: what was said about voxels like them, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.review import evidence
from tumoar.review.evidence import LEFT_IN, LEFT_OUT, PAINTED_IN, PAINTED_OUT, Outline, depth_in, weigh

SHAPE, MIDDLE, RADIUS = (36, 36, 36), 18, 9
AWAY = np.stack(np.indices(SHAPE)) - MIDDLE
BALL = np.linalg.norm(AWAY, axis=0) <= RADIUS
UNIT = (1.0, 1.0, 1.0)
EVERYWHERE = np.ones(SHAPE, bool)


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, *SHAPE)).astype(np.float32)


def told(**values: np.ndarray) -> np.ndarray:
    out = np.zeros(SHAPE, np.uint8)
    for name, mask in values.items():
        out[mask] = getattr(evidence, name)
    return out


def test_nothing_is_said_without_a_painted_voxel():
    outline = Outline(noise(), depth_in(BALL, UNIT), UNIT)
    nothing = told(LEFT_IN=BALL, LEFT_OUT=~BALL)
    assert not weigh(nothing, outline, np.ones(SHAPE, np.float32), EVERYWHERE).any()


@pytest.mark.parametrize("inside", [True, False])
def test_a_border_that_was_moved_in_one_slice_moves_in_the_slices_beside_it(inside):
    """The reader's ball is 2 mm smaller or larger; one slice of it was drawn, and the images are silent."""
    truth = np.linalg.norm(AWAY, axis=0) <= RADIUS + (2 if inside else -2)
    drawn = AWAY[2] == 0
    says = told(PAINTED_IN=drawn & truth, PAINTED_OUT=drawn & ~truth)
    model = np.where(BALL, 6, -6).astype(np.float32)  # the model is sure, and wrong
    found = weigh(says, Outline(noise(), depth_in(BALL, UNIT), UNIT), model, EVERYWHERE) + model
    near = (np.abs(AWAY[2]) <= 3) & (np.abs(AWAY[2]) > 0)
    moved = near & (truth != BALL)
    assert ((found[moved] > 0) == inside).mean() > 0.8
    assert ((found[near & (truth == BALL)] > 0) == truth[near & (truth == BALL)]).mean() > 0.9
    far = np.abs(AWAY[2]) > 2.5 * evidence.NEAR
    assert np.array_equal(found[far], model[far]), "far from the slice the model is left as it is"


def test_voxels_unlike_those_that_were_painted_are_left_to_the_model():
    D = noise()
    like = AWAY[0] <= 0  # half of the head looks like what was painted
    D[:, like] += 12
    drawn = AWAY[2] == 0
    says = told(PAINTED_IN=drawn & like & ~BALL, LEFT_OUT=drawn & ~like & ~BALL)
    model = np.full(SHAPE, -6, np.float32)
    found = weigh(says, Outline(D, depth_in(BALL, UNIT), UNIT), model, EVERYWHERE)
    beside = (np.abs(AWAY[2]) == 1) & ~BALL & (np.abs(AWAY[0]) > 1)
    assert np.median(found[beside & like]) > 6
    assert found[beside & ~like].max() < 1


def test_strokes_add_up():
    outline, model = Outline(noise(), depth_in(BALL, UNIT), UNIT), np.full(SHAPE, -6, np.float32)
    painted = BALL & (AWAY[2] == -3)
    one = weigh(told(PAINTED_OUT=~BALL & (AWAY[2] == 0), PAINTED_IN=painted), outline, model, BALL)
    more = painted | (BALL & (AWAY[2] == 3))
    both = weigh(told(PAINTED_OUT=~BALL & (AWAY[2] == 0), PAINTED_IN=more), outline, model, BALL)
    middle = BALL & (AWAY[2] == 0)
    assert both[middle].mean() > one[middle].mean() + 0.3


def test_the_counts_are_those_of_the_definition(monkeypatch):
    """Twice the same: matrix products in blocks, and loops over pairs of voxels."""
    rng = np.random.default_rng(1)
    shape, spacing = (5, 4, 6), (1.0, 1.5, 2.0)
    D, deep = rng.standard_normal((2, 3, *shape)).astype(np.float32)[0], rng.normal(0, 2, shape)
    says = rng.integers(0, 5, shape).astype(np.uint8)
    model = rng.normal(0, 2, shape).astype(np.float32)
    monkeypatch.setattr(evidence, "_whiten", lambda d, is_in: np.eye(3))
    found = weigh(says, Outline(D, deep.astype(np.float32), spacing), model, np.ones(shape, bool))
    for x in np.ndindex(shape):
        count = [0.0, 0.0]
        for s in np.ndindex(shape):
            if not says[s]:
                continue
            far = (np.subtract(x, s) * spacing / evidence.NEAR) ** 2
            unlike = ((D[(slice(None), *x)] - D[(slice(None), *s)]) / evidence.BRIGHT) ** 2
            depth = ((deep[x] - deep[s]) / evidence.DEEP) ** 2
            weight = 1 if says[s] in (PAINTED_IN, PAINTED_OUT) else evidence.LEFT
            kernel = np.exp(-0.5 * (far.sum() + depth + unlike.sum()))
            count[says[s] in (PAINTED_IN, LEFT_IN)] += weight * kernel
        p = 1 / (1 + np.exp(-model[x]))
        wanted = np.log((count[1] + evidence.PRIOR * p) / (count[0] + evidence.PRIOR * (1 - p))) - model[x]
        assert found[x] == pytest.approx(wanted, abs=2e-3)
    assert LEFT_IN != LEFT_OUT
