"""Read the subjects of a cohort from a CSV or TSV list, checked completely before any subject runs."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from tumoar.cohort.names import label_of
from tumoar.cohort.subjects import Subject, require_unique
from tumoar.io.files import read_bytes
from tumoar.vocabulary.errors import UnreadableFileError, UsageError

LARGEST = 16 << 20
SUBJECT, SESSION = "subject", "session"
FORMULA = ("=", "+", "-", "@")
"""Start of cells that a spreadsheet would evaluate, or a command read as a flag."""
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read_list(path: Path, contrasts: Sequence[str]) -> list[Subject]:
    """Read the subjects of a list; columns: subject, optional session, and contrasts, in any letter case.

    Paths are relative to the list. A missing file makes that subject fail (B61); an error in the list itself
    is refused.
    """
    rows = _rows(path)
    _, header = next(rows, (0, []))
    columns = [_column(cell, contrasts, path) for cell in header]
    if SUBJECT not in columns:
        raise _bad(path, f"no column '{SUBJECT}'", ", ".join(columns) or "an empty list")
    repeated = {c for c in columns if columns.count(c) > 1}
    if repeated:
        raise _bad(path, "a column appears twice", ", ".join(sorted(repeated)))
    out = []
    for number, cells in rows:
        if len(cells) != len(columns):
            raise _bad(path, f"row {number} has {len(cells)} cells, the header {len(columns)}")
        for column, cell in zip(columns, cells):
            if cell.startswith(FORMULA):
                raise _bad(path, f"row {number}, column {column}: a formula", repr(cell[:20]))
        out.append(_subject(dict(zip(columns, cells)), path.parent))
    if not out:
        raise _bad(path, "no rows")
    require_unique(out)
    return out


def _subject(row: dict[str, str], folder: Path) -> Subject:
    label = label_of(row.pop(SUBJECT))
    session = row.pop(SESSION, "")
    session = label_of(session, "session") if session else ""
    images = {contrast: str((folder / cell).absolute()) for contrast, cell in row.items() if cell}
    problem: UnreadableFileError | None = None
    if not images:
        problem = UnreadableFileError("B61", "no image in this row")
    for contrast, image in images.items():
        series, mark, _ = image.rpartition("#")
        if not (_exists(image) or (mark and Path(series).is_dir())):
            problem = UnreadableFileError("B61", f"{contrast}: no such file", file=image)
    if problem is None:
        return Subject(label, session, images)
    return Subject(label, session, images, code=problem.exit_code, problem=str(problem))


def _exists(image: str) -> bool:
    try:
        return Path(image).exists()
    except OSError:  # name too long, or no permission
        return False


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells, without empty rows."""
    text = _text(path)
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield reader.line_num, stripped
    except csv.Error as error:
        raise _bad(path, "not a table of comma- or tab-separated values", str(error)) from error


def _text(path: Path) -> str:
    """Text of the list, in UTF-8 or UTF-16."""
    try:
        content = read_bytes(path, "the list", LARGEST)
    except UnreadableFileError as refusal:
        if refusal.id != "B2":
            raise
        content = b""  # a list without columns
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise _bad(path, "not UTF-8 text", do="save it as CSV UTF-8") from error
    if "\0" in text:
        raise _bad(path, "not text, or UTF-16 without a byte order mark", do="save it as CSV UTF-8")
    return text


def _column(cell: str, contrasts: Sequence[str], path: Path) -> str:
    known = {name.lower(): name for name in (SUBJECT, SESSION, *contrasts)}
    name = cell.lower()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, 1)
    hint = f", did you mean '{known[near[0]]}'" if near else ""
    raise _bad(path, f"unknown column '{cell[:40]}'{hint}", do=f"use {', '.join(known.values())}")


def _bad(path: Path, what: str, found: str | None = None, do: str | None = None) -> UsageError:
    return UsageError("B61", f"list not usable: {what}", file=path, found=found, do=do)
