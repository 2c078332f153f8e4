"""Slow, obvious versions of what is asked of polygons."""

from __future__ import annotations

import numpy as np

from tumoar.numerics.polygons import contains


def inside(polygons, points, groups):
    """Polygons of a group united, groups combined by exclusive or."""
    out = np.zeros(len(points), bool)
    for group in np.unique(groups):
        united = np.zeros(len(points), bool)
        for polygon, own in zip(polygons, groups):
            if own == group:
                united |= contains([polygon], points)
        out ^= united
    return out


def edge_distance(polygons, points):
    """Every point against every edge."""
    nearest = np.full(len(points), np.inf)
    for polygon in polygons:
        for a, b in zip(polygon, np.roll(polygon, -1, axis=0)):
            e = b - a
            t = np.clip((points - a) @ e / max(e @ e, 1e-30), 0, 1)
            nearest = np.minimum(nearest, np.linalg.norm(points - a - t[:, None] * e, axis=1))
    return nearest


def overlaps(polygons, size, step=0.05):
    """Shared areas by counting fine pixels of a square from 0 to size."""
    axis = np.arange(step / 2, size, step)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    held = np.array([contains([p], points) for p in polygons], float)
    return held @ held.T * step**2
