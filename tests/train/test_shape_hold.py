"""The end of training: empty and full in balance, and shapes that keep their volume."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.errors import FitError
from tumoar.model.shape.base import free_sweeps
from tumoar.model.shape.crbm import CRBM
from tumoar.train import shape_hold
from tumoar.train.shape_data import Shape
from tumoar.train.shape_start import BALLS, DIRECTIONS, first_model


def first() -> CRBM:
    p, _ = first_model()
    return CRBM(p.w.astype(np.float32), p.b.astype(np.float32), p.a)


def ball(radius: float, name: str) -> Shape:
    n = int(2 * radius + 3)
    r = np.linalg.norm(np.indices((n,) * 3) - (n - 1) / 2, axis=0)
    return Shape(name, name, (r < radius).astype(np.uint8))


def test_surfaces_are_the_filters_that_face_one():
    found = np.flatnonzero(shape_hold.surfaces(first()))
    assert found.tolist() == list(range(len(BALLS), len(BALLS) + len(DIRECTIONS)))


def test_raising_moves_the_surfaces_alone_and_keeps_the_balance():
    model = first()
    found = shape_hold.raised(CRBM(model.w, model.b, model.a + 3), 0.5)
    is_surface = shape_hold.surfaces(model)
    np.testing.assert_allclose(found.b - model.b, np.where(is_surface, 0.5, 0.0), atol=1e-6)
    np.testing.assert_array_equal(found.w, model.w)
    # per voxel, far from any border: all hidden units of a full map against those of an empty one
    full = found.full.sum((1, 2, 3))
    gain = np.logaddexp(0, found.b + full).sum() - np.logaddexp(0, found.b.astype(float)).sum() + found.a
    assert gain == pytest.approx(0, abs=1e-3)


def test_shapes_of_different_patients_and_sizes():
    shapes = [ball(10, "a"), ball(10.2, "a"), ball(15, "b"), ball(24, "c"), ball(2, "d")]
    found = shape_hold.spread(shapes, 3)
    assert [s.patient for s in found] == ["a", "b", "c"]
    assert len(shape_hold.spread(shapes, 9)) == 4


def test_a_lower_threshold_lets_shapes_grow():
    shapes = [ball(7, "a"), ball(10, "b")]
    low, high = (
        shape_hold.mean_growth(shape_hold.raised(first(), x), shapes, 15, seed=3) for x in (-1.0, 2.0)
    )
    assert low < -0.1 < 0.1 < high


def test_held_shapes_keep_their_volume():
    shapes, told = [ball(6, "a"), ball(8, "b")], []
    model, nats = shape_hold.held(first(), shapes, 12, 3, lambda nats, growth: told.append((nats, growth)))
    assert abs(shape_hold.mean_growth(model, shapes, 12, seed=3)) < 0.05
    assert abs(shape_hold.mean_growth(model, shapes, 12, seed=4)) < 0.1  # other random numbers
    assert min(abs(n - nats) for n, _ in told) < 1e-9
    assert max(g for _, g in told) > 0.1
    assert min(g for _, g in told) < -0.1


def test_a_model_that_cannot_hold_is_refused():
    p, _ = first_model()
    w = p.w.astype(np.float32) * np.where(shape_hold.surfaces(first()), 1e-3, 1)[:, None, None, None]
    with pytest.raises(FitError, match="keep their volume"):
        shape_hold.held(CRBM(w, p.b.astype(np.float32), p.a), [ball(6, "a")], 10, 0, lambda *_: None)


def test_the_empty_map_stays_empty():
    empty = np.zeros((30, 30, 30), bool)
    assert not free_sweeps(first(), empty, 20, np.random.default_rng(0)).any()
