"""The use case `calibrate`: learn from references how far experts draw from the outlines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.model.calibration import Calibration, Conditions, Entry, digest_conditions
from tumoar.model.conformal import SHARES, least_cases
from tumoar.model.expert import Observed, learn, observe
from tumoar.result.prediction import organ_border
from tumoar.result.stored import Stored
from tumoar.result.stored_predictions import tumor_of_stored
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import UsageError

Mask = npt.NDArray[np.bool_]

PATIENTS = "patients"


@dataclass(frozen=True, eq=False)
class Compared:
    """A result compared with its reference: what it says about parts of tumor, or about organs.

    `conditions` are those under which its numbers hold. `omitted` and `confirmed` count the parts that the
    outline omits, and those of them that the reference contains for the most part. `is_apart` says that
    outline and reference share no voxel.
    """

    conditions: str
    contrasts: tuple[str, ...]
    observed: Mapping[str, Observed]
    omitted: int = 0
    confirmed: int = 0
    is_apart: bool = False


def conditions_of(manifest: Mapping[str, Any]) -> Conditions:
    """Conditions of a stored result.

    Earlier versions stored those of tumor alone; before that, the exponent only as estimated, and fewer
    settings, which now have defaults that keep what they did.
    """
    stored = manifest.get("conditions")
    if isinstance(stored, Mapping):
        return Conditions(str(stored.get("tumor", "")), str(stored.get("organs", "")))
    if stored is not None:
        return Conditions(str(stored))
    stored = dict(manifest["config"])
    stored["gibbs"] = {**stored["gibbs"], "tau": "images"}
    settings = Config.model_validate_json(json.dumps(stored)).model_dump(mode="json")
    return digest_conditions(manifest["model"], settings, contrasts_of(manifest))


def contrasts_of(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Contrasts of a stored result."""
    return tuple(sorted({str(row["contrast"]).partition("-")[0] for row in manifest["inputs"]}))


def require_suited(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse corrected results, and two results of the same image: each patient counts once."""
    seen: dict[str, str] = {}
    for name, manifest in manifests.items():
        if manifest.get("review"):
            raise UsageError(
                "calibration",
                "the outlines of a result were corrected by a person",
                found=name,
                do="give the automatic result: intervals say how far experts draw from it",
            )
        digests = {row["sha256"] for row in manifest["inputs"] if row.get("sha256")}
        other = next((seen[digest] for digest in digests if digest in seen), None)
        if other is not None:
            raise UsageError(
                "calibration",
                "two results are of the same image",
                found=f"{other} and {name}",
                do="leave one out: intervals hold only if each patient counts once",
            )
        seen |= dict.fromkeys(digests, name)


def compare_tumor(result: Stored, core: Mask, whole: Mask, rng: np.random.Generator) -> Compared:
    """Compare a result with a reference on the voxels of its reference image.

    A structure that either of them lacks says nothing about a displacement.
    """
    conditions, contrasts = conditions_of(result.manifest).tumor, contrasts_of(result.manifest)
    if not result.table.has_tumor:
        return Compared(conditions, contrasts, {})
    tumor = tumor_of_stored(result)
    references = {"core": core, "whole": whole}
    observed = {}
    for name, reference in references.items():
        border = tumor.border(name)
        if border is not None and reference.any():
            observed[name] = observe(border, reference, rng)
    parts = tumor.omitted_parts()
    sizes = np.bincount(parts.ravel())[1:]
    inside = np.bincount(parts[whole], minlength=len(sizes) + 1)[1:]
    confirmed = int((2 * inside > sizes).sum())
    is_apart = bool(observed) and not (tumor.whole & whole).any()
    return Compared(conditions, contrasts, observed, len(sizes), confirmed, is_apart)


def compare_organs(result: Stored, references: Mapping[str, Mask], rng: np.random.Generator) -> Compared:
    """Compare organs with references on the voxels of a result; both include what lies under tumor."""
    observed = {}
    for name, reference in references.items():
        outline = result.mask(name)
        if outline.any() and reference.any():
            votes = np.asarray(result.probability(name), np.float32)
            i, j, k = map(float, result.grid.spacing)
            observed[name] = observe(organ_border(outline, votes, (i, j, k)), reference, rng)
    return Compared(conditions_of(result.manifest).organs, contrasts_of(result.manifest), observed)


def calibrate(compared: Sequence[Compared], cases: str = PATIENTS) -> Calibration:
    """Learn a calibration; structures with too few references are left out."""
    conditions = {c.conditions for c in compared}
    if len(conditions) > 1:
        raise UsageError(
            "calibration",
            "the results were made with different models, settings or contrasts",
            found=f"{len(conditions)} combinations",
            do="calibrate those of one kind; a calibration holds for one kind only",
        )
    if "" in conditions:
        raise UsageError(
            "calibration",
            "a result cannot be calibrated",
            found="tumor that was given, voxels that were excluded, or an earlier version",
            do="leave it out, or segment it again",
        )
    if compared and all(c.is_apart for c in compared):
        do = "check that results and references are of the same patients, and what the labels mean"
        raise UsageError("calibration", "no reference overlaps the outline of its result", do=do)
    least = least_cases(max(SHARES))
    names = list(dict.fromkeys(name for c in compared for name in c.observed))
    by_name = {name: [c.observed[name] for c in compared if name in c.observed] for name in names}
    enough = {name: learn(seen) for name, seen in by_name.items() if len(seen) >= least}
    if not enough:
        most = max(map(len, by_name.values()), default=0)
        raise UsageError(
            "calibration",
            f"too few references for a {100 * max(SHARES):.0f} % interval",
            found=f"{most} results with an outline and a reference of the same structure",
            do=f"give at least {least}: the farthest of n displacements bounds the next one with "
            f"probability n / (n + 1)",
        )
    parts, confirmed = sum(c.omitted for c in compared), sum(c.confirmed for c in compared)
    chance = round((confirmed + 0.5) / (parts + 1), 3)
    first = compared[0]
    entry = Entry(cases, first.contrasts, first.conditions, enough, chance)
    return Calibration(date.today().isoformat(), (entry,))
