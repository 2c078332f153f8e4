"""A finished result as DICOM on the slices of a series: which series may carry it, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.errors import GeometryError
from tumoar.image import Grid, frame_digest
from tumoar.inference.resample import resample
from tumoar.io.dicom import Series, digest_of, grid_of
from tumoar.io.identity import require_patient
from tumoar.io.nifti import read_nifti
from tumoar.io.results import added, read_manifest
from tumoar.io.rois import Roi, look_of
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.io.seg import write_seg
from tumoar.labels import LabelTable, default_labels

FOLDER, RTSTRUCT, SEG = "dicom", "RTSTRUCT.dcm", "SEG.dcm"
SAME_VOXELS = 0.1  # mm at any corner
CHANGED = 0.1  # of a volume, on coarser voxels

Matrix = npt.NDArray[np.float64]


def export(
    out: Path, series: Series, *, rtstruct: bool, seg: bool, smooth: bool = False, trust: bool = False
) -> tuple[list[str], list[str]]:
    """Add RTSTRUCT and SEG files to a finished result; names of what was written, and notes."""
    manifest = read_manifest(out)
    require_patient(manifest.get("patient", {}), manifest.get("key", ""), series.person, "the series")
    rois = rois_on(out, manifest, series, trust=trust)
    notes = [note for row in manifest["volumes"] if (note := _changed(row, rois, grid_of(series)[0]))]
    key = manifest.get("key", "")
    with added(out) as work:
        folder = work / FOLDER
        folder.mkdir()
        if rtstruct:
            write_rtstruct(folder / RTSTRUCT, rois, series, smooth=smooth, key=key)
        if seg:
            write_seg(folder / SEG, rois, series, key=key)
        names = [f"{FOLDER}/{path.name}" for path in sorted(folder.iterdir())]
    return names, notes


def rois_on(out: Path, manifest: Mapping[str, Any], series: Series, *, trust: bool = False) -> list[Roi]:
    """Every structure of a result on the voxels of a series; a voxel belongs if more than half of it does."""
    grid, _ = grid_of(series)
    table = default_labels()
    reference = read_nifti(out / "segmentation.nii.gz").grid
    matrix = to_reference(out, manifest, series, reference, trust=trust)
    rois = []
    for path in sorted((out / "structures").glob("*.nii.gz"), key=lambda p: _place(table, p)):
        name = path.name.removesuffix(".nii.gz")
        image = read_nifti(path)
        mask = resample(image.data, image.grid, grid, matrix) > 0.5
        rois.append(_roi(table, name, mask))
    return rois


def to_reference(
    out: Path, manifest: Mapping[str, Any], series: Series, reference: Grid, *, trust: bool
) -> Matrix:
    """(4, 4) from the world of the series to that of the result's reference image.

    Known if the series is one of the images that were segmented, shares the frame of reference of one, or
    has the very voxels of the reference; else it is believed only by choice.
    """
    inputs = manifest.get("inputs", [])
    digest = digest_of(series)
    for given in inputs:
        if digest == given.get("sha256"):
            return _transform(out, given["contrast"], manifest)
    for given in inputs:
        if series.frame is not None and frame_digest(series.frame) == given.get("frame"):
            return _transform(out, given["contrast"], manifest)
    if trust or same_voxels(grid_of(series)[0], reference):
        return np.eye(4)
    raise GeometryError(
        "B33",
        "the series is not known to lie in the space of the result",
        found=series.name,
        do="give a series that was segmented, or --trust-headers if it shares their coordinates",
    )


def same_voxels(a: Grid, b: Grid) -> bool:
    """Whether two grids have the same voxels, whatever the order of their axes."""
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
    ends = [np.sort(g.world(corners * (np.array(g.shape) - 1)), axis=0) for g in (a, b)]
    if sorted(a.shape) != sorted(b.shape) or np.abs(ends[0] - ends[1]).max() > SAME_VOXELS:
        return False
    inside = a.index(b.world(corners * (np.array(b.shape) - 1)))
    return bool(np.abs(inside - np.rint(inside)).max() * a.spacing.max() <= SAME_VOXELS)


def _changed(row: Mapping[str, Any], rois: list[Roi], grid: Grid) -> str | None:
    """A sentence where the voxels of the series are too coarse for a structure."""
    before = float(row["outlined_cm3"])
    found = [float(r.mask.sum()) * grid.voxel_volume / 1000 for r in rois if r.name == row["name"]]
    if not found or abs(found[0] - before) <= max(CHANGED * before, 3 * grid.voxel_volume / 1000):
        return None
    return f"{row['name']} is {found[0]:.2f} cm³ on the voxels of this series, {before:.2f} cm³ in the result"


def _transform(out: Path, name: str, manifest: Mapping[str, Any]) -> Matrix:
    if name == manifest["reference"]:
        return np.eye(4)
    return np.loadtxt(out / "transforms" / f"{name}_to_{manifest['reference']}.txt")


def _place(table: LabelTable, path: Path) -> tuple[int, str]:
    names = [organ.name for organ in table.organs]
    name = path.name.removesuffix(".nii.gz")
    return (names.index(name) if name in names else len(names)), name


def _roi(table: LabelTable, name: str, mask: npt.NDArray[np.bool_]) -> Roi:
    known = {organ.name: organ for organ in table.organs}
    if name in known:
        color, code = look_of(table, known[name])
        return Roi(name, known[name].kind, color, mask, code)
    kind = name.partition("_")[0]  # margins: CTV, PTV
    color, code = look_of(table, known["GTV"])
    return Roi(name, kind if kind in ("CTV", "PTV") else "CONTROL", color, mask, code)
