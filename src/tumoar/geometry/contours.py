"""Structures as planar contours: sorted into planes, filled, and cut into pieces.

In a plane, crossing and identical contours are united, and a contour inside another is a hole
(`geometry.planes`). Contours along voxel edges represent slabs that extend halfway to the neighboring planes.
Drawn contours are points of a surface, which is interpolated between planes and ends at the outermost ones,
as in planning systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.geometry.pieces import PIECES, Pieces, spread_points
from tumoar.geometry.planes import Planar, arrange_planes, find_axes, measure_gaps, typical_gap
from tumoar.numerics.polygons import area, centers_inside, coverage, edge_distance, total_area
from tumoar.vocabulary.errors import GeometryError

Points = npt.NDArray[np.float64]
Layer = tuple[Points, float, float]  # fraction of each cell, lower and upper position

MOST_GAP = 1.5  # of the spacing; wider gaps between planes are not filled
MOST_CELLS = 250_000  # per plane
FINE, FINE_UP_TO = 1.5, 2e6  # mm, mm³: cell size up to brain volume, so that 0.03 cm³ is several pieces
ACROSS = 6  # minimum number of cells across the contour of median size
FINEST = 0.02  # mm
FAR = 1e6  # cells


@dataclass(frozen=True, eq=False)
class Outline:
    """A structure as contours: planar polygons (n, 3) in world mm (RAS).

    `spacing` is the distance of planes in mm, if known from the images; `slabs`: contours follow voxel edges;
    `exclusive`: contours are combined by exclusive or; `is_whole` is False if contours that cannot be filled
    were omitted.
    """

    name: str
    polygons: tuple[Points, ...]
    spacing: float | None = None
    slabs: bool = False
    exclusive: bool = field(default=False, kw_only=True)
    is_whole: bool = field(default=True, kw_only=True)

    @cached_property
    def planes(self) -> tuple[Planar, ...]:
        """Contours sorted into planes; raises GeometryError unless all are parallel."""
        return arrange_planes(self.name, self.polygons, exclusive=self.exclusive)


@dataclass(frozen=True, eq=False)
class Plane:
    """The polygons (n, 2) of one plane, in groups, and the extent of its slab."""

    polygons: tuple[Points, ...]
    groups: npt.NDArray[np.int64]
    position: float
    low: float
    high: float

    @property
    def thickness(self) -> float:
        """Thickness of the slab in mm."""
        return self.high - self.low


@dataclass(frozen=True, eq=False)
class Stack:
    """Parallel planes; the rows of `axes` (3, 3) are two directions in the planes and their normal."""

    axes: npt.NDArray[np.float64]
    planes: tuple[Plane, ...]

    @property
    def polygons(self) -> list[Points]:
        """Polygons of all planes."""
        return [p for plane in self.planes for p in plane.polygons]

    @property
    def volume(self) -> float:
        """Volume of all slabs in mm³."""
        return sum(p.thickness * total_area(p.polygons, p.groups) for p in self.planes)


def stack_planes(outline: Outline) -> Stack:
    """Stack the contours of a structure as slabs; raises GeometryError unless all planes are parallel."""
    if not outline.planes:
        return Stack(np.eye(3), ())
    positions = np.array([p.position for p in outline.planes])
    slabs = zip(*_slabs(positions, outline))
    return Stack(
        find_axes(outline.polygons),
        tuple(
            Plane(p.flat, p.groups, p.position, float(low), float(high))
            for p, (low, high) in zip(outline.planes, slabs)
        ),
    )


def common_spacing(outlines: Sequence[Outline]) -> float | None:
    """Smallest typical distance of planes among structures in mm; None if each has one plane only."""
    found = [typical_gap(measure_gaps(o.polygons)) for o in outlines]
    return min((gap for gap in found if gap is not None), default=None)


def find_remarks(outline: Outline) -> list[str]:
    """Remarks on contours that needed interpretation: repeated, crossing, or far apart."""
    out = []
    repeated = sum(p.repeated for p in outline.planes)
    if repeated:
        verb = "contour of {} is a duplicate" if repeated == 1 else "contours of {} are duplicates"
        out.append(f"{repeated} {verb.format(outline.name)} and counted once")
    crossing = sum(p.crossing > 0 for p in outline.planes)
    if crossing:
        where = "1 plane" if crossing == 1 else f"{crossing} planes"
        out.append(f"contours of {outline.name} cross each other in {where}: their union was taken")
    own = typical_gap(np.diff([p.position for p in outline.planes]))
    if outline.slabs or not own:
        return out
    if len(outline.planes) > 2 and own > MOST_GAP * (outline.spacing or own):
        apart = f"{own:.3g} mm apart, those of other structures {outline.spacing:.3g} mm"
        out.append(f"contours of {outline.name} are {apart}: the space between them was filled")
    if outline.spacing or len(outline.planes) > 2:
        planes = stack_planes(outline).planes
        gaps = [b.position - a.position for a, b in pairwise(planes) if b.low != a.high]
        if gaps:
            out.append(f"contours of {outline.name} leave gaps of up to {max(gaps):.3g} mm, which stay empty")
    return out


def find_gap(outline: Outline) -> float | None:
    """Find the widest gap between overlapping contours in mm; None if there is none.

    Components of a structure may be separate, but where contours on both sides of a gap overlap, slices
    between them were probably not drawn.
    """
    found = [
        b.position - a.position
        for a, b in pairwise(stack_planes(outline).planes)
        if b.low != a.high and any(_overlap(p, q) for p in a.polygons for q in b.polygons)
    ]
    return max(found, default=None)


def _overlap(a: Points, b: Points) -> bool:
    """Whether the bounding boxes of two polygons in parallel planes overlap."""
    return bool((a.min(0) < b.max(0)).all() and (b.min(0) < a.max(0)).all())


def cut_outline(outline: Outline, least: int = PIECES) -> Pieces:
    """Cut a structure into at least about `least` pieces (see `tumoar.radiotherapy.dvh`)."""
    stack = stack_planes(outline)
    volume = stack.volume
    if not volume > 0:
        return Pieces(np.zeros((0, 3)), np.zeros(0))
    corners = np.concatenate(stack.polygons)
    extent = np.ptp(corners, axis=0)
    step = (volume / least) ** (1 / 3)
    if volume <= FINE_UP_TO:
        step = min(step, FINE)
    step = min(step, float(np.sqrt(np.median([abs(area(p)) for p in stack.polygons]))) / ACROSS)
    step = max(step, FINEST, float(np.sqrt(np.prod(extent) / MOST_CELLS)), float(extent.max()) / MOST_CELLS)
    shape = int(extent[0] / step) + 3, int(extent[1] / step) + 3
    origin = corners.min(0) - step
    cells = [
        Plane(tuple((p - origin) / step for p in plane.polygons), *_plane_fields(plane))
        for plane in stack.planes
    ]
    layers = _slab_layers if outline.slabs else _blended_layers
    points, volumes, number = [], [], 0
    for share, low, high in layers(cells, shape, step):
        where = np.argwhere(share > 0)
        shift = spread_points(np.arange(number, number + len(where)))
        number += len(where)
        flat = origin + (where + shift[:, :2] - 0.5) * step
        points.append(np.column_stack([flat, low + shift[:, 2] * (high - low)]) @ stack.axes)
        volumes.append(share[tuple(where.T)] * step**2 * (high - low))
    return Pieces(np.concatenate(points), np.concatenate(volumes))


def _plane_fields(plane: Plane) -> tuple[npt.NDArray[np.int64], float, float, float]:
    return plane.groups, plane.position, plane.low, plane.high


def _slab_layers(planes: Sequence[Plane], shape: tuple[int, int], step: float) -> Iterator[Layer]:
    """Slab of every plane, with straight walls."""
    for plane in planes:
        share = coverage(plane.polygons, shape, groups=plane.groups)
        yield from ((share, low, high) for low, high in _cut(plane.low, plane.high, step))


def _blended_layers(planes: Sequence[Plane], shape: tuple[int, int], step: float) -> Iterator[Layer]:
    """Interpolate signed distances between planes; planes without neighbors are slabs."""
    has_neighbor = False
    first = _Field(planes[0], shape)
    for plane, following in zip(planes, [*planes[1:], None]):
        second = first if following is None else _Field(following, shape)
        touches = following is not None and following.low == plane.high
        if following is not None and touches:
            # Elsewhere both planes are inside or both outside.
            where = first.near | second.near | (first.inside != second.inside)
            here, there = first.distance(where), second.distance(where)
            for low, high in _cut(plane.position, following.position, step):
                t = ((low + high) / 2 - plane.position) / (following.position - plane.position)
                share = first.inside.astype(float)
                share[where] = np.clip(0.5 + (1 - t) * here + t * there, 0.0, 1.0)
                yield share, low, high
        elif not has_neighbor:
            share = first.inside.astype(float)
            share[first.near] = np.clip(0.5 + first.distance(first.near), 0.0, 1.0)
            yield from ((share, low, high) for low, high in _cut(plane.low, plane.high, step))
        first, has_neighbor = second, touches


class _Field:
    """A plane on the cells: centers that are inside, centers near an edge, and distances."""

    def __init__(self, plane: Plane, shape: tuple[int, int]) -> None:
        self.plane = plane
        self.inside = centers_inside(plane.polygons, shape, plane.groups)
        self.near = ndi.binary_dilation(_find_touched(plane.polygons, shape), np.ones((3, 3), bool))

    def distance(self, where: npt.NDArray[np.bool_]) -> Points:
        """(m,) signed distance of cell centers to the edges, in cells; positive inside."""
        polygons, groups = self.plane.polygons, self.plane.groups
        points = np.argwhere(where).astype(np.float64)
        count = np.bincount(groups)
        nearest = edge_distance([p for p, g in zip(polygons, groups) if count[g] == 1], points)
        # Edges inside another polygon of the same group are not part of the boundary.
        for group in np.flatnonzero(count > 1):
            best = np.full(len(points), -FAR)
            for p in (p for p, g in zip(polygons, groups) if g == group):
                inside = centers_inside([p], self.inside.shape)[where]
                best = np.maximum(best, np.where(inside, 1.0, -1.0) * edge_distance([p], points))
            nearest = np.minimum(nearest, np.abs(best))
        return np.where(self.inside[where], 1.0, -1.0) * np.minimum(nearest, FAR)


def _find_touched(polygons: Sequence[Points], shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """(a, b) cells crossed by edges, except corners that are cut by less than half a cell."""
    out = np.zeros(shape, bool)
    for p in polygons:
        vector = np.roll(p, -1, axis=0) - p
        counts = np.ceil(2 * np.abs(vector).max(1)).astype(np.int64) + 1
        edge = np.repeat(np.arange(len(p)), counts)
        share = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) / counts[edge]
        at = np.rint(p[edge] + share[:, None] * vector[edge]).astype(np.int64)
        out[tuple(np.clip(at, 0, np.array(shape) - 1).T)] = True
    return out


def _cut(low: float, high: float, step: float) -> Iterator[tuple[float, float]]:
    edges = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist())


def fill_contours(outline: Outline, grid: Grid) -> npt.NDArray[np.float64]:
    """(X, Y, Z) fraction of every voxel inside; the contours must lie on slices of the grid.

    Slices are along the grid axis closest to the normal of the contours.
    """
    out = np.zeros(grid.shape)
    for axis, number, plane in _slices(outline, grid):
        if not 0 <= number < grid.shape[axis]:
            continue
        across = [a for a in range(3) if a != axis]
        index = [grid.index(p)[:, across] for p in plane.polygons]
        share = coverage(index, (grid.shape[across[0]], grid.shape[across[1]]), groups=plane.groups)
        layer = np.moveaxis(out, axis, 0)[number]
        np.maximum(layer, share, out=layer)
    return out


def count_outside(outline: Outline, grid: Grid) -> int:
    """Count contours that extend beyond the grid by more than half a voxel."""
    ends = np.array(grid.shape) - 1
    index = [grid.index(p) for p in outline.polygons]
    return sum(bool(((i < -1.0) | (i > ends + 1.0)).any()) for i in index)


def _slices(outline: Outline, grid: Grid) -> Iterator[tuple[int, int, Planar]]:
    """Planes of a structure with axis and number of their slice."""
    if not outline.planes:
        return
    normal = find_axes(outline.polygons)[2]
    axis = int(np.argmax(np.abs((grid.affine[:3, :3] / grid.spacing).T @ normal)))
    for plane in outline.planes:
        index = np.concatenate([grid.index(p)[:, axis] for p in plane.polygons])
        number = round(float(index.mean()))
        off = float(np.abs(index - number).max()) * grid.spacing[axis]
        if off > 0.25 * grid.spacing[axis]:
            raise GeometryError(
                "contours",
                f"contours of {outline.name} do not lie on the slices of the image",
                found=f"{off:.2f} mm from a slice",
                do="give the series they were drawn on",
            )
        yield axis, number, plane


def _slabs(positions: Points, outline: Outline) -> tuple[Points, Points]:
    """Lower and upper end of each plane's slab: halfway to its neighbors, else half the spacing.

    The spacing of drawn contours in three or more planes is their own, which may be that of another series.
    """
    gaps = np.diff(positions)
    own = typical_gap(gaps)
    if outline.spacing is None and own is None:
        raise GeometryError(
            "contours",
            f"{outline.name} has contours in one plane only: its thickness is unknown",
            do="give the images it was drawn on",
        )
    use_given = outline.spacing is not None and (outline.slabs or len(gaps) < 2)
    spacing = float((outline.spacing if use_given else own) or 0.0)
    low, high = positions - spacing / 2, positions + spacing / 2
    near = np.flatnonzero(gaps <= MOST_GAP * spacing)
    low[near + 1] = high[near] = (positions[near] + positions[near + 1]) / 2
    return low, high
