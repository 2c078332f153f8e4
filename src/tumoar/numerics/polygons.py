"""Polygons on a pixel grid: coverage of pixels, areas, and distances to edges.

`polygons` are corners (n, 2) in pixel coordinates, with pixel centers at integers, closed implicitly. The
inside of a single polygon follows the even-odd rule. Polygons of one group are united; groups are combined by
exclusive or, so that a polygon inside another is a hole. Without `groups`, every polygon is its own group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import kernel
from tumoar.numerics.threads import run_blocks

Points = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64] | Sequence[int] | None

EDGES = 32  # processed at once against all points
CROSSINGS = 2_000_000  # of scan lines and edges, processed at once
MOST_BUCKETS = 96  # along a side
LINES = 512  # minimum for areas


def coverage(
    polygons: Sequence[Points], shape: tuple[int, int], lines: int = 16, groups: Groups = None
) -> npt.NDArray[np.float64]:
    """(a, b) fraction of every pixel that lies inside.

    Areas are exact along the second axis, and sums over `lines` scan lines per pixel along the first, so that
    polygons along pixel edges are exact.
    """
    out = np.zeros((shape[0], shape[1] + 1))
    for line, b, sign in _borders(polygons, groups, shape[0] * lines, lines):
        at = np.clip(b + 0.5, 0, shape[1])
        pixel = np.minimum(at.astype(np.int64), shape[1] - 1)
        rest = at - pixel
        np.add.at(out, (line // lines, pixel), sign * (1 - rest))
        np.add.at(out, (line // lines, pixel + 1), sign * rest)
    return np.clip(np.cumsum(out, axis=1)[:, :-1] / lines, 0.0, 1.0)


def centers_inside(
    polygons: Sequence[Points], shape: tuple[int, int], groups: Groups = None
) -> npt.NDArray[np.bool_]:
    """(a, b) whether the center of every pixel lies inside."""
    out = np.zeros((shape[0], shape[1] + 1), np.int64)
    for line, b, sign in _borders(polygons, groups, shape[0], 1):
        np.add.at(out, (line, np.clip(np.ceil(b), 0, shape[1]).astype(np.int64)), sign.astype(np.int64))
    return np.cumsum(out, axis=1)[:, :-1] > 0


def total_area(polygons: Sequence[Points], groups: Groups = None) -> float:
    """Area of the inside, by scan lines."""
    there = [p for p in polygons if len(p) >= 3]
    if not there:
        return 0.0
    if groups is not None:
        groups = [g for g, p in zip(groups, polygons) if len(p) >= 3]
    moved, count, lines = _align_to_lines(there)
    total = 0.0
    for _, b, sign in _borders(moved, groups, count, lines):
        total -= float((b * sign).sum())
    return total / lines


def overlaps(polygons: Sequence[Points], deepest: int = 64) -> Points | None:
    """(m, m) shared area of every two polygons, by scan lines; their own areas on the diagonal.

    None if more than `deepest` polygons overlap at one place.
    """
    moved, count, lines = _align_to_lines(polygons)
    out = np.zeros((len(polygons), len(polygons)))
    for line, b, polygon in _crossings(moved, count, lines):
        order = np.lexsort((b, line))
        if not _add_shared(line[order], b[order], polygon[order], out, np.zeros(deepest, np.int64)):
            return None
    out += np.triu(out, 1).T - np.tril(out, -1)
    return out / lines


def area(polygon: Points) -> float:
    """Signed area of a polygon (n, 2); positive if it turns from the first axis to the second."""
    x, y = polygon[:, 0], polygon[:, 1]
    return float(0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))


def perimeter(polygon: Points) -> float:
    """Perimeter of a polygon (n, d)."""
    return float(np.linalg.norm(np.roll(polygon, -1, axis=0) - polygon, axis=1).sum())


def contains(polygons: Sequence[Points], points: Points) -> npt.NDArray[np.bool_]:
    """(m,) whether points (m, 2) lie inside an odd number of the polygons."""
    crossings = np.zeros(len(points), np.int64)
    y = points[:, 1, None]
    for polygon in polygons:
        vectors = np.roll(polygon, -1, axis=0) - polygon
        for i in range(0, len(polygon), EDGES):
            a, e = polygon[i : i + EDGES], vectors[i : i + EDGES]
            crosses = (a[:, 1] > y) != (a[:, 1] + e[:, 1] > y)
            slope = e[:, 0] / np.where(e[:, 1] == 0, 1.0, e[:, 1])
            crossings += np.count_nonzero(
                crosses & (a[:, 0] + (y - a[:, 1]) * slope > points[:, 0, None]), axis=1
            )
    return crossings % 2 == 1


def edge_distance(polygons: Sequence[Points], points: Points) -> npt.NDArray[np.float64]:
    """(m,) distance of points (m, 2) to the nearest edge; infinite without polygons."""
    points = np.ascontiguousarray(points, np.float64)
    if not len(points) or not polygons:
        return np.full(len(points), np.inf)
    begin = np.ascontiguousarray(np.concatenate(polygons), np.float64)
    end = np.concatenate([np.roll(p, -1, axis=0) for p in polygons])
    vector = np.ascontiguousarray(end - begin, np.float64)
    low = begin.min(0)
    extent = float(np.ptp(begin, axis=0).max())
    side = max(extent / np.clip(np.sqrt(len(begin)), 1, MOST_BUCKETS), 1e-9)
    shape = (np.ptp(begin, axis=0) / side).astype(np.int64) + 1
    starts, members = _buckets(begin, vector, low, side, shape)
    out = np.empty(len(points))
    run_blocks(_nearest, len(points), points, begin, vector, low, side, shape, starts, members, out)
    return np.sqrt(out)


# ---- scan lines --------------------------------------------------------------------------------------------


def _align_to_lines(polygons: Sequence[Points]) -> tuple[list[Points], int, float]:
    """Shift polygons to the first scan line; returns them, the number of lines, and lines per unit.

    Lines are dense enough for the flattest polygon, up to a limit.
    """
    low = min(float(p[:, 0].min()) for p in polygons)
    extent = max(float(p[:, 0].max()) for p in polygons) - low
    flattest = min(float(np.ptp(p[:, 0])) for p in polygons)
    count = int(np.clip(16 * extent / max(flattest, 1e-12), LINES, 16 * LINES))
    return [p - [low + 0.5, 0.0] for p in polygons], count, count / max(extent, 1e-12)


def _crossings(
    polygons: Sequence[Points], count: int, lines: float
) -> Iterator[tuple[npt.NDArray[np.int64], Points, npt.NDArray[np.int64]]]:
    """Scan line, position and polygon of every crossing with an edge, in chunks of lines.

    Line s lies at a = (s + ½) / lines − ½, never on a pixel edge if `lines` is even. Every line crosses a
    closed polygon an even number of times.
    """
    there = [(i, np.asarray(p, np.float64)) for i, p in enumerate(polygons) if len(p) >= 3]
    if not there:
        return
    begin = np.concatenate([p for _, p in there])
    end = np.concatenate([np.roll(p, -1, axis=0) for _, p in there])
    owner = np.repeat([i for i, _ in there], [len(p) for _, p in there])
    first, last = (
        np.clip(np.ceil((f(begin[:, 0], end[:, 0]) + 0.5) * lines - 0.5), 0, count).astype(np.int64)
        for f in (np.minimum, np.maximum)
    )
    edges = np.flatnonzero(last > first)
    begin, end, owner, first, last = begin[edges], end[edges], owner[edges], first[edges], last[edges]
    per_line = np.cumsum(np.bincount(first, minlength=count + 1) - np.bincount(last, minlength=count + 1))
    block = np.cumsum(per_line[:count]) // CROSSINGS
    cuts = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), count]
    for top, bottom in pairwise(cuts):
        at = np.flatnonzero((first < bottom) & (last > top))
        low = np.maximum(first[at], top)
        counts = np.minimum(last[at], bottom) - low
        edge = np.repeat(at, counts)
        line = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - low, counts)
        a = (line + 0.5) / lines - 0.5
        share = (a - begin[edge, 0]) / (end[edge, 0] - begin[edge, 0])
        yield line, begin[edge, 1] + share * (end[edge, 1] - begin[edge, 1]), owner[edge]


def _borders(
    polygons: Sequence[Points], groups: Groups, count: int, lines: float
) -> Iterator[tuple[npt.NDArray[np.int64], Points, Points]]:
    """Scan line and position of every boundary of the inside, and its sign: 1 entering, −1 leaving."""
    united = None if groups is None else np.asarray(groups, np.int64)
    if united is not None and len(np.unique(united)) == len(united):
        united = None
    for line, b, polygon in _crossings(polygons, count, lines):
        if united is not None:
            line, b = _unite_groups(line, b, polygon, united)
        order = np.lexsort((b, line))
        # In, out, in, out.
        yield line[order], b[order], np.where(np.arange(len(line)) % 2 == 0, 1.0, -1.0)


def _unite_groups(
    line: npt.NDArray[np.int64], b: Points, polygon: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Points]:
    """Select crossings where a line enters the first or leaves the last polygon of a group."""
    order = np.lexsort((b, polygon, line))
    line, b, group = line[order], b[order], groups[polygon[order]]
    sign = np.where(np.arange(len(line)) % 2 == 0, 1, -1)
    order = np.lexsort((-sign, b, group, line))
    line, b, sign = line[order], b[order], sign[order]
    depth = np.cumsum(sign)
    kept = ((sign > 0) & (depth == 1)) | ((sign < 0) & (depth == 0))
    return line[kept], b[kept]


@kernel(nogil=True)
def _add_shared(line, b, polygon, out, active):
    """Add to out (m, m) the lengths shared by every two polygons; False if too many overlap."""
    count = 0
    for i in range(len(line)):
        if i > 0 and line[i] == line[i - 1]:
            length = b[i] - b[i - 1]
            for j in range(count):
                for k in range(j, count):
                    p, q = active[j], active[k]
                    out[min(p, q), max(p, q)] += length
        else:
            count = 0
        there = -1
        for j in range(count):
            if active[j] == polygon[i]:
                there = j
        if there >= 0:
            count -= 1
            active[there] = active[count]
        elif count == len(active):
            return False
        else:
            active[count] = polygon[i]
            count += 1
    return True


# ---- the nearest edge --------------------------------------------------------------------------------------


@kernel(nogil=True)
def _buckets(begin, vector, low, side, shape):
    """Edges that pass through each square of a grid: start of each square's list, and the lists."""
    counts = np.zeros(shape[0] * shape[1] + 1, np.int64)
    members = np.zeros(0, np.int64)
    for turn in range(2):
        if turn == 1:
            total = 0
            for i in range(len(counts)):
                here = counts[i]
                counts[i] = total
                total += here
            members = np.zeros(total, np.int64)
        for n in range(len(begin)):
            length = np.sqrt(vector[n, 0] ** 2 + vector[n, 1] ** 2)
            parts = int(length / side) + 1
            for k in range(parts):
                # A part is not longer than a square is wide: it lies in the squares of its two ends.
                ax = (begin[n, 0] + vector[n, 0] * (k / parts) - low[0]) / side
                ay = (begin[n, 1] + vector[n, 1] * (k / parts) - low[1]) / side
                bx = (begin[n, 0] + vector[n, 0] * ((k + 1) / parts) - low[0]) / side
                by = (begin[n, 1] + vector[n, 1] * ((k + 1) / parts) - low[1]) / side
                for x in range(
                    max(0, int(min(ax, bx) - 1e-9)), min(shape[0] - 1, int(max(ax, bx) + 1e-9)) + 1
                ):
                    for y in range(
                        max(0, int(min(ay, by) - 1e-9)), min(shape[1] - 1, int(max(ay, by) + 1e-9)) + 1
                    ):
                        at = x * shape[1] + y
                        if turn == 1:
                            members[counts[at]] = n
                        counts[at] += 1
    starts = np.zeros(len(counts), np.int64)
    for at in range(1, len(counts)):
        starts[at] = counts[at - 1]
    return starts, members


@kernel(nogil=True)
def _nearest(first, last, points, begin, vector, low, side, shape, starts, members, out):
    """Write squared distances to the nearest edge: squares are searched in rings until none can be nearer."""
    for m in range(first, last):
        px, py = points[m, 0], points[m, 1]
        # Distance to the nearest point of the grid is a lower bound for points outside it.
        cx = min(max(px, low[0]), low[0] + shape[0] * side)
        cy = min(max(py, low[1]), low[1] + shape[1] * side)
        away = (px - cx) ** 2 + (py - cy) ** 2
        x0 = min(max(int((cx - low[0]) / side), 0), shape[0] - 1)
        y0 = min(max(int((cy - low[1]) / side), 0), shape[1] - 1)
        best = np.inf
        for ring in range(max(shape[0], shape[1]) + 1):
            if ring > 1 and best <= away + ((ring - 1) * side) ** 2:
                break
            for x in range(max(0, x0 - ring), min(shape[0] - 1, x0 + ring) + 1):
                is_side = x == x0 - ring or x == x0 + ring
                step = 1 if is_side or ring == 0 else 2 * ring
                for y in range(y0 - ring, y0 + ring + 1, step):
                    if y < 0 or y >= shape[1]:
                        continue
                    at = x * shape[1] + y
                    for i in range(starts[at], starts[at + 1]):
                        n = members[i]
                        wx, wy = px - begin[n, 0], py - begin[n, 1]
                        ex, ey = vector[n, 0], vector[n, 1]
                        t = (wx * ex + wy * ey) / max(ex * ex + ey * ey, 1e-30)
                        t = min(max(t, 0.0), 1.0)
                        best = min(best, (wx - t * ex) ** 2 + (wy - t * ey) ** 2)
        out[m] = best
