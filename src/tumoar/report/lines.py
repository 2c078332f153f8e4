"""Outlines drawn as lines over the slices: CTV dashed, PTV dotted, organs under tumor thin and solid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw

from tumoar.numerics.tracing import trace

Array = npt.NDArray[Any]

STYLES = {"solid": (1.0, 0.0), "dashed": (7.0, 4.0), "dotted": (1.5, 3.5)}
"""Length of a dash and of the gap after it, in voxels."""
OF_TARGETS = {"CTV": "dashed", "PTV": "dotted"}
CASING = (0, 0, 0)
"""RGB beside a line, so that it is visible on bright tissue."""


@dataclass(frozen=True, eq=False)
class Line:
    """A structure to draw as a line: its mask on the voxels of the page."""

    name: str
    color: str
    style: str
    mask: npt.NDArray[np.bool_]


def draw_line(rgb: Array, mask: Array, color: str, style: str, zoom: int) -> Array:
    """Draw the outline of a mask (rows, columns) on a picture with `zoom` pixels per voxel."""
    picture = PIL.Image.fromarray(np.ascontiguousarray(rgb))
    draw = PIL.ImageDraw.Draw(picture)
    ink = tuple(bytes.fromhex(color[1:]))
    dashes = [d for loop in _loops(mask) for d in cut_dashes(loop, *STYLES[style])]
    for width, paint in ((zoom + 1, CASING), (1 if style == "solid" else zoom, ink)):
        for dash in dashes:
            points = (dash + 0.5) * zoom - 0.5
            draw.line([(float(b), float(a)) for a, b in points], fill=paint, width=width)
    return np.asarray(picture)


def cut_dashes(loop: Array, dash: float, gap: float) -> Iterator[Array]:
    """Cut a closed loop (n, 2) into dashes of equal length; the whole loop if there is no gap."""
    closed = np.vstack([loop, loop[:1]])
    if not gap:
        yield closed
        return
    at = np.append(0, np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1)))
    count = max(1, round(at[-1] / (dash + gap)))
    period = at[-1] / count
    for start in period * np.arange(count):
        stop = start + period * dash / (dash + gap)
        along = np.concatenate([[start], at[(at > start) & (at < stop)], [stop]])
        yield np.stack([np.interp(along, at, closed[:, axis]) for axis in (0, 1)], -1)


def _loops(mask: Array) -> Iterator[Array]:
    for region in trace(mask):
        yield from (region.outer, *region.holes)
