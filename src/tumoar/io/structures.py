"""Structures to take doses of: from a finished result, with its samples, or from a structure set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tumoar.contours import pieces_of_outline
from tumoar.dose import Dvh, Sampled, dvh, pieces_of_mask, thinned
from tumoar.errors import GeometryError
from tumoar.evaluate import organ_mask
from tumoar.image import Image, frame_digest
from tumoar.io.identity import require_patient, same_person
from tumoar.io.nifti import read_nifti
from tumoar.io.results import ANATOMY, read_manifest
from tumoar.io.rois import look_of
from tumoar.io.rtstruct import read_rtstruct
from tumoar.labels import default_labels

OF_A_SAMPLE = 10_000  # pieces
PALETTE = ("#3c5fa8", "#e8893f", "#2ca02c", "#c81e1e", "#8e5bd0", "#7a5c3e", "#d252a8", "#5a5a5a", "#9aa51c")


@dataclass(frozen=True, eq=False)
class Dosed:
    """A structure and its histogram."""

    name: str
    color: str
    found: Sampled


def dosed(path: Path, dose: Image, person: Sequence[str] = ()) -> list[Dosed]:
    """Every structure of a result folder or an RTSTRUCT file in a dose; `person` is whom the dose names."""
    return list(_of_result(path, dose, person) if path.is_dir() else _of_file(path, dose, person))


def _of_file(path: Path, dose: Image, person: Sequence[str]) -> Iterator[Dosed]:
    read = read_rtstruct(path)
    if not same_person(read.person, person):
        raise GeometryError(
            "B34", "dose and structures are from different patients", do="give files of one patient"
        )
    require_frame(frame_digest(read.frame), dose)
    colors = {organ.name: look_of(default_labels(), organ)[0] for organ in default_labels().organs}
    for number, outline in enumerate(read.outlines):
        color = colors.get(outline.name, PALETTE[number % len(PALETTE)])
        yield Dosed(outline.name, color, Sampled(dvh(pieces_of_outline(outline), dose)))


def _of_result(out: Path, dose: Image, person: Sequence[str]) -> Iterator[Dosed]:
    manifest = read_manifest(out)
    require_patient(manifest.get("patient", {}), manifest.get("key", ""), person, "the dose")
    require_frame(_reference_frame(manifest), dose)
    samples = _sampled(out, dose)
    table = default_labels()
    known = {organ.name: organ for organ in table.organs}
    for row in (*manifest["volumes"], *manifest.get("margins", ())):
        name = row["name"]
        image = read_nifti(out / "structures" / f"{name}.nii.gz")
        color = look_of(table, known[name if name in known else "GTV"])[0]
        mask = Image(np.asarray(np.asarray(image.data, np.uint8) > 0, np.uint8), image.grid)
        yield Dosed(name, color, Sampled(dvh(pieces_of_mask(mask), dose), samples.get(name, ())))


def _sampled(out: Path, dose: Image) -> dict[str, tuple[Dvh, ...]]:
    """Histograms of all structures in all samples that were saved; organs are not cut by tumor."""
    table = default_labels()
    found: dict[str, list[Dvh]] = {}
    for path in sorted((out / "samples").glob(f"*{ANATOMY}")):
        anatomy = read_nifti(path)
        whole = read_nifti(path.with_name(path.name.replace(ANATOMY, ".nii.gz")))
        for organ in table.organs:
            labels = np.asarray(whole.data if organ.tumor else anatomy.data, np.int64)
            mask = organ_mask(table, organ, labels)
            pieces = pieces_of_mask(Image(mask.astype(np.uint8), whole.grid), OF_A_SAMPLE)
            found.setdefault(organ.name, []).append(thinned(dvh(pieces, dose)))
    return {name: tuple(curves) for name, curves in found.items()}


def _reference_frame(manifest: dict[str, Any]) -> str:
    given = [i for i in manifest.get("inputs", []) if i["contrast"] == manifest.get("reference")]
    return str(given[0].get("frame", "")) if given else ""


def require_frame(ours: str, dose: Image) -> None:
    """Dose and structures in one frame of reference, where both tell theirs."""
    theirs = frame_digest(dose.grid.frame)
    if ours and theirs and ours != theirs:
        raise GeometryError(
            "B33",
            "dose and structures have different frames of reference",
            do="segment with the planning CT as reference, or export onto it first",
        )
