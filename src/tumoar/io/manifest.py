"""The manifest of a folder that was published, and how such a folder gets to its place: whole, or not at all.

`run.json` lists every file with its SHA-256. Nothing here looks into an image.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tumoar.io.files import absolute, beside, read_text, require_own, sync
from tumoar.io.lock import locked
from tumoar.io.manifest_schema import AGAIN, COMING, RESULT, parse, seal
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, write_error

MANIFEST = "run.json"
REPORT = "report.html"
OLD = "old-"


def read_manifest(out: Path, kind: str = RESULT) -> dict[str, Any]:
    """The manifest of a finished folder, every file checked against it.

    A file that is listed has to be there and to be the one listed. Only files that were joining when a run
    was stopped may be absent, or still be the older ones.
    """
    if not os.path.lexists(out / MANIFEST):
        raise UnreadableFileError(
            "B1", f"no finished {kind} in this folder", file=absolute(out), do="run `tumoar segment`"
        )
    manifest = parse(read_text(out / MANIFEST, "the manifest"), absolute(out))
    if manifest["format"] != f"tumoar {kind}":
        raise UnreadableFileError(
            "B1", f"no finished {kind} in this folder", file=absolute(out), found=manifest["format"]
        )
    files, coming = manifest["files"], manifest.pop(COMING, {})
    for name in dict.fromkeys([*files, *coming]):
        require_own(out, out / name)
        found = _digest_if_there(out / name)
        if found is None and name in files:
            raise IntegrityError("result", "a file of the result is missing", file=name, do=AGAIN)
        if found is not None and found not in (files.get(name), coming.get(name)):
            raise IntegrityError("result", "result changed since it was written", file=name, do=AGAIN)
        if found is not None:
            files[name] = found
    return manifest


def _digest_if_there(path: Path) -> str | None:
    try:
        return digest_of_file(path) if path.is_file() else None
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read a file of the result", file=path) from error


def write_manifest(folder: Path, manifest: Mapping[str, Any], kind: str = RESULT) -> None:
    """List every file of a folder that is about to be published."""
    files = {name: digest for name, digest in digests(folder).items() if name != MANIFEST}
    whole = {"format": f"tumoar {kind}", **manifest, "files": files}
    (folder / MANIFEST).write_text(seal(whole), encoding="utf-8")


@contextmanager
def added(out: Path, seen: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Path]:
    """A folder to write to: its files join a finished result when the block ends well, with `more` beside.

    `seen` is the manifest of the result that they were made from: another one, which may have taken its place
    meanwhile, is refused. The manifest names what is coming before anything is moved, so that the result is
    valid at every moment.
    """
    out = absolute(out)
    work = out / f".{uuid.uuid4().hex}"
    try:
        work.mkdir()
        yield work
        new = digests(work)
        sync_all(work)
        with locked(out):
            manifest = read_manifest(out)
            _require_same(out, manifest, seen)
            replace_text(out / MANIFEST, seal(manifest | {COMING: new}))
            for name in new:
                (out / name).parent.mkdir(exist_ok=True)
                require_own(out, (out / name).parent)
                os.replace(work / name, out / name)
            manifest["files"] |= new
            replace_text(out / MANIFEST, seal(manifest | more))
    except OSError as error:
        raise write_error("cannot add to the result", error, out) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _require_same(out: Path, manifest: Mapping[str, Any], seen: Mapping[str, Any] | None) -> None:
    files = manifest["files"]
    if seen is not None and any(files.get(name) != digest for name, digest in seen["files"].items()):
        raise IntegrityError("result", "the result was replaced meanwhile", file=out, do="run it again")


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
    out = absolute(out)
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        work.mkdir(parents=True)
        yield work
        sync_all(work)
        publish(work, out)
    except OSError as error:
        raise write_error(f"cannot write {what}", error, out) from error
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
    try:
        for path in [p for p in out.parent.iterdir() if left.fullmatch(p.name)]:
            if f".{OLD}" in path.name and not path.is_symlink() and not out.exists():
                os.rename(path, out)
            else:
                _remove(path)
    except OSError as error:
        raise write_error("cannot tidy up beside the output", error, out) from error


def _remove(path: Path) -> None:
    """A folder with all that is in it; of a link, the link alone."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
