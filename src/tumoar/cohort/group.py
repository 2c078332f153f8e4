"""Summary of a cohort: `group.tsv` with one row per subject or session, and `group.html` for viewing.

The summary is built from the files of the runs. A subject with damaged files counts as failed, with a reason,
and does not affect the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from tumoar.cohort.plan import Order, cores, has_checkpoints
from tumoar.cohort.private import remove_names
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import read_record
from tumoar.io.files import read_text
from tumoar.io.manifest import MANIFEST, REPORT, read_manifest, replace_text
from tumoar.io.manifest_schema import Manifest
from tumoar.version import __version__
from tumoar.vocabulary.errors import IntegrityError, TumoarError
from tumoar.vocabulary.labels import parse_labels
from tumoar.vocabulary.notes import Note
from tumoar.vocabulary.tables import ABSENT
from tumoar.vocabulary.tables import to_tsv as table_to_tsv

STATES = ("done", "failed", "interrupted", "not run")
TARGETS = ("GTV", "Cavity", "GTV_residual", "Edema", "CTV", "PTV")
"""They differ between patients by nature, unlike organs."""
FEWEST = 8
"""Minimum number of patients for detecting unusual volumes."""
UNUSUAL = 3.5
"""Robust standard deviations from the median of the cohort (Iglewicz and Hoaglin)."""

LARGEST_REPORT = 512 << 20
READERS = 8
"""Results that are checked in parallel."""

Row = dict[str, Any]


def write_group(subjects: Sequence[Subject], order: Order) -> dict[str, int]:
    """Write the summary; return the number of subjects in each state."""
    from tumoar.report.group import render_group, thumbnails

    with ThreadPoolExecutor(min(READERS, cores())) as pool:
        rows = list(pool.map(lambda subject: summary(subject, order), subjects))
    mark_unusual(rows)
    out = Path(order.out)
    for row in rows:
        row["pictures"] = []
        if row["state"] == "done":
            try:
                page = read_text(order.result(row["name"]) / REPORT, "the report", LARGEST_REPORT)
                row["pictures"] = thumbnails(page)
            except TumoarError:
                row["flags"] = [*row["flags"], Note("report", "its report cannot be read")]
    replace_text(out / "group.tsv", to_tsv(rows))
    counts = {state: sum(row["state"] == state for row in rows) for state in STATES}
    replace_text(out / "group.html", render_group(rows, counts, __version__))
    return counts


def summary(subject: Subject, order: Order) -> Row:
    """Row of one subject: the record of its last run, and its result if there is one."""
    record = read_record(order, subject.name)
    result, damage = _result(subject, order)
    state, code, reason = record.state, record.code, record.reason
    if state not in STATES:
        state = "done" if result or damage else "not run"
    if state == "done" and result is None:
        state, code = "failed", damage.exit_code if damage else IntegrityError.exit_code
        reason = str(damage) if damage else "its result is missing"
    if state == "not run" and has_checkpoints(subject, order):
        state = "interrupted"
    if state == "not run" and subject.problem:
        state, code, reason = "failed", subject.code, subject.problem
    row = {
        "name": subject.name,
        "participant_id": f"sub-{subject.label}",
        "session_id": f"ses-{subject.session}" if subject.session else ABSENT,
        "state": state,
        "status": "",
        "code": code,
        "reason": remove_names(reason, subject),
        "flags": [],
        "stamps": [],
        "contrasts": list(subject.images),
        "seconds": None,
        "cpu_seconds": record.cpu_seconds or None,
        "peak_gb": record.peak_gb or None,
        "attempts": record.attempts or None,
        "volumes": {},
        "targets": [],
    }
    return row | _figures(result, record.seconds) if state == "done" and result is not None else row


def _figures(result: Manifest, seconds: float) -> Row:
    """Columns from a finished result."""
    return {
        "status": result.status,
        "flags": [Note.from_dict(note.model_dump()) for note in result.notes],
        "stamps": result.stamps,
        "contrasts": [given.contrast for given in result.inputs],
        "seconds": seconds or round(sum(result.seconds.values()), 1),
        "peak_gb": result.peak_gb,
        "volumes": {volume.name: volume.model_dump() for volume in result.volumes},
        "targets": [o.name for o in parse_labels(result.labels).organs if o.tumor] if result.labels else [],
    }


def _result(subject: Subject, order: Order) -> tuple[Manifest | None, TumoarError | None]:
    """Manifest of a result, or the reason why it cannot be used; neither if there is none."""
    folder = order.result(subject.name)
    if not os.path.lexists(folder / MANIFEST):
        return None, None
    try:
        return Manifest.model_validate(read_manifest(folder)), None
    except TumoarError as refusal:
        return None, refusal


def mark_unusual(rows: Sequence[Row]) -> None:
    """Mark organs with unusual volumes compared with the rest of the cohort."""
    names = dict.fromkeys(name for row in rows for name in row["volumes"])
    for row in rows:
        row["unusual"] = []
    targets = {*TARGETS, *(name for row in rows for name in row.get("targets", ()))}
    for name in names:
        if name in targets:
            continue
        have = [row for row in rows if name in row["volumes"]]
        values = [row["volumes"][name]["outlined_cm3"] for row in have]
        if len(values) < FEWEST:
            continue
        middle = median(values)
        spread = 1.4826 * median(abs(v - middle) for v in values)
        for row, value in zip(have, values):
            if spread > 0 and abs(value - middle) > UNUSUAL * spread:
                row["unusual"].append({"name": name, "cm3": value, "median": round(middle, 2)})


def to_tsv(rows: Sequence[Row]) -> str:
    """Table with one row per subject; absent values are n/a."""
    return table_to_tsv([_flat(row) for row in rows], ABSENT)


def _flat(row: Row) -> Row:
    plain = ("participant_id", "session_id", "state", "status", "code", "reason")
    out = {name: row[name] for name in plain}
    out["flags"] = ";".join(note.id for note in row["flags"])
    out["unusual"] = ";".join(item["name"] for item in row["unusual"])
    out["contrasts"] = "+".join(row["contrasts"])
    out |= {name: row[name] for name in ("seconds", "cpu_seconds", "peak_gb", "attempts")}
    return out | dict(_volumes(row))


def _volumes(row: Row) -> Iterator[tuple[str, float]]:
    for name, volume in row["volumes"].items():
        for part in ("outlined", "mean", "p05", "p95"):
            if f"{part}_cm3" in volume:
                yield f"{name}_{part}_cm3", volume[f"{part}_cm3"]
