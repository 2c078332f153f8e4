"""Export a finished result as DICOM on the slices of a series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, frame_digest
from tumoar.io.dicom import Series, digest_of, grid_of
from tumoar.io.identity import require_patient, seal_identity
from tumoar.io.nifti import read_nifti
from tumoar.io.rois import NOT_REVIEWED, Review, Roi, look_of, look_of_target
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.io.seg import write_seg
from tumoar.result.folder import add_files, read_manifest
from tumoar.result.masks import (
    label_table,
    read_mask,
    require_listed,
    resample_mask,
    same_voxels,
    structure_names,
    transform_to_reference,
)
from tumoar.result.parts import describe_gtv
from tumoar.result.prediction import describe_interval
from tumoar.result.segmentation import Volume
from tumoar.result.stored import volume_of
from tumoar.vocabulary.errors import GeometryError
from tumoar.vocabulary.labels import LabelTable
from tumoar.vocabulary.notes import Note, find_lacking

FOLDER, RTSTRUCT, SEG = "dicom", "RTSTRUCT.dcm", "SEG.dcm"
CHANGED = 0.1  # of a volume, on coarser voxels
EDGE = 0.05  # of a voxel: rounding of positions in headers
UNCHECKED = Note(
    "B34", "patient identity could not be checked, result and series do not both name the patient"
)

Matrix = npt.NDArray[np.float64]


def export(
    out: Path,
    series: Series,
    *,
    rtstruct: bool,
    seg: bool,
    smooth: bool = False,
    trust: bool = False,
    review: Review = NOT_REVIEWED,
    edition: str = "",
) -> tuple[list[str], list[Note]]:
    """Add RTSTRUCT and SEG files to a finished result; return their names, and notes.

    `review` is what a person did with the outlines, and `edition` tells corrected outlines from others of the
    same result: they get UIDs of their own.
    """
    manifest = read_manifest(out)
    require_patient(manifest.get("patient", {}), manifest.get("key", ""), series.person, "the series")
    rois = rois_on(out, manifest, series, trust=trust)
    is_checked = is_identity_checked(manifest, series)
    notes = [] if is_checked else [UNCHECKED]
    grid = grid_of(series)[0]
    outside = _outside(out, manifest, series, grid, trust=trust)
    for row in (*manifest["volumes"], *manifest.get("margins", ())):
        share = outside[row["name"]]
        text = f"{max(100 * share, 0.1):.1f} % of it lies outside the series, where it is not drawn"
        note = Note("export", text, where=row["name"]) if share else _note_changed(row, rois, grid)
        notes += [note] if note else []
    key = manifest.get("key", "") + edition
    with add_files(out, manifest) as work:
        folder = work / FOLDER
        folder.mkdir()
        if rtstruct:
            path = folder / RTSTRUCT
            write_rtstruct(path, rois, series, smooth=smooth, key=key, is_checked=is_checked, review=review)
        if seg:
            write_seg(folder / SEG, rois, series, key=key, is_checked=is_checked, review=review)
        names = [f"{FOLDER}/{path.name}" for path in sorted(folder.iterdir())]
    return names, notes


def is_identity_checked(manifest: Mapping[str, Any], series: Series) -> bool:
    """Whether a series is known to show the patient of the result, beyond sharing coordinates.

    It is if it was segmented itself, shares the frame of reference of a segmented image, or if both name the
    patient (`require_patient` compares them).
    """
    if _linked(manifest, series) is not None:
        return True
    theirs = seal_identity(series.person, manifest.get("key", ""))
    return bool(theirs.keys() & manifest.get("patient", {}).keys())


def rois_on(out: Path, manifest: Mapping[str, Any], series: Series, *, trust: bool = False) -> list[Roi]:
    """Every structure of a result on the voxels of a series; voxels more than half inside count."""
    grid, _ = grid_of(series)
    table = label_table(manifest)
    reference = read_nifti(require_listed(out, manifest, "segmentation.nii.gz")).grid
    matrix = to_reference(out, manifest, series, reference, trust=trust)
    lacking = find_lacking(map(Note.from_dict, manifest["notes"]))
    rois = []
    for name in ordered_names(manifest, table):
        roi = roi_of(table, name, resample_mask(read_mask(out, manifest, name), grid, matrix))
        roi = replace(roi, made_of=roi.made_of or lacking.get(name, ""))
        row = next((row for row in manifest["volumes"] if row["name"] == name), None)
        rois.append(replace(roi, interval=describe_roi_interval(volume_of(row))) if row else roi)
    return rois


def describe_roi_interval(volume: Volume) -> str:
    """Prediction interval of a volume, for a description in DICOM; empty if it is not calibrated."""
    if not volume.predicted:
        return ""
    low, high = volume.interval()
    return f"{describe_interval(volume.calibrated_on)} {low:.1f} to {high:.1f} cm3"


def _outside(
    out: Path, manifest: Mapping[str, Any], series: Series, grid: Grid, *, trust: bool
) -> dict[str, float]:
    """Fraction of every structure outside the voxels of a series."""
    reference = read_nifti(require_listed(out, manifest, "segmentation.nii.gz")).grid
    matrix = np.linalg.inv(to_reference(out, manifest, series, reference, trust=trust))
    ends = np.array(grid.shape) - 0.5 + EDGE
    shares = {}
    for name in structure_names(manifest):
        mask = read_mask(out, manifest, name)
        points = mask.grid.world(np.argwhere(np.asarray(mask.data)))
        index = grid.index(points @ matrix[:3, :3].T + matrix[:3, 3])
        is_out = ((index < -0.5 - EDGE) | (index > ends)).any(1)
        shares[name] = float(is_out.mean()) if len(points) else 0.0
    return shares


def to_reference(
    out: Path, manifest: Mapping[str, Any], series: Series, reference: Grid, *, trust: bool
) -> Matrix:
    """(4, 4) transform from the world of the series to that of the result's reference image.

    It is known if the series was segmented, shares the frame of reference of a segmented image, or has the
    voxels of the reference; otherwise the headers are trusted only with `trust`.
    """
    contrast = _linked(manifest, series)
    if contrast is not None:
        return transform_to_reference(out, manifest, contrast)
    if trust or same_voxels(grid_of(series)[0], reference):
        return np.eye(4)
    raise GeometryError(
        "B33",
        "the series is not known to lie in the space of the result",
        found=series.name,
        do="give a series that was segmented, or --trust-headers if it shares their coordinates",
    )


def _linked(manifest: Mapping[str, Any], series: Series) -> str | None:
    """The input that is this series or shares its frame of reference."""
    inputs = manifest.get("inputs", [])
    digest = digest_of(series)
    same = [given for given in inputs if digest == given.get("sha256")]
    if series.frame is not None:
        same += [given for given in inputs if frame_digest(series.frame) == given.get("frame")]
    return str(same[0]["contrast"]) if same else None


def _note_changed(row: Mapping[str, Any], rois: list[Roi], grid: Grid) -> Note | None:
    """Note a structure for which the voxels of the series are too coarse."""
    before = float(row["outlined_cm3"])
    found = [float(r.mask.sum()) * grid.voxel_volume / 1000 for r in rois if r.name == row["name"]]
    if not found or abs(found[0] - before) <= max(CHANGED * before, 3 * grid.voxel_volume / 1000):
        return None
    text = f"{found[0]:.2f} cm³ on the voxels of this series, {before:.2f} cm³ in the result"
    return Note("export", text, where=row["name"])


def ordered_names(manifest: Mapping[str, Any], table: LabelTable) -> list[str]:
    """Names of all structures of a result in the order of the label table, margins last."""
    names = [organ.name for organ in table.organs]
    return sorted(
        structure_names(manifest), key=lambda name: (names.index(name) if name in names else len(names), name)
    )


def roi_of(table: LabelTable, name: str, mask: npt.NDArray[np.bool_]) -> Roi:
    """A structure, or a margin, with its look."""
    known = {organ.name: organ for organ in table.organs}
    if name in known:
        color, code = look_of(table, known[name])
        return Roi(name, known[name].kind, color, mask, code, describe_gtv(known[name]))
    kind = name.partition("_")[0]  # margins: CTV, PTV
    color, code = look_of_target(table)
    return Roi(name, kind if kind in ("CTV", "PTV") else "CONTROL", color, mask, code)
