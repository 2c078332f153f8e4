"""Scanner simulation: signal variation in each tissue, partial volume, acquired grid, bias field, noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample
from tumoar.simulate.patient import Phantom, Volume, smooth_noise
from tumoar.simulate.tissue import TissueTable

MR_NOISE = 0.03
CT_NOISE = 6.0


@dataclass(frozen=True)
class Acquisition:
    """Acquisition of one contrast.

    Spacing in mm; noise as a fraction of the reference tissue's signal (MR) or in HU (CT); bias as the
    largest relative change of intensity; shift in mm and rotation vector in degrees of the field of view
    relative to the patient; gain in arbitrary units (MR).
    """

    contrast: str
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    noise: float | None = None
    bias: float = 0.3
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rotation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gain: float = 600.0


def acquire(
    scene: Phantom,
    how: Acquisition,
    table: TissueTable,
    rng: np.random.Generator,
    *,
    skull_stripped: bool = False,
) -> Image:
    """Simulate one contrast as int16: MR positive, CT in HU; 0 or −1024 where stripped."""
    grid, is_mr = scene.grid, table.scans[how.contrast].is_mr
    mean, sd = table.signals(how.contrast)
    edema, w = table.index("edema"), scene.infiltration
    clean = (1 - w) * mean[scene.tissue] + w * mean[edema]
    clean += ((1 - w) * sd[scene.tissue] + w * sd[edema]) * smooth_noise(grid, 1.6, rng)
    if is_mr:
        np.maximum(clean, 0, out=clean)

    # Partial volume: blur by the voxel size, at least that of the label map.
    sigma = np.maximum(0.4 * np.array(how.spacing), 0.45 * grid.spacing) / grid.spacing
    clean = ndi.gaussian_filter(clean, sigma, mode="nearest")
    onto = change_spacing(grid, how.spacing)
    center = grid.world((np.array(grid.shape) - 1) / 2)
    motion = rigid_motion(how.rotation, how.shift, center)
    image = resample(clean, grid, onto, motion, float(mean[table.index("air")]))

    if is_mr:
        image *= np.exp(np.log(1 + how.bias) * bias_shape(onto, rng))
        noise = rng.normal(0, MR_NOISE if how.noise is None else how.noise, (2, *onto.shape))
        # Rician noise: the magnitude of a complex signal with equal noise in both parts.
        image = np.maximum(np.round(how.gain * np.hypot(image + noise[0], noise[1])), 1)
    else:
        noise = rng.normal(0, CT_NOISE if how.noise is None else how.noise, onto.shape)
        image = np.clip(np.round(image + noise), -1024, 3071)
    if skull_stripped:
        image = np.where(resample(scene.stripped, grid, onto, motion) > 0.5, image, 0 if is_mr else -1024)
    return Image(image.astype(np.int16), onto, f"simulated {how.contrast}")


def change_spacing(grid: Grid, spacing: Sequence[float]) -> Grid:
    """Grid with other voxel sizes over the same field of view."""
    shape = np.maximum(np.round(np.array(grid.shape) * grid.spacing / spacing), 1).astype(int)
    affine = grid.affine.copy()
    affine[:3, :3] = grid.affine[:3, :3] / grid.spacing * spacing
    affine[:3, 3] = grid.world((np.array(grid.shape) - 1) / 2) - affine[:3, :3] @ ((shape - 1) / 2)
    return Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine, grid.frame)


def rigid_motion(
    rotation: Sequence[float], shift: Sequence[float], center: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """4x4 world transform: rotation vector in degrees about `center`, then shift in mm."""
    out = np.eye(4)
    out[:3, :3] = Rotation.from_rotvec(rotation, degrees=True).as_matrix()
    out[:3, 3] = center + np.asarray(shift) - out[:3, :3] @ center
    return out


def bias_shape(grid: Grid, rng: np.random.Generator) -> Volume:
    """Smooth field within [−1, 1], made of the lowest cosines along each axis."""
    coefficients = rng.normal(size=(3, 3, 3))
    coefficients[0, 0, 0] = 0.0
    axes = [np.cos(np.pi * np.outer(np.arange(n) + 0.5, np.arange(3)) / n) for n in grid.shape]
    field = np.einsum("abc,ia,jb,kc->ijk", coefficients, *axes, optimize=True)
    return (field / np.abs(field).max()).astype(np.float32)
