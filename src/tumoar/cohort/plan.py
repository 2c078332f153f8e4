"""Plan of a cohort run: subjects, limits, and existing results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tumoar.cohort.names import LOGS, RESULTS
from tumoar.cohort.subjects import Subject
from tumoar.io.manifest import MANIFEST, digest_of_file, read_manifest
from tumoar.version import __version__
from tumoar.vocabulary.contrasts import (
    Contrast,
    core_is_identifiable,
    find_contrast,
    tumor_is_constrained,
)
from tumoar.vocabulary.errors import ChannelError, TumoarError, UnreadableFileError, UsageError
from tumoar.vocabulary.notes import Note

CASE_GB = 4.0
"""Planned memory per patient; the forecast for four contrasts of a whole head at 1 mm is 2.6 GB."""
MINUTES = 240.0
RETRIES = 2


@dataclass(frozen=True)
class Limits:
    """Limits of one subject's process; `retries` are further attempts after a temporary failure."""

    minutes: float = MINUTES
    gb: float = CASE_GB
    threads: int = 1
    retries: int = RETRIES


@dataclass(frozen=True)
class Order:
    """Settings for every subject, as plain values that can be sent to other machines."""

    out: str
    flags: tuple[str, ...] = ()  # for `tumoar segment`
    folder: str = "."  # for relative paths among the flags
    digest: str = ""  # of the flags and their files
    raw: str | None = None  # the BIDS dataset
    limits: Limits = field(default_factory=Limits)
    overwrite: bool = False
    version: str = __version__
    command: tuple[str, ...] = ()  # instead of our own child process

    def result(self, name: str) -> Path:
        """Folder of a subject's result."""
        return Path(self.out) / RESULTS / name

    def log(self, name: str, extension: str) -> Path:
        """A subject's log or record."""
        return Path(self.out) / LOGS / f"{name}{extension}"


def digest_flags(flags: Iterable[str], files: Iterable[Path]) -> str:
    """SHA-256 of flags and the files that they name."""
    try:
        contents = [digest_of_file(path) for path in files]
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read a file that a flag names") from error
    return hashlib.sha256(json.dumps([*flags, *contents]).encode()).hexdigest()


def check_contrasts(
    subjects: Sequence[Subject], tumor: bool, table: Mapping[str, Contrast] | None = None
) -> list[Subject]:
    """Check contrasts of all subjects: without T1c and FLAIR, tumor cannot be segmented."""
    out = []
    for subject in subjects:
        contrasts = [find_contrast(name, table) for name in subject.images]
        if tumor and not subject.problem and not tumor_is_constrained(contrasts):
            refusal = ChannelError(
                "B41", "these contrasts cannot identify tumor", found=", ".join(subject.images)
            )
            subject = replace(subject, code=refusal.exit_code, problem=str(refusal))
        elif tumor and not subject.problem and not core_is_identifiable(contrasts):
            subject = replace(
                subject, notes=(*subject.notes, Note("B42", "no T1c, whole tumor only", level="info"))
            )
        out.append(subject)
    return out


def select(
    subjects: Sequence[Subject], labels: Sequence[str], sessions: Sequence[str], index: int | None
) -> list[Subject]:
    """Select subjects by label and session, or by index from 0; refuse unknown ones."""
    if index is not None:
        if not 0 <= index < len(subjects):
            raise UsageError(
                "B61", "no subject with this number", found=index, do=f"use 0 to {len(subjects) - 1}"
            )
        return [subjects[index]]
    wanted = {label.removeprefix("sub-") for label in labels}
    unknown = wanted - {s.label for s in subjects}
    if unknown:
        raise UsageError("B61", "no such subject", found=", ".join(sorted(unknown)), do="see --dry-run")
    times = {session.removeprefix("ses-") for session in sessions}
    nobodys = times - {s.session for s in subjects}
    if nobodys:
        raise UsageError("B61", "no such session", found=", ".join(sorted(nobodys)), do="see --dry-run")
    out = [s for s in subjects if (not wanted or s.label in wanted) and (not times or s.session in times)]
    if not out:
        raise UsageError("B61", "no such session", found=", ".join(sorted(times)), do="see --dry-run")
    return out


def state_of_result(subject: Subject, order: Order) -> str:
    """State of a result: "none", "whole" or "damaged"; whether it is current is checked when it runs."""
    result = order.result(subject.name)
    if not os.path.lexists(result / MANIFEST):
        return "none"
    try:
        read_manifest(result)
    except TumoarError:
        return "damaged"
    return "whole"


def has_checkpoints(subject: Subject, order: Order) -> bool:
    """Whether an interrupted run can be resumed."""
    result = order.result(subject.name)
    return result.with_name(f".{result.name}.checkpoints").is_dir()


def fitting_workers(limits: Limits, subjects: int) -> int:
    """Number of workers that cores and free memory allow, between one and the number of subjects."""
    import psutil

    free = psutil.virtual_memory().available / 1e9
    return max(1, min(cores() // limits.threads, int(free / limits.gb), subjects))


def cores() -> int:
    """Available processor cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
