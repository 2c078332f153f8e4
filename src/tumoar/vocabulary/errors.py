"""User-facing errors: one message and one exit code each.

A message states what is wrong, in which file, what was found and what to do. Exit codes are part of the
interface (docs/errors.md); code 1 is reserved for internal errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


class TumoarError(Exception):
    """An error with an exit code, set by the subclass; `id` is its row in docs/errors.md."""

    exit_code = 1

    def __init__(
        self, id: str, what: str, *, file: object = None, found: object = None, do: str | None = None
    ) -> None:
        self.id = id
        self.what = printable(what)
        # Only the file name: a full path may contain a patient's name.
        self.file = None if file is None else plain_name(str(file))
        self.found = None if found is None else printable(str(found))
        self.do = None if do is None else printable(do)
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [f"E{self.exit_code}-{self.id} {self.what}"]
        for name in ("file", "found", "do"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}: {value}")
        return " | ".join(parts)


class UsageError(TumoarError):
    """Invalid command or settings."""

    exit_code = 2


class UnreadableFileError(TumoarError):
    """A file is missing, damaged or of the wrong type."""

    exit_code = 3


class GeometryError(TumoarError):
    """Orientation, spacing, frame of reference or patient identity cannot be trusted."""

    exit_code = 4


class ChannelError(TumoarError):
    """An image is readable but not usable as the given contrast."""

    exit_code = 5


class ModelFileError(TumoarError):
    """A model or atlas file is damaged, unsupported or inconsistent."""

    exit_code = 6


class FitError(TumoarError):
    """A fit failed its quality checks; the result must not be used."""

    exit_code = 7


class CohortError(TumoarError):
    """Some subjects of a cohort failed."""

    exit_code = 8


class OutputError(TumoarError):
    """The output cannot be written."""

    exit_code = 9


class ResourceError(TumoarError):
    """Not enough memory or time."""

    exit_code = 10


class BusyError(TumoarError):
    """Another run is using the same output."""

    exit_code = 11


class IntegrityError(TumoarError):
    """Stored or resumed data do not match their checksums or metadata."""

    exit_code = 12


def printable(text: str) -> str:
    """Replace control characters and invalid code points, so that text is safe to print."""
    return "".join(c if c.isprintable() else "?" for c in text)


def plain_name(path: str) -> str:
    """The last component of a path, safe to print."""
    return printable(path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]) or printable(path)


def join_names(names: Iterable[str], most: int = 12) -> str:
    """Join names with commas, at most `most` of them."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def write_error(what: str, error: OSError, file: object = None) -> OutputError:
    """Error for a failed write (B58)."""
    found = os.strerror(error.errno).lower() if error.errno else "input/output error"
    do = "check the folder, its permissions and free disk space"
    return OutputError("B58", what, file=file, found=found, do=do)
