"""Compare two outlines of a structure: overlap, surface distances, volumes.

Two empty masks agree perfectly (Dice 1, distances 0). If only one is empty, Dice is 0 and every distance is
infinite, so that medians stay meaningful and failures remain in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from tumoar.vocabulary.labels import LabelTable, Organ

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scores:
    """Agreement of one structure; lengths in mm, volumes in cm³."""

    dice: float
    hausdorff95: float
    mean_distance: float
    surface_dice_1mm: float
    surface_dice_2mm: float
    volume: float
    reference_volume: float

    def as_dict(self) -> dict[str, float]:
        """Column name to value, for tables."""
        return asdict(self)


def dice(a: Mask, b: Mask) -> float:
    """2|A∩B| / (|A|+|B|)."""
    size = np.count_nonzero(a) + np.count_nonzero(b)
    return 2.0 * np.count_nonzero(a & b) / size if size else 1.0


def compare(mask: Mask, reference: Mask, spacing: npt.ArrayLike) -> Scores:
    """Score a mask against its reference on one grid with voxels of `spacing` (3,) mm."""
    if mask.shape != reference.shape:
        raise ValueError(f"masks must share a grid, got shapes {mask.shape} and {reference.shape}")
    spacing = np.asarray(spacing, float)
    voxel = float(np.prod(spacing)) / 1000.0
    to_reference, to_mask, area, reference_area = _surface_distances(mask, reference, spacing)
    hausdorff95 = max(_percentile(to_reference, area, 95), _percentile(to_mask, reference_area, 95))
    both = np.concatenate([to_reference, to_mask])
    weight = np.concatenate([area, reference_area])

    def surface_dice(tolerance: float) -> float:
        return float(weight[both <= tolerance].sum() / weight.sum()) if weight.size else 1.0

    return Scores(
        dice=dice(mask, reference),
        hausdorff95=hausdorff95,
        mean_distance=float(np.average(both, weights=weight)) if weight.size else 0.0,
        surface_dice_1mm=surface_dice(1.0),
        surface_dice_2mm=surface_dice(2.0),
        volume=np.count_nonzero(mask) * voxel,
        reference_volume=np.count_nonzero(reference) * voxel,
    )


def compare_organs(
    labels: LabelTable, found: npt.NDArray[np.integer], truth: npt.NDArray[np.integer], spacing: npt.ArrayLike
) -> dict[str, Scores]:
    """Score every structure of two exclusive label maps (tumor over anatomy).

    Tumor hides organs, so organs are compared where neither map has tumor.
    """
    tumor = [t.index for t in labels.tumor]
    tumor += [] if labels.cavity is None else [labels.structures[labels.cavity].index]
    seen = ~(np.isin(found, tumor) | np.isin(truth, tumor))
    out = {}
    for organ in labels.organs:
        masks = [organ_mask(labels, organ, label_map) for label_map in (found, truth)]
        ours, theirs = [m & seen for m in masks] if labels.is_anatomy(organ) else masks
        out[organ.name] = compare(ours, theirs, spacing)
    return out


def organ_mask(labels: LabelTable, organ: Organ, label_map: npt.NDArray[np.integer]) -> Mask:
    """Where an exclusive label map holds the organ."""
    tumor = {t.name: t.index for t in labels.tumor}
    values = [labels.structures[labels.l(s)].index for s in organ.structures] + [
        tumor[t] for t in organ.tumor
    ]
    return np.isin(label_map, values)


def summarize(scores: Sequence[Scores]) -> Mapping[str, tuple[float, float]]:
    """Mean and median of every score over patients."""
    rows = [s.as_dict() for s in scores]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {name: (float(np.mean(v)), float(np.median(v))) for name, v in columns.items()}


def compare_paired(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], rng: np.random.Generator, draws: int = 10_000
) -> tuple[float, float, float, int]:
    """Mean of a − b over patients where both are finite, its 95 % bootstrap interval, number of patients.

    The interval of a single patient is NaN.
    """
    at = np.isfinite(a) & np.isfinite(b)
    difference = (a - b)[at]
    if not at.any():
        return np.nan, np.nan, np.nan, 0
    if len(difference) == 1:
        return float(difference[0]), np.nan, np.nan, 1
    means = rng.choice(difference, (draws, len(difference))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(difference.mean()), float(low), float(high), len(difference)


def _surface_distances(
    mask: Mask, reference: Mask, spacing: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], ...]:
    """Distance of every surface element of each mask to the other's surface, and the elements' areas."""
    surfaces = [_surface(m, spacing) for m in (mask, reference)]
    (points, area), (reference_points, reference_area) = surfaces
    if not len(points) or not len(reference_points):
        return np.full(len(points), np.inf), np.full(len(reference_points), np.inf), area, reference_area
    to_reference, _ = cKDTree(reference_points).query(points)
    to_mask, _ = cKDTree(points).query(reference_points)
    return to_reference, to_mask, area, reference_area


def _surface(
    mask: Mask, spacing: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Centers (n, 3) in mm and areas (n,) of the voxel faces between inside and outside."""
    padded = np.pad(mask, 1)
    points, areas = [], []
    for axis in range(3):
        lower = np.argwhere(np.diff(padded, axis=axis)).astype(float) - 1.0
        lower[:, axis] += 0.5
        points.append(lower * spacing)
        areas.append(np.full(len(lower), np.prod(np.delete(spacing, axis))))
    return np.concatenate(points), np.concatenate(areas)


def _percentile(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], percent: float) -> float:
    """Smallest value that at least `percent` of the weight does not exceed; 0 if there is none."""
    if not values.size:
        return 0.0
    order = np.argsort(values)
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, percent / 100.0 * share[-1])])
