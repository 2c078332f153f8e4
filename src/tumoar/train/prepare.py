"""Convert source label maps of whole heads to the label table, as configured in `data/heads.toml`.

Brain structures are mapped, merged and cleaned here; the eye sockets are constructed in `eye_sockets`. Arrays
are canonical (left has the smaller i) at 1 mm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial import cKDTree

from tumoar.geometry.image import Grid
from tumoar.train import eye_sockets
from tumoar.train.head_table import HeadTable
from tumoar.vocabulary.errors import GeometryError, UnreadableFileError
from tumoar.vocabulary.labels import LabelTable

IntArray = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]

_FACES = ndi.generate_binary_structure(3, 1)
_CORNERS = ndi.generate_binary_structure(3, 3)


def prepare_head(
    label_map: IntArray, grid: Grid, table: HeadTable, labels: LabelTable, *, name: str | None = None
) -> npt.NDArray[np.uint8]:
    """Convert a label map from source codes to indices of the label table; `name` is for messages."""
    require_source(label_map, grid, table, name)
    label_map = label_map.astype(np.int32)
    source = fill_speckle(label_map, table.tissue["air"], table.cleaning["speckle"])
    tissue = {key: np.isin(source, codes) for key, codes in table.tissue.items()}

    out = np.full(source.shape, labels.structures[0].index, np.uint8)
    index = {s.name: s.index for s in labels.structures}
    for structure, codes in table.structures.items():
        mask = np.isin(source, codes)
        if structure in table.cleaning["single"]:
            mask = largest_component(mask)
            if not mask.any():
                raise UnreadableFileError("structure-missing", f"no voxel of {structure}", file=name)
        out[mask] = index[structure]
    _keep_one_brain(out, tissue["vessel"], table, labels)

    chiasm = out == index["optic chiasm"]
    brain = np.isin(out, labels.indices[labels.in_brain])
    brain &= ~np.isin(out, labels.indices[list(labels.parts("CSF"))])
    for structure, mask in eye_sockets.make_eye_sockets(tissue, chiasm, brain, table, name).items():
        out[mask] = index[structure]
    out = absorb_islands(out, table.cleaning["island"])
    _check_sides(out, labels, name)
    return out


def measure_volumes(label_map: IntArray, grid: Grid, labels: LabelTable) -> dict[str, float]:
    """Volume of each structure in ml."""
    counts = np.bincount(label_map.ravel(), minlength=256) * grid.voxel_volume / 1000
    return {s.name: float(counts[s.index]) for s in labels.structures if s.trained}


def find_out_of_range(
    measured: Mapping[str, float], table: HeadTable
) -> dict[str, tuple[float, float, float]]:
    """Structures whose volume lies outside the published range: (volume, low, high) in ml."""
    return {
        name: (measured[name], low, high)
        for name, (low, high) in table.volumes.items()
        if name in measured and not low <= measured[name] <= high
    }


# ---- cleaning ----------------------------------------------------------------------------------------------


def fill_speckle(label_map: IntArray, air: tuple[int, ...], size: int) -> IntArray:
    """Fill components of air with fewer than `size` voxels with the nearest label that is not air."""
    empty = np.isin(label_map, air)
    pieces, n = ndi.label(empty, _FACES)
    small = np.bincount(pieces.ravel(), minlength=n + 1) < size
    small[0] = False
    speckle = small[pieces]
    return _take_nearest(label_map, speckle, ~empty)


def absorb_islands(label_map: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Replace components (26 neighbors) of any label with fewer than `size` voxels by the nearest label."""
    island = np.zeros(label_map.shape, bool)
    for value, box in enumerate(ndi.find_objects(label_map.astype(np.int32) + 1)):
        if box is not None:
            pieces, n = ndi.label(label_map[box] == value, _CORNERS)
            small = np.bincount(pieces.ravel(), minlength=n + 1) < size
            small[0] = False
            island[box] |= small[pieces]
    return _take_nearest(label_map, island, ~island)


def largest_component(mask: Mask) -> Mask:
    """Largest component of a mask (26 neighbors)."""
    pieces, n = ndi.label(mask, _CORNERS)
    if n < 2:
        return mask
    counts = np.bincount(pieces.ravel())
    counts[0] = 0
    return pieces == counts.argmax()


def _take_nearest(values: Any, where: Mask, source: Mask) -> Any:
    """Replace values at `where` by those of the nearest voxel of `source`."""
    rim = source & ndi.binary_dilation(where, _CORNERS)
    known = np.argwhere(rim)
    out = values.copy()
    if len(known):
        _, nearest = cKDTree(known).query(np.argwhere(where))
        out[where] = values[rim][nearest]
    return out


def _keep_one_brain(out: npt.NDArray[np.uint8], vessel: Mask, table: HeadTable, labels: LabelTable) -> None:
    """Drop brain labels separate from the brain; vessels inside it, which have no label, become CSF."""
    solid, bridge = table.cleaning["solid"], table.cleaning["intracranial"]
    box = _box_around(np.isin(out, labels.indices[labels.in_brain]), int(2 * bridge) + 2)
    inner = out[box]
    brain = np.isin(inner, labels.indices[labels.in_brain])
    # Filaments, such as air cells labeled as CSF, are thinner than twice `solid` and extend far away.
    body = largest_component(ndi.distance_transform_edt(brain) > solid)
    distance = ndi.distance_transform_edt(~body)
    inner[brain & (distance > solid + 1)] = labels.structures[0].index
    brain &= distance <= solid + 1
    grown = ndi.distance_transform_edt(~brain) <= bridge
    closed = ndi.distance_transform_edt(grown) > bridge
    inner[vessel[box] & closed & ~brain] = labels.structures[labels.l("CSF")].index


def _box_around(mask: Mask, margin: int) -> tuple[slice, ...]:
    found = ndi.find_objects(mask.astype(np.uint8))[0]
    return tuple(slice(max(0, s.start - margin), min(n, s.stop + margin)) for s, n in zip(found, mask.shape))


# ---- checks ------------------------------------------------------------------------------------------------


def require_labels(label_map: IntArray, grid: Grid, labels: LabelTable, name: str | None = None) -> None:
    """Reject label maps that are not at 1 mm, have unknown values, lack a structure, or are mirrored."""
    _check_grid(label_map, grid, 1.0, 0.01, name)
    unknown = sorted(set(np.unique(label_map).tolist()) - {s.index for s in labels.structures if s.trained})
    if unknown:
        raise UnreadableFileError(
            "label-code",
            "label map has values that are not in the label table",
            file=name,
            found=", ".join(map(str, unknown[:8])),
            do="convert it with `tumoar train prepare`",
        )
    _check_sides(label_map, labels, name)


def require_source(label_map: IntArray, grid: Grid, table: HeadTable, name: str | None) -> None:
    """Reject label maps that are not at 1 mm or have codes that the head table lacks."""
    _check_grid(label_map, grid, table.spacing, table.tolerance, name)
    unknown = sorted(set(np.unique(label_map).tolist()) - table.codes)
    if unknown:
        raise UnreadableFileError(
            "label-code",
            "label map has codes that are not in the head table",
            file=name,
            found=", ".join(map(str, unknown[:8])),
            do="add the codes to a head table and pass it with --table",
        )


def _check_grid(label_map: IntArray, grid: Grid, spacing: float, tolerance: float, name: str | None) -> None:
    if label_map.shape != grid.shape:
        raise ValueError(f"label_map must have the grid's shape {grid.shape}, got {label_map.shape}")
    if np.abs(grid.spacing - spacing).max() > tolerance:
        raise GeometryError(
            "label-spacing",
            f"label maps must have {spacing:g} mm voxels",
            file=name,
            found=" x ".join(f"{s:.3g}" for s in grid.spacing) + " mm",
            do=f"resample to {spacing:g} mm with nearest-neighbor interpolation",
        )
    axes = grid.affine[:3, :3] / grid.spacing
    if np.diag(axes).min() < 0.7:
        raise GeometryError(
            "label-orientation",
            "label maps must be in canonical order: right, front, up",
            file=name,
            do="reorient to RAS",
        )


def _check_sides(out: IntArray, labels: LabelTable, name: str | None) -> None:
    """Every structure must be present, and left ones to the left (smaller i) of their mirror images."""
    present = set(np.unique(out).tolist())
    for s in labels.structures:
        if s.trained and s.index not in present:
            raise UnreadableFileError("structure-missing", f"no voxel of {s.name}", file=name)
    for s in labels.structures:
        if s.side != "left" or s.mirror is None or not s.trained:
            continue
        other = labels.structures[labels.l(s.mirror)]
        left, right = (np.nonzero((out == v.index).any((1, 2)))[0] for v in (s, other))
        if left.mean() >= right.mean():
            raise GeometryError(
                "label-sides",
                f"{s.name} lies to the right of {other.name}",
                file=name,
                do="the map or its header is mirrored: correct the source",
            )
