"""Small heads given by a formula in world space, so that they can be sampled on any grid exactly."""

from __future__ import annotations

import numpy as np

from tumoar.geometry.image import Grid, Image

AXES = np.array([30.0, 36.0, 33.0])  # mm from the center to the scalp
TISSUES = ("air", "scalp", "skull", "brain", "csf", "lesion")
INTENSITIES = {
    "T1c": (2, 190, 12, 100, 35, 170),
    "T1": (2, 180, 12, 100, 35, 75),
    "T2": (2, 90, 10, 70, 220, 150),
    "FLAIR": (2, 110, 10, 90, 25, 180),
    "CT": (-1000, 40, 900, 36, 8, 28),
}


def tissues(world):
    """Index into TISSUES at world points (..., 3): left and right differ."""
    x, y, z = np.moveaxis(np.asarray(world, float), -1, 0)
    r = np.sqrt(((np.stack([x, y, z], -1) / AXES) ** 2).sum(-1))
    out = np.zeros(r.shape, int)
    out[r < 1] = 1
    out[r < 0.9] = 2
    out[r < 0.8] = 3
    folds = np.sin(x / 3.1 + 0.3 * y / 3) * np.sin(y / 3.7 + 1) * np.sin(z / 3.3 - 0.15 * x)
    out[(r < 0.8) & (r > 0.6) & (folds > 0.55)] = 4
    out[((x - 5) / 4) ** 2 + ((y + 2) / 10) ** 2 + ((z - 3) / 5) ** 2 < 1] = 4
    out[((x + 6) / 5) ** 2 + ((y - 1) / 9) ** 2 + ((z - 2) / 6) ** 2 < 1] = 4
    out[((x - 13) / 5) ** 2 + ((y - 9) / 6) ** 2 + ((z + 4) / 5) ** 2 < 1] = 5
    return out


def head_grid(spacing=(1.0, 1.0, 1.0), pad=8.0, frame=None):
    """A canonical grid around the head."""
    spacing = np.asarray(spacing, float)
    shape = np.ceil(2 * (AXES + pad) / spacing).astype(int)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = np.round(-spacing * (shape - 1) / 2)
    return Grid(tuple(shape), affine, frame)


def synthetic_head(contrast, grid=None, *, stripped=False, moved=None, seed=0):
    """One contrast of the head; `moved` (4x4) displaces the head in world space."""
    grid = head_grid() if grid is None else grid
    rng = np.random.default_rng([seed, *contrast.encode()])
    world = grid.world(np.moveaxis(np.indices(grid.shape), 0, -1))
    if moved is not None:
        back = np.linalg.inv(moved)
        world = world @ back[:3, :3].T + back[:3, 3]
    labels = tissues(world)
    values = np.array(INTENSITIES[contrast], float)[labels]
    if contrast == "CT":
        data = np.rint(values + rng.normal(0, 4, values.shape)).astype(np.int16)
    else:
        data = np.abs(values * rng.normal(1, 0.02, values.shape) + rng.normal(0, 0.5, values.shape)) + 0.25
    if stripped:
        data = np.where(labels >= 3, data, 0)
    return Image(data.astype(np.int16 if contrast == "CT" else np.float32), grid, f"{contrast}.nii.gz")


def with_header_moved(image, matrix):
    """The same voxels, which the header puts elsewhere."""
    return Image(
        image.data, Grid(image.grid.shape, matrix @ image.grid.affine, image.grid.frame), image.source
    )
