"""The manifest of a finished result, and how a folder gets to its place: whole, or not at all.

`run.json` lists every file of a result with its SHA-256. Nothing here looks into an image.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from tumoar.errors import IntegrityError, UnreadableFileError, not_written
from tumoar.io.files import beside, require_own, sync
from tumoar.io.lock import locked

MANIFEST = "run.json"
REPORT = "report.html"
COMING = "coming"  # in a manifest: files that are joining, by their new digests
OLD = "old-"


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a finished result, every file checked against it."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFileError(
            "B1", "no finished result in this folder", file=out, do="run `tumoar segment`"
        ) from error
    # Files that were joining when something stopped us: each is the older one or the newer one, or not there.
    coming = manifest.pop(COMING, {})
    for name in files | coming:
        path = out / _inside(name)
        found = digest_of_file(path) if path.is_file() else None
        if found not in (files.get(name), coming.get(name)):
            raise IntegrityError(
                "result", "result changed since it was written", file=name, do="run it again"
            )
        if found is not None:
            files[name] = found
    return dict(manifest)


@contextmanager
def added(out: Path, **more: Any) -> Iterator[Path]:
    """A folder to write to: its files join a finished result when the block ends well, with `more` beside.

    The manifest names what is coming before anything is moved, so that the result is valid at every moment.
    """
    work = out / f".{uuid.uuid4().hex}"
    try:
        work.mkdir()
        yield work
        new = digests(work)
        sync_all(work)
        with locked(out):
            manifest = read_manifest(out)
            replace_text(out / MANIFEST, _text(manifest | {COMING: new}))
            for name in new:
                (out / name).parent.mkdir(exist_ok=True)
                require_own(out, (out / name).parent)
                os.replace(work / name, out / name)
            manifest["files"] |= new
            replace_text(out / MANIFEST, _text(manifest | more))
    except OSError as error:
        raise not_written("cannot add to the result", error, out) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _inside(name: str) -> str:
    """A name that a manifest lists, which must not lead out of its folder."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise IntegrityError("result", "the manifest names a file elsewhere", do="run it again")
    return name


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1) + "\n"


def replace_text(path: Path, text: str) -> None:
    """Write a file beside its place and move it there."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file, which is never whole in memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under a folder, by relative path."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): digest_of_file(p) for p in paths}


def sync_all(folder: Path) -> None:
    """Wait until everything under a folder is on the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


@contextmanager
def published(out: Path, what: str) -> Iterator[Path]:
    """A folder to write to: it becomes `out` when the block ends well, and goes if not; `what` names it."""
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        work.mkdir(parents=True)
        yield work
        sync_all(work)
        publish(work, out)
    except OSError as error:
        raise not_written(f"cannot write {what}", error, out) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(work: Path, out: Path) -> None:
    """Move the finished folder to its place in one step; what stood there is there until then, and goes."""
    if not out.exists():
        os.rename(work, out)
    elif not exchange(work, out):
        old = out.with_name(f".{out.name}.{OLD}{uuid.uuid4().hex}")
        os.rename(out, old)
        try:
            os.rename(work, out)
        except OSError:
            os.rename(old, out)
            raise
        work = old
    with suppress(OSError):  # whichever name a failing disk remembers, it leads to a whole result
        sync(out.parent)
    _remove(work)


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places at once (renameat2); False where the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), both) == 0:
        return True
    error = ctypes.get_errno()
    if error in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(error, os.strerror(error))


def tidy(out: Path) -> None:
    """Remove what a killed run left beside its output; an older result whose place is empty goes back.

    Only for whoever holds the lock of the output.
    """
    left = re.compile(rf"\.{re.escape(out.name)}\.({OLD})?[0-9a-f]{{32}}")
    for path in [p for p in out.parent.iterdir() if left.fullmatch(p.name)]:
        if f".{OLD}" in path.name and not out.exists():
            os.rename(path, out)
        else:
            _remove(path)


def _remove(path: Path) -> None:
    """A folder with all that is in it; of a link, the link alone."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
