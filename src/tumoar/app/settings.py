"""Settings of a run: the defaults, then those of a TOML file or of a `Config`, then the flags."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tumoar.io.files import read_toml
from tumoar.vocabulary.config import FAST, Config, GemConfig, GibbsConfig
from tumoar.vocabulary.errors import UsageError, printable

LONGEST = 60
"""Letters of a name or value that a refusal repeats."""


def resolve(
    given: str | Path | Config | None,
    *,
    fast: bool,
    tumor: bool,
    prior: str | None,
    chains: int | None,
    gibbs: dict[str, int | None],
) -> Config:
    """The settings asked for; what is unknown, or out of bounds, is refused (B55)."""
    table: dict[str, Any] = FAST.model_dump() if fast else Config().model_dump()
    path = None
    if isinstance(given, Config):
        if fast:
            raise UsageError("B55", "fast and a Config at once", do="give one of them")
        table = given.model_dump()
    elif given is not None:
        path = Path(given)
        table = _joined(table, read_toml(path, "the settings file"))
    table |= {k: v for k, v in {"prior": prior and str(prior), "chains": chains}.items() if v is not None}
    if isinstance(table["gibbs"], dict):  # if not, it is refused below
        table["gibbs"] = table["gibbs"] | {k: v for k, v in gibbs.items() if v is not None}
    if not tumor:
        table["tumor"] = False
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UsageError("B55", _sentence(error), file=path) from error


def _joined(table: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A table with the values of another: tables within are joined too, other values replaced."""
    out = dict(table)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(table.get(key), dict)
        out[key] = {**table[key], **value} if both else value
    return out


def _sentence(error: Any) -> str:
    """What is wrong with the settings; the first thing, if several are."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = printable(".".join(str(part) for part in first["loc"]))[:LONGEST]
    if first["type"] == "extra_forbidden":
        known = [*Config.model_fields, *GemConfig.model_fields, *GibbsConfig.model_fields]
        near = get_close_matches(str(first["loc"][-1])[:LONGEST], known, 1)
        return f"unknown setting '{where}'" + (f", did you mean '{near[0]}'" if near else "")
    return f"setting {where or 'values'}: {first['msg'].lower()}"
