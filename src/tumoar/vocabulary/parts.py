"""Finer label tables: structures replaced by their parts, which have the mixture of the whole.

A table of parts, such as `data/brain.toml`, only has what the coarser table does not tell.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.labels import (
    Code,
    LabelTable,
    Organ,
    Side,
    Structure,
    TumorClass,
    default_labels,
)

SIDES: Mapping[str, Side | None] = {"left": "left", "right": "right", "middle": None}
"""Keys of a part: on both sides, or only in the middle."""
SUFFIX = {"left": "_L", "right": "_R", "middle": ""}
"""Of the names of organs."""


def refine_labels(labels: LabelTable, table: Mapping[str, Any]) -> LabelTable:
    """Replace structures by the parts that a table lists; `rest` names those that keep a row, too."""
    try:
        parts: dict[str, list[Structure]] = {s.name: [] for s in labels.structures}
        organs = []
        for row in table["part"]:
            for where, place in find_places(row):
                part = _part(
                    labels.structures[labels.l(row["of"])], row, where, place["color"], place["index"]
                )
                parts[row["of"]].append(part)
                if "organ" in row:
                    name = row["organ"] + SUFFIX[where]
                    organs.append(Organ(name, "ORGAN", (part.name,), tissue=row.get("tissue")))
        split = {name: tuple(p.name for p in rows) for name, rows in parts.items() if rows}
        rest = set(table.get("rest", ()))
        unions = (Organ(row["name"], row["kind"], tuple(row["structures"])) for row in table.get("organ", ()))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError("labels", "invalid table of parts", found=error) from error

    def expand(name: str) -> tuple[str, ...]:
        return (*((name,) if name in rest or name not in split else ()), *split.get(name, ()))

    by_name = {s.name: s for s in labels.structures} | {p.name: p for rows in parts.values() for p in rows}
    known = (
        replace(o, structures=tuple(part for name in o.structures for part in expand(name)))
        for o in labels.organs
    )
    return replace(
        labels,
        structures=tuple(by_name[name] for s in labels.structures for name in expand(s.name)),
        organs=(*known, *organs, *unions),
    )


def find_places(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where a part is, and what the table says of it there."""
    return ((where, row[where]) for where in SIDES if where in row)


def name_part(name: str, where: str) -> str:
    """Name of a structure of the finer table, such as left thalamus."""
    return name if SIDES[where] is None else f"{where} {name}"


def _part(whole: Structure, row: Mapping[str, Any], where: str, color: str, index: int) -> Structure:
    side = SIDES[where]
    mirror = None if side is None else name_part(row["name"], "right" if side == "left" else "left")
    return replace(
        whole,
        name=name_part(row["name"], where),
        index=index,
        color=color,
        side=side,
        mirror=mirror,
        snomed=Code(**row["snomed"]) if "snomed" in row else whole.snomed,
        part_of=whole.name,
    )


@cache
def brain_parts() -> Mapping[str, Any]:
    """The table of parts in the package."""
    text = files("tumoar").joinpath("data/brain.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def brain_labels() -> LabelTable:
    """The structures of the package's second model."""
    return refine_labels(default_labels(), brain_parts())


def take_colors(labels: LabelTable, source: LabelTable) -> LabelTable:
    """The table with the colors that another one gives to structures and tumor classes of the same name."""
    rows: list[Structure | TumorClass] = [*source.structures, *source.tumor]
    colors = {row.name: row.color for row in rows}
    return replace(
        labels,
        structures=tuple(replace(s, color=colors.get(s.name, s.color)) for s in labels.structures),
        tumor=tuple(replace(t, color=colors.get(t.name, t.color)) for t in labels.tumor),
    )
