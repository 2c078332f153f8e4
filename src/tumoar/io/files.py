"""Open files safely and write them atomically.

Every file that a user names is opened by `open_file`: a regular file of bounded size, never a pipe, a device
or a folder. Files are written under a temporary name in the same folder, synced, and renamed.
"""

from __future__ import annotations

import os
import stat
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tumoar.vocabulary.errors import (
    IntegrityError,
    ResourceError,
    UnreadableFileError,
    UsageError,
    write_error,
)

MOST_TEXT = 16 * 1024**2  # bytes of a table, a list or settings
COPY_AGAIN = "copy the file again"


@contextmanager
def open_file(path: str | Path, what: str, most: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most` bytes; `what` names it ("the dose") in a refusal."""
    name = str(path)
    if "\0" in name:
        raise _unreadable(what, name.replace("\0", "?"), "not a file name")
    try:
        # Opening a pipe without a writer would block; O_NONBLOCK has no effect on a regular file.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(what, name, _reason(error)) from error
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        is_folder = stat.S_ISDIR(state.st_mode)
        raise _unreadable(what, name, "is a directory" if is_folder else "not a regular file")
    with os.fdopen(handle, "rb") as file:
        if state.st_size == 0:
            raise UnreadableFileError("B2", "empty file", file=name, found="0 bytes", do=COPY_AGAIN)
        if state.st_size > most:
            found = f"{state.st_size} bytes, at most {most}"
            raise ResourceError("B6", f"{what} is too large", file=name, found=found, do="check the name")
        try:
            yield file
        except OSError as error:
            raise _unreadable(what, name, _reason(error)) from error


def read_bytes(path: str | Path, what: str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes."""
    with open_file(path, what, most) as file:
        # Python allocates what is requested: request no more than the size of the file.
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(most, size) + 1)
    if len(content) > most:  # it grew meanwhile
        raise ResourceError("B6", f"{what} is too large", file=path, found=f"more than {most} bytes")
    if len(content) > size:
        raise _unreadable(what, str(path), "it changed while it was read")
    return content


def read_text(path: str | Path, what: str, most: int = MOST_TEXT) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, what, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is not UTF-8"
        raise UnreadableFileError(
            "B7", f"{what} is not text in UTF-8", file=path, found=found, do="save it as UTF-8"
        ) from error


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file; invalid or excessively nested TOML is refused."""
    text = read_text(path, what)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("B55", f"{what} is not valid TOML", file=path, found=error) from error
    except (RecursionError, ValueError) as error:  # ValueError: dates and numbers beyond what Python holds
        raise UsageError("B55", f"{what} is not usable TOML", file=path, do="simplify it") from error


def _unreadable(what: str, name: str, reason: str) -> UnreadableFileError:
    return UnreadableFileError(
        "B1", f"cannot read {what}: {reason}", file=name, do="check the name and the folder"
    )


def _reason(error: OSError) -> str:
    reasons = {FileNotFoundError: "no such file", PermissionError: "no permission"}
    return reasons.get(type(error), "not possible for this disk or name")


def absolute(path: str | Path) -> Path:
    """Absolute path without resolving links, so that `.` and `..` have a name."""
    try:
        return Path(os.path.abspath(path))
    except OSError as error:
        raise UsageError(
            "folder", "the current folder no longer exists", file=path, do="change to another folder"
        ) from error


def current_folder() -> Path | None:
    """The current folder; None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Temporary name to write to; it replaces `path` if the block succeeds and is removed otherwise."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise write_error("cannot write", error, path.name) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_own(top: Path, path: Path) -> None:
    """Refuse a path below `top` that is or contains a symbolic link: files would be written elsewhere."""
    place = top
    for part in path.relative_to(top).parts:
        place /= part
        if place.is_symlink():
            raise IntegrityError(
                "link", "part of the output is a symbolic link", file=place, do="remove the link"
            )


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
