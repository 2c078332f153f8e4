"""Folders that the user chose: nothing outside them is listed, read or written.

The page never sends a path. It sends the number of a chosen folder and a name below it, and results by an
identifier that the server gave out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tumoar.io.files import absolute
from tumoar.io.manifest import MANIFEST
from tumoar.vocabulary.errors import UnreadableFileError, UsageError, printable

DEEPEST = 4
"""Levels below a chosen folder in which results are found."""
MOST_ENTRIES = 2000
"""Of a folder; more are not listed."""


@dataclass(frozen=True)
class Entry:
    """A file or folder in a list; `name` is relative to its chosen folder."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class Places:
    """The chosen folders, as absolute paths without symbolic links."""

    roots: tuple[Path, ...]

    @classmethod
    def choose(cls, folders: Sequence[str | Path]) -> Places:
        """Choose folders; they must exist."""
        roots = []
        for folder in folders:
            place = absolute(folder)
            if not place.is_dir():
                raise UnreadableFileError("B1", "no such folder", file=place, do="check the name")
            roots.append(place.resolve())
        return cls(tuple(dict.fromkeys(roots)))

    def find(self, number: int, name: str) -> Path:
        """Path of a file or folder below a chosen folder; anything that leads outside is refused."""
        if not 0 <= number < len(self.roots):
            raise UsageError("folder", "no such folder", do="choose one from the list")
        root, parts = self.roots[number], Path(name).parts
        if "\0" in name or name.startswith("/") or ".." in parts:
            raise _outside(name)
        try:
            path = (root / name).resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
            raise UnreadableFileError("B1", "no such file", file=name, do="check the name") from error
        if not path.is_relative_to(root):
            raise _outside(name)
        return path

    def entries(self, number: int, name: str = "") -> list[Entry]:
        """Folders and images in a folder, sorted; hidden ones and those that lead outside are omitted."""
        folder = self.find(number, name)
        if not folder.is_dir():
            raise UsageError("folder", "not a folder", file=name, do="choose a folder")
        root, out = self.roots[number], []
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    if entry.name.startswith(".") or not _leads_inside(Path(entry.path), root):
                        continue
                    relative = str(Path(entry.path).relative_to(root))
                    out.append(Entry(relative, entry.is_dir()))
                    if len(out) == MOST_ENTRIES:
                        break
        except OSError as error:
            raise UnreadableFileError("B1", "cannot read the folder", file=name) from error
        return sorted(out, key=lambda entry: (not entry.is_folder, entry.name.lower()))

    def results(self) -> Iterator[Path]:
        """Folders of finished results, in the order of their names."""
        seen: set[Path] = set()
        for root in self.roots:
            for path in _results_below(root, DEEPEST):
                if path not in seen:
                    seen.add(path)
                    yield path


def _leads_inside(path: Path, root: Path) -> bool:
    """Whether a path, through links, ends below a folder; not if its links form a circle or lead nowhere."""
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
        return False


def identify(path: Path) -> str:
    """Identifier of a result in addresses, which must not show its name."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _results_below(folder: Path, levels: int) -> Iterator[Path]:
    """Results in a folder without following links, which could lead outside or in circles."""
    try:
        if (folder / MANIFEST).is_file():
            yield folder
            return
        if levels == 0:
            return
        with os.scandir(folder) as found:
            below = sorted(
                Path(e.path) for e in found if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            )
    except OSError:
        return
    for path in below:
        yield from _results_below(path, levels - 1)


def _outside(name: str) -> UsageError:
    return UsageError(
        "folder",
        "this name leads outside the chosen folders",
        found=printable(name[:80]),
        do="choose a file below",
    )
