"""Margins around a tumor: a clinical target volume inside the brain, and a planning target volume around it.

The clinical target volume grows along paths inside the brain, because tumor cells spread in tissue. Paths do
not cross the ventricles, the brainstem, the falx or the tentorium. Falx and tentorium are those of the fitted
atlas (model/compartments.py). The margins of guidelines, with their sources, are in data/margins.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from itertools import product

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage as ndi

from tumoar.model.compartments import JOINED, Compartments, are_separate
from tumoar.vocabulary.errors import UsageError

Mask = npt.NDArray[np.bool_]

DEPTH = 15.0  # mm below the brain surface: fluid this deep is ventricle, not sulcus
LARGEST = 60.0  # mm
SLACK = 0.5  # voxels by which fast marching may overestimate a path
DO = "write ctv=15,ptv=3 or estro-eano"
SHIFT = 5.0  # mm by which the falx may lie off the midplane of the fitted atlas


@dataclass(frozen=True)
class Margins:
    """Millimeters from GTV to CTV and from there (or from the GTV) to PTV."""

    ctv: float | None = None
    ptv: float | None = None


_DATA = tomllib.loads(files("tumoar").joinpath("data/margins.toml").read_text("utf-8"))
PRESETS = {name: Margins(**mm) for name, mm in _DATA["presets"].items()}
BEYOND: dict[str, float] = _DATA["beyond"]
"""Millimeters by which a CTV exceeds barriers of the brain."""


def parse_margins(text: str) -> Margins:
    """Parse margins such as "ctv=15,ptv=3", or the name of a guideline."""
    if text.strip().lower() in PRESETS:
        return PRESETS[text.strip().lower()]
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().lower().partition("=")
        if name in found:
            raise UsageError("margins", f"{name} is given twice", found=text, do="give one margin for each")
        try:
            found[name] = float(number)
        except ValueError as error:
            raise UsageError("margins", f"no margin in '{part}'", do=DO) from error
    if set(found) - {"ctv", "ptv"} or not all(0 < mm <= LARGEST for mm in found.values()):
        raise UsageError("margins", "margins not usable", found=text, do=f"{DO}, in mm")
    return Margins(**found)


def grow(mask: Mask, mm: float, spacing: npt.ArrayLike) -> Mask:
    """All voxels within `mm` of the mask."""
    if not mask.any():
        return mask.copy()
    return np.asarray(ndi.distance_transform_edt(~mask, sampling=np.asarray(spacing, float)) <= mm)


def grow_within(
    mask: Mask,
    domain: Mask,
    mm: float,
    spacing: npt.ArrayLike,
    compartments: Compartments | None = None,
) -> Mask:
    """All voxels of the domain within a path length of `mm` from the mask, along paths inside the domain.

    Paths do not pass from one of `compartments` (X, Y, Z) to another that is separate. The mask itself may
    reach into several; a part of it that reaches less than `SHIFT` into another one does not grow there.

    Fast marching overestimates distances by up to half a voxel far from the mask; voxels farther than `mm` in
    a straight line are never included.
    """
    spacing = np.asarray(spacing, float)
    if not mask.any():
        return mask.copy()
    box = _box(mask, np.ceil(max(mm, SHIFT) / spacing).astype(int) + 2)
    seeds, free = mask[box], (domain | mask)[box]
    parts = np.zeros(seeds.shape, np.uint8) if compartments is None else compartments[box]
    grown = drop_slivers(seeds, parts, spacing)
    wall = find_walls(parts, np.bincount(parts[grown], minlength=JOINED + 1)) & ~grown
    path = _march(grown, (free & ~wall & ~seeds) | grown, mm, spacing)
    straight = ndi.distance_transform_edt(~grown, sampling=spacing)
    limit = mm + SLACK * float(spacing.max())
    path = _reach_walls(path, free & wall & ~seeds, parts, spacing)
    out = mask.copy()
    out[box] |= free & (straight <= mm) & (path <= limit)
    return out


def find_walls(parts: Compartments, rank: npt.NDArray[np.int64]) -> Mask:
    """Voxels beside a separate compartment of higher rank (C,): the side of a barrier away from the tumor."""
    wall = np.zeros(parts.shape, bool)
    rank = rank * len(rank) + np.arange(len(rank))  # no ties
    for one, other in _neighbors(parts.ndim):
        apart = are_separate(parts[one], parts[other])
        is_lower = rank[parts[one]] < rank[parts[other]]
        wall[one] |= apart & is_lower
        wall[other] |= apart & ~is_lower
    return wall


def drop_slivers(mask: Mask, parts: Compartments, spacing: npt.NDArray[np.float64]) -> Mask:
    """The mask without its parts that reach less than `SHIFT` across a barrier, if it is deeper elsewhere.

    The fitted midplane is not exactly where the falx is: tumor beside the falx may seem to cross it.
    """
    sizes = np.bincount(parts[mask], minlength=JOINED + 1)
    main = int(sizes.argmax())
    across = [c for c in np.flatnonzero(sizes).tolist() if are_separate(np.uint8(c), np.uint8(main))]
    out = mask.copy()
    for c in across:
        depth = ndi.distance_transform_edt(~are_separate(parts, np.uint8(c)), sampling=spacing)
        if float(depth[mask & (parts == c)].max()) < SHIFT:
            out &= parts != c
    return out


def _march(seeds: Mask, free: Mask, mm: float, spacing: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(X, Y, Z) length of the shortest path from the seeds through free voxels, as far as `mm`."""
    rim = seeds & ~ndi.binary_erosion(seeds)
    speed = sitk.GetImageFromArray(free.T.astype(np.float32))
    speed.SetSpacing(spacing.tolist())
    march = sitk.FastMarchingImageFilter()
    march.SetTrialPoints([[int(i) for i in at] for at in np.argwhere(rim)])
    march.SetStoppingValue(mm + 2 * float(spacing.max()))
    path = np.asarray(sitk.GetArrayFromImage(march.Execute(speed)).T, np.float64)
    return np.where(free, path, np.inf)


def _reach_walls(
    path: npt.NDArray[np.float64], wall: Mask, parts: Compartments, spacing: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Path lengths with those of voxels beside a wall, in steps from voxels on the same side."""
    if not wall.any():
        return path
    where = np.argwhere(wall)
    lengths, known = path[wall], np.pad(path, 1, constant_values=np.inf)
    around = np.pad(parts, 1, mode="edge")
    before = None
    while before is None or (lengths < before).any():
        before = lengths
        for step in product((-1, 0, 1), repeat=3):
            at = tuple((where + 1 + step).T)
            length = known[at] + float(np.linalg.norm(np.multiply(step, spacing)))
            lengths = np.minimum(lengths, np.where(are_separate(parts[wall], around[at]), np.inf, length))
        known[1:-1, 1:-1, 1:-1][wall] = lengths
    return known[1:-1, 1:-1, 1:-1]


def _neighbors(ndim: int) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Slices of all voxels but the last, and all but the first, along each axis."""
    every = slice(None)
    return [
        (
            tuple(slice(None, -1) if a == axis else every for a in range(ndim)),
            tuple(slice(1, None) if a == axis else every for a in range(ndim)),
        )
        for axis in range(ndim)
    ]


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
