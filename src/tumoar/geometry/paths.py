"""Cheapest paths through voxels, and smooth courses made of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]

_STEPS = np.argwhere(np.ones((3, 3, 3)))[14:] - 1
"""Half of the 26 neighbors."""


def cheapest_path(cost: npt.NDArray[np.float64], start: Mask, goal: Mask) -> npt.NDArray[np.int64]:
    """(n, 3) voxels of the cheapest path (26 neighbors, mean cost times length) from `start` to `goal`.

    Voxels of infinite cost are closed. Empty if there is no way.
    """
    usable = np.isfinite(cost)
    number = np.full(cost.shape, -1)
    number[usable] = np.arange(usable.sum())
    heads, tails, weights = [], [], []
    for step in _STEPS:
        here = tuple(slice(max(0, -s), n - max(0, s)) for s, n in zip(step, cost.shape))
        there = tuple(slice(max(0, s), n - max(0, -s)) for s, n in zip(step, cost.shape))
        both = usable[here] & usable[there]
        heads.append(number[here][both])
        tails.append(number[there][both])
        weights.append(np.linalg.norm(step) * (cost[here][both] + cost[there][both]) / 2)
    n = int(usable.sum())
    begins, ends = number[start & usable], number[goal & usable]
    if len(begins) == 0 or len(ends) == 0:
        return np.zeros((0, 3), np.int64)
    edges = (np.concatenate(weights), (np.concatenate(heads), np.concatenate(tails)))
    graph = coo_array(edges, shape=(n, n)).tocsr()
    length, before, _ = dijkstra(
        graph, directed=False, indices=begins, min_only=True, return_predecessors=True
    )
    node = int(ends[np.argmin(length[ends])])
    if not np.isfinite(length[node]):
        return np.zeros((0, 3), np.int64)
    way = []
    while node >= 0:
        way.append(node)
        node = int(before[node])
    return np.argwhere(usable)[way[::-1]]


def resample_course(points: Points, step: float) -> Points:
    """Points (n, 3) at equal distances of about `step` along a course, with the same ends."""
    along = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    places = np.linspace(0, along[-1], max(2, round(along[-1] / step) + 1))
    return np.stack([np.interp(places, along, points[:, d]) for d in range(3)], 1)


def smooth_course(points: Points, sd: float) -> Points:
    """A course smoothed by a Gaussian of `sd` points; its ends stay where they are."""
    n = len(points)
    chord = points[0] + np.linspace(0, 1, n)[:, None] * (points[-1] - points[0])
    bend = points - chord
    odd = np.concatenate([-bend[:0:-1], bend, -bend[-2::-1]])
    return chord + gaussian_filter1d(odd, sd, axis=0, mode="nearest")[n - 1 : 2 * n - 1]


def find_directions(points: Points) -> Points:
    """(n, 3) unit vectors along a course."""
    along = np.gradient(points, axis=0)
    return along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-12)
