"""Margins and scores of `tumoar commission`, compared with formulas."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tumoar.app.acceptance import Finding
from tumoar.geometry.image import Grid
from tumoar.radiotherapy.margins import grow, grow_within
from tumoar.result.scores import compare
from tumoar.simulate.bodies import Array, Mask, Placed, sphere

MARGINS, SCORES = "Margins", "Agreement"
SPACINGS = ((1.0, 1.0, 1.0), (0.9, 0.9, 3.0))
WALL = (2.0, 4.0, 6.0)
"""A wall: from x, to x, and its edge in y, beyond which there is a way around it."""


def _grid(spacing: tuple[float, float, float], reach: float) -> Grid:
    """A grid that reaches so far from the origin, whose voxels lie unevenly around it."""
    half = np.ceil(reach / np.array(spacing)).astype(int) + 1
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = -half * spacing + (0.17, -0.23, 0.31)
    n = 2 * half + 1
    return Grid((int(n[0]), int(n[1]), int(n[2])), affine)


def _ball(radius: float, grid: Grid, center: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Mask:
    return Placed("ball", sphere(4 / 3 * np.pi * radius**3 / 1000, 0), center).mask(grid)


def _points(grid: Grid) -> Array:
    return grid.world(np.moveaxis(np.indices(grid.shape), 0, -1))


def check_margins() -> Iterator[Finding]:
    """Margins of a ball, in every direction and around a wall, against exact distances."""
    radius = 10.0
    for spacing in SPACINGS:
        size = " × ".join(f"{s:g}" for s in spacing) + " mm"
        diagonal = float(np.linalg.norm(spacing))
        for mm in (3.0, 5.0, 15.0):
            grid = _grid(spacing, radius + mm + 3)
            grown = grow(_ball(radius, grid), mm, spacing)
            beyond = np.linalg.norm(_points(grid), axis=-1) - radius - mm
            where = f"ball of {radius:g} mm, voxels of {size}"
            yield from _deviations(f"PTV {mm:g} mm", where, beyond, grown, diagonal, ("outside", "inside"))
        yield from _check_wall(spacing, f"around a wall, voxels of {size}", diagonal)


def _check_wall(spacing: tuple[float, float, float], where: str, diagonal: float) -> Iterator[Finding]:
    """A margin inside a domain: around the edge of a wall, and stopped by a closed one."""
    radius, mm, center = 6.0, 20.0, (-10.0, 0.0, 0.0)
    grid = _grid(spacing, radius + mm + 12)
    points = _points(grid)
    x, y, _ = np.moveaxis(points, -1, 0)
    wall = (x >= WALL[0]) & (x <= WALL[1])
    mask = _ball(radius, grid, center)
    closed = grow_within(mask, ~wall, mm, spacing)
    crossed = float(np.count_nonzero(closed & (x > WALL[1])))
    yield Finding(MARGINS, f"CTV {mm:g} mm", "voxels behind a closed wall", where, crossed, "exact")
    open_domain = ~(wall & (y < WALL[2]))
    grown = grow_within(mask, open_domain, mm, spacing)
    beyond = _around(points, center) - radius - mm
    free = open_domain & ~mask
    for name, low in (("outside", True), ("inside", False)):
        off = max(float(np.max(beyond[grown & free] if low else -beyond[~grown & free])), 0.0) / diagonal
        yield Finding(MARGINS, f"CTV {mm:g} mm", name, where, off, "path", unit="voxel diagonals")


def _around(points: Array, center: tuple[float, float, float]) -> Array:
    """Length of the shortest path from the center: straight, or over the edges of the wall."""
    x, y, z = np.moveaxis(points, -1, 0)
    near, far = (np.array([WALL[0], WALL[2]]), np.array([WALL[1], WALL[2]]))
    start = np.array(center[:2])
    end = np.stack([x, y], -1)
    straight = np.linalg.norm(end - start, axis=-1)

    def height(at: float) -> Array:
        """y at which the straight way passes the plane x = at."""
        share = (at - start[0]) / np.where(x == start[0], np.inf, x - start[0])
        return np.asarray(start[1] + share * (y - start[1]))

    first = np.linalg.norm(near - start)
    over_one = first + np.linalg.norm(end - near, axis=-1)
    over_two = first + np.linalg.norm(far - near) + np.linalg.norm(end - far, axis=-1)
    is_behind = x > WALL[1]
    flat = np.where(is_behind & (y < WALL[2]), over_two, np.where(x >= WALL[0], over_one, straight))
    sees = (x < WALL[0]) | (
        np.minimum(height(WALL[0]), np.where(is_behind, height(WALL[1]), np.inf)) >= WALL[2]
    )
    flat = np.where(sees, straight, flat)
    return np.asarray(np.hypot(flat, z - center[2]))


def _deviations(
    name: str, where: str, beyond: Array, grown: Mask, diagonal: float, words: tuple[str, str]
) -> Iterator[Finding]:
    """How far grown voxels lie outside the exact margin, and how deep voxels are missing inside it."""
    outside = max(float(beyond[grown].max()), 0.0)
    missing = max(float((-beyond[~grown]).max()), 0.0) / diagonal
    yield Finding(MARGINS, name, words[0], where, float(f"{outside:.9f}"), "margin outside", unit="mm")
    yield Finding(MARGINS, name, words[1], where, missing, "margin inside", unit="voxel diagonals")


def check_scores() -> Iterator[Finding]:
    """Dice of shifted boxes and distances of concentric balls against formulas."""
    grid = _grid((1.0, 1.0, 1.0), 25.0)
    for shift in (0, 3, 10, 20):
        a, b = (np.zeros(grid.shape, bool) for _ in range(2))
        a[5:25, 5:25, 5:25] = True
        b[5 + shift : 25 + shift, 5:25, 5:25] = True
        found, true = compare(a, b, grid.spacing).dice, 1 - shift / 20
        off = float(f"{abs(found - true):.12f}")
        yield Finding(SCORES, "boxes", "Dice", f"shifted by {shift} of 20 voxels", off, "exact", found, true)
    for gap in (2.0, 5.0, 8.0):
        scores = compare(_ball(12.0, grid), _ball(12.0 + gap, grid), grid.spacing)
        for name, found in (("HD95", scores.hausdorff95), ("mean distance", scores.mean_distance)):
            where = f"concentric balls, {gap:g} mm apart"
            yield Finding(SCORES, "balls", name, where, abs(found - gap), "distance", found, gap, "mm")
