"""Closed contours by planes, and how those of one plane are taken together.

The standard (DICOM PS3.3, C.8.8.6.3) has two ways to write a hole: as part of the contour around it, reached
by a narrow channel, or as contours that are combined by exclusive or. Many systems write a third: a contour
within another. So one within another is a hole, contours that are the same count once, and contours that
cross one another are united, which leaves out nothing that any reading would include.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tumoar.numerics.polygons import area, overlaps, perimeter, total_area
from tumoar.vocabulary.errors import GeometryError, ResourceError

Points = npt.NDArray[np.float64]

SAME_PLANE = 0.05  # mm
LEAST_GAP = 0.25  # mm between slices; planes closer than that are one slice, drawn twice
SAME, SAME_SHARE = 0.2, 0.8  # mm on the average between contours that are the same; of the larger's area
NESTED, NESTED_SHARE = 0.1, 0.1  # mm on the average, and of its area, that a hole may reach beyond its wall
LEAST_WIDTH = 1e-3  # mm
MOST_IN_PLANE, MOST_OVER = 10_000, 2_000  # contours; of them over one another
MOST_PLANES = 5_000
MOST_LENGTH, MOST_IN_ALL = 1e6, 2e7  # mm of all contours of a plane, of a structure


@dataclass(frozen=True, eq=False)
class Planar:
    """The contours of one plane: (n, 3) in the world and (n, 2) in the plane, and where the plane lies.

    Contours of one of the `groups` are united, groups are combined by exclusive or. `repeated` contours are
    the same as another one, `crossing` pairs cross one another.
    """

    polygons: tuple[Points, ...]
    flat: tuple[Points, ...]
    position: float
    groups: npt.NDArray[np.int64]
    repeated: int = 0
    crossing: int = 0


def has_area(polygon: Points) -> bool:
    """Whether a contour (n, 3) encloses anything: neither a point nor a line, nor a line there and back."""
    if len(polygon) < 3:
        return False
    centered = polygon - polygon.mean(0)
    spread, directions = np.linalg.eigh(centered.T @ centered / len(polygon))
    if spread[1] < LEAST_WIDTH**2:
        return False
    flat = centered @ directions[:, [2, 1]]
    width = float(np.ptp(flat[:, 1]))
    if abs(area(flat)) > 0.01 * width * float(np.ptp(flat[:, 0])):
        return True
    return total_area([flat]) > LEAST_WIDTH * width


def drop_repeats(polygon: Points) -> Points:
    """A contour that runs around several times, point for point, as one that runs around once."""
    for turns in (2, 3, 4):
        size, rest = divmod(len(polygon), turns)
        while rest == 0 and size >= 3:
            parts = polygon.reshape(turns, size, -1)
            if np.abs(parts - parts[:1]).max() > SAME_PLANE:
                break
            polygon = parts[0]
            size, rest = divmod(len(polygon), turns)
    return polygon


def find_axes(polygons: Sequence[Points]) -> npt.NDArray[np.float64]:
    """(3, 3) rows: two directions in the plane and the normal, from the areas of all polygons."""
    turned = _area_vectors(polygons)
    size = np.linalg.norm(turned, axis=1)
    largest = int(np.argmax(size))
    if size[largest] > LEAST_WIDTH**2:
        total = (turned * np.where(turned @ turned[largest] < 0, -1.0, 1.0)[:, None]).sum(0)
    else:  # all of them cross themselves, and turn as much one way as the other
        widest = max(polygons, key=lambda p: float(np.ptp(p, axis=0).sum()))
        total = np.linalg.svd(widest - widest.mean(0), full_matrices=False)[2][2]
    normal = total / np.linalg.norm(total)
    main = int(np.argmax(np.abs(normal)))
    normal = normal * np.sign(normal[main])
    u = np.eye(3)[(main + 1) % 3]
    u = u - (u @ normal) * normal
    u /= np.linalg.norm(u)
    return np.stack([u, np.cross(normal, u), normal])


def measure_gaps(polygons: Sequence[Points]) -> Points:
    """Distances from plane to plane, mm."""
    if not polygons:
        return np.zeros(0)
    normal = find_axes(polygons)[2]
    gaps = np.diff(np.sort([float((p @ normal).mean()) for p in polygons]))
    return np.asarray(gaps[gaps > SAME_PLANE], np.float64)


def typical_gap(gaps: npt.ArrayLike) -> float | None:
    """The distance of slices, by those of planes: half of them are no wider; None without any."""
    found = np.sort(np.asarray(gaps, np.float64))
    found = found[found > LEAST_GAP] if (found > LEAST_GAP).any() else found
    return float(found[(len(found) - 1) // 2]) if len(found) else None


def arrange_planes(name: str, polygons: Sequence[Points], *, exclusive: bool = False) -> tuple[Planar, ...]:
    """Contours with an area by planes, in the order of the planes; refused unless all are parallel.

    With `exclusive` contours are combined by exclusive or, whatever they cross.
    """
    if not polygons:
        return ()
    axes = find_axes(polygons)
    turned = [p @ axes.T for p in polygons]
    out_of_plane = max(float(np.ptp(p[:, 2])) for p in turned)
    if out_of_plane > 2 * SAME_PLANE:
        raise GeometryError(
            "contours",
            f"contours of {name} are not in parallel planes",
            found=f"{out_of_plane:.2f} mm out of plane",
            do="export them on the slices of one series",
        )
    depth = np.array([float(p[:, 2].mean()) for p in turned])
    groups: list[list[int]] = []
    for i in np.argsort(depth, kind="stable").tolist():
        if groups and depth[i] - depth[groups[-1][0]] <= SAME_PLANE:
            groups[-1].append(i)
        else:
            groups.append([i])
    _require_plausible(name, [[turned[i] for i in g] for g in groups])
    found = []
    for group in groups:
        flat = tuple(np.ascontiguousarray(turned[i][:, :2]) for i in group)
        united, repeated, crossing = _group_contours(name, flat, exclusive)
        members = tuple(polygons[i] for i in group)
        found.append(Planar(members, flat, float(depth[group[0]]), united, repeated, crossing))
    return tuple(found)


def _area_vectors(polygons: Sequence[Points]) -> Points:
    """(m, 3) normals to polygons (n, 3), as long as their areas; all at once, as there may be very many."""
    counts = np.array([len(p) for p in polygons])
    starts = np.cumsum(counts) - counts
    points = np.concatenate(polygons)
    following = np.arange(1, len(points) + 1)
    following[starts + counts - 1] = starts
    points = points - np.repeat(points[starts], counts, axis=0)
    return np.asarray(np.add.reduceat(0.5 * np.cross(points, points[following]), starts, axis=0))


def _require_plausible(name: str, planes: Sequence[Sequence[Points]]) -> None:
    lengths = [sum(perimeter(p) for p in plane) for plane in planes]
    most = max(len(plane) for plane in planes)
    for value, limit, what in (
        (len(planes), MOST_PLANES, "planes"),
        (most, MOST_IN_PLANE, "contours in one plane"),
        (max(lengths), MOST_LENGTH, "mm of contours in one plane"),
        (sum(lengths), MOST_IN_ALL, "mm of contours"),
    ):
        if value > limit:
            raise _too_many(name, f"{value:.0f} {what}, at most {limit:.0f}")


def _too_many(name: str, found: str) -> ResourceError:
    return ResourceError(
        "contours", f"contours of {name} are not plausible", found=found, do="export the structure again"
    )


def _group_contours(
    name: str, flat: Sequence[Points], exclusive: bool
) -> tuple[npt.NDArray[np.int64], int, int]:
    """The group of every contour of a plane, how many are repetitions, and how many pairs cross."""
    groups = np.arange(len(flat))
    over = _find_overlapping_boxes(flat)
    if len(over) > MOST_OVER:
        raise _too_many(name, f"{len(over)} contours over one another, at most {MOST_OVER}")
    if not len(over):
        return groups, 0, 0
    shared = overlaps([flat[i] for i in over])
    if shared is None:
        raise _too_many(name, "too many contours over one another")
    a, b = np.nonzero(np.triu(shared, 1) > 0)
    own, length = np.diag(shared), np.array([perimeter(flat[i]) for i in over])
    both = shared[a, b]
    is_first_smaller = own[a] <= own[b]
    small, large = np.minimum(own[a], own[b]), np.maximum(own[a], own[b])
    small_length = np.where(is_first_smaller, length[a], length[b])
    large_length = np.where(is_first_smaller, length[b], length[a])
    same = (small + large - 2 * both <= SAME * large_length) & (small >= SAME_SHARE * large)
    nested = small - both <= np.minimum(NESTED * small_length, NESTED_SHARE * small)
    if exclusive:
        if same.any():
            raise GeometryError(
                "contours",
                f"contours of {name} are given twice and would exclude each other",
                do="export the structure again",
            )
        return groups, 0, 0
    joined = same | ~nested
    crossing = ~same & ~nested & (both > NESTED_SHARE * NESTED * small_length)
    size = len(over)
    links = coo_matrix((np.ones(joined.sum()), (a[joined], b[joined])), (size, size))
    groups[over] = len(flat) + connected_components(links, directed=False)[1]
    alike = coo_matrix((np.ones(same.sum()), (a[same], b[same])), (size, size))
    repeated = size - int(connected_components(alike, directed=False)[0])
    return np.unique(groups, return_inverse=True)[1].astype(np.int64), repeated, int(crossing.sum())


def _find_overlapping_boxes(flat: Sequence[Points]) -> npt.NDArray[np.int64]:
    """Which contours may meet another one: their bounding boxes do."""
    low, high = np.array([p.min(0) for p in flat]), np.array([p.max(0) for p in flat])
    meets = np.zeros(len(flat), bool)
    for start in range(0, len(flat), 1000):
        some = slice(start, start + 1000)
        over = ((low[some, None] < high) & (low < high[some, None])).all(2)
        meets[some] = over.sum(1) > 1  # every one meets itself
    return np.flatnonzero(meets)
