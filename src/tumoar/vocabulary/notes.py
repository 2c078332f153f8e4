"""Notes for a reviewer: what was noticed, what it concerns and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tumoar.vocabulary.errors import printable

Level = Literal["info", "review"]

CONVENTION = "convention"
"""Id of notes on organs that lack a part of what planners draw."""
INCOMPLETE = ("B37", "organ-volume", "pieces", "under-tumor", "unseen-organ")
"""Ids of notes on organs whose outline may miss a part, if they ask for a review."""


@dataclass(frozen=True)
class Note:
    """Something a reviewer should know; `id` names the row in docs/errors.md.

    A result with a note of level "review" NEEDS REVIEW; notes of level "info" do not change its status.
    `action` says what the reader can do, `where` names the contrast, the structure or the file that the note
    is about. Both may be empty.
    """

    id: str
    text: str
    level: Level = "review"
    action: str = ""
    where: str = ""

    @property
    def sentence(self) -> str:
        """The note without its id."""
        place = f"{self.where}: " if self.where else ""
        action = f"; {self.action}" if self.action else ""
        return f"{place}{self.text}{action}"

    def __str__(self) -> str:
        return f"{self.id} {self.sentence}"

    def to_dict(self) -> dict[str, str]:
        """The note as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Note:
        """A note from JSON values; results of older versions have only `id` and `text`."""
        known = {name: printable(str(row[name])) for name in ("id", "text", "action", "where") if name in row}
        return cls(level="info" if row.get("level") == "info" else "review", **known)


def find_lacking(notes: Iterable[Note]) -> dict[str, str]:
    """What organs of a result lack of what planners draw, by name."""
    return {note.where: note.text for note in notes if note.id == CONVENTION}


def find_doubts(notes: Iterable[Note]) -> dict[str, str]:
    """Why an organ may be larger than its outline, by name; its dose is then never within a limit."""
    found: dict[str, list[str]] = {}
    for note in notes:
        if note.id == CONVENTION or (note.id in INCOMPLETE and note.level == "review"):
            found.setdefault(note.where, []).append(note.text)
    return {name: "; ".join(texts) for name, texts in found.items()}


def needs_review(notes: Iterable[Note]) -> bool:
    """Whether any of the notes asks for a review."""
    return any(note.level == "review" for note in notes)
