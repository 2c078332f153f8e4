"""End on Ctrl-C, SIGTERM or a closed terminal, reliably and with a message."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.01
"""Seconds until a lost exception is raised again."""


def end_when_stopped(words: str, *, once: bool = False) -> None:
    """On a stop signal, print `words` and exit with 128 plus its number; `once` ignores later signals.

    Python drops exceptions raised in finalizers and callbacks, so that the program would continue: the
    exception is raised again until it takes effect.
    """

    def leave(number: int, frame: object) -> NoReturn:
        def end(*_: object) -> NoReturn:
            sys.exit(128 + number)

        def not_lost(lost: UnraisableHookArgs) -> None:
            if isinstance(lost.exc_value, SystemExit):
                signal.setitimer(signal.ITIMER_REAL, AGAIN)
            else:
                sys.__unraisablehook__(lost)

        if once:
            for stop in STOPS:
                signal.signal(stop, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, end)
        sys.unraisablehook = not_lost
        with suppress(OSError):  # stderr may have no reader
            typer.echo(words, err=True)
        end()

    for stop in STOPS:
        if stop != signal.SIGHUP or signal.getsignal(stop) != signal.SIG_IGN:  # as under `nohup`
            signal.signal(stop, leave)


def find_stop(fault: BaseException) -> SystemExit | None:
    """The stop inside a SystemError: CPython wraps what is raised while compiled code returns a result."""
    error: BaseException | None = fault
    while isinstance(error, SystemError):
        error = error.__cause__
    return error if isinstance(error, SystemExit) else None
