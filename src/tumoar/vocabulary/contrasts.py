"""Prior knowledge of each contrast: rows of `data/contrasts.toml`, or of a user's table.

A row defines the intensity transform, whether there is a bias field, initial tumor means and constraints on
means (Tables 3 and 4), the order of tissue intensities, BIDS suffixes, and the rank as reference and in
pictures.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tumoar.vocabulary.errors import ModelFileError, UsageError, printable
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable, add_cavity

Transform = Literal["log", "hounsfield"]
Tissue = Literal["GWM", "GGM", "CSF"]
"""Mixtures whose order of intensities can be checked."""


@dataclass(frozen=True)
class MeanConstraint:
    """mu_gmm >= max(refs) + log_offset, or mu_gmm <= min(refs) + log_offset; `component` None: all.

    `added` marks those of the package that the paper's Table 3 does not have. With `beside`, a constraint
    applies only in models that have this mixture too.
    """

    gmm: str
    op: Literal[">=", "<="]
    refs: tuple[str, ...]
    log_offset: float = 0.0
    component: int | None = None
    added: bool = False
    beside: str | None = None


@dataclass(frozen=True)
class Darker:
    """A tissue that is darker than another; `weak` if disease can reverse the order."""

    tissue: Tissue
    than: Tissue
    weak: bool = False


@dataclass(frozen=True)
class RatioBelow:
    """The intensity ratio of `tissue` to `to` is lower than in the other `contrasts`."""

    tissue: Tissue
    to: Tissue
    contrasts: tuple[str, ...]


@dataclass(frozen=True)
class Contrast:
    """One row of the contrast table.

    If `tumor_start` is None, tumor means are initialized like those of normal structures. `tumor_offset` and
    `tumor_spread` are the mean distance of tumor from white matter and its standard deviation within a
    patient, `tumor_deviation` that between patients, in log intensity, where patients have shown them.
    `bids` are suffixes in BIDS datasets, with the entity `ce-` if `agent`. Ranks start at 1; a contrast
    without rank comes last.
    """

    name: str
    transform: Transform
    bias_field: bool
    tumor_start: Mapping[str, float] | None = None
    tumor_offset: Mapping[str, float] | None = None
    tumor_spread: Mapping[str, float] | None = None
    tumor_deviation: Mapping[str, float] | None = None
    constraints: tuple[MeanConstraint, ...] = ()
    darker: tuple[Darker, ...] = ()
    ratio_below: tuple[RatioBelow, ...] = ()
    bids: tuple[str, ...] = ()
    agent: bool = False
    reference_rank: int | None = None
    picture_rank: int | None = None

    def __post_init__(self) -> None:
        if self.tumor_start is not None and set(self.tumor_start) != set(TUMOR_STATES):
            raise _unusable(self.name, f"tumor_start must name {' and '.join(TUMOR_STATES)}")
        if self.transform != "log" and self.constraints:
            raise _unusable(self.name, "constraints are ratios of intensities and need the log transform")

    @property
    def is_mr(self) -> bool:
        """Whether intensities are positive and multiplicative (MR), not Hounsfield units."""
        return self.transform == "log"


def parse_contrasts(table: Mapping[str, Any], labels: LabelTable | None = None) -> dict[str, Contrast]:
    """Contrasts from parsed TOML, checked against a label table if given; unknown keys are rejected."""
    contrasts = {name: _contrast(name, table) for name in table}
    if len({name.casefold() for name in contrasts}) < len(contrasts):
        twice = next(n for n in contrasts for m in contrasts if n != m and n.casefold() == m.casefold())
        raise _unusable(twice, "another row has this name, in different case")
    suffixes: dict[tuple[str, bool], str] = {}
    for contrast in contrasts.values():
        for suffix in contrast.bids:
            other = suffixes.setdefault((suffix, contrast.agent), contrast.name)
            if other != contrast.name:
                raise _unusable(contrast.name, f"{other} already has the BIDS suffix '{suffix}'")
        for ratio in contrast.ratio_below:
            unknown = sorted(set(ratio.contrasts) - set(contrasts))
            if unknown:
                raise _unusable(contrast.name, f"ratio_below has the unknown contrast '{unknown[0]}'")
        if labels is not None:
            _require_mixtures(contrast, labels)
    return contrasts


def extend_contrasts(table: Mapping[str, Any], labels: LabelTable) -> dict[str, Contrast]:
    """Add the rows of a table to the default contrasts; rows of the same name are replaced."""
    found = parse_contrasts({**_shipped(), **table})
    for name in table:  # rows of the package apply as far as a model has their mixtures
        _require_mixtures(found[name], labels)
    return found


@cache
def default_contrasts() -> dict[str, Contrast]:
    """The contrasts the paper uses, and `other`."""
    return parse_contrasts(_shipped())


def find_contrast(name: str, contrasts: Mapping[str, Contrast] | None = None) -> Contrast:
    """Find a contrast by name, ignoring case."""
    contrasts = default_contrasts() if contrasts is None else contrasts
    for known, contrast in contrasts.items():
        if known.lower() == name.lower():
            return contrast
    raise UsageError("contrast", f"unknown contrast '{name}'", do=f"use one of {', '.join(contrasts)}")


def select_constraints(contrast: Contrast, labels: LabelTable) -> tuple[MeanConstraint, ...]:
    """Select the constraints of a contrast that apply to the mixtures of a model."""
    gmms = {g.name: g.components for g in labels.gmms}
    found = []
    for c in contrast.constraints:
        refs = tuple(ref for ref in c.refs if ref in gmms and (c.beside is None or c.beside in gmms))
        if refs and (c.component or 0) < gmms.get(c.gmm, 0):
            found.append(replace(c, refs=refs))
    return tuple(found)


def drop_added_bounds(contrast: Contrast) -> Contrast:
    """Keep the constraints of Table 3, and those of a user's own rows."""
    return replace(contrast, constraints=tuple(c for c in contrast.constraints if not c.added))


def tumor_is_constrained(contrasts: Iterable[Contrast]) -> bool:
    """Whether tumor is brighter than gray and white matter in any contrast (FLAIR-like or T1c).

    Required to segment tumor; bounds against one tissue alone do not separate it from the other.
    """
    return any(
        c.gmm in TUMOR_STATES and c.op == ">=" and {"GWM", "GGM"} <= set(c.refs)
        for contrast in contrasts
        for c in contrast.constraints
    )


def core_is_identifiable(contrasts: Iterable[Contrast]) -> bool:
    """Whether core and edema have different initial means in any contrast (T1c)."""
    starts = [c.tumor_start for c in contrasts if c.tumor_start is not None]
    return any(start["core"] != start["edema"] for start in starts)


def edema_is_visible(contrasts: Iterable[Contrast]) -> bool:
    """Whether edema is brighter than normal tissue in any contrast (FLAIR or T2)."""
    return any(c.gmm == "edema" and c.op == ">=" for contrast in contrasts for c in contrast.constraints)


def fluid_is_identifiable(contrasts: Iterable[Contrast]) -> bool:
    """Whether any contrast tells fluid from necrosis: fluid is dark in it and edema bright (FLAIR)."""
    return any(_tells_fluid(contrast) for contrast in contrasts)


def _tells_fluid(contrast: Contrast) -> bool:
    sides = {(c.gmm, c.op) for c in contrast.constraints if c.gmm == "edema" or c.component == 0}
    return {("cavity", "<="), ("edema", ">=")} <= sides


def rank(value: int | None) -> float:
    """Sort key of a rank; contrasts without rank come last."""
    return math.inf if value is None else value


def _shipped() -> dict[str, Any]:
    return tomllib.loads(files("tumoar").joinpath("data/contrasts.toml").read_text(encoding="utf-8"))


NAME = re.compile("(?!(?i:subject|session)$)[A-Za-z][A-Za-z0-9]{0,31}")
"""Used in file names and BIDS entities, where _ and - are separators; not a column name of cohort lists."""
SUFFIX = re.compile("[A-Za-z0-9]{1,32}")
NOT_COPIED = ("tumor_deviation", "bids", "reference_rank", "picture_rank")
"""Keys of a row that `like` does not copy, as they are specific to one contrast."""
KEYS: dict[str, tuple[type, ...]] = {
    "transform": (str,),
    "bias_field": (bool,),
    "tumor_start": (str, dict),
    "tumor_offset": (dict,),
    "tumor_spread": (dict,),
    "tumor_deviation": (dict,),
    "constraints": (list,),
    "darker": (list,),
    "ratio_below": (list,),
    "bids": (list,),
    "agent": (bool,),
    "reference_rank": (int,),
    "picture_rank": (int,),
}
NEEDED = ("transform", "bias_field")


def _contrast(name: str, table: Mapping[str, Any]) -> Contrast:
    row = _row(name, table)
    if "like" in row:
        target = row.pop("like")
        if not isinstance(target, str) or target not in table or target == name:
            raise _unusable(name, f"'like' must name another contrast, not {_show(target)}")
        base = _row(target, table)
        if "like" in base:
            raise _unusable(name, f"'like' must name a contrast without 'like'; {target} has one")
        row = {key: value for key, value in base.items() if key not in NOT_COPIED} | row
    if NAME.fullmatch(name) is None:
        raise _unusable(
            name, "a name must be letters and digits, start with a letter, and not be subject or session"
        )
    _require_keys(name, row, KEYS, NEEDED)
    if row["transform"] not in ("log", "hounsfield"):
        raise _unusable(name, f"transform {_show(row['transform'])} is neither 'log' nor 'hounsfield'")
    bids = tuple(row.pop("bids", ()))
    if not all(isinstance(suffix, str) and SUFFIX.fullmatch(suffix) for suffix in bids):
        raise _unusable(name, "a BIDS suffix must be letters and digits")
    for key in ("reference_rank", "picture_rank"):
        if not 1 <= row.get(key, 1) <= 1000:
            raise _unusable(name, f"{key} {_show(row[key])} is not between 1 and 1000")
    return Contrast(
        name=name,
        tumor_start=_start(name, row.pop("tumor_start", "like-normal")),
        tumor_offset=_parts(name, "tumor_offset", row.pop("tumor_offset", None)),
        tumor_spread=_parts(name, "tumor_spread", row.pop("tumor_spread", None)),
        tumor_deviation=_parts(name, "tumor_deviation", row.pop("tumor_deviation", None)),
        constraints=tuple(_constraint(name, c) for c in row.pop("constraints", ())),
        darker=tuple(_darker(name, d) for d in row.pop("darker", ())),
        ratio_below=tuple(_ratio(name, r) for r in row.pop("ratio_below", ())),
        bids=bids,
        **row,
    )


def _row(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(table[name], Mapping):
        raise _unusable(name, f"a contrast must be a table, not {_show(table[name])}")
    return dict(table[name])


def _require_keys(
    name: str, row: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]], needed: Iterable[str]
) -> None:
    """Reject keys that are unknown, missing or of the wrong type; booleans are not numbers."""
    for key, value in row.items():
        if key not in kinds:
            raise _unusable(name, f"unknown key {_show(key)}; known keys: {', '.join(kinds)}")
        is_bool = isinstance(value, bool)
        if not isinstance(value, kinds[key]) or (is_bool and bool not in kinds[key]):
            raise _unusable(name, f"{key} cannot be {_show(value)}")
        if isinstance(value, float | int) and not abs(value) < 1e6:
            raise _unusable(name, f"{key} cannot be {_show(value)}")
    for key in needed:
        if key not in row:
            raise _unusable(name, f"{key} is missing")


def _start(name: str, given: Any) -> dict[str, float] | None:
    return None if given == "like-normal" else _parts(name, "tumor_start", given, "'like-normal', or ")


def _parts(name: str, key: str, given: Any, otherwise: str = "") -> dict[str, float] | None:
    """A number for each part of the tumor."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise _unusable(name, f"{key} must be {otherwise}numbers for core and edema")
    _require_keys(name, given, dict.fromkeys(TUMOR_STATES, (int, float)), TUMOR_STATES)
    if key in ("tumor_spread", "tumor_deviation") and not all(value > 0 for value in given.values()):
        raise _unusable(name, f"{key} must be positive")
    return {part: float(value) for part, value in given.items()}


def _constraint(name: str, row: Any) -> MeanConstraint:
    number, text = (int, float), (str,)
    kinds = {"gmm": text, "op": text, "refs": (list,), "factor": number, "divisor": number}
    row = _table(name, "constraints", row)
    kinds = {**kinds, "component": (int, str), "added": (bool,), "beside": text}
    _require_keys(name, row, kinds, ("gmm", "op", "refs"))
    factor, divisor = row.get("factor", 1.0), row.get("divisor", 1.0)
    if row["op"] not in (">=", "<="):
        raise _unusable(name, f"op {_show(row['op'])} is neither '>=' nor '<='")
    if not (factor > 0 and divisor > 0 and 1e-6 < factor / divisor < 1e6):
        raise _unusable(name, "factor and divisor must be positive")
    component = row.get("component", "all")
    if component != "all" and (isinstance(component, str) or component < 0):
        raise _unusable(name, f"component {_show(component)} is neither 'all' nor an index")
    if not row["refs"] or not all(isinstance(ref, str) for ref in row["refs"]):
        raise _unusable(name, "refs must be a list of mixtures")
    return MeanConstraint(
        gmm=row["gmm"],
        op=row["op"],
        refs=tuple(row["refs"]),
        log_offset=math.log(factor / divisor),
        component=None if component == "all" else component,
        added=row.get("added", False),
        beside=row.get("beside"),
    )


def _darker(name: str, row: Any) -> Darker:
    row = _table(name, "darker", row)
    _require_keys(name, row, {"tissue": (str,), "than": (str,), "weak": (bool,)}, ("tissue", "than"))
    _require_tissues(name, row["tissue"], row["than"])
    return Darker(**row)


def _ratio(name: str, row: Any) -> RatioBelow:
    row = _table(name, "ratio_below", row)
    needed = ("tissue", "to", "contrasts")
    _require_keys(name, row, {"tissue": (str,), "to": (str,), "contrasts": (list,)}, needed)
    _require_tissues(name, row["tissue"], row["to"])
    if not all(isinstance(contrast, str) for contrast in row["contrasts"]):
        raise _unusable(name, "contrasts of ratio_below must be names")
    return RatioBelow(row["tissue"], row["to"], tuple(row["contrasts"]))


def _table(name: str, key: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise _unusable(name, f"{key} must be a list of tables, not of {_show(row)}")
    return dict(row)


def _require_tissues(name: str, *tissues: str) -> None:
    for tissue in tissues:
        if tissue not in ("GWM", "GGM", "CSF"):
            raise _unusable(name, f"tissue {_show(tissue)} is not one of GWM, GGM, CSF")
    if len(set(tissues)) < len(tissues):
        raise _unusable(name, f"{tissues[0]} is compared with itself")


def _require_mixtures(contrast: Contrast, labels: LabelTable) -> None:
    labels = labels if labels.cavity is not None else add_cavity(labels)
    gmms = {g.name: g.components for g in labels.gmms}
    for c in contrast.constraints:
        unknown = sorted({c.gmm, *c.refs, c.beside or c.gmm} - set(gmms))
        if unknown:
            raise _unusable(contrast.name, f"constraint on unknown gmm {_show(unknown[0])}")
        if c.component is not None and not 0 <= c.component < gmms[c.gmm]:
            raise _unusable(contrast.name, f"gmm '{c.gmm}' has no component {c.component}")


def _show(value: object) -> str:
    return printable(repr(value)[:60])


def _unusable(name: str, why: str) -> ModelFileError:
    return ModelFileError("contrasts", f"invalid contrast {_show(name)}: {why}")
