"""The summary of a cohort: one row per subject or session in `group.tsv`, and `group.html` to look at.

Everything is read from what the runs have left behind, one subject after the other.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tumoar import __version__
from tumoar.cohort.plan import Order, has_checkpoints
from tumoar.cohort.subjects import Subject
from tumoar.errors import TumoarError
from tumoar.io.manifest import MANIFEST, REPORT, replace_text

STATES = ("done", "failed", "interrupted", "not run")
TARGETS = ("GTV", "Edema", "CTV", "PTV")
"""They differ between patients by nature; an organ does not."""
FEWEST = 8
"""Patients below which nobody is called unusual."""
UNUSUAL = 3.5
"""Robust standard deviations from the median of the cohort (Iglewicz and Hoaglin)."""

Row = dict[str, Any]


def write_group(subjects: Sequence[Subject], order: Order) -> dict[str, int]:
    """Write the summary; returns how many are in which state."""
    from tumoar.report.group import render_group, thumbnails

    rows = [summary(subject, order) for subject in subjects]
    mark_unusual(rows)
    out = Path(order.out)
    replace_text(out / "group.tsv", to_tsv(rows))
    for row in rows:
        row["pictures"] = []
        if row["state"] == "done":
            try:
                page = (order.result(row["name"]) / REPORT).read_text(encoding="utf-8")
                row["pictures"] = thumbnails(page)
            except (OSError, TumoarError):
                row["flags"] = [*row["flags"], {"id": "report", "text": "its report cannot be read"}]
    counts = {state: sum(row["state"] == state for row in rows) for state in STATES}
    replace_text(out / "group.html", render_group(rows, counts, __version__))
    return counts


def summary(subject: Subject, order: Order) -> Row:
    """What is known of one subject: its last run's record, and its result if there is one."""
    record = _json(order.log(subject.name, ".json"))
    manifest = _json(order.result(subject.name) / MANIFEST)
    state = str(record.get("state", "done" if manifest else "not run"))
    if state == "done" and not manifest:
        state, record = "failed", record | {"reason": "its result is gone", "code": 12}
    if state == "not run" and has_checkpoints(subject, order):
        state = "interrupted"
    if state == "not run" and subject.problem:
        state, record = "failed", {"reason": subject.problem, "code": subject.code}
    done = state == "done"
    return {
        "name": subject.name,
        "participant_id": f"sub-{subject.label}",
        "session_id": f"ses-{subject.session}" if subject.session else "n/a",
        "state": state,
        "status": manifest["status"] if done else "",
        "code": record.get("code", 0),
        "reason": record.get("reason", ""),
        "flags": list(manifest["notes"]) if done else [],
        "stamps": list(manifest.get("stamps", ())) if done else [],
        "contrasts": [given["contrast"] for given in manifest["inputs"]] if done else list(subject.images),
        "seconds": record.get("seconds") or round(sum(manifest["seconds"].values()), 1) if done else None,
        "cpu_seconds": record.get("cpu_seconds"),
        "peak_gb": manifest.get("peak_gb") if done else record.get("peak_gb"),
        "attempts": record.get("attempts"),
        "volumes": {v["name"]: v for v in manifest["volumes"]} if done else {},
    }


def mark_unusual(rows: Sequence[Row]) -> None:
    """Note organs whose volume is far from everybody else's."""
    names = dict.fromkeys(name for row in rows for name in row["volumes"])
    for row in rows:
        row["unusual"] = []
    for name in names:
        if name in TARGETS:
            continue
        have = [row for row in rows if name in row["volumes"]]
        values = [row["volumes"][name]["mean_cm3"] for row in have]
        if len(values) < FEWEST:
            continue
        middle = median(values)
        spread = 1.4826 * median(abs(v - middle) for v in values)
        for row, value in zip(have, values):
            if spread > 0 and abs(value - middle) > UNUSUAL * spread:
                row["unusual"].append({"name": name, "cm3": value, "median": round(middle, 2)})


def to_tsv(rows: Sequence[Row]) -> str:
    """One row each, absent values as n/a."""
    table = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in table for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, delimiter="\t", lineterminator="\n", restval="n/a")
    writer.writeheader()
    writer.writerows({k: "n/a" if v in (None, "") else v for k, v in row.items()} for row in table)
    return stream.getvalue()


def _flat(row: Row) -> Row:
    plain = ("participant_id", "session_id", "state", "status", "code", "reason")
    out = {name: row[name] for name in plain}
    out["reason"] = " ".join(str(row["reason"]).split())
    out["flags"] = ";".join(note["id"] for note in row["flags"])
    out["unusual"] = ";".join(item["name"] for item in row["unusual"])
    out["contrasts"] = "+".join(row["contrasts"])
    out |= {name: row[name] for name in ("seconds", "cpu_seconds", "peak_gb", "attempts")}
    return out | dict(_volumes(row))


def _volumes(row: Row) -> Iterator[tuple[str, float]]:
    for name, volume in row["volumes"].items():
        for part in ("mean", "p05", "p95"):
            if f"{part}_cm3" in volume:
                yield f"{name}_{part}_cm3", volume[f"{part}_cm3"]


def _json(path: Path) -> dict[str, Any]:
    """A file's content; nothing if it is not there or is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
