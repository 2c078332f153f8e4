"""Sort closed contours into planes, and combine the contours of each plane.

DICOM (PS3.3, C.8.8.6.3) has two encodings of holes: keyholes, connected to the outer contour by a narrow
channel, and contours combined by exclusive or. Many systems write a third: a contour inside another. Here a
contour inside another is a hole, identical contours count once, and crossing contours are united, so that
nothing is excluded that any interpretation would include.
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
LEAST_GAP = 0.25  # mm between slices; closer planes are one slice, drawn twice
SAME, SAME_SHARE = 0.2, 0.8  # identical contours: mean distance in mm, fraction of the larger area
NESTED, NESTED_SHARE = 0.1, 0.1  # a hole may exceed its outer contour: mean distance in mm, fraction of area
LEAST_WIDTH = 1e-3  # mm
MOST_IN_PLANE, MOST_OVER = 10_000, 2_000  # contours in a plane; overlapping ones
MOST_PLANES = 5_000
MOST_LENGTH, MOST_IN_ALL = 1e6, 2e7  # mm of contours in a plane, in a structure


@dataclass(frozen=True, eq=False)
class Planar:
    """The contours of one plane: (n, 3) in world and (n, 2) in plane coordinates, and its position.

    Contours of a group are united; groups are combined by exclusive or. `repeated` is the number of contours
    identical to another one, `crossing` the number of pairs that cross.
    """

    polygons: tuple[Points, ...]
    flat: tuple[Points, ...]
    position: float
    groups: npt.NDArray[np.int64]
    repeated: int = 0
    crossing: int = 0


def has_area(polygon: Points) -> bool:
    """Whether a contour (n, 3) encloses an area: not a point, a line or a line traced back."""
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
    """Reduce a contour that repeats the same points several times to a single turn."""
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
    """(3, 3) rows: two in-plane directions and the normal, from the areas of all polygons."""
    turned = _area_vectors(polygons)
    size = np.linalg.norm(turned, axis=1)
    largest = int(np.argmax(size))
    if size[largest] > LEAST_WIDTH**2:
        total = (turned * np.where(turned @ turned[largest] < 0, -1.0, 1.0)[:, None]).sum(0)
    else:  # all polygons cross themselves with zero signed area
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
    """Distances between adjacent planes in mm."""
    if not polygons:
        return np.zeros(0)
    normal = find_axes(polygons)[2]
    gaps = np.diff(np.sort([float((p @ normal).mean()) for p in polygons]))
    return np.asarray(gaps[gaps > SAME_PLANE], np.float64)


def typical_gap(gaps: npt.ArrayLike) -> float | None:
    """Slice spacing: lower median of the distances of planes; None without distances."""
    found = np.sort(np.asarray(gaps, np.float64))
    found = found[found > LEAST_GAP] if (found > LEAST_GAP).any() else found
    return float(found[(len(found) - 1) // 2]) if len(found) else None


def arrange_planes(name: str, polygons: Sequence[Points], *, exclusive: bool = False) -> tuple[Planar, ...]:
    """Sort contours into planes by position; raises GeometryError unless all planes are parallel.

    With `exclusive`, all contours are combined by exclusive or.
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
    """(m, 3) area vectors of polygons (n, 3), vectorized over polygons."""
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
    """Group of every contour of a plane, number of repeated contours, and number of crossing pairs."""
    groups = np.arange(len(flat))
    over = _find_overlapping_boxes(flat)
    if len(over) > MOST_OVER:
        raise _too_many(name, f"{len(over)} overlapping contours, at most {MOST_OVER}")
    if not len(over):
        return groups, 0, 0
    shared = overlaps([flat[i] for i in over])
    if shared is None:
        raise _too_many(name, "too many overlapping contours")
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
                f"duplicate contours of {name} would cancel each other",
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
    """Contours whose bounding box overlaps that of another one."""
    low, high = np.array([p.min(0) for p in flat]), np.array([p.max(0) for p in flat])
    meets = np.zeros(len(flat), bool)
    for start in range(0, len(flat), 1000):
        some = slice(start, start + 1000)
        over = ((low[some, None] < high) & (low < high[some, None])).all(2)
        meets[some] = over.sum(1) > 1  # each overlaps itself
    return np.flatnonzero(meets)
