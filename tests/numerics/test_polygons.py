"""Polygons cover what geometry says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.numerics.polygons import area, contains, coverage, signed_distance

SQUARE = np.array([[1.0, 1.0], [5.0, 1.0], [5.0, 4.0], [1.0, 4.0]])


def star(rng, corners=9, center=(12.0, 11.0), size=9.0):
    # One corner in each sector: with a gap of more than half a turn the last edge may cross others.
    angle = 2 * np.pi * (np.arange(corners) + rng.uniform(0, 1, corners)) / corners
    radius = size * rng.uniform(0.4, 1.0, corners)
    return np.array(center) + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def test_a_square_along_pixel_edges_is_exact():
    share = coverage([SQUARE - 0.5], (8, 8))
    expected = np.zeros((8, 8))
    expected[1:5, 1:4] = 1
    assert np.array_equal(share, expected)


def test_half_pixels():
    share = coverage([SQUARE], (8, 8), lines=16)
    assert share[1, 1] == pytest.approx(0.25)
    assert share[1, 2] == share[2, 1] == pytest.approx(0.5)
    assert share.sum() == pytest.approx(12.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_area_is_kept_whichever_way_it_turns(seed):
    polygon = star(np.random.default_rng(seed))
    total = coverage([polygon], (24, 24), lines=64).sum()
    assert total == pytest.approx(abs(area(polygon)), rel=2e-3)
    assert area(polygon[::-1]) == pytest.approx(-area(polygon))
    assert np.allclose(coverage([polygon[::-1]], (24, 24)), coverage([polygon], (24, 24)))


def test_a_polygon_within_another_is_a_hole():
    outer, inner = SQUARE * 4, SQUARE * 2 + 3
    share = coverage([outer, inner], (24, 24))
    assert share.sum() == pytest.approx(area(outer) - area(inner))
    keyhole = np.concatenate([outer, outer[:1], inner[::-1], inner[-1:]])
    assert np.allclose(coverage([keyhole], (24, 24)), share, atol=1e-9)


def test_what_lies_beyond_the_grid_is_cut():
    assert coverage([SQUARE * 10 - 20], (6, 6)).min() == 1.0
    assert coverage([SQUARE + 100], (6, 6)).max() == 0.0
    assert coverage([], (6, 6)).max() == 0.0


def test_distances_against_a_circle():
    angle = np.linspace(0, 2 * np.pi, 721)[:-1]
    circle = 7 * np.stack([np.cos(angle), np.sin(angle)], 1)
    points = np.random.default_rng(0).uniform(-12, 12, (500, 2))
    expected = 7 - np.linalg.norm(points, axis=1)
    assert np.allclose(signed_distance([circle], points), expected, atol=2e-3)
    assert np.array_equal(contains([circle], points), expected > 0)
