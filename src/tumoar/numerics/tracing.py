"""Trace masks along pixel edges as polygons, without losing thin parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.numerics.polygons import area, contains

Points = npt.NDArray[np.float64]

STEPS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
"""Directions in order of left turns; the inside is to the left of every edge."""

ROUNDS = 2  # of smoothing


@dataclass(frozen=True, eq=False)
class Region:
    """A connected component: its outer loop (n, 2), and the loops of its holes."""

    outer: Points
    holes: tuple[Points, ...] = ()


def trace(mask: npt.NDArray[np.bool_]) -> list[Region]:
    """Trace the 4-connected components of a mask (a, b), with pixel centers at integers.

    Outer loops turn from the first axis to the second, holes the other way; polygon corners are pixel
    corners.
    """
    loops = [_drop_collinear(loop) for loop in _trace_loops(mask)]
    outers = sorted((p for p in loops if area(p) > 0), key=area)
    holes: list[list[Points]] = [[] for _ in outers]
    for hole in (p for p in loops if area(p) < 0):
        # The pixel before the hole's first corner belongs to the component around it: the smallest such one.
        first = hole[np.lexsort((hole[:, 1], hole[:, 0]))[0]]
        beside = first[None] + np.array([-0.5, 0.5])
        holes[next(i for i, p in enumerate(outers) if contains([p], beside)[0])].append(hole)
    return [Region(outer, tuple(inner)) for outer, inner in zip(outers, holes)]


def _trace_loops(mask: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """Closed chains of pixel corners, one entry per pixel edge."""
    padded = np.pad(np.asarray(mask, bool), 1)
    # For each direction: first corner of the edge relative to the pixel, and the pixel to its right.
    begins = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    leaving: dict[tuple[int, int], list[int]] = {}
    for direction, begin in enumerate(begins):
        right = STEPS[(direction - 1) % 4]
        edge = padded & ~np.roll(padded, -right, axis=(0, 1))
        for corner in (np.argwhere(edge) + begin).tolist():
            leaving.setdefault((corner[0], corner[1]), []).append(direction)
    loops = []
    while leaving:
        start = next(iter(leaving))
        corner, direction, loop = start, leaving[start][0], []
        while corner in leaving:
            ways = leaving[corner]
            left = (direction + 1) % 4
            # Where two components touch at a corner, a left turn stays with the component.
            direction = left if left in ways else ways[0]
            ways.remove(direction)
            if not ways:
                del leaving[corner]
            loop.append(corner)
            corner = corner[0] + int(STEPS[direction, 0]), corner[1] + int(STEPS[direction, 1])
        loops.append(np.array(loop) - 1)
    return loops


def _drop_collinear(loop: npt.NDArray[np.int64]) -> Points:
    """Drop collinear points; returns the loop in pixel coordinates."""
    before, after = loop - np.roll(loop, 1, axis=0), np.roll(loop, -1, axis=0) - loop
    return loop[(before != after).any(1)] - 0.5


def smooth_loop(loop: Points) -> Points:
    """Smooth a loop along pixel edges; its area is preserved exactly."""
    closed = np.concatenate([loop, loop[:1]])
    lengths = np.rint(np.abs(np.diff(closed, axis=0)).sum(1)).astype(int)
    parts = [
        a + (b - a) * ((np.arange(n) + 0.5) / n)[:, None] for a, b, n in zip(closed, closed[1:], lengths)
    ]
    out = np.concatenate(parts)  # the middles of the unit edges
    for _ in range(ROUNDS if len(out) > 8 else 0):
        out = 0.25 * np.roll(out, 1, axis=0) + 0.5 * out + 0.25 * np.roll(out, -1, axis=0)
    center = out.mean(0)
    return center + (out - center) * np.sqrt(area(loop) / area(out))


def join_holes(region: Region) -> list[Points]:
    """Join holes to the outer loop by seams (keyholes); holes that no seam reaches stay separate."""
    merged, apart = region.outer, []
    for hole in sorted(region.holes, key=lambda h: float(h[:, 0].min())):
        first = int(np.lexsort((hole[:, 1], hole[:, 0]))[0])
        turned = np.roll(hole, -first, axis=0)
        at = _find_edge_below(merged, turned[0])
        if at is None:
            apart.append(hole)
            continue
        edge, point = at
        seam = np.concatenate([point[None], turned, turned[:1], point[None]])
        merged = np.concatenate([merged[: edge + 1], seam, merged[edge + 1 :]])
    return [merged, *apart]


def _find_edge_below(polygon: Points, point: Points) -> tuple[int, Points] | None:
    """Nearest edge below a point along the first axis, and the position on it."""
    a, b = polygon, np.roll(polygon, -1, axis=0)
    spans = (a[:, 1] <= point[1]) != (b[:, 1] <= point[1])
    rise = np.where(spans, b[:, 1] - a[:, 1], 1.0)
    along = a[:, 0] + (point[1] - a[:, 1]) / rise * (b[:, 0] - a[:, 0])
    along = np.where(spans & (along <= point[0]), along, -np.inf)
    edge = int(np.argmax(along))
    return None if np.isinf(along[edge]) else (edge, np.array([along[edge], point[1]]))
