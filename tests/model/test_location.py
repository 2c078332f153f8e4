"""Where tumors occur: measured in the atlas, the same on both sides, and placed on a patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small_head

from tumoar.geometry.image import Grid
from tumoar.inference import gem
from tumoar.model.location import Location, weigh_location
from tumoar.train.location import measure_location
from tumoar.vocabulary.config import GemConfig

SIZE = small_head.SIZE
GRID = Grid((SIZE,) * 3, np.eye(4))


def ball(center: tuple[float, float, float], radius: float) -> np.ndarray:
    points = np.stack(np.indices((SIZE,) * 3), -1)
    return np.linalg.norm(points - np.array(center), axis=-1) < radius


def test_the_factor_is_read_at_the_place_in_the_atlas():
    frequency = np.zeros((4, 5, 6), np.float32)
    frequency[1, 2, 3] = 1
    affine = np.diag([10.0, 10, 10, 1])
    affine[:3, 3] = [-20, -20, -20]
    turn = np.array([[0, -1, 0, 7], [1, 0, 0, -3], [0, 0, 1, 2], [0, 0, 0, 1.0]])
    place = turn @ affine @ [1, 2, 3, 1]
    shifted = np.eye(4)
    shifted[:3, 3] = np.round(place[:3]) - 5
    factor = weigh_location(Location(frequency, affine), Grid((11, 11, 11), shifted), turn, 0.2)
    assert factor[5, 5, 5] == pytest.approx(1)
    assert factor.min() >= 0.2
    assert factor.max() <= 1
    assert factor[5, 5, 10] == pytest.approx(0.2 + 0.8 * 0.5)


def test_no_frequency_outside_zero_and_one_is_taken():
    with pytest.raises(ValueError, match="between 0 and 1"):
        Location(np.full((3, 3, 3), 1.5, np.float32), np.eye(4))
    with pytest.raises(ValueError, match="invertible"):
        Location(np.ones((3, 3, 3), np.float32), np.zeros((4, 4)))


def test_the_map_is_symmetric(monkeypatch):
    from tumoar.train import location

    monkeypatch.setattr(location, "SPACING", 2.0)
    monkeypatch.setattr(location, "BLUR", 3.0)
    middle = np.eye(4)
    middle[:3, 3] = -(SIZE - 1) / 2
    atlas = small_head.atlas()
    atlas = replace(atlas, nodes=atlas.nodes + middle[:3, 3])
    grid = Grid(GRID.shape, middle)
    c = (SIZE - 1) / 2
    left, right = ball((c - 8, c, c), 4), ball((c + 8, c, c), 4)
    once = measure_location(left, grid, np.eye(4), atlas)
    assert once.frequency.max() == 1
    np.testing.assert_allclose(once.frequency, once.frequency[::-1], atol=1e-6)
    mirrored = measure_location(right, grid, np.eye(4), atlas)
    np.testing.assert_allclose(mirrored.frequency, once.frequency, atol=0.02)
    front = measure_location(left + 1.0 * ball((c, c + 8, c), 4), grid, np.eye(4), atlas)
    assert not np.allclose(front.frequency, once.frequency, atol=0.01)


def test_the_prior_of_tumor_is_lower_where_none_was_seen():
    frequency = np.ones((2, 2, 2), np.float32)
    frequency[0] = 0
    affine = np.diag([SIZE - 1.0] * 3 + [1.0])
    config = GemConfig(outer_iterations=1, em_iterations=2, deformation_steps=0, symmetry=1.0, location=0.1)
    fit = gem.fit(
        small_head.case(),
        small_head.atlas(),
        np.eye(4),
        small_head.TUMOR_MM3,
        config,
        Location(frequency, affine),
    )
    assert fit.factor[0].max() < 0.13
    assert fit.factor[-1].min() > 0.9
    plain = gem.fit(small_head.case(), small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, config)
    assert (plain.factor == 1).all()
