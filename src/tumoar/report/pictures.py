"""Pictures in three planes in radiological convention: from below, the front and the left."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage as ndi

from tumoar.report.lines import Line, draw_line

Array = npt.NDArray[Any]

ZOOM = 2
"""Pixels per voxel: an outline takes one pixel."""
SHADE = 0.55
"""Factor that darkens pixels next to an outline, so that it is visible on bright tumor."""
DIVERGING = ((5, 247, 103), (48, 247, 0), (97, 247, 31))
"""RGB of −1, 0 and 1: dark blue, white, dark red."""
COLORS = {
    "I": [0, 128, 255],
    "R": [40, 220, 255],
    "G": [30, 80, 240],
    "B": [120, 60, 120],
    "A": [0, 190, 220],
}
"""Colors of maps between 0 and 255: dark blue, red, yellow; transparent at 0, lighter throughout."""
PLANES = (("axial", 2), ("coronal", 1), ("sagittal", 0))


def plane(volume: Array, axis: int, at: int) -> Array:
    """(rows, columns, …) of a slice; up or front is at the top, the patient's right or front on the left."""
    return np.swapaxes(np.take(volume, at, axis), 0, 1)[::-1, ::-1]


def pictures(
    images: Mapping[str, Array],
    labels: Array,
    legend: Sequence[Mapping[str, Any]],
    at: Array,
    lines: Sequence[Line] = (),
) -> list[dict[str, Any]]:
    """Each image in three planes through a voxel, with outlines of the labels shown initially, and lines."""
    shown = [row for row in legend if row["shown"]]
    colors = _colors(shown)
    kept = np.where(np.isin(labels, [row["index"] for row in shown]), labels, 0)
    out = []
    for contrast, image in images.items():
        for name, axis in PLANES:
            gray = zoomed(plane(image, axis, int(at[axis])))
            parts = zoomed(plane(kept, axis, int(at[axis])))
            edge = outlines(parts)
            gray = np.where(ndi.binary_dilation(edge), gray * SHADE, gray).astype(np.uint8)
            rgb = np.repeat(gray[..., None], 3, 2)
            rgb[edge] = colors[parts[edge]]
            for line in lines:
                mask = plane(line.mask, axis, int(at[axis]))
                if mask.any():
                    rgb = draw_line(rgb, mask, line.color, line.style, ZOOM)
            out.append({"contrast": contrast, "plane": name, "png": png(rgb)})
    return out


def map_pictures(image: Array, values: Array, at: Array) -> list[dict[str, Any]]:
    """A map of bytes over an image, in three planes, in the colors of `COLORS`."""
    out = []
    for name, axis in PLANES:
        gray = zoomed(plane(image, axis, int(at[axis]))).astype(float)
        over = zoomed(plane(values, axis, int(at[axis])))
        red, green, blue, alpha = (np.interp(over, COLORS["I"], COLORS[c]) for c in "RGBA")
        rgb = [gray + alpha / 255 * (ink - gray) for ink in (red, green, blue)]
        out.append({"plane": name, "png": png(np.rint(np.stack(rgb, -1)).astype(np.uint8))})
    return out


def outlines(labels: Array) -> npt.NDArray[np.bool_]:
    """Pixels with a different label next to them."""
    edge = np.zeros(labels.shape, bool)
    for axis in (0, 1):
        for step in (1, -1):
            edge |= np.roll(labels, step, axis) != labels
    return edge & (labels > 0)


def diverging(values: Array) -> str:
    """PNG of values from −1 to 1, transparent where undefined."""
    known = np.isfinite(values)
    shares = np.nan_to_num(values)
    colors = [np.interp(shares, (-1, 0, 1), channel) for channel in DIVERGING]
    return png(np.stack([*colors, np.where(known, 255, 0)], -1).astype(np.uint8))


def png(pixels: Array) -> str:
    """Base64 of a PNG of bytes (rows, columns, 3 or 4)."""
    out = BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(out, "png")
    return b64encode(out.getvalue()).decode("ascii")


def zoomed(image: Array, zoom: int = ZOOM) -> Array:
    """Several pixels per voxel."""
    return image.repeat(zoom, 0).repeat(zoom, 1)


def _colors(shown: Sequence[Mapping[str, Any]]) -> Array:
    """(256, 3) color by label; black without outline."""
    colors = np.zeros((256, 3), np.uint8)
    for row in shown:
        colors[row["index"]] = list(bytes.fromhex(row["color"][1:]))
    return colors
