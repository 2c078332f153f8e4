"""What a record says: strokes and samplings in force, what can be undone and redone, and the approval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Line = Mapping[str, Any]

ACTIONS = ("stroke", "sample")
"""Lines that can be undone."""


@dataclass(frozen=True)
class History:
    """The record of a review, read from its beginning.

    `done` are the strokes and samplings in force, oldest first; `undone` those that can be redone, the next
    one last. `approval` is None as soon as something changed after it.
    """

    revision: int = 0
    strokes: int = 0  # ever painted
    done: tuple[Line, ...] = ()
    undone: tuple[Line, ...] = ()
    approval: Line | None = None

    def follow(self, line: Line) -> History:
        """The history after one more line."""
        what = line["what"]
        if what == "begin":
            return self
        after = replace(self, revision=self.revision + 1)
        if what in ACTIONS:
            strokes = self.strokes + (what == "stroke")
            return replace(after, strokes=strokes, done=(*self.done, line), undone=(), approval=None)
        if what == "undo":
            return replace(after, done=self.done[:-1], undone=(*self.undone, *self.done[-1:]), approval=None)
        if what == "redo":
            return replace(
                after, done=(*self.done, *self.undone[-1:]), undone=self.undone[:-1], approval=None
            )
        if what == "approve":
            return replace(after, approval=line)
        return after

    @property
    def sampled(self) -> tuple[Line, ...]:
        """Samplings in force."""
        return tuple(line for line in self.done if line["what"] == "sample")

    @property
    def unsampled(self) -> tuple[Line, ...]:
        """Strokes in force that the last sampling in force did not know."""
        known = set(self.sampled[-1]["strokes"]) if self.sampled else set()
        return tuple(line for line in self.done if line["what"] == "stroke" and line["id"] not in known)

    def has_grown_from(self, before: History) -> bool:
        """Whether nothing but strokes was added since."""
        known, more = self.done[: len(before.done)], self.done[len(before.done) :]
        return known == before.done and all(line["what"] == "stroke" for line in more)


def read_history(lines: Iterable[Line]) -> History:
    """The history that a record tells."""
    history = History()
    for line in lines:
        history = history.follow(line)
    return history
