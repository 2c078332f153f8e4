"""The use case `commission`: known answers, an acceptance report, and a pass or fail for each check."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import binom

from tumoar.app.acceptance import (
    Check,
    Finding,
    Tolerances,
    judge,
    read_tolerances,
    tolerance_for,
)
from tumoar.app.installation import check_head, check_installation, describe_machine, model_digests
from tumoar.app.known_answers import check_margins, check_scores
from tumoar.app.phantom import check_contours, check_dicom, check_doses, check_nifti
from tumoar.app.pipeline import Progress
from tumoar.io.outputs import new_folder, require_empty
from tumoar.radiotherapy.agreement import Values, score
from tumoar.report.acceptance import render_acceptance
from tumoar.result.folder import read_manifest, write_table
from tumoar.result.stored import volume_of
from tumoar.vocabulary.errors import UnreadableFileError, UsageError

KIND = "acceptance"
CASES = "Own cases"
REFERENCES = ("reference.nii.gz", "reference.nii", "reference.dcm")
SHARE = 0.90
"""Of volumes that intervals should cover."""
USE = "Research use only; not a medical device. They replace no acceptance test."


@dataclass(frozen=True)
class Order:
    """What to check besides the phantoms."""

    tolerances: Path | None = None
    cases: Path | None = None
    meaning: Values = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)  # names of structure sets
    overwrite: bool = False


@dataclass(frozen=True)
class Case:
    """A finished result and its reference; `number` names it, because folders may be named after patients."""

    number: int
    result: Path
    reference: Path


def commission(out: Path, order: Order, watch: Callable[[Progress], None]) -> list[Check]:
    """Run all checks and write acceptance.html, .tsv and .json."""
    tolerances = read_tolerances(order.tolerances)
    cases = find_cases(order.cases) if order.cases is not None else []
    inputs = [path for path in (order.tolerances, order.cases) if path is not None]
    require_empty(out, inputs, overwrite=order.overwrite, kind=KIND)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tumoar-") as folder:
        stages: dict[str, Callable[[], Iterable[Finding]]] = {
            "installation": check_installation,
            "NIfTI files": partial(check_nifti, Path(folder)),
            "DICOM series": partial(check_dicom, Path(folder)),
            "contours": partial(check_contours, Path(folder)),
            "doses": partial(check_doses, Path(folder)),
            "margins": check_margins,
            "agreement": check_scores,
            "phantom head": check_head,
        }
        if cases:
            stages["own cases"] = partial(check_cases, cases, order, tolerances, notes)
        checks: list[Check] = []
        for name, stage in stages.items():
            checks += judge(_watched(name, stage(), watch), tolerances)
            watch(Progress(name, 1, 1, {}))
    about = describe(notes)
    with new_folder(out, KIND, inputs, overwrite=order.overwrite) as work:
        rows = [check.to_dict() for check in checks]
        write_table(work / "acceptance.tsv", rows)
        whole = {**about, "passed": all(c.passed for c in checks), "checks": rows}
        (work / "acceptance.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        (work / "acceptance.html").write_text(render_acceptance(rows, about), encoding="utf-8")
    return checks


def describe(notes: list[str]) -> dict[str, Any]:
    """Date, versions, machine and models."""
    return {
        "use": USE,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": describe_machine(),
        "models": model_digests(),
        "notes": notes,
    }


def _watched(name: str, findings: Iterable[Finding], watch: Callable[[Progress], None]) -> Iterator[Finding]:
    """Report progress with every finding; their number is not known beforehand."""
    watch(Progress(name, 0, 1, {}))
    for count, finding in enumerate(findings, 1):
        watch(Progress(name, 0, 1, {"measured": count}))
        yield finding


# ---- own cases ---------------------------------------------------------------------------------------------


def find_cases(folder: Path) -> list[Case]:
    """Find FOLDER/NAME/result and FOLDER/NAME/reference.nii.gz or .dcm; every subfolder must have both."""
    try:
        places = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read the cases", file=folder) from error
    out = []
    for number, place in enumerate(places, 1):
        found = [place / name for name in REFERENCES if (place / name).is_file()]
        if not (place / "result").is_dir() or len(found) != 1:
            raise UsageError(
                "cases",
                f"folder {number} of the cases is not usable",
                found=f"{len(found)} references",
                do=f"give each folder a subfolder result and one of {', '.join(REFERENCES)}",
            )
        out.append(Case(number, place / "result", found[0]))
    if not out:
        raise UsageError("cases", "no cases found", file=folder, do="give a folder with one folder per case")
    return out


def check_cases(
    cases: Iterable[Case], order: Order, tolerances: Tolerances, notes: list[str]
) -> Iterator[Finding]:
    """Dice, Hausdorff distance and volumes of the clinic's own cases."""
    covered: dict[str, list[bool]] = {}
    for case in cases:
        scored = score(case.result, case.reference, order.meaning, order.given)
        notes += [f"case {case.number}: {note}" for note in scored.notes]
        rows = {row["name"]: row for row in read_manifest(case.result)["volumes"]}
        for name, found in scored.scores.items():
            where = f"case {case.number}"
            for what, key, value in (
                ("Dice", "case dice", found.dice),
                ("HD95, mm", "case hausdorff95", found.hausdorff95),
            ):
                tolerance = tolerance_for(tolerances, key, name)
                yield Finding(
                    CASES, name, what, where, value, tolerance, found.volume, found.reference_volume, "cm³"
                )
            volume = volume_of(rows[name]) if name in rows else None
            if volume is not None and volume.predicted:
                low, high = volume.interval(SHARE)
                covered.setdefault(name, []).append(low <= found.reference_volume <= high)
    for name, hits in covered.items():
        chance = float(binom.cdf(sum(hits), len(hits), SHARE))
        where = f"{sum(hits)} of {len(hits)} volumes in their intervals"
        tolerance = tolerance_for(tolerances, "case intervals", name)
        yield Finding(CASES, name, "90 % intervals", where, chance, tolerance)
