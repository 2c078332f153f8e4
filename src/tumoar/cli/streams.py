"""Handle standard streams that are closed, full, without Unicode or without a reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from tumoar.vocabulary.errors import TumoarError, UnreadableFileError, write_error

NOBODY_READS = 128 + 13
"""Exit code if the reader of our output has gone: that of SIGPIPE."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Errors of a disk."""
NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ESTALE)
"""Errors of a file name or its permissions."""


def prepare_streams() -> None:
    """Replace closed streams, and let terminals without Unicode show "?" where needed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The next opened file would get its descriptor, and what libraries print.
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def disk_refusal(fault: BaseException) -> TumoarError | None:
    """Refusal for an error of a disk or of a file name."""
    if not isinstance(fault, OSError):
        return None
    if fault.errno in DISK:
        return write_error("cannot write", fault)
    if fault.errno in NAMES:
        name = fault.filename if isinstance(fault.filename, str) else None
        reason = os.strerror(fault.errno).lower()
        return UnreadableFileError(
            "B1", f"cannot read: {reason}", file=name, do="check the name and the folder"
        )
    return None


def leave(code: int | str | None) -> NoReturn:
    """Exit with this code, unless the output could not be written."""
    if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # typer marks a broken pipe this way
        leave_unread()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        leave_unread()
    except OSError as error:
        _mute("stdout")
        refusal = write_error("cannot write to standard output", error)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{refusal}\n")
        code = code or refusal.exit_code
    except ValueError:  # already closed
        pass
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _mute("stderr")
    sys.exit(code)


def leave_unread() -> NoReturn:
    """Exit silently, as other tools do when the reader of their output has gone."""
    for name in ("stdout", "stderr"):
        _mute(name)
    sys.exit(NOBODY_READS)


def _mute(name: str) -> None:
    """Redirect a stream to /dev/null, with its buffered output."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, getattr(sys, f"__{name}__").fileno())
        os.close(nowhere)
