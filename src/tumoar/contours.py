"""Structures as planar contours: grouped into planes, filled, and cut into pieces.

Contours of one plane are taken together by the even-odd rule: one within another is a hole. Contours that
follow voxel edges stand for slabs that reach halfway to the neighboring planes. Drawn contours are points of
a surface: between planes it is interpolated, and it ends at the outermost ones, as planning systems have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.dose import PIECES, Pieces, spread
from tumoar.errors import GeometryError
from tumoar.image import Grid
from tumoar.numerics.polygons import area, contains, coverage, signed_distance

Points = npt.NDArray[np.float64]
Layer = tuple[Points, float, float]  # share of each cell, from where to where

SAME_PLANE = 0.05  # mm
MOST_GAP = 1.5  # of the spacing: a wider gap between planes is not filled
MOST_CELLS = 250_000  # of one plane
FINE, FINE_UP_TO = 1.5, 2e6  # mm, mm³: up to the size of a brain, so that 0.03 cm³ is several pieces


@dataclass(frozen=True, eq=False)
class Outline:
    """A structure by its contours: polygons (n, 3) in world mm (RAS), each in a plane.

    `spacing` is the distance of the planes, mm, where it is known from the images below; `slabs` that the
    contours follow voxel edges.
    """

    name: str
    polygons: tuple[Points, ...]
    spacing: float | None = None
    slabs: bool = False


@dataclass(frozen=True, eq=False)
class Plane:
    """The polygons (n, 2) of one plane, the place of the plane, and from where to where its slab reaches."""

    polygons: tuple[Points, ...]
    position: float
    low: float
    high: float

    @property
    def thickness(self) -> float:
        """Of the slab, mm."""
        return self.high - self.low


@dataclass(frozen=True, eq=False)
class Stack:
    """Parallel planes; the rows of `axes` (3, 3) are two directions in the planes and their normal."""

    axes: npt.NDArray[np.float64]
    planes: tuple[Plane, ...]

    @property
    def volume(self) -> float:
        """mm³ of all slabs, exact where contours in a plane do not cross."""
        return sum(p.thickness * _area(p.polygons) for p in self.planes)


def stacked(outline: Outline) -> Stack:
    """The contours of a structure by planes; refused unless all are parallel."""
    polygons = [np.asarray(p, float) for p in outline.polygons if len(p) >= 3]
    if not polygons:
        return Stack(np.eye(3), ())
    axes = _axes(polygons)
    flat = [p @ axes.T for p in polygons]
    for p in flat:
        if np.ptp(p[:, 2]) > 2 * SAME_PLANE:
            raise GeometryError(
                "contours",
                f"contours of {outline.name} are not in parallel planes",
                found=f"{np.ptp(p[:, 2]):.2f} mm out of plane",
                do="export them on the slices of one series",
            )
    groups: list[list[Points]] = []
    for p in sorted(flat, key=lambda p: float(p[:, 2].mean())):
        if groups and p[:, 2].mean() - groups[-1][0][:, 2].mean() <= SAME_PLANE:
            groups[-1].append(p)
        else:
            groups.append([p])
    positions = np.array([g[0][:, 2].mean() for g in groups])
    low, high = _slabs(positions, outline)
    return Stack(
        axes,
        tuple(
            Plane(tuple(p[:, :2] for p in g), float(z), float(a), float(b))
            for g, z, a, b in zip(groups, positions, low, high)
        ),
    )


def common_spacing(outlines: Sequence[Outline]) -> float | None:
    """The least distance between the planes of any structure, mm; None if each has one plane only."""
    gaps: list[float] = []
    for outline in outlines:
        polygons = [np.asarray(p, float) for p in outline.polygons if len(p) >= 3]
        if polygons:
            normal = _axes(polygons)[2]
            depth = np.sort([float((p @ normal).mean()) for p in polygons])
            gaps += [float(g) for g in np.diff(depth) if g > SAME_PLANE]
    return min(gaps, default=None)


def pieces_of_outline(outline: Outline, least: int = PIECES) -> Pieces:
    """A structure cut into at least about `least` pieces (see `tumoar.dose`)."""
    stack = stacked(outline)
    if not stack.planes:
        return Pieces(np.zeros((0, 3)), np.zeros(0))
    corners = np.concatenate([p for plane in stack.planes for p in plane.polygons])
    extent = np.ptp(corners, axis=0)
    step = (stack.volume / least) ** (1 / 3)
    if stack.volume <= FINE_UP_TO:
        step = min(step, FINE)
    step = max(step, float(np.sqrt(np.prod(extent) / MOST_CELLS)))
    shape = int(extent[0] / step) + 3, int(extent[1] / step) + 3
    origin = corners.min(0) - step
    where = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij"), -1).reshape(-1, 2)
    layers = _slab_layers if outline.slabs else _blended_layers
    points, volumes, number = [], [], 0
    for share, low, high in layers(stack, origin + where * step, step):
        at = np.flatnonzero(share > 0)
        shift = spread(np.arange(number, number + len(at)))
        number += len(at)
        flat = origin + (where[at] + shift[:, :2] - 0.5) * step
        points.append(np.column_stack([flat, low + shift[:, 2] * (high - low)]) @ stack.axes)
        volumes.append(share[at] * step**2 * (high - low))
    return Pieces(np.concatenate(points), np.concatenate(volumes))


def _slab_layers(stack: Stack, cells: Points, step: float) -> Iterator[Layer]:
    """Every plane as a slab with the contours' own walls."""
    shape = tuple(int(n) for n in np.rint(np.ptp(cells, axis=0) / step) + 1)
    for plane in stack.planes:
        share = coverage([(p - cells[0]) / step for p in plane.polygons], (shape[0], shape[1])).ravel()
        yield from ((share, low, high) for low, high in _cut(plane.low, plane.high, step))


def _blended_layers(stack: Stack, cells: Points, step: float) -> Iterator[Layer]:
    """From plane to plane by blending signed distances; a plane without neighbors as a slab."""
    above = [*stack.planes[1:], None]
    first = signed_distance(stack.planes[0].polygons, cells)
    has_neighbor = False
    for plane, following in zip(stack.planes, above):
        second = first if following is None else signed_distance(following.polygons, cells)
        touches = following is not None and following.low == plane.high
        if following is not None and touches:
            for low, high in _cut(plane.position, following.position, step):
                t = ((low + high) / 2 - plane.position) / (following.position - plane.position)
                yield _share((1 - t) * first + t * second, step), low, high
        elif not has_neighbor:
            share = _share(first, step)
            yield from ((share, low, high) for low, high in _cut(plane.low, plane.high, step))
        first, has_neighbor = second, touches


def _share(distance: Points, step: float) -> Points:
    """Of a cell at a signed distance from the wall."""
    return np.clip(0.5 + distance / step, 0.0, 1.0)


def _cut(low: float, high: float, step: float) -> Iterator[tuple[float, float]]:
    edges = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist())


def filled(outline: Outline, grid: Grid) -> npt.NDArray[np.float64]:
    """(X, Y, Z) share of every voxel inside; the contours must lie on slices of the grid.

    Slices are along the axis of the grid that is closest to the normal of the contours.
    """
    out = np.zeros(grid.shape)
    for (axis, number), polygons in _by_slice(outline, grid):
        across = [a for a in range(3) if a != axis]
        shape = grid.shape[across[0]], grid.shape[across[1]]
        np.moveaxis(out, axis, 0)[number] = coverage([p[:, across] for p in polygons], shape)
    return out


def _by_slice(outline: Outline, grid: Grid) -> Iterator[tuple[tuple[int, int], list[Points]]]:
    """Contours in voxel coordinates by axis and number of the slice they lie on."""
    polygons = [np.asarray(p, float) for p in outline.polygons if len(p) >= 3]
    if not polygons:
        return
    cosines = np.abs((grid.affine[:3, :3] / grid.spacing).T @ _axes(polygons)[2])
    axis = int(np.argmax(cosines))
    found: dict[int, list[Points]] = {}
    for polygon in polygons:
        index = grid.index(polygon)
        number = round(float(index[:, axis].mean()))
        off = float(np.abs(index[:, axis] - number).max()) * grid.spacing[axis]
        if off > 0.25 * grid.spacing[axis]:
            raise GeometryError(
                "contours",
                f"contours of {outline.name} do not lie on the slices of the image",
                found=f"{off:.2f} mm beside a slice",
                do="give the series that they were drawn on",
            )
        if 0 <= number < grid.shape[axis]:
            found.setdefault(number, []).append(index)
    yield from (((axis, number), members) for number, members in found.items())


def _axes(polygons: list[Points]) -> npt.NDArray[np.float64]:
    """(3, 3) rows: two directions in the plane and the normal, from the areas of all polygons."""
    total = np.zeros(3)
    for p in polygons:
        turned = 0.5 * np.cross(p - p[0], np.roll(p, -1, axis=0) - p[0]).sum(0)
        total += turned if turned @ total >= 0 else -turned
    normal = total / np.linalg.norm(total)
    main = int(np.argmax(np.abs(normal)))
    normal = normal * np.sign(normal[main])
    u = np.eye(3)[(main + 1) % 3]
    u = u - (u @ normal) * normal
    u /= np.linalg.norm(u)
    return np.stack([u, np.cross(normal, u), normal])


def _slabs(positions: Points, outline: Outline) -> tuple[Points, Points]:
    """From where to where each plane reaches: halfway to its neighbors, or half the spacing where alone."""
    gaps = np.diff(positions)
    if outline.spacing is None and not len(gaps):
        raise GeometryError(
            "contours",
            f"{outline.name} has contours in one plane only, so that its thickness is not known",
            do="give the images it was drawn on",
        )
    spacing = outline.spacing if outline.spacing is not None else float(gaps.min())
    low, high = positions - spacing / 2, positions + spacing / 2
    near = np.flatnonzero(gaps <= MOST_GAP * spacing)
    low[near + 1] = high[near] = (positions[near] + positions[near + 1]) / 2
    return low, high


def _area(polygons: tuple[Points, ...]) -> float:
    """Of one plane: contours inside an odd number of others are holes."""
    total = 0.0
    for i, p in enumerate(polygons):
        others = [q for j, q in enumerate(polygons) if j != i]
        total += abs(area(p)) * (-1 if contains(others, p[:1])[0] else 1)
    return total
