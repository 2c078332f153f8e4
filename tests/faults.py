"""An action stopped, or refused by the system, at any of its steps on files."""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
from collections.abc import Callable

STEPS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "fsync", "exchange"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED, WELL, REFUSED, FAULT = "killed", "well", "refused", "fault"
FULL, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO


def count_steps(action: Callable[[], object]) -> int:
    """How many steps on files an action takes."""
    state, steps = _in_child(action, None, None)
    assert state == WELL, state
    return steps


def killed_at(action: Callable[[], object], step: int) -> str:
    """Run an action in a process of its own that is killed just before a step."""
    return _in_child(action, step, None)[0]


def failing_at(action: Callable[[], object], step: int, error: int) -> str:
    """Run an action in a process of its own, in which one step fails."""
    return _in_child(action, step, error)[0]


def _in_child(action: Callable[[], object], at: int | None, error: int | None) -> tuple[str, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os._exit(_act(action, at, error, write))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return KILLED, 0
    return (WELL, REFUSED, FAULT)[os.WEXITSTATUS(status)], struct.unpack("<q", told)[0]


def _act(action: Callable[[], object], at: int | None, error: int | None, pipe: int) -> int:
    from tumoar.io import manifest
    from tumoar.vocabulary.errors import OutputError

    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if done == at and error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == at and error is not None:
            raise OSError(error, os.strerror(error))

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        is_write = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITES)
        if is_write or event in STEPS:
            step()

    def stepping(function):
        def call(*arguments):
            step()
            return function(*arguments)

        return call

    os.fsync, manifest.exchange_names = stepping(os.fsync), stepping(manifest.exchange_names)
    sys.addaudithook(hook)
    code = 2
    try:
        action()
        code = 0
    except OutputError:
        code = 1
    finally:
        os.write(pipe, struct.pack("<q", done))
        return code  # noqa: B012 - nothing may leave a forked child
