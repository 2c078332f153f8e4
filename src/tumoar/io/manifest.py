"""Manifests of published folders, and publishing a folder atomically.

`run.json` lists every file with its SHA-256. This module reads no images.
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

from tumoar.io.files import absolute, read_text, replace_file, require_own, sync
from tumoar.io.lock import lock_output
from tumoar.io.manifest_schema import AGAIN, COMING, RESULT, parse, seal
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, write_error

MANIFEST = "run.json"
REPORT = "report.html"
REVIEW = "review"
"""Folder of a result for what a reviewer does; its manifest does not list it."""
OLD = "old-"


def read_manifest(out: Path, kind: str = RESULT) -> dict[str, Any]:
    """Read the manifest of a finished folder and check every file against it.

    Every listed file must exist and have its listed digest. Only files that were being added when a run was
    stopped may be missing, or still have their previous content.
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
    """Write the manifest of a folder before it is published: all its files with their digests."""
    files = {name: digest for name, digest in digest_files(folder).items() if name != MANIFEST}
    whole = {"format": f"tumoar {kind}", **manifest, "files": files}
    (folder / MANIFEST).write_text(seal(whole), encoding="utf-8")


@contextmanager
def add_files(out: Path, seen: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Path]:
    """Temporary folder whose files are added to a finished result if the block succeeds.

    `more` are further members of the manifest. `seen` is the manifest of the result that the files were made
    from; if another result took its place meanwhile, the files are refused. The manifest lists new files
    before they are moved, so that the result is valid at every moment.
    """
    out = absolute(out)
    work = out / f".{uuid.uuid4().hex}"
    try:
        work.mkdir()
        yield work
        new = digest_files(work)
        sync_all(work)
        with lock_output(out):
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
    """Write a text file atomically."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file, read in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under a folder, by relative path."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): digest_of_file(p) for p in paths}


def sync_all(folder: Path) -> None:
    """Flush everything below a folder to disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


@contextmanager
def publish_folder(out: Path, what: str) -> Iterator[Path]:
    """Temporary folder that becomes `out` if the block succeeds and is removed otherwise.

    `what` names it in a refusal.
    """
    out = absolute(out)
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    try:
        work.mkdir(parents=True)
        yield work
        sync_all(work)
        move_into_place(work, out)
    except OSError as error:
        raise write_error(f"cannot write {what}", error, out) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def move_into_place(work: Path, out: Path) -> None:
    """Move a finished folder into place in one step; an older one is removed afterwards."""
    if not out.exists():
        os.rename(work, out)
    elif exchange_names(work, out):
        try:
            require_unreviewed(work, out)  # since the run began
        except IntegrityError:
            exchange_names(work, out)
            raise
    else:
        require_unreviewed(out, out)
        old = out.with_name(f".{out.name}.{OLD}{uuid.uuid4().hex}")
        os.rename(out, old)
        try:
            os.rename(work, out)
        except OSError:
            os.rename(old, out)
            raise
        work = old
    with suppress(OSError):  # whichever name survives a failing disk, it leads to a complete result
        sync(out.parent)
    _remove(work)


def require_unreviewed(folder: Path, out: Path) -> None:
    """Refuse to replace a result that was reviewed; `folder` holds what is or was at `out`."""
    if os.path.lexists(folder / REVIEW):
        do = "choose another folder; a review is never overwritten"
        raise IntegrityError("B57", "the result in the output folder was reviewed", file=out, do=do)


def exchange_names(one: Path, other: Path) -> bool:
    """Exchange two names atomically (renameat2); False if the system cannot."""
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


def remove_leftovers(out: Path) -> None:
    """Remove what a killed run left next to its output; restore an older result if its place is empty.

    Call it only while holding the lock of the output.
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
    """Remove a folder with its content; of a link, only the link."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
