"""How a use case reports its progress: the protocol that both doors implement, and the one for Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tumoar.app.pipeline import Progress
from tumoar.vocabulary.errors import printable

Callback = Callable[[Progress], None]


class Watch(Protocol):
    """Receives the steps and the messages of a run; `lines` become the log of the result."""

    @property
    def lines(self) -> list[str]:
        """Lines of the log so far."""
        ...

    def __call__(self, progress: Progress) -> None:
        """A step was taken."""
        ...

    def say(self, text: str, **event: Any) -> None:
        """A message for the user."""
        ...


class Listener:
    """Passes every step to a callback, if there is one, and keeps a log; it prints nothing."""

    def __init__(self, callback: Callback | None = None) -> None:
        self.lines: list[str] = []
        self._callback = callback
        self._start = time.monotonic()
        self._at = ("", -1)

    def __call__(self, progress: Progress) -> None:
        """A step was taken; the log has a line for every tenth of a stage."""
        at = (progress.stage, 10 * progress.done // max(1, progress.total))
        if at != self._at:
            self._at = at
            self.say(f"{progress.stage} {10 * at[1]} %")
        for note in progress.notes:
            self.say(f"note: {note}")
        if self._callback is not None:
            self._callback(progress)

    def say(self, text: str, **event: Any) -> None:
        """A message, for the log alone."""
        self.lines.append(f"{time.monotonic() - self._start:7.1f} s  {printable(text)}")


@contextmanager
def stage(watch: Callback, name: str) -> Iterator[None]:
    """A stage without steps of its own."""
    watch(Progress(name, 0, 1, {}))
    yield
    watch(Progress(name, 1, 1, {}))
