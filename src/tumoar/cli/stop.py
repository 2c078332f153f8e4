"""Stopped by Ctrl-C, SIGTERM or a closed terminal: a sentence, and an end that cannot get lost."""

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
"""Seconds until an end that got lost is tried once more."""


def end_when_stopped(words: str, *, once: bool = False) -> None:
    """From now on a stop says these words and ends with 128 and its number; `once`: later ones are ignored.

    Python drops what is raised while a finalizer or a callback runs, and the work would go on as if nobody
    had asked for its end: it is raised again, until it strikes where it counts.
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
        with suppress(OSError):  # nobody may be there to read it
            typer.echo(words, err=True)
        end()

    for stop in STOPS:
        if stop != signal.SIGHUP or signal.getsignal(stop) != signal.SIG_IGN:  # as `nohup` has it
            signal.signal(stop, leave)
