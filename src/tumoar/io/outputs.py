"""Check output folders: never overwrite files that tumoar did not write."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tumoar.io.files import absolute, current_folder, read_text, require_own
from tumoar.io.lock import lock_output
from tumoar.io.manifest import (
    MANIFEST,
    OLD,
    publish_folder,
    read_manifest,
    remove_leftovers,
    require_unreviewed,
    write_manifest,
)
from tumoar.io.manifest_schema import RESULT, parse
from tumoar.vocabulary.errors import (
    IntegrityError,
    TumoarError,
    UnreadableFileError,
    UsageError,
    plain_name,
    write_error,
)

LONGEST = 255 - len(f"..{OLD}{uuid.uuid4().hex}")
"""Bytes in the name of an output; temporary names next to it are longer."""
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}")  # files that were being added when a run was killed


def require_place(
    out: Path, inputs: Iterable[str | Path] = (), *, overwrite: bool = False, kind: str = RESULT
) -> None:
    """Refuse, before any computation, an output folder where writing could destroy a file of the user.

    The folder may be new or empty, or hold a complete output of the same kind. The latter is replaced only
    with `overwrite`, and only if the folder holds nothing else.
    """
    out = absolute(out)
    _require_name(out)
    place = _resolved(out)
    _require_possible(out)
    if any(_is_result(folder) for folder in out.parents):
        raise _refused(out, "the output folder is inside a result", "run.json in a folder above it")
    for path in inputs:
        if _place_of(path).is_relative_to(place):
            raise _refused(out, "the output folder holds an input", plain_name(str(path)))
    try:
        if not os.path.lexists(out) or (not out.is_symlink() and out.is_dir() and not any(out.iterdir())):
            return
        _require_own_result(out, overwrite, kind)
    except OSError as error:
        raise write_error("cannot read the output folder", error, out) from error


def _require_name(out: Path) -> None:
    """Refuse a path to which no folder can be moved at the end."""
    here = current_folder()
    if out == Path(out.anchor) or (here is not None and here.is_relative_to(out)):
        what, do = "the output must be a folder of its own", "name a new folder: -o result"
    elif os.path.ismount(out):
        what, do = "the output is a mount point", f"name a folder on it: -o {plain_name(str(out))}/result"
    elif len(os.fsencode(out.name)) > LONGEST:
        what, do = "the name of the output is too long", f"use at most {LONGEST} bytes"
    else:
        return
    raise UsageError("output", what, file=out.name[:LONGEST] or out, do=do)


def _require_own_result(out: Path, overwrite: bool, kind: str) -> None:
    if out.is_dir():
        require_own(out.parent, out)
    if not (out / MANIFEST).is_file():
        raise _refused(out, "the output folder holds something else", _first(out))
    try:
        files = read_manifest(out, kind)["files"]
    except TumoarError as refusal:
        found = refusal.what if refusal.file in (None, out.name) else f"{refusal.what}: {refusal.file}"
        raise _refused(
            out, f"the output folder holds something other than a complete {kind}", found
        ) from refusal
    if overwrite:
        require_unreviewed(out, out)
    foreign = _foreign(out, set(files)) if overwrite else None
    if foreign is not None:
        raise _refused(out, "the output folder also holds a file that tumoar did not write", foreign)


@contextmanager
def new_folder(
    out: Path, kind: str, inputs: Iterable[str | Path] = (), *, overwrite: bool = False
) -> Iterator[Path]:
    """Temporary folder for files of one kind; it becomes `out` with its manifest if the block succeeds."""
    require_empty(out, inputs, overwrite=overwrite, kind=kind)
    with lock_output(out):
        remove_leftovers(absolute(out))
        with publish_folder(out, f"the {kind}") as work:
            yield work
            write_manifest(work, {}, kind)


def require_empty(out: Path, inputs: Iterable[str | Path] = (), *, overwrite: bool, kind: str) -> None:
    """Like `require_place`; without `overwrite`, existing outputs are refused as well."""
    require_place(out, inputs, overwrite=overwrite, kind=kind)
    if not overwrite and os.path.isdir(out) and any(out.iterdir()):
        do = "choose another folder, or replace it with --overwrite"
        raise IntegrityError("B57", f"a {kind} already exists here", file=absolute(out), do=do)


def require_new_model(path: Path) -> None:
    """Refuse to replace an existing file by a model file."""
    if os.path.lexists(path):
        do = "choose another name, or remove the file"
        raise IntegrityError("B57", "the model file already exists", file=absolute(path), do=do)


def _require_possible(out: Path) -> None:
    """Refuse a path that cannot be created: too long, below a file, or without permission."""
    try:
        os.lstat(out)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise write_error("cannot write", error, out) from error


def _is_result(folder: Path) -> bool:
    try:
        if not os.path.lexists(folder / MANIFEST):
            return False
        return bool(
            parse(read_text(folder / MANIFEST, "the manifest"), folder)["format"] == f"tumoar {RESULT}"
        )
    except TumoarError:
        return False


def _place_of(path: str | Path) -> Path:
    """Resolved path of an input; of FOLDER#2, of the folder."""
    folder, mark, number = str(path).rpartition("#")
    is_series = mark and number.isdecimal() and not os.path.lexists(path)
    return _resolved(absolute(folder if is_series else path))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: before Python 3.13
        raise UnreadableFileError(
            "B1", "symbolic links form a loop", file=path, do="check the name"
        ) from error


def _foreign(out: Path, listed: set[str]) -> str | None:
    """Name of a file or link in the folder that its manifest does not list, if any."""
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        is_ours = name.as_posix() in listed or name == Path(MANIFEST) or _UNFINISHED.fullmatch(name.parts[0])
        if not is_ours and (path.is_symlink() or not path.is_dir()):
            return path.name
    return None


def _first(out: Path) -> str:
    return next((path.name for path in sorted(out.iterdir())), "") if out.is_dir() else "a file"


def _refused(out: Path, what: str, found: str) -> IntegrityError:
    do = "choose another folder; --overwrite replaces only a folder that tumoar wrote"
    return IntegrityError("B57", what, file=out, found=found, do=do)
