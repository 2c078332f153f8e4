"""Polygons on a pixel grid: how much of every pixel lies inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]

EDGES = 32  # taken at once against all points


def coverage(polygons: Sequence[Points], shape: tuple[int, int], lines: int = 16) -> npt.NDArray[np.float64]:
    """(a, b) the share of every pixel that lies inside an odd number of turns of the polygons.

    `polygons` are (n, 2) corners in pixel coordinates, pixel centers at integers, closed by themselves; a
    polygon within another is a hole. Along the second axis areas are exact, along the first they are sums
    over `lines` scan lines per pixel, so that polygons along pixel edges are exact altogether.
    """
    starts = [np.asarray(p, float) for p in polygons if len(p) >= 3]
    out = np.zeros((shape[0], shape[1] + 1))
    if not starts:
        return out[:, :-1]
    begin = np.concatenate(starts)
    end = np.concatenate([np.roll(p, -1, axis=0) for p in starts])
    # Scan line s lies at a = (s + ½) / lines − ½: never on a pixel edge.
    low, high = (
        np.ceil((f(begin[:, 0], end[:, 0]) + 0.5) * lines - 0.5).astype(np.int64)
        for f in (np.minimum, np.maximum)
    )
    low, high = np.clip(low, 0, shape[0] * lines), np.clip(high, 0, shape[0] * lines)
    counts = high - low
    edge = np.repeat(np.arange(len(begin)), counts)
    line = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + low[edge]
    a = (line + 0.5) / lines - 0.5
    share = (a - begin[edge, 0]) / (end[edge, 0] - begin[edge, 0])
    b = begin[edge, 1] + share * (end[edge, 1] - begin[edge, 1])
    order = np.lexsort((b, line))
    line, b = line[order], np.clip(b[order] + 0.5, 0, shape[1])
    # Every scan line meets closed polygons an even number of times: in, out, in, out.
    sign = np.where(np.arange(len(line)) % 2 == 0, 1.0, -1.0)
    pixel = np.minimum(b.astype(np.int64), shape[1] - 1)
    rest = b - pixel
    np.add.at(out, (line // lines, pixel), sign * (1 - rest))
    np.add.at(out, (line // lines, pixel + 1), sign * rest)
    return np.clip(np.cumsum(out, axis=1)[:, :-1] / lines, 0.0, 1.0)


def area(polygon: Points) -> float:
    """The signed area of a polygon (n, 2); positive where it turns from the first axis to the second."""
    x, y = polygon[:, 0], polygon[:, 1]
    return float(0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))


def contains(polygons: Sequence[Points], points: Points) -> npt.NDArray[np.bool_]:
    """(m,) whether points (m, 2) lie inside an odd number of the polygons."""
    crossings = np.zeros(len(points), np.int64)
    y = points[:, 1, None]
    for a, e in _edges(polygons):
        b = a[:, 1] + e[:, 1]
        crosses = (a[:, 1] > y) != (b > y)
        slope = e[:, 0] / np.where(e[:, 1] == 0, 1.0, e[:, 1])
        crossings += np.count_nonzero(
            crosses & (a[:, 0] + (y - a[:, 1]) * slope > points[:, 0, None]), axis=1
        )
    return crossings % 2 == 1


def signed_distance(polygons: Sequence[Points], points: Points) -> npt.NDArray[np.float64]:
    """(m,) distance of points (m, 2) to the polygons' edges; positive inside, by the even-odd rule."""
    nearest = np.full(len(points), np.inf)
    for a, e in _edges(polygons):
        w = points[:, None] - a
        t = np.clip((w * e).sum(-1) / np.maximum((e * e).sum(-1), 1e-30), 0.0, 1.0)
        nearest = np.minimum(nearest, ((w - t[..., None] * e) ** 2).sum(-1).min(1))
    return np.where(contains(polygons, points), 1.0, -1.0) * np.sqrt(nearest)


def _edges(polygons: Sequence[Points]) -> Iterator[tuple[Points, Points]]:
    """Starts (n, 2) and vectors (n, 2) of the edges, a few at a time."""
    for polygon in polygons:
        vectors = np.roll(polygon, -1, axis=0) - polygon
        for i in range(0, len(polygon), EDGES):
            yield polygon[i : i + EDGES], vectors[i : i + EDGES]
