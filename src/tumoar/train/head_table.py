"""Conversion of source label maps: source codes, settings of each step, expected volumes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.parts import find_places, name_part


@dataclass(frozen=True)
class NerveSettings:
    """Course and thickness of the optic nerve; mm and relative costs."""

    radius: float
    reach: float
    unmarked_cost: float
    bone_cost: float
    brain_cost: float


@dataclass(frozen=True)
class EyeSettings:
    """Wall and lens in mm; distance of the lens from the center as a fraction of the globe's radius."""

    shell: float
    lens_radius: float
    lens_half_thickness: float
    lens_forward: float


@dataclass(frozen=True)
class MuscleSettings:
    """Rectus muscles; mm and voxels."""

    dilation: float
    smallest: int
    reach: float


@dataclass(frozen=True)
class FatSettings:
    """Extent of the fat in the eye socket; mm."""

    grow: int
    hull_margin: float
    front: float
    apex: float


@dataclass(frozen=True)
class HeadTable:
    """Source codes of structures and tissues, settings of each preparation step, expected volumes in ml."""

    spacing: float
    tolerance: float
    structures: Mapping[str, tuple[int, ...]]
    tissue: Mapping[str, tuple[int, ...]]
    cleaning: Mapping[str, Any]
    nerve: NerveSettings
    eye: EyeSettings
    muscle: MuscleSettings
    fat: FatSettings
    volumes: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        codes = [c for row in (*self.structures.values(), *self.tissue.values()) for c in row]
        repeated = sorted({c for c in codes if codes.count(c) > 1})
        if repeated:
            raise ModelFileError("heads", "duplicate source code in the head table", found=repeated)

    @property
    def codes(self) -> frozenset[int]:
        """All source codes that may occur."""
        return frozenset(c for row in (*self.structures.values(), *self.tissue.values()) for c in row)


def parse_heads(table: Mapping[str, Any]) -> HeadTable:
    """Build a `HeadTable` from parsed TOML; unknown and missing keys are rejected."""
    parts = {
        "nerve": NerveSettings,
        "eye": EyeSettings,
        "muscle": MuscleSettings,
        "fat": FatSettings,
    }
    try:
        rows = {key: parts[key](**value) if key in parts else value for key, value in table.items()}
        for key in ("structures", "tissue", "volumes"):
            rows[key] = {name: tuple(values) for name, values in table[key].items()}
        return HeadTable(**rows)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError("heads", "invalid head table", found=error) from error


@cache
def default_heads() -> HeadTable:
    """Table of the label maps from which the default atlas was trained."""
    text = files("tumoar").joinpath("data/heads.toml").read_text(encoding="utf-8")
    return parse_heads(tomllib.loads(text))


def refine_heads(heads: HeadTable, table: Mapping[str, Any]) -> HeadTable:
    """The table with source codes moved from structures to their parts, as a table of parts lists them."""
    structures = {name: list(codes) for name, codes in heads.structures.items()}
    try:
        for row in table["part"]:
            for where, place in find_places(row):
                structures[name_part(row["name"], where)] = list(place["codes"])
                for code in place["codes"]:
                    structures[row["of"]].remove(code)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            "heads", "source codes of parts are not those of the whole", found=error
        ) from error
    return replace(heads, structures={name: tuple(codes) for name, codes in structures.items() if codes})
