"""An append-only record: lines of JSON, each with the SHA-256 of the line before it.

Several processes may append: a line is written while the file is locked, and is on disk before the call
returns. A line that a power cut left unfinished is removed by the next append. A line that was changed, added
or removed breaks the chain, and the record is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tumoar.io.files import require_own, sync
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, write_error

BEFORE = "before"
"""Member of a line: the digest of the line before it; empty in the first one."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The record `name` in a folder of results."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.name

    def exists(self) -> bool:
        """Whether anything was recorded."""
        return os.path.lexists(self.path)

    def read(self) -> tuple[Line, ...]:
        """Read all lines; the chain is checked."""
        require_own(self.folder, self.path)
        if not self.exists():
            return ()
        try:
            with open(self.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                content = file.read()
        except OSError as error:
            do = "check the folder and its permissions"
            raise UnreadableFileError("B1", "cannot read the record", file=self.path, do=do) from error
        return tuple(self._lines(content))

    @contextmanager
    def appending(self) -> Iterator[Appending]:
        """Lock the record for a change that depends on what it says."""
        require_own(self.folder, self.path)
        try:
            self.path.parent.mkdir(exist_ok=True)
            is_new = not self.exists()
            handle = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise write_error("cannot write the record", error, self.path) from error
        with os.fdopen(handle, "rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                content = file.read()
                whole = content[: content.rfind(b"\n") + 1]
                if len(whole) < len(content):
                    file.truncate(len(whole))
                if is_new:
                    sync(self.path.parent)
                    sync(self.folder)
            except OSError as error:
                raise write_error("cannot write the record", error, self.path) from error
            last = whole[:-1].rsplit(b"\n", 1)[-1] if whole else b""
            yield Appending(file.fileno(), self.path, list(self._lines(whole)), digest_line(last))

    def _lines(self, content: bytes) -> Iterator[Line]:
        before = digest_line(b"")
        # What follows the last line break was never completed.
        for number, raw in enumerate(content.split(b"\n")[:-1], 1):
            try:
                line = json.loads(raw)
            except (ValueError, RecursionError):
                line = None
            if not isinstance(line, dict) or line.get(BEFORE) != before:
                raise IntegrityError(
                    "record",
                    "the record was changed after it was written",
                    file=self.path,
                    found=f"line {number} does not follow from the line before it",
                    do="restore it from a copy, or move the folder review away to begin a new one",
                )
            before = digest_line(raw)
            yield line


@dataclass
class Appending:
    """A record that is locked; `lines` are those in it."""

    handle: int
    path: Path
    lines: list[Line]
    before: str

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when the call returns."""
        whole = {BEFORE: self.before, **line}
        raw = json.dumps(whole, separators=(",", ":"), sort_keys=True).encode()
        size = os.fstat(self.handle).st_size
        try:
            written = os.write(self.handle, raw + b"\n")
            if written != len(raw) + 1:
                raise OSError(28, "the line was not written whole")
            os.fsync(self.handle)
        except OSError as error:
            os.ftruncate(self.handle, size)
            raise write_error("cannot write the record", error, self.path) from error
        self.lines.append(whole)
        self.before = digest_line(raw)


def digest_line(raw: bytes) -> str:
    """SHA-256 of a line without its line break; empty for no line."""
    return hashlib.sha256(raw).hexdigest() if raw else ""
