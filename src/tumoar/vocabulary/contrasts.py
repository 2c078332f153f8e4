"""What is known of each contrast: transform, bias field, tumor start, mean constraints (Tables 3 and 4)."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tumoar.vocabulary.errors import ModelFileError, UsageError
from tumoar.vocabulary.labels import LabelTable, default_labels

Transform = Literal["log", "hounsfield"]


@dataclass(frozen=True)
class MeanConstraint:
    """mu_gmm >= max(refs) + log_offset, or mu_gmm <= min(refs) + log_offset; `component` None means all."""

    gmm: str
    op: Literal[">=", "<="]
    refs: tuple[str, ...]
    log_offset: float = 0.0
    component: int | None = None


@dataclass(frozen=True)
class Contrast:
    """One row of the contrast table; `tumor_start` None means started as the normal structures are."""

    name: str
    transform: Transform
    bias_field: bool
    tumor_start: Mapping[str, float] | None
    constraints: tuple[MeanConstraint, ...] = ()

    def __post_init__(self) -> None:
        if self.transform not in ("log", "hounsfield"):
            raise _unusable(self.name, f"transform '{self.transform}'")
        if self.tumor_start is not None and set(self.tumor_start) != {"core", "edema"}:
            raise _unusable(self.name, "tumor_start must name core and edema")
        if self.transform != "log" and self.constraints:
            raise _unusable(self.name, "constraints are ratios of intensities and need the log transform")

    @property
    def is_mr(self) -> bool:
        """Whether intensities are positive and multiplicative (MR), not Hounsfield units."""
        return self.transform == "log"


def parse_contrasts(table: Mapping[str, Any], labels: LabelTable) -> dict[str, Contrast]:
    """Build the contrasts of parsed TOML and check them against the label table; unknown keys are errors."""
    contrasts = {name: _contrast(name, table) for name in table}
    gmms = {g.name: g.components for g in labels.gmms}
    for contrast in contrasts.values():
        for c in contrast.constraints:
            unknown = {c.gmm, *c.refs} - set(gmms)
            if unknown:
                raise _unusable(contrast.name, f"constraint on unknown gmm {sorted(unknown)}")
            if c.component is not None and not 0 <= c.component < gmms[c.gmm]:
                raise _unusable(contrast.name, f"gmm '{c.gmm}' has no component {c.component}")
    return contrasts


@cache
def default_contrasts() -> dict[str, Contrast]:
    """The contrasts the paper uses, and `other`."""
    text = files("tumoar").joinpath("data/contrasts.toml").read_text(encoding="utf-8")
    return parse_contrasts(tomllib.loads(text), default_labels())


def find_contrast(name: str, contrasts: Mapping[str, Contrast] | None = None) -> Contrast:
    """A contrast by name, whatever its case; never guessed from a file name."""
    contrasts = default_contrasts() if contrasts is None else contrasts
    for known, contrast in contrasts.items():
        if known.lower() == name.lower():
            return contrast
    raise UsageError("contrast", f"unknown contrast '{name}'", do=f"use one of {', '.join(contrasts)}")


def constraints_on(contrast: Contrast, labels: LabelTable) -> tuple[MeanConstraint, ...]:
    """The constraints of a contrast on the mixtures that a model has; the others are left out."""
    gmms = {g.name: g.components for g in labels.gmms}
    found = []
    for c in contrast.constraints:
        refs = tuple(ref for ref in c.refs if ref in gmms)
        if refs and (c.component or 0) < gmms.get(c.gmm, 0):
            found.append(replace(c, refs=refs))
    return tuple(found)


def tumor_is_constrained(contrasts: Iterable[Contrast]) -> bool:
    """Whether any contrast (FLAIR-like or T1c) says how bright tumor is; without one, no tumor mode."""
    return any(c.gmm in ("core", "edema") for contrast in contrasts for c in contrast.constraints)


def core_is_identifiable(contrasts: Iterable[Contrast]) -> bool:
    """Whether core and edema start apart in any contrast (T1c); else only the whole tumor means anything."""
    starts = [c.tumor_start for c in contrasts if c.tumor_start is not None]
    return any(start["core"] != start["edema"] for start in starts)


def _contrast(name: str, table: Mapping[str, Any]) -> Contrast:
    row = dict(table[name])
    if "like" in row:
        target = row.pop("like")
        if row or target not in table or "like" in table[target]:
            raise _unusable(name, f"'like' must stand alone and name a contrast of its own, not '{target}'")
        row = dict(table[target])
    start = row.pop("tumor_start", None)
    constraints = tuple(_constraint(name, c) for c in row.pop("constraints", ()))
    try:
        return Contrast(
            name=name, tumor_start=None if start == "like-normal" else start, constraints=constraints, **row
        )
    except TypeError as error:
        raise _unusable(name, str(error)) from error


def _constraint(name: str, row: Mapping[str, Any]) -> MeanConstraint:
    row = dict(row)
    ratio = row.pop("factor", 1.0) / row.pop("divisor", 1.0)
    if row.get("op") not in (">=", "<=") or not ratio > 0:
        raise _unusable(name, f"constraint {row}")
    try:
        return MeanConstraint(**{**row, "refs": tuple(row["refs"]), "log_offset": math.log(ratio)})
    except (KeyError, TypeError) as error:
        raise _unusable(name, str(error)) from error


def _unusable(name: str, why: str) -> ModelFileError:
    return ModelFileError("contrasts", f"contrast '{name}' not usable: {why}")
