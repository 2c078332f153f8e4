"""Compartments of the brain between which falx and tentorium lie, from the fitted atlas.

The atlas has neither membrane. The falx is taken as the plane between the sides of the atlas, carried along
by the fitted mesh, except where the hemispheres are joined: the convex hull, in that plane, of corpus
callosum, deep gray matter and brainstem. The tentorium is a surface in the space of the package's atlas
(data/tentorium.toml); an atlas in another space has none. Both are geometry, not observation: neither is
searched for in the images.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import ConvexHull, Delaunay, QhullError

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, Placed, pi, place
from tumoar.numerics.tetra_raster import rasterize

Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]
Compartments = npt.NDArray[np.uint8]

UNKNOWN, LEFT, RIGHT, BELOW, JOINED = range(5)
"""Values of a map of compartments: beyond the atlas; hemispheres; below the tentorium; where they join."""
JOINED_WIDTH = 5.0
"""Millimeters on both sides of the midplane in which the hemispheres count as joined."""
JOINING = ("white matter", "deep gray matter", "brainstem")
"""Structures that connect the hemispheres where they are on the midplane."""


class Tentorium(NamedTuple):
    """Heights (A, B) in mm of the tentorium at distances `x` (A,) from the midplane and at `y` (B,).

    In the space of the atlas whose nodes have the checksum `atlas`; NaN where there is no tentorium.
    """

    atlas: int
    x: Array
    y: Array
    height: Array


def find_compartments(placed: Placed, nodes: npt.NDArray[np.float64]) -> Compartments:
    """(X, Y, Z) compartment of every voxel; `nodes` (V, 3) are the fitted positions."""
    atlas = placed.atlas
    low = atlas.box[0] - 1  # the rasterizer needs positive values
    values = np.pad((atlas.nodes - low).astype(np.float32), ((0, 0), (0, 1)))
    at = rasterize(nodes, placed.tetrahedra, values, placed.shape, 3)
    outside = at[..., 3] > 0
    x, y, z = (at[..., d] + np.float32(low[d]) for d in range(3))
    out = np.where(x < 0, np.uint8(LEFT), np.uint8(RIGHT))
    out[(np.abs(x) <= JOINED_WIDTH) & _is_joined(atlas, y, z)] = JOINED
    out[is_below(atlas, x, y, z)] = BELOW
    out[outside] = UNKNOWN
    return out


def are_separate(a: Compartments | np.uint8, b: Compartments | np.uint8) -> Mask:
    """Whether falx or tentorium lies between voxels of two compartments."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    is_falx = (low == LEFT) & (high == RIGHT)
    return np.asarray(is_falx | ((low != high) & (low != UNKNOWN) & ((low == BELOW) | (high == BELOW))))


def has_tentorium(atlas: Atlas) -> bool:
    """Whether the tentorium of an atlas is known."""
    return zlib.crc32(atlas.nodes.astype("<f4").tobytes()) == default_tentorium().atlas


def is_below(atlas: Atlas, x: Array, y: Array, z: Array) -> Mask:
    """Whether points of the atlas lie below its tentorium; False everywhere if that is unknown."""
    if not has_tentorium(atlas):
        return np.zeros(np.shape(z), bool)
    t = default_tentorium()
    steps = [(np.abs(x) - t.x[0]) / (t.x[1] - t.x[0]), (y - t.y[0]) / (t.y[1] - t.y[0])]
    is_there = np.isfinite(t.height)
    inside, height = (
        ndimage.map_coordinates(v, steps, order=1, mode="constant", cval=0.0)
        for v in (is_there.astype(float), np.where(is_there, t.height, 0.0))
    )
    return np.asarray((inside > 0.5) & (z * inside < height))


def _is_joined(atlas: Atlas, y: Array, z: Array) -> Mask:
    """Whether the hemispheres are joined at these points of the midplane."""
    joined, origin = find_joined(atlas)
    index = [np.rint(np.nan_to_num(v) - o).astype(np.int64) for v, o in zip((y, z), origin)]
    inside = [(i >= 0) & (i < n) for i, n in zip(index, joined.shape)]
    clipped = [np.clip(i, 0, n - 1) for i, n in zip(index, joined.shape)]
    return np.asarray(joined[clipped[0], clipped[1]] & inside[0] & inside[1])


def find_joined(atlas: Atlas) -> tuple[Mask, Array]:
    """(Y, Z) mask at 1 mm where the hemispheres are joined on the midplane, and its origin (2,) in mm."""
    low, high = atlas.box
    affine = np.eye(4)
    affine[:3, 3] = (-1, low[1], low[2])
    grid = Grid((3, int(high[1] - low[1]) + 1, int(high[2] - low[2]) + 1), affine)
    placed = place(atlas, np.eye(4), grid)
    columns = [k for name in JOINING for k in atlas.labels.parts(name)]
    found = pi(placed, placed.reference)[1][..., columns].sum(-1) > 0.5
    y, z = (v + o for v, o in zip(np.indices(found.shape).astype(float), low[1:]))
    found &= ~is_below(atlas, np.zeros_like(y), y, z)
    points = np.argwhere(found)
    if len(points) < 3:
        return found, low[1:]
    try:
        hull = Delaunay(points[ConvexHull(points).vertices])
    except QhullError:  # all on one line
        return found, low[1:]
    return np.asarray(hull.find_simplex(np.indices(found.shape).reshape(2, -1).T) >= 0).reshape(
        found.shape
    ), low[1:]


def parse_tentorium(table: Mapping[str, Any]) -> Tentorium:
    """The tentorium of parsed TOML."""
    x, y = (np.array(table[axis], float) for axis in ("x", "y"))
    return Tentorium(int(table["atlas"]), x, y, np.array(table["height"], float).reshape(len(x), len(y)))


@cache
def default_tentorium() -> Tentorium:
    """The tentorium in the space of the package's atlas."""
    text = files("tumoar").joinpath("data/tentorium.toml").read_text(encoding="utf-8")
    return parse_tentorium(tomllib.loads(text))
