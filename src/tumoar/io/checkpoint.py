"""Checkpoints of a run: named sets of arrays, each kept in two generations with a checksum.

A checkpoint belongs to one run, identified by its `key`: case, model, settings and seed. A damaged checkpoint
counts as absent and the previous generation is used; a checkpoint of another run is refused.
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
_MAX_BYTES = 16 * 1024**3  # a whole head at 1 mm with all contrasts needs less than one


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints for the run with this key (a SHA-256 in hexadecimal)."""

    folder: Path
    key: str

    def load(self, name: str) -> Arrays | None:
        """Return the newest intact checkpoint of this name, if there is one."""
        for path in (self.folder / f"{name}.ckpt", self.folder / f"{name}.before.ckpt"):
            found = self._read(path)
            if found is not None:
                return found
        return None

    def save(self, name: str, arrays: Arrays) -> None:
        """Write a new generation; the previous one is kept until the next."""
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        content = stream.getvalue()
        head = self.key.encode() + hashlib.sha256(content).hexdigest().encode()
        path = self.folder / f"{name}.ckpt"
        temporary = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)  # left by a killed run, or a link placed there
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
                do="start over with --overwrite, or choose another output folder",
            )
        return _arrays(rest)

    def _require_own(self, path: Path) -> None:
        """Refuse checkpoints of another user: their content cannot be distinguished from our own."""
        if not path.exists() or {owner(self.folder), owner(path)} <= {os.geteuid(), self._new_owner()}:
            return
        raise IntegrityError(
            "B60",
            "the interrupted run belongs to another user",
            file=self.folder,
            do="choose another output folder",
        )

    def _new_owner(self) -> int:
        """Owner of new files there: some shared disks assign every file to one user."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                return os.fstat(file.fileno()).st_uid
        except OSError:
            return os.geteuid()


def owner(path: Path) -> int:
    """User ID of the owner of a file or folder."""
    return os.stat(path).st_uid


def _arrays(content: bytes) -> Arrays | None:
    """Arrays as `save` packs them, uncompressed; None for anything else, including zip bombs and pickles."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > len(content):
                return None
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError):
        return None
