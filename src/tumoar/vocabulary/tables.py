"""Tables as tab-separated values that a terminal and a spreadsheet can be trusted with."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tumoar.vocabulary.errors import printable

ABSENT = "n/a"
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # of both widths
"""How a cell begins that a spreadsheet would compute."""


def format_cell(value: object) -> str:
    """A value as the text of a cell: one line, nothing that steers a terminal, nothing to be computed."""
    text = printable(" ".join(value.split()) if isinstance(value, str) else str(value))
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def to_tsv(rows: Sequence[Mapping[str, Any]], absent: str | None = None) -> str:
    """Rows with the names of all their columns above; `absent` stands for what is None, empty or missing."""
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
