"""Average surroundings of brain and eye sockets in many heads: air, bone and soft tissue.

Heads are aligned with their mean shape by landmarks that `placement.template` can find in any atlas.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.placement.template import Surroundings, fit_affine, landmarks
from tumoar.train.align import mean_shape
from tumoar.train.head_table import HeadTable
from tumoar.vocabulary.labels import LabelTable

SPACING = 4.0
MARGIN = 64.0
"""Margin around the brain in mm."""
BLUR = 2.0
CUT = 15.0
"""mm above the lowest voxel of a head that are excluded as edge of the field of view."""
SPREAD = 12.0
"""mm of extrapolation to places that no head covers."""

Head = tuple[npt.NDArray[np.uint8], npt.NDArray[np.integer], Grid]


def average_heads(heads: Iterable[Head], labels: LabelTable, table: HeadTable) -> Surroundings:
    """Average the surroundings of heads, each a prepared label map with its source codes on a 1 mm grid."""
    heads = list(heads)
    found = [landmarks(*_one_hot(label_map, grid, labels), labels) for label_map, _, grid in heads]
    names = [name for name in found[0] if all(name in other for other in found)]
    marks = np.stack([[points[name] for name in names] for points in found])
    mean = mean_shape(marks)
    grid = _box(mean)
    known = np.zeros((*grid.shape, 3), np.float32)
    for (label_map, source, own), mark in zip(heads, marks):
        to_voxels = own.inverse @ fit_affine(mean, mark) @ grid.affine
        outside = (label_map == labels.structures[0].index) & _seen(source, own)
        air, bone = np.isin(source, table.tissue["air"]), np.isin(source, table.tissue["bone"])
        for k, mask in enumerate((air, bone, ~air & ~bone)):
            blurred = ndi.gaussian_filter((mask & outside).astype(np.float32), BLUR / own.spacing)
            known[..., k] += ndi.affine_transform(
                blurred, to_voxels[:3, :3], to_voxels[:3, 3], grid.shape, order=1, mode="constant"
            )
    carried = ndi.gaussian_filter(known, (*([SPREAD / SPACING] * 3), 0), mode="nearest")
    parts = known + 0.1 * carried + 1e-6 * known.mean((0, 1, 2))
    return Surroundings(
        (parts / parts.sum(-1, keepdims=True)).astype(np.float32), grid, dict(zip(names, mean))
    )


def _one_hot(
    label_map: npt.NDArray[np.uint8], grid: Grid, labels: LabelTable
) -> tuple[npt.NDArray[np.float32], Grid]:
    """Probabilities of 0 and 1 at every second voxel."""
    affine = grid.affine.copy()
    affine[:3, :3] *= 2
    half = label_map[::2, ::2, ::2]
    return (half[..., None] == labels.indices).astype(np.float32), Grid(half.shape, affine, grid.frame)


def _seen(source: npt.NDArray[np.integer], grid: Grid) -> npt.NDArray[np.bool_]:
    """Voxels above the lower edge of the field of view, below which all values are zero."""
    lowest = np.flatnonzero(source.any((0, 1)))[0]
    return np.arange(source.shape[2]) >= lowest + CUT / grid.spacing[2]


def _box(mean: npt.NDArray[np.float64]) -> Grid:
    low, high = mean.min(0) - MARGIN, mean.max(0) + MARGIN
    shape = np.ceil((high - low) / SPACING).astype(int) + 1
    affine = np.diag([SPACING, SPACING, SPACING, 1.0])
    affine[:3, 3] = low
    return Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)
