"""Progress of a segmentation: a progress bar in a terminal, plain lines elsewhere, or JSON events."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from tumoar.cli.forecast import Forecast, clock
from tumoar.vocabulary.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from tumoar.app.pipeline import Progress

WORDS = {"read": "reading images", "place": "placing the atlas", "fit": "fitting (Algorithm 2)"}
WORDS |= {"sample": "sampling (Algorithm 1)", "write": "writing"}
WORDS |= {"compile": "compiling kernels, once, about 30 s", "draw": "drawing a patient"}
SILENCE = 5.0
"""Seconds after which a line says that the run goes on."""


class Watch(AbstractContextManager["Watch"]):
    """Shows progress and keeps lines for the log."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.lines: list[str] = []
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._start = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._tenth = -1
        self._forecast = Forecast()
        self._told = self._start
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if not self.as_json and not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description:36}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[figures]}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
        if not self.as_json and not self.quiet:
            threading.Thread(target=self._go_on, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show a step of progress."""
        self._forecast.update(progress.stage, progress.done, progress.total, time.monotonic() - self._start)
        if self.as_json:
            notes = [note.to_dict() for note in progress.notes]
            self._event("progress", **progress._replace(notes=())._asdict() | {"notes": notes})
        figures = "  ".join(f"{name} {value:.4g}" for name, value in progress.figures.items())
        tenth = 10 * progress.done // max(1, progress.total)
        if self.verbose or (progress.stage, tenth) != (self._stage, self._tenth):
            words = WORDS.get(progress.stage.split()[0], progress.stage)
            is_new = progress.stage != self._stage
            self._stage, self._tenth = progress.stage, tenth
            if self._bar is not None and is_new:
                self._task = self._bar.add_task(words, total=progress.total, figures="")
            done = f"{progress.done}/{progress.total}" if self.verbose else f"{10 * tenth} %"
            self._log(f"{words} {done}  {figures}".rstrip(), show=self._bar is None or self.verbose)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=progress.done, figures=f"{self._times()}  {figures}")
        for note in progress.notes:
            self.say(f"note: {note}")

    def say(self, text: str, **event: Any) -> None:
        """Show and log a line."""
        if self.as_json:
            self._event("message", text=text, **event)
        self._log(text, show=True)

    def _log(self, text: str, *, show: bool) -> None:
        text = printable(text)
        line = f"{time.monotonic() - self._start:7.1f} s  {text}"
        self.lines.append(line)
        if self.quiet or self.as_json:
            return
        if self._bar is not None and show:
            self._bar.console.print(text, highlight=False, markup=False)
        elif show:
            self._told = time.monotonic()
            typer.echo(line, err=True)

    def _times(self) -> str:
        """Elapsed time, and about how much is left."""
        seconds = time.monotonic() - self._start
        left = self._forecast.left(seconds)
        return f"elapsed {clock(seconds)}" + (f" · about {clock(left)} left" if left is not None else "")

    def _go_on(self) -> None:
        """Say that the run goes on where nothing else does."""
        while not self._ended.wait(1.0):
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, figures=self._times())
            elif self._bar is None and time.monotonic() - self._told >= SILENCE:
                words = WORDS.get(self._stage.split()[0], self._stage) if self._stage else "starting"
                self._told = time.monotonic()
                typer.echo(f"{self._told - self._start:7.1f} s  {words} · {self._times()}", err=True)

    def _event(self, kind: str, **fields: Any) -> None:
        seconds = round(time.monotonic() - self._start, 2)
        typer.echo(json.dumps({"event": kind, "seconds": seconds, **fields}))
