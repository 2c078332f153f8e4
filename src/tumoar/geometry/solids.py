"""Solids given by their geometry: a ball with a bulge, and a tube along a course. Lengths are in voxels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]


def to_finer(points: Points, zoom: int) -> Points:
    """Coordinates of points after every voxel has been split into `zoom` along each axis."""
    return points * zoom + (zoom - 1) / 2


@dataclass(frozen=True, eq=False)
class Globe:
    """A ball with a bulge, itself a part of a ball, that faces along the second axis."""

    center: Points
    radius: float
    bulge: Points
    curvature: float

    def depth(self, shape: Sequence[int], zoom: int = 1) -> npt.NDArray[np.float32]:
        """Depth below the surface in voxels of `shape`, which are `zoom` times finer; negative outside.

        Where ball and bulge meet, the depth is that of the ball or of the bulge, whichever is larger.
        """
        index = np.ogrid[tuple(slice(0, n) for n in shape)]
        solids = ((self.center, self.radius), (self.bulge, self.curvature))
        ball, bulge = (
            radius * zoom - np.sqrt(sum((g - p) ** 2 for g, p in zip(index, to_finer(center, zoom))))
            for center, radius in solids
        )
        in_front = index[1] > to_finer(self.center, zoom)[1]
        return np.asarray(np.where(in_front, np.maximum(ball, bulge), ball), np.float32)


@dataclass(frozen=True, eq=False)
class Tube:
    """A tube along points (n, 3) with radii (n,)."""

    points: Points
    radii: Points

    @property
    def length(self) -> float:
        """Length of the course."""
        return float(np.linalg.norm(np.diff(self.points, axis=0), axis=1).sum())

    def part(self, first: float, last: float) -> Tube:
        """The part between two fractions of its points."""
        n = len(self.points)
        at = slice(round(first * n), max(round(last * n), round(first * n) + 1))
        return Tube(self.points[at], self.radii[at])

    def rasterize(self, shape: Sequence[int], zoom: int = 1, scale: float = 1.0, more: float = 0.0) -> Mask:
        """Voxels of `shape` within `scale` times the radius, and `more` voxels, of the course."""
        out = np.zeros(tuple(shape), bool)
        for point, radius in zip(to_finer(self.points, zoom), (self.radii * scale + more) * zoom):
            low = np.maximum(np.floor(point - radius).astype(int), 0)
            high = np.minimum(np.ceil(point + radius).astype(int) + 1, shape)
            if (low < high).all():
                box = tuple(slice(a, b) for a, b in zip(low, high))
                square = sum((g - p) ** 2 for g, p in zip(np.ogrid[box], point))
                out[box] |= square <= radius**2
        return out
