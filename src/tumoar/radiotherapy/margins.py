"""Margins around a tumor: a clinical target volume inside the brain, and a planning target volume around it.

The clinical target volume grows along paths inside the brain that do not cross the ventricles, because tumor
cells spread in tissue. Falx and tentorium are barriers as well, but are not segmented: if the target crosses
the midline, edit it by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage as ndi

from tumoar.vocabulary.errors import UsageError

Mask = npt.NDArray[np.bool_]

DEPTH = 15.0  # mm below the brain surface: fluid this deep is ventricle, not sulcus
LARGEST = 60.0  # mm
SLACK = 0.5  # voxels by which fast marching may overestimate a path


@dataclass(frozen=True)
class Margins:
    """Millimeters from GTV to CTV and from there (or from the GTV) to PTV."""

    ctv: float | None = None
    ptv: float | None = None


def parse_margins(text: str) -> Margins:
    """Parse margins such as "ctv=20,ptv=3"."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().lower().partition("=")
        if name in found:
            raise UsageError("margins", f"{name} is given twice", found=text, do="give one margin for each")
        try:
            found[name] = float(number)
        except ValueError as error:
            raise UsageError("margins", f"no margin in '{part}'", do="write ctv=20,ptv=3") from error
    if set(found) - {"ctv", "ptv"} or not all(0 < mm <= LARGEST for mm in found.values()):
        raise UsageError("margins", "margins not usable", found=text, do="write ctv=20,ptv=3, in mm")
    return Margins(**found)


def grow(mask: Mask, mm: float, spacing: npt.ArrayLike) -> Mask:
    """All voxels within `mm` of the mask."""
    if not mask.any():
        return mask.copy()
    return np.asarray(ndi.distance_transform_edt(~mask, sampling=np.asarray(spacing, float)) <= mm)


def grow_within(mask: Mask, domain: Mask, mm: float, spacing: npt.ArrayLike) -> Mask:
    """All voxels of the domain within a path length of `mm` from the mask, along paths inside the domain.

    Fast marching overestimates distances by up to half a voxel far from the mask; voxels farther than `mm` in
    a straight line are never included.
    """
    spacing = np.asarray(spacing, float)
    if not mask.any():
        return mask.copy()
    box = _box(mask, np.ceil(mm / spacing).astype(int) + 2)
    seeds, free = mask[box], (domain | mask)[box]
    rim = seeds & ~ndi.binary_erosion(seeds)
    speed = sitk.GetImageFromArray(free.T.astype(np.float32))
    speed.SetSpacing(spacing.tolist())
    march = sitk.FastMarchingImageFilter()
    march.SetTrialPoints([[int(i) for i in at] for at in np.argwhere(rim)])
    march.SetStoppingValue(mm + 2 * float(spacing.max()))
    path = sitk.GetArrayFromImage(march.Execute(speed)).T
    straight = ndi.distance_transform_edt(~seeds, sampling=spacing)
    out = mask.copy()
    out[box] |= free & (straight <= mm) & (path <= mm + SLACK * float(spacing.max()))
    return out


def find_ventricles(brain: Mask, fluid: Mask, spacing: npt.ArrayLike) -> Mask:
    """Fluid deep inside the brain, at least three voxels thick."""
    spacing = np.asarray(spacing, float)
    depth = ndi.distance_transform_edt(np.pad(ndi.binary_fill_holes(brain), 1), sampling=spacing)
    deep = fluid & (depth[1:-1, 1:-1, 1:-1] > DEPTH)
    return np.asarray(ndi.binary_opening(deep, ndi.generate_binary_structure(3, 1)))


def _box(mask: Mask, margin: npt.NDArray[np.int64]) -> tuple[slice, ...]:
    where = np.argwhere(mask)
    low, high = np.maximum(where.min(0) - margin, 0), where.max(0) + margin + 1
    return tuple(slice(int(a), int(b)) for a, b in zip(low, high))
