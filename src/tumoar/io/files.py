"""Files written whole or not at all: beside their place, synced, and moved there in one step."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tumoar.errors import IntegrityError, not_written


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to: it takes its place if the block ends well, and is removed if not."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        raise not_written("cannot write", error, path.name) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_own(top: Path, path: Path) -> None:
    """Refuse a path below `top` that leads through a link, or is one: what is written would lie elsewhere."""
    place = top
    for part in path.relative_to(top).parts:
        place /= part
        if place.is_symlink():
            raise IntegrityError(
                "link", "part of the output leads elsewhere", file=place, do="remove the link"
            )


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
