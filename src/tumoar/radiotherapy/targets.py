"""Add CTV and PTV to a finished result, on the voxels of its reference image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.model.compartments import BELOW, Compartments
from tumoar.radiotherapy.margins import BEYOND, Margins, find_ventricles, grow, grow_within
from tumoar.result.folder import COMPARTMENTS, add_files, read_manifest, write_table
from tumoar.result.masks import label_table, structure_names
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.labels import LabelTable

TABLE = "margins.tsv"
KEPT_OUT = ("brainstem",)
"""Structures of the brain that the CTV does not enter. The chiasm is not part of the brain. Barriers are
those of the ESTRO-EANO guideline (data/margins.toml)."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Anatomy:
    """Where a CTV can grow: the brain, without `fluid` deep inside it and without organs `kept_out`.

    `compartments`, if known, are separated by falx and tentorium.
    """

    brain: Mask
    fluid: Mask
    kept_out: Mask
    compartments: Compartments | None = None


def add_margins(out: Path, margins: Margins) -> list[dict[str, Any]]:
    """Write structures/CTV.nii.gz and PTV.nii.gz and their table; return its rows."""
    manifest = read_manifest(out)
    labels = read_nifti(out / "segmentation.nii.gz")
    grid, table = labels.grid, label_table(manifest)
    require_margins(structure_names(manifest))
    target, brain = (_mask(out, name) for name in ("GTV", "Brain"))
    found = read_nifti(out / COMPARTMENTS).data if COMPARTMENTS in manifest["files"] else None
    anatomy = find_anatomy(brain, np.asarray(labels.data), table, found)
    targets = grow_targets(target, anatomy, grid, margins)
    rows = [row for row, _ in targets]
    with add_files(out, manifest, margins=rows) as folder:
        write_table(folder / TABLE, rows)
        (folder / "structures").mkdir()
        for row, mask in targets:
            write_nifti(folder / "structures" / f"{row['name']}.nii.gz", mask.astype(np.uint8), grid)
    return rows


def find_anatomy(brain: Mask, labels: npt.NDArray, table: LabelTable, compartments: Any = None) -> Anatomy:
    """Anatomy of a label map, with tumor over anatomy."""
    fluid, kept_out = (
        np.isin(labels, [table.structures[l].index for name in names for l in table.parts(name)])
        for names in (("CSF",), KEPT_OUT)
    )
    parts = None if compartments is None else np.asarray(compartments, np.uint8)
    return Anatomy(brain, fluid, kept_out, parts)


def grow_targets(
    target: Mask, anatomy: Anatomy, grid: Grid, margins: Margins
) -> list[tuple[dict[str, Any], Mask]]:
    """Grow the requested CTV and PTV around a GTV; return a table row and a mask for each."""
    targets = []
    if margins.ctv is not None:
        target = grow_ctv(target, anatomy, margins.ctv, grid.spacing)
        barriers = ", ".join([*KEPT_OUT, "ventricles", *_membranes(anatomy.compartments)])
        into = f"at most {BEYOND['ventricles']:g} mm into ventricles"
        how = f"GTV + {margins.ctv:g} mm in the brain, not across {barriers}; {into}"
        targets.append((_row("CTV", margins.ctv, target, grid, how), target))
    if margins.ptv is not None:
        target = grow(target, margins.ptv, grid.spacing)
        how = f"{'CTV' if margins.ctv is not None else 'GTV'} + {margins.ptv:g} mm"
        targets.append((_row("PTV", margins.ptv, target, grid, how), target))
    return targets


def grow_ctv(gtv: Mask, anatomy: Anatomy, mm: float, spacing: npt.NDArray[np.float64]) -> Mask:
    """The GTV with a margin in the brain, along paths that end in ventricles after `BEYOND` mm."""
    inside, parts = anatomy.brain & ~anatomy.kept_out, anatomy.compartments
    ventricles = find_ventricles(anatomy.brain, anatomy.fluid, spacing)
    ctv = grow_within(gtv, inside & ~ventricles, mm, spacing, parts)
    entered = grow_within(ctv, ctv | ventricles, min(BEYOND["ventricles"], mm), spacing, parts)
    if np.array_equal(entered, ctv):
        return ctv
    return ctv | (entered & grow_within(gtv, inside, mm, spacing, parts))


def _membranes(parts: Compartments | None) -> list[str]:
    """Membranes that a map of compartments has."""
    if parts is None:
        return []
    return ["falx (of the atlas)", *(["tentorium (of the atlas)"] if (parts == BELOW).any() else [])]


def require_margins(names: Sequence[str]) -> None:
    """Refuse margins for a result without GTV, or without the brain in which the CTV grows."""
    lacking = [name for name in ("GTV", "Brain") if name not in names]
    if lacking:
        raise UsageError(
            "margins",
            "margins need GTV and Brain",
            found=f"no {' and no '.join(lacking)}",
            do="segment tumor, add them to --structures, or use a model that has them",
        )


def _mask(out: Path, name: str) -> Mask:
    return np.asarray(read_nifti(out / "structures" / f"{name}.nii.gz").data, np.uint8) > 0


def _row(name: str, mm: float, mask: Mask, grid: Grid, how: str) -> dict[str, Any]:
    cm3 = round(float(mask.sum()) * grid.voxel_volume / 1000, 4)
    return {"name": name, "margin_mm": mm, "outlined_cm3": cm3, "how": how}
