"""What is known of each contrast before a patient is seen: a row of `data/contrasts.toml`, or a clinic's own.

A row says how the image is transformed, whether it has a bias field, where tumor starts, which bounds hold on
means (Tables 3 and 4), which tissues are darker than others, what the image is called in BIDS, and when it is
preferred as reference or in pictures.
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
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable

Transform = Literal["log", "hounsfield"]
Tissue = Literal["GWM", "GGM", "CSF"]
"""Mixtures whose order of brightness can be looked at."""


@dataclass(frozen=True)
class MeanConstraint:
    """mu_gmm >= max(refs) + log_offset, or mu_gmm <= min(refs) + log_offset; `component` None means all."""

    gmm: str
    op: Literal[">=", "<="]
    refs: tuple[str, ...]
    log_offset: float = 0.0
    component: int | None = None


@dataclass(frozen=True)
class Darker:
    """A tissue that is darker than another; `weak` where disease can turn the two around."""

    tissue: Tissue
    than: Tissue
    weak: bool = False


@dataclass(frozen=True)
class RatioBelow:
    """The ratio of one tissue's intensity to another's is lower than in the `contrasts` named."""

    tissue: Tissue
    to: Tissue
    contrasts: tuple[str, ...]


@dataclass(frozen=True)
class Contrast:
    """One row of the contrast table.

    `tumor_start` None means started as the normal structures are. `bids` are suffixes in BIDS datasets, of
    images with a contrast agent (`ce-`) if `agent`. Ranks begin at 1; a contrast without one comes last.
    """

    name: str
    transform: Transform
    bias_field: bool
    tumor_start: Mapping[str, float] | None = None
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
    """Contrasts from parsed TOML, checked against a label table if there is one; unknown keys are errors."""
    contrasts = {name: _contrast(name, table) for name in table}
    if len({name.casefold() for name in contrasts}) < len(contrasts):
        twice = next(n for n in contrasts for m in contrasts if n != m and n.casefold() == m.casefold())
        raise _unusable(twice, "another row has this name in other letters")
    suffixes: dict[tuple[str, bool], str] = {}
    for contrast in contrasts.values():
        for suffix in contrast.bids:
            other = suffixes.setdefault((suffix, contrast.agent), contrast.name)
            if other != contrast.name:
                raise _unusable(contrast.name, f"{other} has the BIDS suffix '{suffix}' already")
        for ratio in contrast.ratio_below:
            unknown = sorted(set(ratio.contrasts) - set(contrasts))
            if unknown:
                raise _unusable(contrast.name, f"ratio_below names the unknown contrast '{unknown[0]}'")
        if labels is not None:
            _require_mixtures(contrast, labels)
    return contrasts


def extend_contrasts(table: Mapping[str, Any], labels: LabelTable) -> dict[str, Contrast]:
    """The contrasts in the package with the rows of another table, which replace those of the same name."""
    return parse_contrasts({**_shipped(), **table}, labels)


@cache
def default_contrasts() -> dict[str, Contrast]:
    """The contrasts the paper uses, and `other`."""
    return parse_contrasts(_shipped())


def find_contrast(name: str, contrasts: Mapping[str, Contrast] | None = None) -> Contrast:
    """A contrast by name, whatever its case; never guessed from a file name."""
    contrasts = default_contrasts() if contrasts is None else contrasts
    for known, contrast in contrasts.items():
        if known.lower() == name.lower():
            return contrast
    raise UsageError("contrast", f"unknown contrast '{name}'", do=f"use one of {', '.join(contrasts)}")


def select_constraints(contrast: Contrast, labels: LabelTable) -> tuple[MeanConstraint, ...]:
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
    return any(c.gmm in TUMOR_STATES for contrast in contrasts for c in contrast.constraints)


def core_is_identifiable(contrasts: Iterable[Contrast]) -> bool:
    """Whether core and edema start apart in any contrast (T1c); else only the whole tumor means anything."""
    starts = [c.tumor_start for c in contrasts if c.tumor_start is not None]
    return any(start["core"] != start["edema"] for start in starts)


def rank(value: int | None) -> float:
    """A rank to sort by: those without one come last."""
    return math.inf if value is None else value


def _shipped() -> dict[str, Any]:
    return tomllib.loads(files("tumoar").joinpath("data/contrasts.toml").read_text(encoding="utf-8"))


NAME = re.compile("(?!(?i:subject|session)$)[A-Za-z][A-Za-z0-9]{0,31}")
"""Part of names of files, also of BIDS, where _ and - have a meaning; columns of lists are no contrasts."""
SUFFIX = re.compile("[A-Za-z0-9]{1,32}")
NOT_COPIED = ("bids", "reference_rank", "picture_rank")
"""Keys of a row that `like` leaves behind: they belong to one contrast alone."""
KEYS: dict[str, tuple[type, ...]] = {
    "transform": (str,),
    "bias_field": (bool,),
    "tumor_start": (str, dict),
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
            raise _unusable(name, f"'like' must name a contrast of its own, and {target} is like another")
        row = {key: value for key, value in base.items() if key not in NOT_COPIED} | row
    if NAME.fullmatch(name) is None:
        raise _unusable(
            name, "a name has letters and digits, begins with a letter, and is not subject or session"
        )
    _require_keys(name, row, KEYS, NEEDED)
    if row["transform"] not in ("log", "hounsfield"):
        raise _unusable(name, f"transform {_show(row['transform'])} is neither 'log' nor 'hounsfield'")
    bids = tuple(row.pop("bids", ()))
    if not all(isinstance(suffix, str) and SUFFIX.fullmatch(suffix) for suffix in bids):
        raise _unusable(name, "a BIDS suffix has letters and digits")
    for key in ("reference_rank", "picture_rank"):
        if not 1 <= row.get(key, 1) <= 1000:
            raise _unusable(name, f"{key} {_show(row[key])} is not 1 to 1000")
    return Contrast(
        name=name,
        tumor_start=_start(name, row.pop("tumor_start", "like-normal")),
        constraints=tuple(_constraint(name, c) for c in row.pop("constraints", ())),
        darker=tuple(_darker(name, d) for d in row.pop("darker", ())),
        ratio_below=tuple(_ratio(name, r) for r in row.pop("ratio_below", ())),
        bids=bids,
        **row,
    )


def _row(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(table[name], Mapping):
        raise _unusable(name, f"a contrast is a table, not {_show(table[name])}")
    return dict(table[name])


def _require_keys(
    name: str, row: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]], needed: Iterable[str]
) -> None:
    """Refuse keys that are unknown, missing, or of another kind; True and False are no numbers."""
    for key, value in row.items():
        if key not in kinds:
            raise _unusable(name, f"unknown key {_show(key)}; keys are {', '.join(kinds)}")
        is_bool = isinstance(value, bool)
        if not isinstance(value, kinds[key]) or (is_bool and bool not in kinds[key]):
            raise _unusable(name, f"{key} cannot be {_show(value)}")
        if isinstance(value, float | int) and not abs(value) < 1e6:
            raise _unusable(name, f"{key} cannot be {_show(value)}")
    for key in needed:
        if key not in row:
            raise _unusable(name, f"{key} is missing")


def _start(name: str, given: Any) -> dict[str, float] | None:
    if given == "like-normal":
        return None
    if not isinstance(given, Mapping):
        raise _unusable(name, "tumor_start is 'like-normal', or numbers for core and edema")
    _require_keys(name, given, dict.fromkeys(TUMOR_STATES, (int, float)), TUMOR_STATES)
    return {part: float(value) for part, value in given.items()}


def _constraint(name: str, row: Any) -> MeanConstraint:
    number, text = (int, float), (str,)
    kinds = {"gmm": text, "op": text, "refs": (list,), "factor": number, "divisor": number}
    row = _table(name, "constraints", row)
    _require_keys(name, row, {**kinds, "component": (int, str)}, ("gmm", "op", "refs"))
    factor, divisor = row.get("factor", 1.0), row.get("divisor", 1.0)
    if row["op"] not in (">=", "<="):
        raise _unusable(name, f"op {_show(row['op'])} is neither '>=' nor '<='")
    if not (factor > 0 and divisor > 0 and 1e-6 < factor / divisor < 1e6):
        raise _unusable(name, "factor and divisor must be above zero")
    component = row.get("component", "all")
    if component != "all" and (isinstance(component, str) or component < 0):
        raise _unusable(name, f"component {_show(component)} is neither 'all' nor a number from 0")
    if not row["refs"] or not all(isinstance(ref, str) for ref in row["refs"]):
        raise _unusable(name, "refs names mixtures")
    return MeanConstraint(
        gmm=row["gmm"],
        op=row["op"],
        refs=tuple(row["refs"]),
        log_offset=math.log(factor / divisor),
        component=None if component == "all" else component,
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
        raise _unusable(name, "ratio_below names contrasts")
    return RatioBelow(row["tissue"], row["to"], tuple(row["contrasts"]))


def _table(name: str, key: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise _unusable(name, f"{key} is a list of tables, not of {_show(row)}")
    return dict(row)


def _require_tissues(name: str, *tissues: str) -> None:
    for tissue in tissues:
        if tissue not in ("GWM", "GGM", "CSF"):
            raise _unusable(name, f"tissue {_show(tissue)} is none of GWM, GGM, CSF")
    if len(set(tissues)) < len(tissues):
        raise _unusable(name, f"{tissues[0]} is compared with itself")


def _require_mixtures(contrast: Contrast, labels: LabelTable) -> None:
    gmms = {g.name: g.components for g in labels.gmms}
    for c in contrast.constraints:
        unknown = sorted({c.gmm, *c.refs} - set(gmms))
        if unknown:
            raise _unusable(contrast.name, f"constraint on unknown gmm {_show(unknown[0])}")
        if c.component is not None and not 0 <= c.component < gmms[c.gmm]:
            raise _unusable(contrast.name, f"gmm '{c.gmm}' has no component {c.component}")


def _show(value: object) -> str:
    return printable(repr(value)[:60])


def _unusable(name: str, why: str) -> ModelFileError:
    return ModelFileError("contrasts", f"contrast {_show(name)} not usable: {why}")
