"""What the user is told when something is refused: one sentence and one exit code.

Every refusal says what is wrong, in which file, what was found and what to do. The codes are part of the
interface (docs/errors.md); code 1 is left for faults of our own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


class TumoarError(Exception):
    """A refusal with an exit code; subclasses fix the code, `id` names the row in docs/errors.md."""

    exit_code = 1

    def __init__(
        self, id: str, what: str, *, file: object = None, found: object = None, do: str | None = None
    ) -> None:
        self.id = id
        self.what = printable(what)
        # Only the name: a full path may carry a patient's name, and is not needed to find the file.
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
    """The command or the settings make no sense."""

    exit_code = 2


class UnreadableFileError(TumoarError):
    """A file is missing, damaged or not of the kind it should be."""

    exit_code = 3


class GeometryError(TumoarError):
    """Orientation, spacing, frame of reference or patient identity cannot be trusted."""

    exit_code = 4


class ChannelError(TumoarError):
    """An image is readable but does not serve as the contrast it is given for."""

    exit_code = 5


class ModelFileError(TumoarError):
    """A model or atlas file is damaged, foreign or inconsistent."""

    exit_code = 6


class FitError(TumoarError):
    """A fit failed its own quality checks; its result is not to be used."""

    exit_code = 7


class CohortError(TumoarError):
    """Some subjects of a cohort failed; the others are done."""

    exit_code = 8


class OutputError(TumoarError):
    """The output cannot be written."""

    exit_code = 9


class ResourceError(TumoarError):
    """More memory or time is needed than there is."""

    exit_code = 10


class BusyError(TumoarError):
    """Another run works on the same output."""

    exit_code = 11


class IntegrityError(TumoarError):
    """What was written, or is to be resumed, is not what it claims to be."""

    exit_code = 12


def printable(text: str) -> str:
    """The text without control characters and broken code points, which no terminal should get."""
    return "".join(c if c.isprintable() else "?" for c in text)


def plain_name(path: str) -> str:
    """The last part of a path, fit to be shown."""
    return printable(path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]) or printable(path)


def join_names(names: Iterable[str], most: int = 12) -> str:
    """Names in a sentence; of very many, the first ones."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def write_error(what: str, error: OSError, file: object = None) -> OutputError:
    """The refusal for an output that the system would not take (B58)."""
    found = os.strerror(error.errno).lower() if error.errno else "input/output error"
    do = "check the folder, its permissions and the space on its disk"
    return OutputError("B58", what, file=file, found=found, do=do)
