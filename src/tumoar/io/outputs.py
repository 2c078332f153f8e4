"""Where output may go: a folder of its own, never over files that tumoar did not write."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tumoar.io.files import absolute, current_folder, read_text, require_own
from tumoar.io.lock import locked
from tumoar.io.manifest import MANIFEST, OLD, published, read_manifest, tidy, write_manifest
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
"""Bytes in the name of an output: its unfinished files have longer names beside it."""
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}")  # a folder of files that were joining when a run was killed


def require_place(
    out: Path, inputs: Iterable[str | Path] = (), *, overwrite: bool = False, kind: str = RESULT
) -> None:
    """Refuse an output folder that would cost the user a file, before any work is done.

    The folder may be new or empty. One that holds a whole output of the same kind may be there as well: it is
    replaced only with `overwrite`, and only if it holds nothing else.
    """
    out = absolute(out)
    _require_name(out)
    place = _resolved(out)
    _require_possible(out)
    if any(_is_result(folder) for folder in out.parents):
        raise _refused(out, "the output folder would lie within a result", "run.json in a folder above it")
    for path in inputs:
        if _place_of(path).is_relative_to(place):
            raise _refused(out, "the output folder holds an input", plain_name(str(path)))
    try:
        if not os.path.lexists(out) or (not out.is_symlink() and out.is_dir() and not any(out.iterdir())):
            return
        _require_own_result(out, overwrite, kind)
    except OSError as error:
        raise write_error("cannot look into the output folder", error, out) from error


def _require_name(out: Path) -> None:
    """Refuse a place that no folder can be moved to at the end."""
    here = current_folder()
    if out == Path(out.anchor) or (here is not None and here.is_relative_to(out)):
        what, do = "the output must be a folder of its own", "name a new folder: -o result"
    elif os.path.ismount(out):
        what, do = "the output is a whole disk", f"name a folder on it: -o {plain_name(str(out))}/result"
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
        raise _refused(out, f"the output folder holds something else than a whole {kind}", found) from refusal
    foreign = _foreign(out, set(files)) if overwrite else None
    if foreign is not None:
        raise _refused(out, "the output folder also holds a file that tumoar did not write", foreign)


@contextmanager
def new_folder(
    out: Path, kind: str, inputs: Iterable[str | Path] = (), *, overwrite: bool = False
) -> Iterator[Path]:
    """A folder to write files of one kind to; it appears as `out`, whole with its manifest, or not at all."""
    require_empty(out, inputs, overwrite=overwrite, kind=kind)
    with locked(out):
        tidy(absolute(out))
        with published(out, f"the {kind}") as work:
            yield work
            write_manifest(work, {}, kind)


def require_empty(out: Path, inputs: Iterable[str | Path] = (), *, overwrite: bool, kind: str) -> None:
    """As `require_place`; what is there already is refused as well, unless it is to be overwritten."""
    require_place(out, inputs, overwrite=overwrite, kind=kind)
    if not overwrite and os.path.isdir(out) and any(out.iterdir()):
        do = "choose another folder, or replace it with --overwrite"
        raise IntegrityError("B57", f"there is a {kind} already", file=absolute(out), do=do)


def require_new_model(path: Path) -> None:
    """Refuse to write a model file where there is a file."""
    if os.path.lexists(path):
        do = "choose another name, or remove the file"
        raise IntegrityError("B57", "the model would replace a file", file=absolute(path), do=do)


def _require_possible(out: Path) -> None:
    """Refuse a path that the system does not take: too long, below a file, or closed to the user."""
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
    """Where an input lies; of FOLDER#2, the folder."""
    folder, mark, number = str(path).rpartition("#")
    is_series = mark and number.isdecimal() and not os.path.lexists(path)
    return _resolved(absolute(folder if is_series else path))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: before Python 3.13
        raise UnreadableFileError("B1", "links lead in a circle", file=path, do="check the name") from error


def _foreign(out: Path, listed: set[str]) -> str | None:
    """The name of a file or link in the folder that its manifest does not list, if there is one."""
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
