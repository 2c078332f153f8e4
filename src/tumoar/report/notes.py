"""Notes for the page: the most severe first, each with one action, repeated ones merged."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tumoar.vocabulary.notes import Note


@dataclass(frozen=True)
class Item:
    """Notes of one kind that ask for the same action; `says` are their sentences without it."""

    id: str
    rank: str  # "result", "structure" or "image": what the notes cast doubt on; "info" if nothing
    says: tuple[str, ...]
    action: str


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("tumoar").joinpath("data/notes.toml").read_text(encoding="utf-8"))


def ranks() -> list[str]:
    """All ranks, from the most severe to the least."""
    return [*_table()["rank"], "info"]


def rank_of(note: Note) -> str:
    """What a note casts doubt on."""
    if note.level == "info":
        return "info"
    table = _table()
    return next((name for name, ids in table["rank"].items() if note.id in ids), str(table["other"]))


def action_of(note: Note) -> str:
    """The action of a note, else the one that the table gives to its kind."""
    return note.action or str(_table()["action"].get(note.id, ""))


def arrange_notes(notes: Iterable[Note]) -> list[Item]:
    """Sort and merge notes; equal sentences about several places become one."""
    groups: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for note in notes:
        texts = groups.setdefault((rank_of(note), note.id, action_of(note)), {})
        texts.setdefault(note.text, []).append(note.where)
    items = [
        Item(id, rank, tuple(_sentence(text, where) for text, where in texts.items()), action)
        for (rank, id, action), texts in groups.items()
    ]
    order = [id for ids in _table()["rank"].values() for id in ids]

    def place(item: Item) -> tuple[int, int]:
        return ranks().index(item.rank), order.index(item.id) if item.id in order else len(order)

    return sorted(items, key=place)


def _sentence(text: str, where: Iterable[str]) -> str:
    places = ", ".join(dict.fromkeys(place for place in where if place))
    return f"{places}: {text}" if places else text
