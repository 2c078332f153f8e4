"""Settings of a run: those of a method, overridden by a TOML file or `Config`, overridden by flags."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tumoar.io.files import read_toml
from tumoar.vocabulary.config import FAST, METHODS, Config, GemConfig, GibbsConfig, find_changes
from tumoar.vocabulary.errors import UsageError, printable

FAST_STAMP = "fast: a preview, not the full algorithm"
METHOD_STAMPS = {"paper": "the method of Agn et al. 2019"}
LONGEST = 60
"""Characters of a name or value that a refusal quotes."""
NAMED = 4
"""Changed settings that a stamp names."""
SHOWN = {"tumor", "postop", "gtv", "chains"}
"""Settings that make another result, not another method: structures and notes show them."""


def resolve(
    given: str | Path | Config | None,
    *,
    fast: bool,
    method: str | None = None,
    tumor: bool,
    prior: str | None,
    gtv: str | None = None,
    postop: bool = False,
    chains: int | None,
    gibbs: dict[str, int | None],
) -> Config:
    """Resolve the settings; unknown or out-of-range values are refused (B55).

    A file and flags change the settings of the method, and only those that they name.
    """
    method = str(method or "default")
    if method not in METHODS:
        raise UsageError(
            "B55", f"unknown method '{printable(method)[:LONGEST]}'", do=f"use {' or '.join(METHODS)}"
        )
    if fast and method != "default":
        raise UsageError("B55", f"both fast and the method {method} given", do="give one of them")
    table: dict[str, Any] = (FAST if fast else METHODS[method]).model_dump()
    path = None
    if isinstance(given, Config):
        if fast or method != "default":
            named = "fast" if fast else f"the method {method}"
            raise UsageError("B55", f"both {named} and a Config given", do="give one of them")
        table = given.model_dump()
    elif given is not None:
        path = Path(given)
        table = _merge_tables(table, read_toml(path, "the settings file"))
    changed = {"prior": prior and str(prior), "gtv": gtv and str(gtv), "chains": chains}
    table |= {k: v for k, v in changed.items() if v is not None}
    if isinstance(table["gibbs"], dict):  # otherwise refused below
        table["gibbs"] = table["gibbs"] | {k: v for k, v in gibbs.items() if v is not None}
    if not tumor:
        table["tumor"] = False
    if postop:
        table["postop"] = True
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UsageError("B55", _format_validation_error(error), file=path) from error


def stamp_settings(method: str | None, config: Config, *, fast: bool = False) -> tuple[str, ...]:
    """Marks of a result that was not made with the default settings, and what was changed."""
    if method is None or method == "default":
        preview, plain = (
            [n for n in find_changes(config, base) if n not in SHOWN] for base in (FAST, Config())
        )
        fast = fast or not preview
        changed = preview if fast else plain
        return (*((FAST_STAMP,) if fast else ()), *((f"changed: {_list(changed)}",) if changed else ()))
    changed = list(find_changes(config, METHODS[method]))
    other = f", except {_list(changed)}" if changed else ""
    return (f"{method}: {METHOD_STAMPS[method]}{other}",)


def _list(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _merge_tables(table: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; values of the second replace those of the first."""
    out = dict(table)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(table.get(key), dict)
        out[key] = {**table[key], **value} if both else value
    return out


def _format_validation_error(error: Any) -> str:
    """Describe the first error in the settings."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = printable(".".join(str(part) for part in first["loc"]))[:LONGEST]
    if first["type"] == "extra_forbidden":
        known = [*Config.model_fields, *GemConfig.model_fields, *GibbsConfig.model_fields]
        near = get_close_matches(str(first["loc"][-1])[:LONGEST], known, 1)
        return f"unknown setting '{where}'" + (f", did you mean '{near[0]}'" if near else "")
    return f"setting {where or 'values'}: {first['msg'].lower()}"
