"""What is expected of organs at risk: volumes of adults, what CT shows, and that each is one structure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Expected:
    """Volumes that adults have, in cm³, and whether CT shows the organ."""

    volume: tuple[float, float]
    seen_on_ct: bool


@cache
def expected_organs() -> Mapping[str, Expected]:
    """Organs that are judged, by name (data/organ_checks.toml); each is one structure."""
    table = tomllib.loads(files("tumoar").joinpath("data/organ_checks.toml").read_text(encoding="utf-8"))
    return {
        name: Expected((float(row["volume"][0]), float(row["volume"][1])), bool(row["seen_on_ct"]))
        for name, row in table.items()
    }
