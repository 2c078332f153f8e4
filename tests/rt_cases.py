"""Random frames and structures for round trips through DICOM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid

SIZE = (22, 18, 9)


@dataclass(frozen=True)
class Frame:
    """Where slices lie: with unequal spacing of rows and columns, axial or turned, either way up."""

    grid: Grid
    is_axial: bool


def random_frame(rng: np.random.Generator, *, axial: bool | None = None) -> Frame:
    is_axial = bool(rng.random() < 0.4) if axial is None else axial
    turn = np.diag(rng.choice([-1.0, 1.0], 3))
    if not is_axial:
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3] = turn * rng.uniform([0.7, 0.7, 0.9], [2.0, 2.0, 4.0])
    affine[:3, 3] = rng.uniform(-150, 150, 3)
    return Frame(Grid(SIZE, affine), is_axial)


def transverse(grid: Grid, *, square: bool = False) -> Grid:
    """The same voxels as slices in the standard order: columns to the left, rows to the back, slices up."""
    spacing = grid.spacing[[0, 0, 2]] if square else grid.spacing
    affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
    affine[:3, 3] = grid.affine[:3, 3]
    return Grid(grid.shape, affine)


def rod(rng: np.random.Generator, shape: tuple[int, ...], length: int) -> np.ndarray:
    """A few voxels in a row along an axis."""
    mask = np.zeros(shape, bool)
    axis = int(rng.integers(3))
    start = [int(rng.integers(0, n - (length if a == axis else 0))) for a, n in enumerate(shape)]
    place = [slice(s, s + (length if a == axis else 1)) for a, s in enumerate(start)]
    mask[tuple(place)] = True
    return mask


def blob(rng: np.random.Generator, shape: tuple[int, ...], holes: bool) -> np.ndarray:
    """Parts of any form; with holes in them."""
    field = ndi.gaussian_filter(rng.normal(size=shape), 1.5)
    mask = field > np.quantile(field, rng.uniform(0.6, 0.9))
    if holes:
        mask = ndi.binary_dilation(mask, iterations=2)
        mask &= ~ndi.binary_erosion(mask, iterations=1)
        mask[0] = mask[-1] = False
    return mask


def random_masks(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    masks = {f"Rod_{n}": rod(rng, shape, n) for n in (1, 2, 3, 4, 5, 6)}
    return masks | {
        "Blob": blob(rng, shape, holes=False),
        "Shell": blob(rng, shape, holes=True),
        "Nothing": np.zeros(shape, bool),
    }
