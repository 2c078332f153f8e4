"""The manifest of a finished result, and how a folder gets to its place: whole, or not at all.

`run.json` lists every file of a result with its SHA-256. Nothing here looks into an image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tumoar.errors import IntegrityError, UnreadableFileError
from tumoar.io.files import beside, sync

MANIFEST = "run.json"
REPORT = "report.html"


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a finished result, every file checked against it."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFileError(
            "B1", "no finished result in this folder", file=out, do="run `tumoar segment`"
        ) from error
    for name, digest in files.items():
        path = out / name
        if not path.is_file() or digest_of_file(path) != digest:
            raise IntegrityError(
                "result", "result changed since it was written", file=name, do="run it again"
            )
    return dict(manifest)


def add_files(out: Path, names: Iterable[str], **more: Any) -> None:
    """Files that were added to a finished result, or changed by us, into its manifest, and `more` beside."""
    manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8")) | more
    manifest["files"] |= {n: digest_of_file(out / n) for n in names}
    replace_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


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


def publish(work: Path, out: Path) -> None:
    """Move the finished folder to its place; an older one leaves only when the new one is there."""
    old = out.with_name(f".{out.name}.old-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(out, old)
    try:
        os.rename(work, out)
    except OSError:
        with suppress(OSError):
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
