"""The optic pathway as tubes: a further deformable part of the prior (docs/decisions/0044-optic-pathway.md).

The atlas gives every voxel its label probabilities by itself, so that a thin structure may break. Here a
structure is a tube along a course c of known caliber, and π given η and c has it inside the tube and nowhere
else. Which structures are tubes is data (`data/pathway.toml`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.special import ndtr

from tumoar.geometry.image import Grid
from tumoar.geometry.paths import find_directions
from tumoar.model.atlas import Atlas

Mask = npt.NDArray[np.bool_]
Points = npt.NDArray[np.float64]
Box = tuple[slice, slice, slice]

_LEAST = 1e-6
"""Share of the prior that other structures need for their proportions to mean anything."""


class Link(NamedTuple):
    """A structure that is a tube, from one of the structures `begin` to the structure `end`, by name."""

    structure: str
    begin: tuple[str, ...]
    end: str


@dataclass(frozen=True)
class PathwayTable:
    """Which structures are tubes, and their geometry; lengths in mm (`data/pathway.toml`)."""

    courses: tuple[Link, ...]
    caliber: tuple[float, float]
    softness: float
    give: float
    stray: float
    smooth: float
    evidence: float
    toll: float
    apart: float

    def select(self, atlas: Atlas) -> tuple[Link, ...]:
        """The courses whose structures the atlas has."""
        most = atlas.alpha.max(0)
        present = {s.name for k, s in enumerate(atlas.labels.structures) if most[k] > 0}
        return tuple(c for c in self.courses if {c.structure, c.end, *c.begin} <= present)


@dataclass(frozen=True, eq=False)
class Course:
    """A course (n, 3) in voxels of the case, with the radius (n,) of its tube in mm.

    The structure `l` of the label table reaches from point `first` to before point `last`, and the structure
    `end` from there on; before `first` the course runs through what it begins in.
    """

    l: int
    end: int
    points: Points
    radius: npt.NDArray[np.float64]
    first: int
    last: int

    def structure(self) -> npt.NDArray[np.int64]:
        """(n,) structure along the course, -1 where it begins."""
        at = np.arange(len(self.points))
        return np.where(at < self.first, -1, np.where(at < self.last, self.l, self.end))


@cache
def default_pathway() -> PathwayTable:
    """The table of the package."""
    text = files("tumoar").joinpath("data/pathway.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    rows = tuple(Link(row["structure"], tuple(row["begin"]), row["end"]) for row in table.pop("course"))
    begin, end = table.pop("caliber")
    return PathwayTable(courses=rows, caliber=(begin, end), **table)


def tube_prior(
    radius: npt.NDArray[np.float64], distance: npt.NDArray[np.float64], table: PathwayTable
) -> npt.NDArray[np.float64]:
    """Probability of a tube at a distance (mm) from its course; certain beyond `give` from its surface.

    The mean cross-section of a tube whose radius varies with variance v about s is π (s² + v).
    """
    a = table.give / table.softness
    tail, density = ndtr(-a), np.exp(-(a**2) / 2) / np.sqrt(2 * np.pi)
    v = table.softness**2 * (1 - 2 * tail - 2 * a * density + 2 * a**2 * tail)
    depth = np.sqrt(np.maximum(radius**2 - v, 0)) - distance
    share = ndtr(depth / table.softness)
    return np.where(depth >= table.give, 1.0, np.where(depth <= -table.give, 0.0, share))


def constrain(
    pi: npt.NDArray[np.float32],
    courses: Iterable[Course],
    grid: Grid,
    background: int,
    table: PathwayTable,
    keeps: Mask,
) -> None:
    """Condition π (X, Y, Z, K) on the tubes, in place; voxels of `keeps` (X, Y, Z) stay as they are.

    A structure is where its tube is, and nowhere else; the end of the courses is there as well, but keeps its
    own prior elsewhere. The other structures share the rest in proportion to what the atlas expects.
    """
    courses = tuple(courses)
    members = sorted({course.l for course in courses})
    ends = sorted({course.end for course in courses})
    tubes = {l: np.zeros(pi.shape[:3], np.float32) for l in (*members, *ends)}
    for course in courses:
        box, nearest, distance = find_nearest(course.points, course.radius.max() + table.give, grid)
        share = tube_prior(course.radius[nearest], distance, table)
        of = course.structure()[nearest]
        for l in (course.l, course.end):
            np.maximum(tubes[l][box], np.where(of == l, share, 0), out=tubes[l][box])
    free = ~keeps
    inside = np.logical_or.reduce([tubes[l] > 0 for l in members])
    at = free & (inside | (pi[..., members] > 0).any(-1))
    pi[at] = assign_shares(pi[at], members, np.stack([tubes[l][at] for l in members], -1), background)
    for l in ends:
        at = free & ~inside & (tubes[l] > pi[..., l])
        pi[at] = assign_shares(pi[at], [l], tubes[l][at][:, None], background)


def assign_shares(
    pi: npt.NDArray[np.float32], members: list[int], share: npt.NDArray[np.float32], background: int
) -> npt.NDArray[np.float32]:
    """π (n, K) with the columns `members` set to `share` (n, m); other columns keep their proportions."""
    out = pi.astype(np.float64)
    out[:, members] = 0
    rest = out.sum(1)
    is_lost = rest < _LEAST
    out[is_lost] = 0
    out[is_lost, background] = 1
    total = share.sum(1, dtype=np.float64)
    scale = np.maximum(1, total)  # of structures whose tubes overlap
    out *= ((1 - total / scale) / np.where(is_lost, 1.0, rest))[:, None]
    out[:, members] = share / scale[:, None]
    return out.astype(np.float32)


def find_nearest(
    points: Points, reach: float, grid: Grid
) -> tuple[Box, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The box within `reach` mm of a course, and for its voxels the nearest point and its distance in mm.

    Voxels beyond the two ends of the course are infinitely far.
    """
    shape, spacing = grid.shape, grid.spacing
    margin = reach / spacing
    low = np.clip(np.floor(points.min(0) - margin).astype(int), 0, shape)
    high = np.clip(np.ceil(points.max(0) + margin).astype(int) + 1, low, shape)
    i, j, k = (slice(int(a), int(b)) for a, b in zip(low, high))
    size = tuple(high - low)
    voxels = np.indices(size).reshape(3, -1).T + low
    if len(voxels) == 0:
        return (i, j, k), np.zeros(size, np.int64), np.zeros(size)
    distance, nearest = cKDTree(points * spacing).query(voxels * spacing, distance_upper_bound=reach)
    beyond = nearest == len(points)
    nearest[beyond] = 0
    away = (voxels - points[nearest]) * spacing
    along = (away * find_directions(points * spacing)[nearest]).sum(1)
    beyond |= ((nearest == 0) & (along < -0.5)) | ((nearest == len(points) - 1) & (along > 0.5))
    distance[beyond] = np.inf
    return (i, j, k), nearest.reshape(size), distance.reshape(size)


def trace(
    courses: Iterable[Course], onto: Grid, to_index: npt.NDArray[np.float64] | None = None
) -> Mapping[int, Mask]:
    """Voxels of a grid that the courses pass, by structure: a chain without gaps, whatever the voxels.

    `to_index` (4, 4) maps voxels of the case to those of the grid; None if they are the same.
    """
    out: dict[int, Mask] = {}
    matrix = np.eye(4) if to_index is None else to_index
    for course in courses:
        points = course.points @ matrix[:3, :3].T + matrix[:3, 3]
        steps = max(1, int(np.ceil(10 * np.abs(np.diff(points, axis=0)).max())))
        fine = np.linspace(0, len(points) - 1, (len(points) - 1) * steps + 1)
        dense = np.stack([np.interp(fine, np.arange(len(points)), points[:, d]) for d in range(3)], 1)
        structure = course.structure()[np.minimum(np.rint(fine), len(points) - 1).astype(int)]
        voxel = np.rint(dense).astype(int)
        inside = ((voxel >= 0) & (voxel < onto.shape)).all(1)
        for l in (course.l, course.end):
            mask = out.setdefault(l, np.zeros(onto.shape, bool))
            mask[tuple(voxel[inside & (structure == l)].T)] = True
    return out
