"""Bodies of known volume, and their dose-volume histograms in a linear dose, by formula.

They are the digital phantoms of `tumoar commission` and of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from tumoar.geometry.image import Grid, Image

CENTER_GY, GRADIENT = 54.0, 1.0  # Gy, Gy per mm
FINE = 0.05  # mm, to know the shares of voxels

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """A body around the origin: volume, what is inside, how far it reaches.

    `above` is its share above t along `axis`, `radius` that of its disk at height z.
    """

    name: str
    cm3: float
    inside: Callable[..., Mask]
    extent: tuple[float, float, float]
    above: Callable[[float], float]
    axis: int
    radius: Callable[[float], float]

    def D(self, percent: float) -> float:
        """Minimum dose to the hottest `percent` of the volume, Gy."""
        reach = self.extent[self.axis]
        t = brentq(lambda t: self.above(t) - percent / 100, -reach, reach)
        return CENTER_GY + GRADIENT * float(t)


def _disk_above(t: float, r: float) -> float:
    if abs(t) >= r:
        return float(t < 0)
    return float((r * r * np.arccos(t / r) - t * np.sqrt(r * r - t * t)) / (np.pi * r * r))


def sphere(cm3: float, axis: int) -> Shape:
    """A ball."""
    r = (750 * cm3 / np.pi) ** (1 / 3)
    return Shape(
        f"sphere, dose along {'xyz'[axis]}",
        cm3,
        lambda x, y, z: x * x + y * y + z * z <= r * r,
        (r, r, r),
        lambda t: float(np.clip((r - t) ** 2 * (2 * r + t) / (4 * r**3), 0, 1)),
        axis,
        lambda z: float(np.sqrt(max(r * r - z * z, 0.0))),
    )


def tube(cm3: float, axis: int) -> Shape:
    """A cylinder along z, four times as long as wide."""
    r = (1000 * cm3 / (8 * np.pi)) ** (1 / 3)
    return Shape(
        f"tube, dose along {'xyz'[axis]}",
        cm3,
        lambda x, y, z: (x * x + y * y <= r * r) & (np.abs(z) <= 4 * r),
        (r, r, 4 * r),
        (lambda t: float(np.clip((4 * r - t) / (8 * r), 0, 1))) if axis == 2 else lambda t: _disk_above(t, r),
        axis,
        lambda z: r,
    )


def cone(cm3: float) -> Shape:
    """A cone along z, as high as wide, its tip up."""
    h = (1500 * cm3 / np.pi) ** (1 / 3)
    return Shape(
        "cone, dose along z",
        cm3,
        lambda x, y, z: (np.abs(z) <= h) & (x * x + y * y <= ((h - z) / 2) ** 2),
        (h, h, h),
        lambda t: float(np.clip((h - t) / (2 * h), 0, 1)) ** 3,
        2,
        lambda z: (h - z) / 2,
    )


def box(sides: tuple[float, float, float], axis: int) -> Shape:
    """A box with these sides in mm."""
    a, b, c = (side / 2 for side in sides)
    reach = (a, b, c)[axis]
    return Shape(
        f"box, dose along {'xyz'[axis]}",
        8 * a * b * c / 1000,
        lambda x, y, z: (np.abs(x) <= a) & (np.abs(y) <= b) & (np.abs(z) <= c),
        (a, b, c),
        lambda t: float(np.clip((reach - t) / (2 * reach), 0, 1)),
        axis,
        lambda z: float(np.sqrt(4 * a * b / np.pi)),
    )


def shapes(cm3: float) -> list[Shape]:
    """Five pairs of a body and a direction of the dose."""
    return [sphere(cm3, 0), sphere(cm3, 2), tube(cm3, 0), tube(cm3, 2), cone(cm3)]


# ---- in the world ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """A shape with a name at a place: `center` in world mm, its axes the columns of `turn`."""

    name: str
    shape: Shape
    center: tuple[float, float, float]
    turn: Array = field(default_factory=lambda: np.eye(3))

    def mask(self, grid: Grid) -> Mask:
        """Voxels of a grid whose centers are inside."""
        corners = np.array(list(product((-1, 1), repeat=3))) * self.shape.extent @ self.turn.T + self.center
        index = grid.index(corners)
        low = np.clip(np.floor(index.min(0)), 0, grid.shape).astype(int)
        high = np.clip(np.ceil(index.max(0)) + 1, 0, grid.shape).astype(int)
        where = np.stack(np.meshgrid(*map(np.arange, low, high), indexing="ij"), -1)
        own = (grid.world(where) - self.center) @ self.turn
        out = np.zeros(grid.shape, bool)
        out[tuple(map(slice, low, high))] = self.shape.inside(*np.moveaxis(own, -1, 0))
        return out


def mask_of(shape: Shape, spacing: tuple[float, float, float], rng: np.random.Generator) -> Image:
    """Share of every voxel inside, with voxels at a random place."""
    step = np.array(spacing)
    half = np.ceil(np.array(shape.extent) / step).astype(int) + 2
    affine = np.diag([*step, 1.0])
    affine[:3, 3] = -half * step + rng.uniform(-0.5, 0.5, 3) * step
    n = 2 * half + 1
    grid = Grid((int(n[0]), int(n[1]), int(n[2])), affine)
    cuts = np.ceil(step / FINE).astype(int)
    x, y, z = (
        grid.affine[a, 3] + step[a] * ((np.arange(grid.shape[a] * n) + 0.5) / n - 0.5)
        for a, n in enumerate(cuts)
    )
    share = np.zeros(grid.shape)
    for k in range(grid.shape[2]):
        layer = shape.inside(
            x[:, None, None], y[None, :, None], z[None, None, k * cuts[2] : (k + 1) * cuts[2]]
        )
        blocks = layer.reshape(grid.shape[0], cuts[0], grid.shape[1], cuts[1], cuts[2])
        share[:, :, k] = blocks.mean((1, 3, 4))
    return Image(share, grid)


def possible(mask: Image, axis: int, percent: float) -> tuple[float, float]:
    """Lowest and highest D of `percent` among all bodies that have this mask, Gy.

    A mask says how much of a voxel is inside, not where: all of it may lie at the end of higher dose, or all
    at the other. Whatever reads the mask, half of the range is an error that it cannot exclude.
    """
    f = np.moveaxis(np.asarray(mask.data, float), axis, 0).reshape(mask.grid.shape[axis], -1)
    step = mask.grid.spacing[axis]
    low = (mask.grid.affine[axis, 3] + step * (np.arange(len(f)) - 0.5))[:, None]
    wanted = percent / 100 * f.sum() * step

    def at(start: Array) -> float:
        """Dose that `wanted` receives, if what is inside a voxel begins at `start`."""
        above = lambda t: float(np.clip(start + f * step - t, 0, f * step).sum()) - wanted  # noqa: E731
        return CENTER_GY + GRADIENT * float(brentq(above, low.min() - step, low.max() + 2 * step))

    return at(low), at(low + (1 - f) * step)


def linear_dose(axis: int, spacing: float = 2.5) -> Image:
    """CENTER_GY at the origin, rising along an axis."""
    half = 40
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:3, 3] = -half * spacing + 0.3
    grid = Grid((2 * half + 1,) * 3, affine)
    along = grid.affine[axis, 3] + spacing * np.arange(2 * half + 1)
    size = [1, 1, 1]
    size[axis] = -1
    values = np.maximum(CENTER_GY + GRADIENT * along.reshape(size), 0)
    return Image(np.broadcast_to(values, grid.shape), grid)
