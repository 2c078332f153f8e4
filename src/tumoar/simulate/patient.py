"""A simulated patient: tissue, displaced and infiltrated by the tumor, and ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.simulate.tissue import TissueTable
from tumoar.vocabulary.labels import LabelTable

Volume = npt.NDArray[np.float32]
Maps = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

EDEMA, NECROSIS, ENHANCING = 1, 2, 3
"""Values of a tumor map; 0 is none. Core, y = 1, is necrosis (or non-enhancing tumor) and enhancing tumor."""
FLUID, BLOOD, AIR, WALL = 4, 5, 6, 7
"""Values after surgery: what fills the cavity, and its wall, which enhances but is no tumor."""
REMOVED = {FLUID: "cavity fluid", BLOOD: "old blood", AIR: "air"}
"""Tissue of the values of a cavity."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Ground truth on the label map's grid: l as label indices, z, y, and the exclusive label map.

    The `cavity` of a patient after surgery is not part of y.
    """

    grid: Grid
    l: Maps
    z: Mask
    y: Mask
    exclusive: Maps
    cavity: Mask


@dataclass(frozen=True, eq=False)
class Phantom:
    """Tissue of every voxel, the fraction that edema has replaced, and the mask of skull stripping."""

    grid: Grid
    tissue: Maps
    infiltration: Volume
    stripped: Mask


def tissue_map(
    label_map: Maps,
    grid: Grid,
    labels: LabelTable,
    table: TissueTable,
    source: npt.NDArray[np.integer] | None = None,
) -> Maps:
    """Tissue of every voxel; the background from source codes if given, else from layers."""
    outside = label_map == labels.structures[0].index
    if source is None:
        out = _layers(~outside, grid, table)
    else:
        out = np.full(label_map.shape, table.index("air"), np.uint8)
        for name, codes in table.source.items():
            out[outside & np.isin(source, codes)] = table.index(name)
    for s in labels.structures[1:]:
        out[label_map == s.index] = table.index(table.structure[s.name])
    return out


def _layers(inside: Mask, grid: Grid, table: TissueTable) -> Maps:
    """Skull and scalp around the labels; below their middle a tapering face and neck of soft tissue."""
    out = np.full(inside.shape, table.index("air"), np.uint8)
    distance = ndi.distance_transform_edt(~inside, sampling=grid.spacing)
    depth = sum(thickness for _, thickness in table.layers)
    below = np.maximum(np.argwhere(inside).mean(0)[2] - np.arange(inside.shape[2]), 0) * grid.spacing[2]
    section = (distance < depth).any(2)
    taper = ndi.distance_transform_edt(section, sampling=grid.spacing[:2])[:, :, None]
    neck = (below > 0) & (taper > 0.12 * below)
    out[neck] = table.index("soft tissue")
    low = 0.0
    for name, thickness in table.layers:
        shell = (distance > low) & (distance <= low + thickness)
        # Below the skull there is soft tissue instead of scalp.
        out[shell & ~neck if low > depth / 2 else shell] = table.index(name)
        low += thickness
    return out


def displace(maps: Sequence[Maps], core: Mask, brain: Mask, grid: Grid, push: float) -> tuple[Maps, ...]:
    """Mass effect: displace maps away from the core by at most `push` mm; the brain's edge is fixed."""
    if push == 0 or not core.any():
        return tuple(maps)
    radius = (3 * core.sum() * grid.voxel_volume / (4 * np.pi)) ** (1 / 3)
    density = ndi.gaussian_filter(core.astype(np.float32), (radius / 2 + 6.0) / grid.spacing)
    slope = np.stack(np.gradient(density, *grid.spacing))
    slope *= push / max(float(np.sqrt((slope**2).sum(0)).max()), 1e-12)
    hold = np.clip(ndi.distance_transform_edt(brain, sampling=grid.spacing) / 12.0, 0, 1).astype(np.float32)
    where = np.indices(grid.shape, np.float32) + slope * hold / grid.spacing[:, None, None, None]
    return tuple(ndi.map_coordinates(m, where, order=0, mode="nearest") for m in maps)


def make_truth(label_map: Maps, tumor: Maps, grid: Grid, labels: LabelTable) -> Truth:
    """State (l, z, y) of every voxel, consistent with f(l, z, y): tumor is restricted to the brain."""
    brain = labels.in_brain[_to_positions(label_map, labels)]
    y = np.isin(tumor, (NECROSIS, ENHANCING)) & brain
    cavity = np.isin(tumor, tuple(REMOVED)) & brain
    # Edema is swollen tissue: there is none in fluid, but core displaces fluid.
    swollen = np.isin(tumor, (EDEMA, WALL)) & brain & (label_map != labels.indices[labels.l("CSF")])
    z = y | swollen
    index = {t.name: t.index for t in labels.tumor}
    exclusive = label_map.copy()
    exclusive[z] = index["edema"]
    exclusive[y] = index["core"]
    if labels.cavity is not None:
        exclusive[cavity] = labels.structures[labels.cavity].index
    return Truth(grid, label_map, z, y, exclusive, cavity)


def make_phantom(
    truth: Truth,
    tumor: Maps,
    tissue: Maps,
    labels: LabelTable,
    table: TissueTable,
    rng: np.random.Generator,
) -> Phantom:
    """Make the phantom of a ground truth."""
    out = tissue.copy()
    out[truth.y & (tumor == NECROSIS)] = table.index("necrosis")
    out[truth.y & (tumor == ENHANCING)] = table.index("enhancing tumor")
    out[truth.z & (tumor == WALL)] = table.index("scar")
    for value, name in REMOVED.items():
        out[truth.cavity & (tumor == value)] = table.index(name)
    # Edema is never complete, fades toward its border, and spares gray matter.
    depth = ndi.gaussian_filter(truth.z.astype(np.float32), 1.5 / truth.grid.spacing)
    strength = np.clip(0.75 + 0.12 * smooth_noise(truth.grid, 6.0, rng), 0.4, 1.0)
    gray = [table.index("gray matter"), table.index("deep gray matter")]
    sparing = np.where(np.isin(out, gray), 0.7, 1.0)
    edema = truth.z & ~truth.y & (tumor != WALL)
    infiltration = np.where(edema, np.clip(0.4 + 0.6 * depth, 0, 1) * strength * sparing, 0)
    return Phantom(truth.grid, out, infiltration.astype(np.float32), _strip_skull(truth, labels))


def _strip_skull(truth: Truth, labels: LabelTable) -> Mask:
    """Brain without most of the surrounding fluid, as in the output of skull-stripping tools."""
    brain = labels.in_brain[_to_positions(truth.l, labels)]
    chiasm = truth.l == labels.indices[labels.l("optic chiasm")]
    tight = brain & (truth.l != labels.indices[labels.l("CSF")])
    near = ndi.distance_transform_edt(~tight, sampling=truth.grid.spacing) <= 2.0
    return (
        ndi.binary_fill_holes(ndi.binary_closing(near, iterations=4)) & (brain | chiasm)
        | truth.z
        | truth.cavity
    )


def _to_positions(label_map: Maps, labels: LabelTable) -> npt.NDArray[np.int64]:
    """Convert label indices to positions in the label table."""
    table = np.zeros(256, np.int64)
    table[labels.indices] = np.arange(labels.K)
    return table[label_map]


def smooth_noise(grid: Grid, width: float, rng: np.random.Generator) -> Volume:
    """Gaussian field of unit variance, correlated over `width` mm."""
    noise = rng.standard_normal(grid.shape, np.float32)
    smooth = ndi.gaussian_filter(noise, width / grid.spacing, mode="wrap")
    return smooth / smooth.std()
