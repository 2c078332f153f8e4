"""Name and date of a case, as the user gives them for the report; they are never read from headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from tumoar.vocabulary.errors import UsageError

LONGEST = 64
_SAFE = re.compile(r"[^\W_](?:[\w .+-]*[\w+])?")
"""Letters and digits of any script, and few signs inside: nothing that HTML, shells or file systems read."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


@dataclass(frozen=True)
class CaseName:
    """How the report names a case; both parts may be empty."""

    name: str = ""
    date: str = ""  # YYYY-MM-DD

    def __post_init__(self) -> None:
        if self.name and not (len(self.name) <= LONGEST and _SAFE.fullmatch(self.name)):
            raise UsageError(
                "case-name",
                "the name of the case is not safe in pages and file names",
                do=f"use up to {LONGEST} letters, digits, spaces and . _ + -; begin with a letter or digit",
            )
        if self.date and not _is_day(self.date):
            raise UsageError("case-name", "the date of the case is not a day", do="write it as YYYY-MM-DD")

    def __bool__(self) -> bool:
        return bool(self.name or self.date)


def _is_day(text: str) -> bool:
    try:
        return _DAY.fullmatch(text) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return False
