"""Progress of a running cohort: done, running and failed subjects, and remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from tumoar.cli.watch import WORDS
from tumoar.cohort.supervise import Outcome
from tumoar.vocabulary.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SIGNS = {"done": "done", "skipped": "already done", "failed": "FAILED", "stopped": "stopped"}


class CohortWatch(AbstractContextManager["CohortWatch"]):
    """Counts and shows outcomes: a live table in a terminal, one line each elsewhere."""

    def __init__(self, total: int, workers: int, *, quiet: bool = False) -> None:
        self.total = total
        self.workers = max(1, workers)
        self.quiet = quiet
        self.outcomes: list[Outcome] = []
        self.running: dict[str, str] = {}
        self._start = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True), get_renderable=self._table, refresh_per_second=2, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, event: dict[str, Any]) -> None:
        """Receive progress of a subject; called from another thread."""
        stage, done, total = (event.get(k) for k in ("stage", "done", "total"))
        words = WORDS.get(str(stage).split()[0], str(stage))
        self.running[event["name"]] = f"{words} {100 * done // total} %" if done and total else words

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a subject."""
        self.outcomes.append(outcome)
        self.running.pop(outcome.name, None)
        took = f" in {span(outcome.seconds)}" if outcome.state in ("done", "failed") else ""
        reason = f": {outcome.reason}" if outcome.reason else ""
        self.say(f"{outcome.name} {SIGNS[outcome.state]}{took}{reason}  [{self.summary()}]")

    def say(self, text: str) -> None:
        """Print a line."""
        if self.quiet:
            return
        text = printable(text)
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            typer.echo(f"{time.monotonic() - self._start:7.1f} s  {text}", err=True)

    def count(self, *states: str) -> int:
        """Number of outcomes with one of these states."""
        return sum(o.state in states for o in self.outcomes)

    def summary(self) -> str:
        """Number of done and failed subjects, and remaining time."""
        parts = [f"{self.count('done', 'skipped')} of {self.total} done"]
        if self.count("failed"):
            parts.append(f"{self.count('failed')} failed")
        left = self.time_left()
        return ", ".join(parts + ([f"about {span(left)} left"] if left else []))

    def time_left(self) -> float | None:
        """Remaining seconds, estimated from finished subjects."""
        took = [o.seconds for o in self.outcomes if o.attempts]
        left = self.total - len(self.outcomes)
        return sum(took) / len(took) * left / self.workers if took and left else None

    def _table(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        rows, below = Table.grid(padding=(0, 3)), Table.grid(padding=(0, 2))
        for name, words in sorted(dict(self.running).items()):
            rows.add_row(name, words)
        elapsed = span(time.monotonic() - self._start)
        words = f"{self.summary()}, {len(self.running)} running, {elapsed}"
        below.add_row(ProgressBar(self.total, len(self.outcomes), width=20), words)
        return Group(rows, below)


def span(seconds: float) -> str:
    """Format a duration."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Format rows as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
