"""Files that the page sends: stored under neutral names, within limits, in a folder for this user alone."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tumoar.vocabulary.errors import ResourceError, UsageError, printable, write_error

MOST_FILE = 2 * 1024**3
MOST_ALL = 8 * 1024**3
"""Bytes of one file, and of all files of one case."""
MOST_FILES = 20_000
DICOM = "dicom"
SUFFIXES = (".nii.gz", ".nii")


@dataclass
class Upload:
    """The files of one case; `names` are those that the user knows, by stored name."""

    folder: Path
    names: dict[str, str] = field(default_factory=dict)
    size: int = 0
    count: int = 0  # of files begun: a number is never used twice

    def place(self, shown: str) -> Path:
        """Where the next file goes. Nothing of its own name is used but whether it is NIfTI."""
        if self.count >= MOST_FILES:
            raise ResourceError("B6", "too many files", found=f"more than {MOST_FILES}", do="send one study")
        self.count += 1
        number = f"{self.count:06d}"
        suffix = next((s for s in SUFFIXES if shown.lower().endswith(s)), None)
        stored = f"{number}{suffix}" if suffix else f"{DICOM}/{number}.dcm"
        self.names[stored] = printable(shown.replace("\\", "/").rsplit("/", 1)[-1][:200])
        return self.folder / stored


class Uploads:
    """All uploads of this run of the server, by a random identifier."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Upload] = {}

    def begin(self) -> str:
        """A new, empty folder, readable by its owner alone."""
        key = secrets.token_hex(8)
        folder = self._folder / key
        try:
            for place in (self._folder, folder, folder / DICOM):
                place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise write_error("cannot store the files", error) from error
        self._known[key] = Upload(folder)
        return key

    def get(self, key: str) -> Upload:
        """An upload that was begun."""
        if key not in self._known:
            raise UsageError("upload", "no such upload", do="choose the files again")
        return self._known[key]

    def forget(self, key: str) -> None:
        """Remove the files of an upload."""
        upload = self._known.pop(key, None)
        if upload is not None:
            shutil.rmtree(upload.folder, ignore_errors=True)


async def receive(upload: Upload, shown: str, chunks: AsyncIterator[bytes]) -> None:
    """Store one file; it is removed if it is too large or does not arrive completely."""
    path = upload.place(shown)
    size, whole = 0, False
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
        ) as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > MOST_FILE or upload.size + size > MOST_ALL:
                    raise ResourceError(
                        "B6", "the files are too large", do="choose them on this machine instead"
                    )
                file.write(chunk)
        upload.size += size
        whole = True
    except OSError as error:
        raise write_error("cannot store the file", error) from error
    finally:
        if not whole:
            path.unlink(missing_ok=True)
            upload.names.pop(path.relative_to(upload.folder).as_posix(), None)
