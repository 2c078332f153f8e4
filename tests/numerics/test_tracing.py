"""Traced outlines give back exactly the pixels they came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage as ndi

from tumoar.numerics.polygons import area, coverage
from tumoar.numerics.tracing import join_holes, smooth_loop, trace


def masks():
    """Noise, blobs, rods, rings: whatever may happen."""

    def make(seed):
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(1, 24, 2))
        noise = rng.random(shape)
        return ndi.gaussian_filter(noise, rng.choice([0, 0.7, 2.0])) > rng.uniform(0.2, 0.8)

    return st.integers(0, 10**6).map(make)


@settings(max_examples=150, deadline=None)
@given(masks())
def test_pixels_come_back(mask):
    regions = trace(mask)
    polygons = [p for r in regions for p in join_holes(r)]
    assert all(len(p) >= 4 for p in polygons)
    assert np.array_equal(coverage(polygons, mask.shape), mask.astype(float))
    apart = [p for r in regions for p in (r.outer, *r.holes)]
    assert np.array_equal(coverage(apart, mask.shape), mask.astype(float))
    assert len(regions) == ndi.label(mask)[1]
    assert all(area(r.outer) > 0 and all(area(h) < 0 for h in r.holes) for r in regions)


@settings(max_examples=60, deadline=None)
@given(masks())
def test_keyholes_are_one_polygon_of_the_right_area(mask):
    for region in trace(mask):
        polygons = join_holes(region)
        assert len(polygons) == 1
        assert area(polygons[0]) == pytest.approx(area(region.outer) + sum(map(area, region.holes)))


@settings(max_examples=60, deadline=None)
@given(masks())
def test_smoothing_keeps_area_and_turn(mask):
    for region in trace(mask):
        for loop in (region.outer, *region.holes):
            smooth = smooth_loop(loop)
            assert area(smooth) == pytest.approx(area(loop), rel=1e-9)
            assert len(smooth) >= 4


def test_smooth_is_smoother():
    disk = np.hypot(*(np.indices((41, 41)) - 20)) < 15
    loop = trace(disk)[0].outer
    radius = np.linalg.norm(smooth_loop(loop) - 20, axis=1)
    rough = np.linalg.norm(loop - 20, axis=1)
    assert np.std(radius) < 0.4 * np.std(rough)


def test_parts_that_touch_at_a_corner_are_two():
    assert len(trace(np.eye(3, dtype=bool))) == 3
    assert trace(np.zeros((4, 4), bool)) == []
