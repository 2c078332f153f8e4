"""Render docs/trace.md from tools/trace.toml: `python tools/trace_table.py` writes the page."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOP = ("| risk | hazard | harm | severity | controlled by |", "|---|---|---|---|---|")
PAGE = ROOT / "docs" / "trace.md"
HEAD = """# Requirements, risks and tests

Which requirement controls which risk, and which tests verify it: in the manner of IEC 62304 and ISO 14971,
without claiming conformity with either. tumoar is for research only; not a medical device. Severity is that
of the harm if an outline were used without review, which it must not be.

A path names a file of tests, or one test in it; run any of them with `pytest PATH`. Tests marked `slow` or
`long` need `-m slow` or `-m long`. What is not covered is listed in
[tests and robustness](tests.md#what-is-not-covered).

This page is made from `tools/trace.toml`; do not edit it.
"""


def read_trace(root: Path = ROOT) -> dict[str, Any]:
    """Risks and requirements."""
    return tomllib.loads((root / "tools" / "trace.toml").read_text("utf-8"))


def render(trace: Mapping[str, Any]) -> str:
    """The page."""
    risks, requirements = trace["risk"], trace["requirement"]
    lines = [
        HEAD,
        "## Risks",
        "",
        "| risk | hazard | harm | severity | controlled by |",
        "|---|---|---|---|---|",
    ]
    for name, risk in risks.items():
        controls = ", ".join(r["id"] for r in requirements if name in r["risks"])
        lines.append(f"| {name} | {risk['hazard']} | {risk['harm']} | {risk['severity']} | {controls} |")
    lines += ["", "## Requirements", "", "| id | requirement | risks | tests |", "|---|---|---|---|"]
    for row in requirements:
        tests = "<br>".join(f"`{test}`" for test in row["tests"])
        lines.append(f"| {row['id']} | {row['text']} | {', '.join(row['risks'])} | {tests} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(read_trace()), encoding="utf-8")
