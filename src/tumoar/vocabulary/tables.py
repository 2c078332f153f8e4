"""Tab-separated tables, safe for terminals and spreadsheets."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tumoar.vocabulary.errors import printable

ABSENT = "n/a"
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # also full-width forms
"""First characters of cells that spreadsheets treat as formulas."""


def format_cell(value: object) -> str:
    """Format a value as a cell: one line, no control characters, no formula."""
    text = printable(" ".join(value.split()) if isinstance(value, str) else str(value))
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def to_tsv(rows: Sequence[Mapping[str, Any]], absent: str | None = None) -> str:
    """Format rows below a header of all column names; `absent` replaces None, empty and missing values."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow([format_cell(name) for name in names])
    for row in rows:
        values = [row.get(name) for name in names]
        writer.writerow([_absent_text(absent) if v is None or v == "" else format_cell(v) for v in values])
    return stream.getvalue()


def _absent_text(word: str | None) -> str:
    return "" if word is None else word


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
