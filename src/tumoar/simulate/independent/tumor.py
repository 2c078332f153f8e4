"""A tumor of the independent simulator: a lumpy core, fading edema in white matter, mass effect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.solids import Mask
from tumoar.simulate.independent.head import random_field

Maps = npt.NDArray[np.integer]
Volume = npt.NDArray[np.float32]

PUSH = 0.35
"""Displacement at the border of the core, as a fraction of its radius."""
FADE = 30.0
"""Millimeters over which displacement decays to a third."""
EDEMA = 16.0
"""Millimeters over which edema fades in white matter, on average."""
VISIBLE = 0.3
"""Fraction of edema from which a voxel is tumor in the truth."""
TRIES = 200


@dataclass(frozen=True, eq=False)
class Growth:
    """Core (1 necrosis, 2 enhancing) and edema as a fraction, on the grid of the label map."""

    core: npt.NDArray[np.uint8]
    edema: Volume

    @property
    def y(self) -> Mask:
        """Core."""
        return self.core > 0

    @property
    def z(self) -> Mask:
        """Core and visible edema."""
        return (self.core > 0) | (self.edema >= VISIBLE)


def no_growth(shape: tuple[int, ...]) -> Growth:
    """No tumor."""
    return Growth(np.zeros(shape, np.uint8), np.zeros(shape, np.float32))


def choose_place(
    brain: Mask, white: Mask, radius: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """A voxel of white matter around which a ball of this radius lies in the brain, if there is one."""
    voxels = np.argwhere(white)
    tried = voxels[rng.integers(0, len(voxels), TRIES)]
    depth = ndi.distance_transform_edt(brain)
    fits = depth[tuple(tried.T)] >= radius
    return tried[int(np.argmax(fits)) if fits.any() else int(np.argmax(depth[tuple(tried.T)]))].astype(float)


def displacement(shape: tuple[int, ...], center: npt.NDArray, radius: float, brain: Mask) -> Volume:
    """(3, X, Y, Z) voxels from which tissue came: it is pushed away from the center."""
    away = np.stack(np.meshgrid(*[np.arange(n, dtype=np.float32) for n in shape], indexing="ij"))
    offset = away - center.astype(np.float32)[:, None, None, None]
    distance = np.sqrt((offset**2).sum(0)) + 1e-3
    hold = np.clip(ndi.distance_transform_edt(brain) / 10, 0, 1).astype(np.float32)
    size = PUSH * radius * np.exp(-np.maximum(distance - radius, 0) / FADE) * np.minimum(distance / radius, 1)
    return np.asarray(away - offset / distance * (size * hold), np.float32)


def grow(
    center: npt.NDArray, radius: float, brain: Mask, white: Mask, fluid: Mask, rng: np.random.Generator
) -> Growth:
    """Core around a center; edema spreads in white matter, less in gray, and not into fluid."""
    shape = brain.shape
    axes = [np.arange(n, dtype=np.float32) - c for n, c in zip(shape, center)]
    stretch = np.exp(rng.normal(0, 0.15, 3))
    square = sum((a / s) ** 2 for a, s in zip(np.ix_(*axes), stretch))
    lumps = 0.7 * random_field(shape, max(radius / 1.2, 3.0), rng) + 0.3 * random_field(shape, 4.0, rng)
    level = np.sqrt(square) - radius * (1 + 0.16 * lumps)
    pieces, _ = ndi.label((level < 0) & brain)
    at = tuple(np.rint(center).astype(int))
    inside = pieces == pieces[at] if pieces[at] else pieces == 1
    rim = 2.5 + 0.9 * random_field(shape, 6.0, rng)
    depth = ndi.distance_transform_edt(inside)
    core = np.where(inside, np.where(depth > np.maximum(rim, 1.0), 1, 2), 0).astype(np.uint8)
    away = ndi.distance_transform_edt(~inside)
    width = EDEMA * rng.uniform(0.4, 1.2) * np.exp(0.35 * random_field(shape, 14.0, rng))
    fade = np.clip(1.15 - away / width, 0, 1)
    share = fade * np.where(white, 0.9, 0.35) * (brain & ~inside & ~fluid)
    return Growth(core, ndi.gaussian_filter(share.astype(np.float32), 0.7) * (brain & ~inside & ~fluid))
