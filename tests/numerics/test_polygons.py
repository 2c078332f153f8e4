"""Polygons cover what geometry says."""

from __future__ import annotations

import numpy as np
import pytest
import reference_polygons as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.numerics.polygons import (
    area,
    centers_inside,
    contains,
    coverage,
    edge_distance,
    overlaps,
    total_area,
)

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
    assert np.allclose(edge_distance([circle], points), np.abs(expected), atol=2e-3)
    assert np.array_equal(contains([circle], points), expected > 0)


def scene(seed):
    """A few polygons over one another, in groups; one of them may be flat, crossed or a single point."""
    rng = np.random.default_rng(seed)
    polygons = [
        star(rng, int(rng.integers(3, 30)), rng.uniform(4, 20, 2), rng.uniform(0.2, 12))
        for _ in range(int(rng.integers(1, 6)))
    ]
    polygons.append(rng.uniform(0, 24, (int(rng.integers(3, 8)), 2)))  # crosses itself
    if rng.random() < 0.3:
        polygons.append(np.repeat(rng.uniform(0, 24, (1, 2)), 3, axis=0))
    return rng, polygons, rng.integers(0, 3, len(polygons))


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_united_and_then_exclude_one_another(seed):
    _, polygons, groups = scene(seed)
    points = np.stack(np.meshgrid(np.arange(24.0), np.arange(24.0), indexing="ij"), -1).reshape(-1, 2)
    expected = slow.inside(polygons, points, groups).reshape(24, 24)
    assert np.array_equal(centers_inside(polygons, (24, 24), groups), expected)
    fine = [p * 8 + 3.5 for p in polygons]
    share = coverage(polygons, (24, 24), groups=groups)
    held = centers_inside(fine, (192, 192), groups).reshape(24, 8, 24, 8).mean((1, 3))
    assert np.abs(share - held).mean() < 0.02


@pytest.mark.parametrize("seed", range(40))
def test_the_nearest_edge_is_found(seed):
    rng, polygons, _ = scene(seed)
    points = rng.uniform(-40, 60, (300, 2))
    assert np.allclose(edge_distance(polygons, points), slow.edge_distance(polygons, points), atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_areas_that_polygons_share(seed):
    rng = np.random.default_rng(seed)
    polygons = [star(rng, 9, rng.uniform(10, 14, 2), rng.uniform(3, 9)) for _ in range(4)]
    found = overlaps(polygons)
    assert np.allclose(found, found.T)
    assert np.allclose(found, slow.overlaps(polygons, 24.0), rtol=0.02, atol=0.3)
    assert np.diag(found) == pytest.approx([abs(area(p)) for p in polygons], rel=3e-3)


def test_the_area_of_all():
    outer, inner = SQUARE * 4, SQUARE * 2 + 3
    assert total_area([outer, inner]) == pytest.approx(area(outer) - area(inner), rel=3e-3)
    assert total_area([outer, inner], [0, 0]) == pytest.approx(area(outer), rel=3e-3)
    assert total_area([outer, outer], [0, 0]) == pytest.approx(area(outer), rel=3e-3)
    assert total_area([outer, outer + 2], [0, 0]) == pytest.approx(2 * 192 - 14 * 10, rel=3e-3)
    assert total_area([]) == 0.0


def test_polygons_beyond_reason_deep_are_not_counted():
    assert overlaps([SQUARE * (1 + i / 100) for i in range(80)]) is None


def test_many_edges_take_no_time():
    angle = np.linspace(0, 2 * np.pi, 300_001)[:-1]
    circle = 100 + 90 * np.stack([np.cos(angle), np.sin(angle)], 1)
    assert coverage([circle], (200, 200)).sum() == pytest.approx(np.pi * 8100, rel=1e-4)
    points = np.random.default_rng(0).uniform(0, 200, (20_000, 2))
    expected = np.abs(90 - np.linalg.norm(points - 100, axis=1))
    assert np.allclose(edge_distance([circle], points), expected, atol=1e-4)
