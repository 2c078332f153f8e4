"""Resample images between grids with SimpleITK.

Physical space of SimpleITK images is taken as RAS, so no axes are flipped. Interpolation is linear: positive
values stay positive, and edges do not ring.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy.ndimage import find_objects

from tumoar.geometry.image import FloatArray, Grid

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
IDENTITY = np.eye(4)


def resample(
    values: npt.NDArray[np.generic], grid: Grid, onto: Grid, to_source: Matrix = IDENTITY, fill: float = 0.0
) -> npt.NDArray[np.float32]:
    """Resample values from `grid` to `onto`; `to_source` maps world coordinates of `onto` to `grid`."""
    out = sitk.Resample(
        to_itk(np.asarray(values, np.float32), grid),
        onto.shape,
        affine_transform(to_source),
        sitk.sitkLinear,
        onto.affine[:3, 3].tolist(),
        onto.spacing.tolist(),
        (onto.affine[:3, :3] / onto.spacing).ravel().tolist(),
        fill,
    )
    return from_itk(out)


def resample_sparse(
    values: npt.NDArray[np.generic], grid: Grid, onto: Grid, to_source: Matrix = IDENTITY
) -> npt.NDArray[np.float32]:
    """Like `resample`, faster if most values are 0: only the bounding box of the others is processed."""
    out = np.zeros(onto.shape, np.float32)
    found = find_objects((values != 0).view(np.uint8))
    if not found:
        return out
    low = np.array([max(s.start - 1, 0) for s in found[0]])
    high = np.minimum([s.stop + 1 for s in found[0]], grid.shape)
    to_onto = onto.inverse @ np.linalg.inv(to_source) @ grid.affine
    corners = np.array(np.meshgrid(*np.stack([low - 1, high], 1))).reshape(3, -1)
    reached = to_onto[:3, :3] @ corners + to_onto[:3, 3:]
    first = np.maximum(np.floor(reached.min(1)).astype(int), 0)
    last = np.minimum(np.ceil(reached.max(1)).astype(int) + 1, onto.shape)
    if (first >= last).any():
        return out
    (a, b, c), (i, j, k) = (tuple(map(slice, *ends)) for ends in ((low, high), (first, last)))
    part = resample(values[a, b, c], cut_grid(grid, (a, b, c)), cut_grid(onto, (i, j, k)), to_source)
    out[i, j, k] = part
    return out


def resample_mean(
    values: npt.NDArray[np.generic], grid: Grid, onto: Grid, to_source: Matrix = IDENTITY
) -> npt.NDArray[np.float32]:
    """Like `resample_sparse`, averaged over voxels of `onto` if they are larger than those of `grid`."""
    parts = np.maximum(np.rint(onto.spacing / grid.spacing.mean()).astype(int), 1)
    if (parts == 1).all():
        return resample_sparse(values, grid, onto, to_source)
    (a, b, c), (x, y, z) = parts.tolist(), onto.shape
    affine = onto.affine @ np.diag([1 / a, 1 / b, 1 / c, 1])
    affine[:3, 3] = onto.world((1 / parts - 1) / 2)
    fine = resample_sparse(values, grid, Grid((a * x, b * y, c * z), affine, onto.frame), to_source)
    return fine.reshape(x, a, y, b, z, c).mean((1, 3, 5))


def cut_grid(grid: Grid, box: tuple[slice, slice, slice]) -> Grid:
    """The voxels of a grid inside a box."""
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world([s.start for s in box])
    x, y, z = (int(s.stop - s.start) for s in box)
    return Grid((x, y, z), affine, grid.frame)


def resample_valid(
    values: npt.NDArray[np.generic], valid: Mask, grid: Grid, onto: Grid, to_source: Matrix = IDENTITY
) -> tuple[npt.NDArray[np.float32], Mask]:
    """Like `resample`, from valid voxels only; valid where they have at least half of the weight.

    Padding and zeros around a skull-stripped brain do not affect neighboring values.
    """
    weight = resample(valid, grid, onto, to_source)
    total = resample(np.where(valid, values, 0), grid, onto, to_source)
    is_valid = weight >= 0.5
    return np.divide(total, weight, out=np.zeros_like(total), where=is_valid), is_valid


def to_itk(values: npt.NDArray[np.generic], grid: Grid) -> sitk.Image:
    """Convert to a SimpleITK image whose physical space is RAS."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.T))
    image.SetSpacing(grid.spacing.tolist())
    image.SetDirection((grid.affine[:3, :3] / grid.spacing).ravel().tolist())
    image.SetOrigin(grid.affine[:3, 3].tolist())
    return image


def from_itk(image: sitk.Image) -> FloatArray:
    """Values of a SimpleITK image, indexed [i, j, k]."""
    return np.ascontiguousarray(sitk.GetArrayFromImage(image).T)


def affine_transform(matrix: Matrix) -> sitk.AffineTransform:
    """Convert a 4x4 matrix to a SimpleITK transform."""
    transform = sitk.AffineTransform(3)
    transform.SetMatrix(matrix[:3, :3].ravel().tolist())
    transform.SetTranslation(matrix[:3, 3].tolist())
    return transform
