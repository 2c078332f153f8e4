"""Standard streams as a command finds them: closed, full, without Unicode, or with no reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from tumoar.vocabulary.errors import TumoarError, UnreadableFileError, write_error

NOBODY_READS = 128 + 13
"""Exit code where the reader of our output has gone: that of SIGPIPE."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Faults that are a disk's, not ours."""
NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ESTALE)
"""Faults of a name, or of the rights to it."""


def prepare_streams() -> None:
    """Give a closed stream somewhere to go, and let a terminal without Unicode show "?" where it must."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The next file to be opened would take its place, and get what a library prints.
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def disk_refusal(fault: BaseException) -> TumoarError | None:
    """The refusal for a fault that is a disk's, or of a name that the system does not take."""
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
    """Exit with this code, unless what was said has not reached anybody."""
    if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # the mark that typer leaves on a broken pipe
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
    except ValueError:  # closed by somebody else
        pass
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _mute("stderr")
    sys.exit(code)


def leave_unread() -> NoReturn:
    """Exit in silence, as other tools do when whoever reads their output has gone."""
    for name in ("stdout", "stderr"):
        _mute(name)
    sys.exit(NOBODY_READS)


def _mute(name: str) -> None:
    """Lead a stream to nowhere, with what is still waiting in it."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, getattr(sys, f"__{name}__").fileno())
        os.close(nowhere)
