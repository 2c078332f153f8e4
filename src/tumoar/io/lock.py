"""Lock an output folder while a process writes to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tumoar.io.files import absolute
from tumoar.vocabulary.errors import BusyError, write_error


@contextmanager
def lock_output(out: Path) -> Iterator[None]:
    """Hold the lock of an output; the system releases it when the process ends, however it ends."""
    out = absolute(out)
    path = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise write_error("cannot write the result", error, out) from error
    with os.fdopen(lock, "w") as file:
        busy = BusyError("B59", "another run works on this output", file=out, do="wait for it to end")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        except OSError as error:
            raise write_error("cannot lock the output", error, out) from error
        # The previous run may have removed the file after we opened it and before we locked it.
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise busy
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
