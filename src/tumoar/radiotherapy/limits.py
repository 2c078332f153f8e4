"""Dose limits, and judging structures by them.

A structure is judged as outlined and over its posterior samples, and gets the worse of both lights:
uncertainty of an outline can make a verdict worse, never better.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from tumoar.radiotherapy.dvh import Dvh
from tumoar.vocabulary.errors import UsageError, printable

NUMBER = r"[0-9]{1,4}(?:\.[0-9]{1,4})?"
METRIC = re.compile(rf"D(?P<cc>{NUMBER})cc|D(?P<percent>{NUMBER})|V(?P<gray>{NUMBER})|mean|max")
METRICS = "use D0.03cc, D5, V54, mean or max"
ROWS = "give rows [[limit]] with structure, metric, limit, and optionally hard and source"
FIELDS = ("structure", "metric", "limit", "hard", "source")
MOST_GY = 200.0  # more is not a limit, or in cGy
MOST_ROWS = 1000
MOST_LETTERS = 64  # of a structure name, as in DICOM
MOST_OF_A_SOURCE = 500  # characters
COVERED = 0.95  # fraction of the samples that must be within a limit
OUTSIDE = 0.01  # fraction of a structure that may lie outside the dose, except for hot-spot metrics
LIGHTS = ("green", "amber", "red")  # from good to bad; gray is not judged


@dataclass(frozen=True)
class Limit:
    """At most `limit` is green, at most `hard` amber, more is red; without `hard` there is no amber."""

    structure: str
    metric: str
    limit: float
    hard: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("structure", "metric", "source"):
            if not isinstance(getattr(self, name), str):
                raise UsageError("limits", f"limits not usable: {name} is not text", do=ROWS)
        name = self.structure
        if not name.strip() or len(name) > MOST_LETTERS or printable(name) != name:
            raise UsageError("limits", "limits not usable: a structure without a proper name", do=ROWS)
        if len(self.source) > MOST_OF_A_SOURCE or printable(self.source) != self.source:
            raise UsageError(
                "limits", f"source of the limit of {name} is too long, or no plain text", do=ROWS
            )
        _require_metric(self.metric)
        is_share = self.metric.startswith("V")
        most = 100.0 if is_share else MOST_GY
        # Nothing exceeds 100 %: such a limit would always be green.
        is_void = is_share and self.limit == most
        for value in (self.limit, self.limit if self.hard is None else self.hard):
            if is_void or not _is_number(value) or not 0 < value <= most:
                unit = "percent for V, below 100" if is_share else f"Gy, at most {MOST_GY:g}"
                raise UsageError(
                    "limits",
                    f"limit of {name} not usable",
                    found=f"{self.metric} {str(value)[:32]}",
                    do=f"give {unit}",
                )
        if self.hard is not None and self.hard < self.limit:
            raise UsageError(
                "limits",
                f"hard limit of {name} is below its limit",
                found=f"{self.metric} {self.limit:g} and {self.hard:g}",
                do="give a hard limit that is higher, or none",
            )

    @property
    def is_hot(self) -> bool:
        """Whether it concerns the hottest spot, which may lie outside the dose."""
        return self.metric == "max" or self.metric.endswith("cc")


@dataclass(frozen=True)
class Verdict:
    """Verdict on one limit.

    `value` is that of the outline, `high` the value that 95 % of the samples do not exceed, `above` the
    fraction of samples above the limit; `note` explains the light. Without a matching structure, `is_matched`
    is False.
    """

    limit: Limit
    value: float
    light: str
    above: float | None = None
    high: float | None = None
    note: str = ""
    is_matched: bool = True

    def row(self) -> dict[str, Any]:
        """One row of limits.tsv."""
        return {
            "structure": self.limit.structure,
            "metric": self.limit.metric,
            "value": round(self.value, 3),
            "samples_p95": "" if self.high is None else round(self.high, 3),
            "limit": self.limit.limit,
            "hard": "" if self.limit.hard is None else self.limit.hard,
            "light": self.light,
            "share_of_samples_above": "" if self.above is None else round(self.above, 3),
            "note": self.note,
            "source": self.limit.source,
        }


def parse_limits(table: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Parse limits from a TOML table; unknown keys, repeated rows and an empty table are refused."""
    rows = table.get("limit")
    if not isinstance(rows, list) or not rows:
        raise UsageError("limits", "no limits in the file", found="no rows", do=ROWS)
    others = [name for name in table if name != "limit"]
    if others or len(rows) > MOST_ROWS:
        found = printable(others[0])[:MOST_LETTERS] if others else f"{len(rows)} rows, at most {MOST_ROWS}"
        raise UsageError("limits", "limits not usable", found=found, do=ROWS)
    limits = []
    for row in rows:
        if not isinstance(row, dict) or not {"structure", "metric", "limit"} <= set(row) <= set(FIELDS):
            raise UsageError("limits", "limits not usable", found="a row with other fields", do=ROWS)
        limits.append(Limit(**row))
    seen = set()
    for limit in limits:
        key = limit.structure.casefold(), limit.metric
        if key in seen:
            raise UsageError(
                "limits", f"two limits for {limit.metric} of {limit.structure}", do="keep one of the rows"
            )
        seen.add(key)
    return tuple(limits)


def default_limits() -> tuple[Limit, ...]:
    """The limits in the package."""
    return parse_limits(tomllib.loads(files("tumoar").joinpath("data/limits.toml").read_text("utf-8")))


def measure(dvh: Dvh, metric: str) -> float:
    """Value of a metric: Gy, or percent for V.

    A structure smaller than the volume of the metric is measured by its maximum dose: the dose to all of it
    would be its minimum, and would make the smallest organs look safest.
    """
    parts = METRIC.fullmatch(metric)
    if parts is None:
        raise ValueError(f"metric must be like D0.03cc, D5, V54, mean or max, got '{metric}'")
    if parts["cc"]:
        return dvh.maximum if is_smaller(dvh, metric) else dvh.D_cc(float(parts["cc"]))
    if parts["percent"]:
        return dvh.D(float(parts["percent"]))
    if parts["gray"]:
        return float(dvh.V(float(parts["gray"])))
    return dvh.mean if metric == "mean" else dvh.maximum


def is_smaller(dvh: Dvh, metric: str) -> bool:
    """Whether a structure is smaller than the volume in cm³ of a metric."""
    parts = METRIC.fullmatch(metric)
    return bool(parts and parts["cc"] and dvh.volume < float(parts["cc"]))


def judge(limit: Limit, dvh: Dvh, samples: Sequence[Dvh] = ()) -> Verdict:
    """Judge a structure by a limit: the worse light of outline and samples; gray if it cannot be judged.

    Samples are green if at least 95 % of them are within the limit, and amber if as many are within the hard
    limit. Parts outside the dose count as 0 Gy: they can hide a red light, but not cause one.
    """
    value = measure(dvh, limit.metric)
    known = [s for s in samples if s.volume]
    values = sorted(measure(s, limit.metric) for s in known)
    above = sum(v > limit.limit for v in values) / len(values) if values else None
    high = values[_covering(len(values)) - 1] if values else None
    if np.isnan(value):
        seen = f"not outlined, but in {100 * len(known) / len(samples):.0f} % of the samples" if known else ""
        return Verdict(limit, value, "gray", above, high, seen or "empty")
    own = _light(limit, value)
    light, notes = own, []
    if samples:
        light, found = _worse(limit, own, high, above)
        notes += found
    if is_smaller(dvh, limit.metric):
        notes.append(f"smaller than {limit.metric[1:-2]} cm³: judged by its highest dose")
    outside = max(_unknown(limit, dvh), _covered_outside(limit, known))
    if outside > 0 and light != "red":
        light = "gray"
    if outside > 0:
        notes.append(f"{max(100 * outside, 0.1):.1f} % of it lies outside the dose")
    return Verdict(limit, value, light, above, high, "; ".join(notes))


def mark_unmatched(limit: Limit, note: str = "no structure of this name") -> Verdict:
    """Verdict on a limit without a matching structure."""
    return Verdict(limit, np.nan, "gray", note=note, is_matched=False)


def _light(limit: Limit, value: float) -> str:
    hard = limit.limit if limit.hard is None else limit.hard
    return "green" if value <= limit.limit else "amber" if value <= hard else "red"


def _worse(limit: Limit, own: str, high: float | None, above: float | None) -> tuple[str, list[str]]:
    """The worse light of outline and samples, and an explanation if they disagree."""
    if high is None or above is None:
        # No sample supports the outline.
        return LIGHTS[max(LIGHTS.index(own), 1)], ["it is in none of the samples"]
    theirs = _light(limit, high)
    if theirs == own:
        return own, []
    if LIGHTS.index(theirs) > LIGHTS.index(own):
        return theirs, [
            f"the outline alone is {own}, but {100 * above:.0f} % of the samples are above the limit"
            if own == "green"
            else f"the outline alone is {own}, but more than 5 % of the samples are above the hard limit"
        ]
    return own, [f"the outline is {own}, but at least 95 % of the samples are {theirs}"]


def _covering(count: int) -> int:
    """Smallest number of samples that is at least 95 % of all."""
    return math.ceil(round(COVERED * count, 9))


def _unknown(limit: Limit, dvh: Dvh) -> float:
    """Fraction outside the dose, if large enough to matter for the limit."""
    return dvh.outside if dvh.outside > (0.0 if limit.is_hot else OUTSIDE) else 0.0


def _covered_outside(limit: Limit, samples: Sequence[Dvh]) -> float:
    """Fraction outside the dose that 95 % of the samples do not exceed, if large enough to matter."""
    shares = sorted(_unknown(limit, s) for s in samples)
    return shares[_covering(len(shares)) - 1] if shares else 0.0


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _require_metric(metric: str) -> None:
    parts = METRIC.fullmatch(metric)
    if parts is None:
        raise UsageError("limits", f"unknown dose metric '{printable(metric)[:32]}'", do=METRICS)
    percent, amount = parts["percent"], parts["cc"] or parts["gray"]
    if (percent and not 0 < float(percent) <= 100) or (amount and float(amount) == 0):
        raise UsageError("limits", f"dose metric '{metric}' not usable", do=METRICS)
    if parts["gray"] and float(parts["gray"]) > MOST_GY:
        raise UsageError("limits", f"dose metric '{metric}' not usable", do=f"V in Gy, at most {MOST_GY:g}")
