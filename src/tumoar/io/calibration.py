"""Calibration files: JSON, small enough to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tumoar.io.files import read_text, replace_file
from tumoar.io.manifest_schema import Millimeters, Numbers, Sha256, Word
from tumoar.model.calibration import Calibration, Entry
from tumoar.model.conformal import SHARES, least_cases
from tumoar.model.expert import Learned
from tumoar.vocabulary.errors import UnreadableFileError

FORMAT = "tumoar calibration"
SHIPPED = "calibration.json"
LEAST = least_cases(max(SHARES))
MOST = 1 << 20
"""Bytes of a file."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Structure(Numbers):
    model_config = ConfigDict(extra="forbid", strict=False)

    displacements_mm: Annotated[list[Millimeters], Field(min_length=LEAST, max_length=10_000)]


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


class _Entry(_Strict):
    cases: Annotated[str, StringConstraints(min_length=1, max_length=60), AfterValidator(_plain)]
    contrasts: list[Word]
    conditions: Sha256
    structures: Annotated[dict[Word, _Structure], Field(min_length=1)]
    chance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0


class _File(_Strict):
    format: Literal["tumoar calibration"]
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$")]
    entries: list[_Entry]


def read_calibration(path: str | Path) -> Calibration:
    """Read and check a calibration file."""
    text = read_text(path, "the calibration", MOST)
    try:
        found = _File.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:5])
        raise _refuse(path, f"{where}: {first['msg'].lower()}" if where else "not a table") from error
    except (ValueError, RecursionError) as error:
        raise _refuse(path, "not JSON") from error
    return Calibration(found.date, tuple(map(_entry, found.entries)))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file; an existing one is replaced."""
    with replace_file(path) as work:
        work.write_text(to_json(calibration), encoding="utf-8")


def to_json(calibration: Calibration) -> str:
    """Text of a calibration file, with few numbers per line."""
    table = {
        "format": FORMAT,
        "date": calibration.date,
        "entries": [
            {
                "cases": entry.cases,
                "contrasts": list(entry.contrasts),
                "conditions": entry.conditions,
                "chance": entry.chance,
                "structures": {name: learned_to_row(numbers) for name, numbers in entry.structures.items()},
            }
            for entry in calibration.entries
        ],
    }
    return json.dumps(table, indent=1) + "\n"


@cache
def default_calibration() -> Calibration:
    """The calibration inside the package."""
    with as_file(files("tumoar").joinpath("data", SHIPPED)) as path:
        return read_calibration(path)


def learned_to_row(numbers: Learned) -> dict[str, Any]:
    """Numbers of a structure as JSON values."""
    return {
        "displacements_mm": list(numbers.displacements),
        "roughness_mm": numbers.roughness,
        "variation": numbers.variation,
        "length_mm": numbers.length,
    }


def learned_from_row(row: Mapping[str, Any]) -> Learned:
    """Numbers of a structure from JSON values, checked."""
    return _learned(_Structure.model_validate(dict(row)))


def _learned(row: _Structure) -> Learned:
    return Learned(tuple(sorted(row.displacements_mm)), row.roughness_mm, row.variation, row.length_mm)


def _entry(row: _Entry) -> Entry:
    structures = {name: _learned(s) for name, s in row.structures.items()}
    return Entry(row.cases, tuple(row.contrasts), row.conditions, structures, row.chance)


def _refuse(path: str | Path, found: str) -> UnreadableFileError:
    do = "make it with `tumoar calibrate`"
    return UnreadableFileError("calibration", "not a calibration file", file=path, found=found, do=do)
