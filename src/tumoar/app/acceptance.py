"""Checks of `tumoar commission`: what was found, what was expected, and by which tolerance it was judged."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tumoar.io.files import read_text
from tumoar.vocabulary.errors import UsageError

KEYS = {"limit", "least", "unit", "reason"}


@dataclass(frozen=True)
class Tolerance:
    """The largest accepted deviation, or the smallest accepted value, and its reason."""

    name: str
    limit: float
    is_least: bool
    unit: str
    reason: str

    def accepts(self, value: float) -> bool:
        """Whether a deviation, or a value, passes; what is not a number does not."""
        return value >= self.limit if self.is_least else value <= self.limit

    @property
    def text(self) -> str:
        """The tolerance for a table."""
        return f"{'≥' if self.is_least else '≤'} {self.limit:g} {self.unit}".rstrip()


Tolerances = Mapping[str, Tolerance]


@dataclass(frozen=True)
class Finding:
    """A measurement: `value` is what the tolerance judges, a deviation or a score.

    `found` and `expected` are in `unit`; `expected` is what a formula, or a reference, says.
    """

    part: str
    structure: str
    what: str
    where: str
    value: float
    tolerance: str
    found: float | None = None
    expected: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Check:
    """A finding that was judged; `times` is how many were made, of which it is the worst."""

    finding: Finding
    tolerance: Tolerance
    times: int = 1

    @property
    def passed(self) -> bool:
        """Whether it lies within its tolerance."""
        return self.tolerance.accepts(self.finding.value)

    def to_dict(self) -> dict[str, Any]:
        """A row of the tables."""
        f = self.finding
        return {
            "part": f.part,
            "structure": f.structure,
            "check": f.what,
            "where": f.where,
            "times": self.times,
            "found": _rounded(f.found),
            "expected": _rounded(f.expected),
            "unit": f.unit,
            "value": _rounded(f.value),
            "tolerance": self.tolerance.text,
            "passed": "yes" if self.passed else "no",
            "reason": self.tolerance.reason,
        }


def _rounded(value: float | None) -> float | str | None:
    if value is None or not math.isfinite(value):
        return None if value is None else str(value)
    return float(f"{value:.6g}")


def judge(findings: Iterable[Finding], tolerances: Tolerances) -> list[Check]:
    """Judge findings; of those that differ only in value, the worst one stays."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for f in findings:
        groups.setdefault((f.part, f.structure, f.what, f.where, f.tolerance), []).append(f)
    out = []
    for members in groups.values():
        tolerance = tolerances[members[0].tolerance]
        sign = -1 if tolerance.is_least else 1
        worst = max(members, key=lambda f: math.inf if math.isnan(f.value) else sign * f.value)
        out.append(Check(worst, tolerance, len(members)))
    return out


def read_tolerances(path: Path | None = None) -> dict[str, Tolerance]:
    """Tolerances of the package; those of a file replace rows with the same name."""
    shipped = files("tumoar").joinpath("data", "acceptance.toml").read_text("utf-8")
    rows = dict(_parse(shipped, "acceptance.toml"))
    if path is not None:
        own = dict(_parse(read_text(path, "the tolerances"), path.name))
        for name in own:
            # A row for one structure, such as "case dice GTV", narrows that of all.
            if name not in rows and not any(name.startswith(f"{known} ") for known in rows):
                do = f"known are {', '.join(rows)}, and each of these with the name of a structure"
                raise UsageError("tolerances", f"unknown tolerance {name}", file=path, do=do)
        rows |= own
    return rows


def _parse(text: str, name: str) -> Iterator[tuple[str, Tolerance]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("tolerances", "not valid TOML", file=name, found=str(error)) from error
    for key, row in table.items():
        yield key, _tolerance(key, row, name)


def _tolerance(key: str, row: object, name: str) -> Tolerance:
    is_table = isinstance(row, dict) and set(row) <= KEYS and len({"limit", "least"} & set(row)) == 1
    if not isinstance(row, dict) or not is_table or not str(row.get("reason") or "").strip():
        do = "give limit or least, unit and reason"
        raise UsageError("tolerances", f"tolerance {key} not usable", file=name, do=do)
    kind = "least" if "least" in row else "limit"
    value = row[kind]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError("tolerances", f"tolerance {key} is not a number", file=name, found=value)
    return Tolerance(key, float(value), kind == "least", str(row.get("unit", "")), str(row["reason"]))


def tolerance_for(tolerances: Tolerances, name: str, structure: str) -> str:
    """Name of the tolerance of one structure, or of all."""
    own = f"{name} {structure}"
    return own if own in tolerances else name
