"""Scans of a head: slices of any thickness and orientation, coils, noise, and metal on CT.

The signal at 0.5 mm is integrated over every voxel: over its area in the plane, and with the profile of the
slice across it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample
from tumoar.simulate.independent.head import Head, double, random_field
from tumoar.simulate.independent.sequences import RelaxationTable

Volume = npt.NDArray[np.float32]
Orientation = Literal["axial", "sagittal", "coronal"]
AXES: dict[Orientation, tuple[int, int, int]] = {
    "axial": (0, 1, 2),
    "sagittal": (1, 2, 0),
    "coronal": (0, 2, 1),
}
"""World axes of the rows, columns and slices of an image."""
STEP = 0.5
"""Millimeters between the samples that a voxel is integrated from."""
EDGE = 0.35
"""Width of the slope of the slice profile, as a fraction of the thickness."""
COILS, AROUND = 12, 150.0
"""Receive coils, and their distance from the middle of the head in mm."""
GAIN = 500.0
"""Value of white matter in MR."""
CT_NOISE = 7.0
"""HU at 1 mm; it falls with the root of the thickness."""


@dataclass(frozen=True)
class Scan:
    """How one contrast is acquired.

    `pixel` and `thickness` in mm; the head is turned by the rotation vector `turn` in degrees about its
    middle, then shifted by `shift` in mm; noise as a fraction of white matter (MR); `shading` between 0
    (none) and 1 (the bare sensitivity of the coils); `field` in tesla.
    """

    contrast: str
    pixel: float = 1.0
    thickness: float = 1.0
    orientation: Orientation = "axial"
    turn: tuple[float, float, float] = (0.0, 0.0, 0.0)
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    noise: float = 0.025
    shading: float = 0.5
    field: float = 3.0
    metal: bool = False


def acquire(head: Head, how: Scan, table: RelaxationTable, rng: np.random.Generator) -> Image:
    """One image as int16: MR positive, CT in HU, in the space of the scanner."""
    texture, coils, noise, metal = rng.spawn(4)
    clean = render(head, how, table, texture)
    is_mr = table.sequences[how.contrast].is_mr
    grid = make_grid(head.grid, how)
    data = integrate(clean, head.grid, grid, motion(head.grid, how), how.thickness, 0.0 if is_mr else -1000.0)
    del clean
    if is_mr:
        data *= sensitivity(grid, how.shading, coils)
        real = data + how.noise * noise.standard_normal(data.shape, np.float32)
        data = GAIN * np.hypot(real, how.noise * noise.standard_normal(data.shape, np.float32))
        return Image(np.rint(np.clip(data, 1, 32000)).astype(np.int16), grid, f"{how.contrast}.nii.gz")
    if how.metal:
        data = add_metal(data, grid, metal)
    grains = ndi.gaussian_filter(noise.standard_normal(data.shape, np.float32), (0.7, 0.7, 0))
    data += grains / grains.std() * np.float32(CT_NOISE / np.sqrt(how.thickness))
    return Image(np.rint(np.clip(data, -1024, 3071)).astype(np.int16), grid, f"{how.contrast}.nii.gz")


def render(head: Head, how: Scan, table: RelaxationTable, rng: np.random.Generator) -> Volume:
    """Signal at 0.5 mm; T1 (or HU) varies inside each tissue, finely and over the head."""
    low, mean, high = table.signals(how.contrast, how.field)
    slope = (high - low) / 2
    x, y, z = (n // 2 for n in head.tissue.shape)
    field = 0.6 * random_field((x, y, z), 2.0, rng) + 0.6 * random_field((x, y, z), 6.0, rng)
    field += 0.5 * random_field((x, y, z), 30.0, rng)
    out = np.empty(head.tissue.shape, np.float32)
    edema = table.index("edema")
    for first in range(0, z, 16):  # in slabs: fields at 0.5 mm are large
        slab = slice(2 * first, 2 * min(first + 16, z))
        fine = field[:, :, first : first + 16].repeat(2, 0).repeat(2, 1).repeat(2, 2)
        tissue = head.tissue[:, :, slab]
        part = mean[tissue] + slope[tissue] * fine
        share = double(head.edema[:, :, first : first + 16])
        out[:, :, slab] = (1 - share) * part + share * (mean[edema] + slope[edema] * fine)
    return out


def motion(grid: Grid, how: Scan) -> npt.NDArray[np.float64]:
    """4x4 from the space of the scanner to that of the head."""
    center = grid.world((np.array(grid.shape) - 1) / 2)
    out = np.eye(4)
    out[:3, :3] = Rotation.from_rotvec(how.turn, degrees=True).as_matrix().T
    out[:3, 3] = center - out[:3, :3] @ (center + np.asarray(how.shift))
    return out


def make_grid(head: Grid, how: Scan) -> Grid:
    """Field of view over the head, with its rows, columns and slices along the axes of the orientation."""
    axes = AXES[how.orientation]
    spacing = np.array([how.pixel, how.pixel, how.thickness])
    extent = (np.array(head.shape) * head.spacing)[list(axes)]
    shape = np.maximum(np.ceil(extent / spacing), 1).astype(int)
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[:, axes] * spacing
    middle = head.world((np.array(head.shape) - 1) / 2)
    affine[:3, 3] = middle - affine[:3, :3] @ ((shape - 1) / 2)
    return Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)


def slice_profile(samples: int) -> npt.NDArray[np.float64]:
    """Weights of the samples across a slice, its own in the middle, sloping into its neighbors.

    The weights of all slices sum to the same at every sample, so that slices conserve the mean.
    """
    slope = max(1, round(EDGE * samples))
    slope += 1 - slope % 2  # odd: the profile stays centered
    profile = np.convolve(np.ones(samples), np.ones(slope) / slope)
    return profile / profile.sum()


def integrate(
    values: Volume, grid: Grid, onto: Grid, to_head: npt.NDArray[np.float64], thickness: float, outside: float
) -> Volume:
    """Values averaged over the voxels of a grid, by samples `STEP` mm apart."""
    parts = np.maximum(np.rint(onto.spacing / STEP).astype(int), 1)
    profile = slice_profile(int(parts[2]))
    beyond = (len(profile) - int(parts[2])) // 2
    a, b, c = parts.tolist()
    x, y, z = onto.shape
    fine = onto.affine @ np.diag([1 / a, 1 / b, 1 / c, 1])
    out = np.empty(onto.shape, np.float32)
    step = max(1, 32 // c)
    for first in range(0, z, step):
        last = min(first + step, z)
        rows = (last - first) * c + 2 * beyond
        affine = fine.copy()
        corner = np.array([0, 0, first]) + (1 / parts - 1) / 2 - np.array([0, 0, beyond / c])
        affine[:3, 3] = onto.world(corner)
        sampled = resample(values, grid, Grid((a * x, b * y, rows), affine), to_head, outside)
        plane = sampled.reshape(x, a, y, b, rows).mean((1, 3))
        for k in range(first, last):
            begin = (k - first) * c
            out[:, :, k] = plane[:, :, begin : begin + len(profile)] @ profile
    return out


def sensitivity(grid: Grid, shading: float, rng: np.random.Generator) -> Volume:
    """Root of the summed squares of coils around the head, to the power of `shading`; mean 1.

    Each coil falls off as a loop does along its axis, 1 / (1 + (distance / radius)²)^1.5.
    """
    middle = grid.world((np.array(grid.shape) - 1) / 2)
    angle = 2 * np.pi * (np.arange(COILS) + rng.random()) / COILS
    height = np.where(np.arange(COILS) % 2, 60.0, -50.0) + rng.normal(0, 10, COILS)
    ring = np.stack([np.cos(angle), 1.15 * np.sin(angle), height / AROUND], 1) * AROUND
    gain = np.exp(rng.normal(0, 0.25, COILS))
    step = [max(1, round(6 / s)) for s in grid.spacing]
    axes = [np.arange(0, n + s, s) for n, s in zip(grid.shape, step)]
    where = grid.world(np.stack(np.meshgrid(*axes, indexing="ij"), -1))
    total = np.zeros(where.shape[:3])
    for coil, g in zip(middle + ring, gain):
        square = ((where - coil) ** 2).sum(-1)
        total += (g / (1 + square / 70.0**2) ** 1.5) ** 2
    coarse = np.sqrt(total) ** shading
    index = np.ix_(*[np.arange(n) / s for n, s in zip(grid.shape, step)])
    out = ndi.map_coordinates(
        coarse.astype(np.float32), np.stack(np.broadcast_arrays(*index)), order=1, mode="nearest"
    )
    return np.asarray(out / out.mean(), np.float32)


def add_metal(data: Volume, grid: Grid, rng: np.random.Generator) -> Volume:
    """Two fillings with streaks in their planes; the lower front of the bone stands for teeth."""
    bone = np.argwhere(data > 700)
    world = grid.world(bone)
    low = np.quantile(world, 0.03, 0)
    high = np.quantile(world, 0.97, 0)
    teeth = bone[
        (world[:, 1] > low[1] + 0.75 * (high - low)[1]) & (world[:, 2] < low[2] + 0.3 * (high - low)[2])
    ]
    if not len(teeth):
        return data
    out, metal = data.copy(), np.zeros(data.shape, bool)
    where = grid.world(np.stack(np.meshgrid(*[np.arange(n) for n in data.shape], indexing="ij"), -1))
    for place in grid.world(teeth[rng.integers(0, len(teeth), 2)]):
        x, y, z = np.moveaxis(where - place, -1, 0)
        distance, angle = np.hypot(x, y), np.arctan2(y, x)
        rays = sum(rng.normal() * np.cos(m * angle + rng.uniform(0, 6.3)) for m in range(5, 40, 3))
        size = 250 * np.exp(-((z / 5) ** 2)) / (1 + distance / 25)
        out += np.asarray(size * rays / 2, np.float32)
        metal |= (distance < 3) & (np.abs(z) < 4)
    out[metal] = 3071
    return out
