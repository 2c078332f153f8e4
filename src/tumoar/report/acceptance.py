"""The acceptance report of `tumoar commission`: one page that prints on A4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tumoar.report.page import environment


def render_acceptance(rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """Render the checks, grouped by part: a summary by structure, the table, and the tolerances."""
    parts = [
        {"name": name, "rows": members, "passed": sum(r["passed"] == "yes" for r in members)}
        for name, group in groupby(rows, key=lambda row: row["part"])
        for members in [list(group)]
    ]
    reasons = {row["tolerance"] + row["reason"]: (row["tolerance"], row["reason"]) for row in rows}
    numbers = {key: number for number, key in enumerate(reasons, 1)}
    structures = {
        name: [row for row in rows if row["structure"] == name]
        for name in dict.fromkeys(row["structure"] for row in rows)
    }
    return (
        environment()
        .get_template("acceptance.html")
        .render(
            parts=parts,
            structures={
                name: (sum(r["passed"] == "yes" for r in members), len(members))
                for name, members in structures.items()
            },
            failed=[row for row in rows if row["passed"] == "no"],
            total=len(rows),
            reasons=list(reasons.values()),
            number=lambda row: numbers[row["tolerance"] + row["reason"]],
            number_text=lambda value: f"{value:.4g}" if isinstance(value, float) else value,
            about=about,
        )
    )
