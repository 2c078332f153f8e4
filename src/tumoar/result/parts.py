"""Which parts of the voted tumor are outlined, and what the gross tumor volume is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.distance import distance_to
from tumoar.vocabulary.labels import LabelTable, Organ

Mask = npt.NDArray[np.bool_]

LEAST_CORE = 0.5
"""cm³ of core from which a tumor enhances measurably: a sphere 10 mm across, the smallest measurable lesion
of the RANO criteria (Wen et al., J. Clin. Oncol. 28, 2010)."""
WHOLE = ("core", "edema")
REACH = 5.0
"""Millimeters from the surface of the brain within which a cavity must come."""
WIDE = 5.0
"""Millimeters across its widest place that a cavity has at least."""
LEAST_CAVITY = 0.5
"""cm³ below which fluid is not called a cavity."""
THIN = 3.0
"""Millimeters below which core at a cavity that does not enhance is part of its wall."""


def find_islands(
    z: Mask, y: Mask, excess: npt.NDArray[np.floating] | None, voxel_cm3: float, least: float, share: float
) -> Mask:
    """(X, Y, Z) voted tumor z, with core y, in parts that are not outlined.

    These are specks below `least` cm³; parts with less core than that and a smaller `share` of the largest
    part; and parts other than the largest that look like normal tissue: the median of `excess`, the intensity
    above the bound on the mean of edema, is negative. The last two rules are off if `least` or `share` is 0.
    """
    parts, count = ndimage.label(z, np.ones((3, 3, 3)))
    whole, core = (np.bincount(parts[at], minlength=count + 1) * voxel_cm3 for at in (z, y))
    drop = (whole < least) | ((core < least) & (whole < share * whole.max()))
    if excess is not None and count > 1 and least > 0 and share > 0:
        middle = np.append(-np.inf, ndimage.median(excess, parts, np.arange(1, count + 1)))
        drop |= (middle < 0) & (whole < whole.max())
    return np.asarray(drop[parts] & z)


def find_closed(
    cavity: Mask, brain: Mask, fluid: Mask, spacing: npt.NDArray[np.float64], voxel_cm3: float
) -> Mask:
    """(X, Y, Z) cavity in parts that no surgeon can have reached, or that are too thin: fluid in a tumor.

    A cavity was made from the surface of the brain: one of its voxels lies within `REACH` of it. The way to
    one that is mostly `fluid`, which is not necrosis, may have closed since. Its widest place is at least
    `WIDE` across, and it has at least `LEAST_CAVITY`: others are sulci, or necrosis. Parts less than three
    voxels apart are one: levels of fluid, blood and air look like neither where they meet.
    """
    joined = cavity | ndimage.binary_closing(np.pad(cavity, 2))[2:-2, 2:-2, 2:-2]
    parts, count = ndimage.label(joined)
    parts[~cavity] = 0
    if count == 0:
        return np.zeros(cavity.shape, bool)
    filled = ndimage.binary_fill_holes(np.pad(ndimage.binary_closing(brain | cavity, iterations=2), 1))
    depth = ndimage.distance_transform_edt(filled, sampling=spacing)[1:-1, 1:-1, 1:-1]
    half_width = ndimage.distance_transform_edt(np.pad(cavity, 1), sampling=spacing)[1:-1, 1:-1, 1:-1]
    numbers = np.arange(1, count + 1)
    sizes, of_fluid = (np.bincount(at.ravel(), minlength=count + 1)[1:] for at in (parts, parts * fluid))
    is_open = (ndimage.minimum(depth, parts, numbers) <= REACH) | (of_fluid > sizes / 2)
    is_open &= 2 * ndimage.maximum(half_width, parts, numbers) >= WIDE
    is_open &= sizes * voxel_cm3 >= LEAST_CAVITY
    return np.asarray(~np.append(True, is_open)[parts])


def find_film(residual: Mask, cavity: Mask, enhancing: Mask, spacing: npt.NDArray[np.float64]) -> Mask:
    """(X, Y, Z) residual core that is the wall of the cavity: it is thin, lies there and does not enhance.

    Voxels of the wall hold fluid and tissue, and look like necrosis.
    """
    return find_wall(residual, cavity, THIN, spacing) & ~enhancing


def find_wall(residual: Mask, cavity: Mask, width: float, spacing: npt.NDArray[np.float64]) -> Mask:
    """(X, Y, Z) residual core within `width` mm of the cavity that is nowhere as thick as that."""
    if not cavity.any():
        return np.zeros(cavity.shape, bool)
    depth = ndimage.distance_transform_edt(np.pad(residual, 1), sampling=spacing)[1:-1, 1:-1, 1:-1]
    middle = 2 * depth - spacing.min() >= width  # 2 * depth is up to a voxel more than the width
    thick = distance_to(middle, spacing.tolist()) <= max(width / 2, float(spacing.max()))
    return np.asarray(residual & ~thick & (distance_to(cavity, spacing.tolist()) <= width))


def uses_whole_tumor(gtv: str, core_cm3: float, whole_cm3: float, core_is_identifiable: bool) -> bool:
    """Whether the GTV is the whole T2/FLAIR abnormality and not the enhancing core.

    By default so where nothing enhances, as for non-enhancing glioma in practice, and where no contrast shows
    enhancement.
    """
    if gtv != "auto":
        return gtv == "flair"
    enhances = core_is_identifiable and core_cm3 >= LEAST_CORE
    return not enhances and whole_cm3 >= LEAST_CORE


def widen_gtv(table: LabelTable) -> LabelTable:
    """Make the GTV of a label table the whole tumor."""
    organs = tuple(replace(o, tumor=WHOLE) if o.name == "GTV" else o for o in table.organs)
    return replace(table, organs=organs)


def drop_targets(table: LabelTable) -> LabelTable:
    """The label table of a result for organs alone: tumor that was not looked for is missing, not empty."""
    return replace(table, organs=tuple(organ for organ in table.organs if not organ.tumor))


def describe_gtv(organ: Organ) -> str:
    """What a GTV is made of, for descriptions; empty for other organs."""
    if organ.kind != "GTV":
        return ""
    made_of = "whole T2/FLAIR abnormality" if set(organ.tumor) == set(WHOLE) else "enhancing core"
    return f"resection cavity and {made_of}" if organ.structures else made_of


def gtv_is_whole(table: LabelTable) -> bool:
    """Whether the GTV of a label table is the whole tumor."""
    return any(o.kind == "GTV" and set(o.tumor) == set(WHOLE) for o in table.organs)
