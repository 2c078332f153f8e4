"""A head at 0.5 mm: tissue of every voxel, from a label map with FreeSurfer-like codes and fine anatomy.

Globes with sclera, choroid, lens and cornea, lids, nerves with their sheath of fluid, and fat are made here.
Arrays are canonical: i to the right, j to the front, k up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.geometry.solids import Globe, Mask, Tube
from tumoar.simulate.independent.sequences import RelaxationTable

ZOOM = 2
"""Fine voxels per voxel of the label map, along each axis."""
SMOOTH = 0.6
"""SD in voxels by which labels are smoothed before they are drawn finer."""
MARGIN = 8
"""Voxels of air around the head."""
TALLEST = 200
"""Voxels from the crown down that are kept."""
# Eye (Duke-Elder, System of Ophthalmology 2, 1961): lens 9 to 10 mm across and 3.6 to 4.5 mm thick, its
# front 3 mm behind that of the cornea; sclera 0.3 to 1 mm and choroid with retina 0.3 to 0.5 mm thick.
SCLERA, CHOROID = 0.8, 0.5
LENS, BEHIND = (4.7, 2.0), 5.2
"""Radii of the lens, and its center behind the front of the cornea."""
LID = 2.5
"""Thickness of closed lids; the outer millimeter is skin."""
OPEN = 0.3
"""Fraction of heads whose lids are open."""
NERVE, SHEATH = 0.66, 0.88
"""Nerve, and fluid around it, in the orbit: fractions of the whole radius; the rest is dura."""
IN_ORBIT = 0.6
"""Of the course of the nerve; after it, the nerve fills its caliber."""
CONE = (19.0, 6.0)
"""Radius of the orbit around the nerve, at the globe and where it leaves the orbit."""
THICKER = 0.5
"""Millimeters by which eye muscles are thickened: the label maps draw them thin."""


@dataclass(frozen=True, eq=False)
class Head:
    """Tissue at 0.5 mm and the infiltration by edema; `start` is its corner in the label map."""

    grid: Grid
    tissue: npt.NDArray[np.uint8]
    edema: npt.NDArray[np.float32]
    start: tuple[int, int, int]


def draw_finer(
    source: npt.NDArray[np.integer],
    grid: Grid,
    globes: Mapping[str, Globe],
    courses: Mapping[str, Tube],
    chiasm: Mask,
    edema: npt.NDArray[np.float32],
    core: npt.NDArray[np.uint8],
    table: RelaxationTable,
    rng: np.random.Generator,
) -> Head:
    """A head at 0.5 mm. `core` is 1 in necrosis and 2 in enhancing tumor; `edema` a fraction."""
    box = find_head(source)
    start = np.array([b.start for b in box])
    coarse = np.zeros(256 * 4, np.uint8)
    for name, codes in table.source.items():
        coarse[list(codes)] = table.index(name)
    tissue = coarse[np.clip(source[box], 0, len(coarse) - 1)]
    tissue[chiasm[box]] = table.index("optic nerve")
    for value, name in ((1, "necrosis"), (2, "enhancing core")):
        tissue[core[box] == value] = table.index(name)
    out = smooth_labels(tissue)
    _divide_soft_tissue(out, table, rng)
    closed = bool(rng.random() >= OPEN)
    for side, globe in globes.items():
        moved = Globe(globe.center - start, globe.radius, globe.bulge - start, globe.curvature)
        course = Tube(courses[side].points - start, courses[side].radii)
        _draw_orbit(out, moved, course, table)
        _draw_nerve(out, course, table)
        _draw_eye(out, moved, table, closed)
    affine = grid.affine @ np.diag([1 / ZOOM, 1 / ZOOM, 1 / ZOOM, 1])
    affine[:3, 3] = grid.world(start + (1 / ZOOM - 1) / 2)
    x, y, z = out.shape
    first = (int(start[0]), int(start[1]), int(start[2]))
    return Head(Grid((x, y, z), affine), out, edema[box], first)


def find_head(source: npt.NDArray[np.integer]) -> tuple[slice, ...]:
    """The box of everything that is not air, from the crown at most `TALLEST` down, with a margin."""
    box = list(ndi.find_objects((source > 0).astype(np.uint8))[0])
    box[2] = slice(max(box[2].start, box[2].stop - TALLEST), box[2].stop)
    return tuple(slice(max(b.start - MARGIN, 0), min(b.stop + MARGIN, n)) for b, n in zip(box, source.shape))


def smooth_labels(labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Labels at twice the resolution: at every fine voxel, the one with the largest smoothed fraction."""
    best = np.zeros(tuple(ZOOM * n for n in labels.shape), np.float16)
    out = np.zeros(best.shape, np.uint8)
    for value, found in enumerate(ndi.find_objects(labels.astype(np.int32) + 1)):
        if found is None:
            continue
        box = tuple(slice(max(b.start - 3, 0), min(b.stop + 3, n)) for b, n in zip(found, labels.shape))
        share = ndi.gaussian_filter((labels[box] == value).astype(np.float32), SMOOTH, mode="nearest")
        fine = double(share).astype(np.float16)
        at = tuple(slice(ZOOM * b.start, ZOOM * b.stop) for b in box)
        wins = fine > best[at]
        best[at][wins] = fine[wins]
        out[at][wins] = value
    return out


def double(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Values at twice the resolution by linear interpolation; voxel centers lie a quarter off."""
    for axis in range(3):
        v = np.moveaxis(values, axis, 0)
        low, high = np.concatenate([v[:1], v[:-1]]), np.concatenate([v[1:], v[-1:]])
        out = np.empty((2 * len(v), *v.shape[1:]), np.float32)
        out[0::2] = 0.75 * v + 0.25 * low
        out[1::2] = 0.75 * v + 0.25 * high
        values = np.moveaxis(out, 0, axis)
    return values


def random_field(shape: tuple[int, ...], width: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Field of unit variance and a correlation of about `width` voxels, from normals on a coarse lattice."""
    lattice = [int(np.ceil(n / width)) + 3 for n in shape]
    coarse = rng.standard_normal(lattice, np.float32)
    for axis, n in enumerate(shape):
        place = (np.arange(n) + rng.random()) / width
        low = np.floor(place).astype(int)
        t = (place - low).astype(np.float32)
        t = t * t * (3 - 2 * t)
        weight = np.sqrt((1 - t) ** 2 + t**2)  # keeps the variance between the points of the lattice
        column = [1] * len(shape)
        column[axis] = n
        a, b = (np.take(coarse, low + step, axis) for step in (0, 1))
        coarse = a * ((1 - t) / weight).reshape(column) + b * (t / weight).reshape(column)
    return coarse


def _divide_soft_tissue(
    tissue: npt.NDArray[np.uint8], table: RelaxationTable, rng: np.random.Generator
) -> None:
    """Fat under the skin and, in places, between muscles (in place)."""
    soft = tissue == table.index("muscle")
    box = ndi.find_objects(soft.astype(np.uint8))
    if not box:
        return
    here, inside = soft[box[0]], tissue[box[0]]
    outer = np.isin(inside[::ZOOM, ::ZOOM, ::ZOOM], [table.index("skin"), table.index("air")])
    below = ndi.distance_transform_edt(~outer).astype(np.float32)
    below = below.repeat(ZOOM, 0).repeat(ZOOM, 1).repeat(ZOOM, 2)[tuple(slice(0, n) for n in here.shape)]
    streaks = sum(random_field(here.shape, width, rng) for width in (7.0, 11.0, 17.0)) / np.sqrt(3)
    inside[here & ((below + 1.5 * streaks < 4) | (streaks > 1.0))] = table.index("fat")


def _near(points: npt.NDArray[np.float64], reach: float, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The box of fine voxels within `reach` coarse ones of the points."""
    low = np.maximum(np.floor((points.min(0) - reach) * ZOOM).astype(int), 0)
    high = np.minimum(np.ceil((points.max(0) + reach) * ZOOM).astype(int), shape)
    return tuple(slice(int(a) - int(a) % ZOOM, int(b)) for a, b in zip(low, high))


def _inside(box: tuple[slice, ...], globe: Globe, course: Tube) -> tuple[Globe, Tube, tuple[int, ...]]:
    """Globe and course in a box of fine voxels, and its shape."""
    start = np.array([b.start for b in box]) / ZOOM
    moved = Globe(globe.center - start, globe.radius, globe.bulge - start, globe.curvature)
    return moved, Tube(course.points - start, course.radii), tuple(b.stop - b.start for b in box)


def _draw_orbit(tissue: npt.NDArray[np.uint8], globe: Globe, course: Tube, table: RelaxationTable) -> None:
    """Fat in the cone around the nerve, and eye muscles as thick as they are (in place)."""
    behind = course.part(0.0, IN_ORBIT)
    points = np.concatenate([globe.center[None], behind.points])
    cone = Tube(points, np.interp(np.linspace(0, 1, len(points)), (0, 1), CONE))
    box = _near(points, CONE[0] + 2, tissue.shape)
    part = tissue[box]
    _, near, shape = _inside(box, globe, cone)
    inside = near.rasterize(shape, ZOOM)
    ahead = (np.arange(shape[1]) + box[1].start) / ZOOM > globe.center[1] + 3
    inside[:, ahead] = False
    soft = [table.index(n) for n in ("muscle", "fat", "vitreous", "optic nerve")]
    part[inside & np.isin(part, soft)] = table.index("orbital fat")
    muscle = part == table.index("eye muscle")
    thick = ndi.distance_transform_edt(~muscle) <= THICKER * ZOOM
    part[thick & (part == table.index("orbital fat"))] = table.index("eye muscle")


def _draw_nerve(tissue: npt.NDArray[np.uint8], course: Tube, table: RelaxationTable) -> None:
    """Nerve, in the orbit with fluid and dura around it (in place)."""
    box = _near(course.points, 6.0, tissue.shape)
    start = np.array([b.start for b in box]) / ZOOM
    shape = tuple(b.stop - b.start for b in box)
    part = tissue[box]
    moved = Tube(course.points - start, course.radii)
    orbit = moved.part(0.0, IN_ORBIT)
    part[orbit.rasterize(shape, ZOOM)] = table.index("nerve sheath")
    part[orbit.rasterize(shape, ZOOM, SHEATH)] = table.index("CSF")
    part[orbit.rasterize(shape, ZOOM, NERVE)] = table.index("optic nerve")
    part[moved.part(IN_ORBIT, 1.0).rasterize(shape, ZOOM)] = table.index("optic nerve")


def _draw_eye(tissue: npt.NDArray[np.uint8], globe: Globe, table: RelaxationTable, closed: bool) -> None:
    """Globe from the outside in, with the lids in front of it (in place)."""
    box = _near(np.stack([globe.center, globe.bulge]), globe.radius + 6, tissue.shape)
    part = tissue[box]
    moved, _, shape = _inside(box, globe, Tube(globe.center[None], np.ones(1)))
    depth = moved.depth(shape, ZOOM) / ZOOM
    j = (np.arange(shape[1])[None, :, None] - (ZOOM - 1) / 2) / ZOOM
    lid = (depth < 0) & (depth > -LID) & (j > moved.center[1] + 0.35 * moved.radius)
    lid &= ~np.isin(part, [table.index(name) for name in ("compact bone", "marrow", "mucosa")])
    if closed:
        part[lid] = table.index("muscle")
        part[lid & (depth <= 1 - LID)] = table.index("skin")
    else:
        part[lid & (j > moved.bulge[1] + 0.5 * moved.curvature)] = table.index("air")
    layers = ((0.0, "sclera"), (SCLERA, "choroid"), (SCLERA + CHOROID, "vitreous"))
    for least, name in layers:
        part[depth >= least] = table.index(name)
    front = moved.bulge[1] + moved.curvature
    part[(depth >= 0.6) & (j > front - 3.0)] = table.index("vitreous")  # a thin cornea without choroid
    i, k = (np.arange(n).reshape(s) / ZOOM for n, s in zip((shape[0], shape[2]), ((-1, 1, 1), (1, 1, -1))))
    across = ((i - moved.center[0]) ** 2 + (k - moved.center[2]) ** 2) / LENS[0] ** 2
    part[across + ((j - front + BEHIND) / LENS[1]) ** 2 <= 1] = table.index("lens")
