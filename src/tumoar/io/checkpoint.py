"""Checkpoints of a run: arrays under a name, two generations, each with its checksum.

A checkpoint belongs to one run: case, model, settings and seed, together its `key`. What is damaged counts as
absent, and the generation before it is used; what belongs to another run is refused.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tumoar.io.files import read_bytes
from tumoar.vocabulary.errors import IntegrityError, TumoarError, write_error

Arrays = dict[str, npt.NDArray]
_HASH = 64
_MAX_BYTES = 16 * 1024**3  # a whole head at 1 mm with all contrasts has less than one


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints for the run with this key (a SHA-256 in hexadecimal)."""

    folder: Path
    key: str

    def load(self, name: str) -> Arrays | None:
        """The newest whole checkpoint of this name, if there is one."""
        for path in (self.folder / f"{name}.ckpt", self.folder / f"{name}.before.ckpt"):
            found = self._read(path)
            if found is not None:
                return found
        return None

    def save(self, name: str, arrays: Arrays) -> None:
        """Write a new generation; the one before stays until the next."""
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        content = stream.getvalue()
        head = self.key.encode() + hashlib.sha256(content).hexdigest().encode()
        path = self.folder / f"{name}.ckpt"
        temporary = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)  # left by a killed run, or a link that somebody has put there
            with open(temporary, "xb") as file:
                file.write(head)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                os.replace(path, self.folder / f"{name}.before.ckpt")
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise write_error("cannot write a checkpoint", error) from error

    def _read(self, path: Path) -> Arrays | None:
        self._require_own(path)
        try:
            content = read_bytes(path, "the checkpoint", _MAX_BYTES)
        except TumoarError:
            return None
        key, digest, rest = content[:_HASH], content[_HASH : 2 * _HASH], content[2 * _HASH :]
        if hashlib.sha256(rest).hexdigest().encode() != digest:
            return None
        if key != self.key.encode():
            raise IntegrityError(
                "B60",
                "the interrupted run had other images, settings or another model",
                do="start anew with --overwrite, or with another output folder",
            )
        return _arrays(rest)

    def _require_own(self, path: Path) -> None:
        """Refuse what another user has put there: nothing in a checkpoint can be told from our own."""
        if not path.exists() or {owner(self.folder), owner(path)} <= {os.geteuid(), self._new_owner()}:
            return
        raise IntegrityError(
            "B60",
            "the interrupted run is somebody else's",
            file=self.folder,
            do="choose another output folder",
        )

    def _new_owner(self) -> int:
        """Who owns what we write there: some shared disks give every file to one user."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                return os.fstat(file.fileno()).st_uid
        except OSError:
            return os.geteuid()


def owner(path: Path) -> int:
    """The user whose file or folder it is."""
    return os.stat(path).st_uid


def _arrays(content: bytes) -> Arrays | None:
    """The arrays as `save` packs them, uncompressed; None for anything else, a bomb or a pickle among it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > len(content):
                return None
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError):
        return None
