"""Export reviewed outlines: a result of its own, with corrected masks, margins and DICOM files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.io.images import series_at
from tumoar.io.lock import lock_output
from tumoar.io.manifest import publish_folder, remove_leftovers, write_manifest
from tumoar.io.manifest_schema import RESULT
from tumoar.io.nifti import write_nifti
from tumoar.io.outputs import require_empty
from tumoar.io.rois import Review
from tumoar.model.calibration import NOWHERE
from tumoar.radiotherapy.export import export as to_dicom
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.targets import add_margins
from tumoar.result.folder import interval_columns, volume_columns, write_table
from tumoar.result.segmentation import Volume
from tumoar.result.stored import Stored
from tumoar.result.under import structure_under
from tumoar.review.allowed import CAVITY, CORE, EDEMA, NONE, states_of
from tumoar.review.strokes import Mask
from tumoar.vocabulary.labels import LabelTable, Organ

KEPT = ("segmentation.tsv", "compartments.nii.gz", "transforms/", "structures/")
"""Files of the automatic result that hold for corrected outlines, with masks that did not change."""
LEFT_OUT = ("files", "digest", "coming", "margins", "prediction")
NOT_CALIBRATED = {"conditions": asdict(NOWHERE)}
"""Nothing is learned from outlines that a person corrected."""


def write_reviewed(
    out: Path,
    result: Stored,
    masks: Mapping[str, Mask],
    rows: Sequence[Mapping[str, Any]],
    review: Review,
    about: Mapping[str, Any],
) -> None:
    """Write a result with corrected masks; `rows` is its table of volumes, `about` says who reviewed it."""
    require_empty(out, [result.folder], overwrite=False, kind=RESULT)
    margins = [row["name"] for row in result.manifest.get("margins", ())]
    with lock_output(out):
        remove_leftovers(out)
        with publish_folder(out, "the reviewed result") as work:
            for name in result.manifest["files"]:
                if name.startswith(KEPT) and Path(name).name.removesuffix(".nii.gz") not in margins:
                    (work / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(result.folder / name, work / name)
            for name in review.corrected:
                path = work / "structures" / f"{name}.nii.gz"
                write_nifti(path, masks[name].astype(np.uint8), result.grid)
            labels = relabel(np.asarray(result.labels), result.table, masks, review.corrected)
            write_nifti(work / "segmentation.nii.gz", labels, result.grid)
            write_table(work / "volumes.tsv", rows)
            found = {"volumes": list(rows), "whole_tumor": None, "review": dict(about)}
            kept = {k: v for k, v in result.manifest.items() if k not in LEFT_OUT}
            write_manifest(work, kept | NOT_CALIBRATED | found)
    grown = {row["name"]: float(row["margin_mm"]) for row in result.manifest.get("margins", ())}
    if grown:
        add_margins(out, Margins(grown.get("CTV"), grown.get("PTV")))


def relabel(
    labels: np.ndarray, table: LabelTable, masks: Mapping[str, Mask], corrected: frozenset[str]
) -> np.ndarray:
    """The label map with corrected structures, tumor over anatomy.

    What anatomy or tumor loses inside the brain becomes its first structure, on the same side, and outside it
    background. Where tumor covered an organ and was removed, the organ shows again.
    """
    out = labels.copy()
    tumor = {part.name: part.index for part in table.tumor}
    value = {EDEMA: tumor["edema"], CORE: tumor["core"]}
    if table.cavity is not None:
        value[CAVITY] = table.structures[table.cavity].index
    position = np.zeros(256, np.uint8)
    position[table.indices] = np.arange(table.K)

    def under(where: Mask) -> npt.NDArray[np.uint8]:
        return table.indices[structure_under(table, position[labels], where)]

    alone = {o.name: table.l(o.structures[0]) for o in map(table.organ, masks) if _is_alone(o, table)}
    for name in corrected & alone.keys():
        index = table.structures[alone[name]].index
        lost = (out == index) & ~masks[name]
        out[lost] = under(lost) if table.in_brain[alone[name]] else 0
        out[masks[name] & ~np.isin(out, list(value.values()))] = index
    if not any(states_of(table.organ(name), table) for name in corrected):
        return out
    states = np.full(out.shape, NONE, np.uint8)
    own = {name: states_of(table.organ(name), table) for name in masks}
    order = sorted((name for name, bits in own.items() if bits), key=lambda n: -own[n].bit_count())
    for name in order:  # those of a single state last
        states[masks[name]] = next(bit for bit in (CORE, EDEMA, CAVITY) if own[name] & bit)
    freed = (states == NONE) & np.isin(out, list(value.values()))
    out[freed] = under(freed)
    for name, l in alone.items():
        out[freed & masks[name]] = table.structures[l].index
    for bit, index in value.items():
        out[states == bit] = index
    return out


def _is_alone(organ: Organ, table: LabelTable) -> bool:
    """Whether an organ is one structure of the label map."""
    return table.is_anatomy(organ) and len(organ.structures) == 1


def describe_rows(
    result: Stored, masks: Mapping[str, Mask], volumes: Mapping[str, Volume], corrected: frozenset[str]
) -> list[dict[str, Any]]:
    """Rows of volumes.tsv of corrected outlines; one that was drawn and not sampled has no interval."""
    rows = []
    for row in result.manifest["volumes"]:
        name = str(row["name"])
        if name not in corrected:
            rows.append(dict(row))
            continue
        found = volumes[name]
        outlined = found.outlined
        if np.isnan(found.mean):
            found = Volume(outlined, outlined, 0.0, (outlined, outlined))
        parts = int(ndimage.label(masks[name])[1])
        columns = {**volume_columns(found), **interval_columns(found)}
        if np.isnan(volumes[name].mean):
            columns["interval"] = "none: as drawn"
        left = {k: v for k, v in row.items() if not k.startswith(("low", "high"))}
        rows.append(left | columns | {"components": parts, "removed_voxels": 0})
    return rows


def export_dicom(
    out: Path, reference: Path | str, review: Review, edition: str, *, rtstruct: bool, seg: bool
) -> list[Path]:
    """Add DICOM files to a reviewed result; returns their paths."""
    names, _ = to_dicom(
        out, series_at(str(reference)), rtstruct=rtstruct, seg=seg, review=review, edition=edition
    )
    return [out / name for name in names]
