"""Progress of a use case: the protocol, and the implementation for the Python API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tumoar.app.pipeline import Progress
from tumoar.vocabulary.errors import printable

Callback = Callable[[Progress], None]


class Watch(Protocol):
    """Receives progress and messages of a run; `lines` become the log of the result."""

    @property
    def lines(self) -> list[str]:
        """Lines of the log so far."""
        ...

    def __call__(self, progress: Progress) -> None:
        """Receive a step of progress."""
        ...

    def say(self, text: str, **event: Any) -> None:
        """Receive a message for the user."""
        ...


class Listener:
    """Passes progress to an optional callback and keeps a log; it prints nothing."""

    def __init__(self, callback: Callback | None = None) -> None:
        self.lines: list[str] = []
        self._callback = callback
        self._start = time.monotonic()
        self._at = ("", -1)

    def __call__(self, progress: Progress) -> None:
        """Receive a step of progress; every tenth of a stage is logged."""
        at = (progress.stage, 10 * progress.done // max(1, progress.total))
        if at != self._at:
            self._at = at
            self.say(f"{progress.stage} {10 * at[1]} %")
        for note in progress.notes:
            self.say(f"note: {note}")
        if self._callback is not None:
            self._callback(progress)

    def say(self, text: str, **event: Any) -> None:
        """Log a message."""
        self.lines.append(f"{time.monotonic() - self._start:7.1f} s  {printable(text)}")


@contextmanager
def stage(watch: Callback, name: str) -> Iterator[None]:
    """Report a stage without steps."""
    watch(Progress(name, 0, 1, {}))
    yield
    watch(Progress(name, 1, 1, {}))
