"""Dose limits as data, and how a structure stands to them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from tumoar.dose import Dvh
from tumoar.errors import UsageError

METRIC = re.compile(r"D(?P<cc>\d+(\.\d+)?)cc|D(?P<percent>\d+(\.\d+)?)|V(?P<gray>\d+(\.\d+)?)|mean|max")


@dataclass(frozen=True)
class Limit:
    """At most `limit` is green, at most `hard` amber, more is red; without `hard` there is no amber."""

    structure: str
    metric: str
    limit: float
    hard: float | None = None

    def __post_init__(self) -> None:
        if METRIC.fullmatch(self.metric) is None:
            raise UsageError(
                "limits", f"unknown dose metric '{self.metric}'", do="use D0.03cc, D5, V54, mean or max"
            )
        if not self.limit > 0 or (self.hard is not None and self.hard < self.limit):
            raise UsageError("limits", f"limits of {self.structure} not usable: {self.limit} and {self.hard}")


@dataclass(frozen=True)
class Verdict:
    """A structure against one limit; `above` is the share of posterior samples over it, if there are any."""

    limit: Limit
    value: float
    light: str
    above: float | None = None

    def row(self) -> dict[str, Any]:
        """One row of limits.tsv."""
        return {
            "structure": self.limit.structure,
            "metric": self.limit.metric,
            "value": round(self.value, 3),
            "limit": self.limit.limit,
            "hard": "" if self.limit.hard is None else self.limit.hard,
            "light": self.light,
            "share_of_samples_above": "" if self.above is None else round(self.above, 3),
        }


def parse_limits(table: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Limits from parsed TOML; unknown keys are errors."""
    try:
        return tuple(Limit(**row) for row in table["limit"])
    except (KeyError, TypeError) as error:
        raise UsageError(
            "limits", "limits not usable", do="give rows [[limit]] with structure, metric, limit, hard"
        ) from error


def default_limits() -> tuple[Limit, ...]:
    """The limits in the package."""
    return parse_limits(tomllib.loads(files("tumoar").joinpath("data/limits.toml").read_text("utf-8")))


def measure(dvh: Dvh, metric: str) -> float:
    """The value of a metric: Gy, or percent for V."""
    parts = METRIC.fullmatch(metric)
    if parts is None:
        raise ValueError(f"metric must be like D0.03cc, D5, V54, mean or max, got '{metric}'")
    if parts["cc"]:
        # What is smaller than the volume asked for is judged as a whole.
        return dvh.D_cc(min(float(parts["cc"]), dvh.volume))
    if parts["percent"]:
        return dvh.D(float(parts["percent"]))
    if parts["gray"]:
        return float(dvh.V(float(parts["gray"])))
    return dvh.mean if metric == "mean" else dvh.maximum


def judge(limit: Limit, dvh: Dvh, samples: Sequence[Dvh] = ()) -> Verdict:
    """Green, amber or red; gray where the structure is not there, or part of it has no dose."""
    value = measure(dvh, limit.metric)
    known = [measure(s, limit.metric) for s in samples if s.volume]
    above = float(np.mean(np.array(known) > limit.limit)) if known else None
    if np.isnan(value) or dvh.outside > 0.01:
        return Verdict(limit, value, "gray", above)
    hard = limit.limit if limit.hard is None else limit.hard
    light = "green" if value <= limit.limit else "amber" if value <= hard else "red"
    return Verdict(limit, value, light, above)
