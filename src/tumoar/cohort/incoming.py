"""Segment DICOM studies as they arrive in a folder: one subfolder each, finished when it stops changing.

Files of the user are only read. What was done with a study is recorded under a name that is derived from it
with a secret key, so that neither folders nor records name a patient; a study is taken up again only if its
files change.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tumoar.cohort.names import LOGS, case_name
from tumoar.cohort.plan import Order, check_contrasts
from tumoar.cohort.private import remove_names
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import Outcome, Tell, record_failure, supervise
from tumoar.io.dicom import Series, find_series, grid_of
from tumoar.io.dicom_folder import MOST_FILES
from tumoar.io.files import read_text, require_own
from tumoar.io.manifest import replace_text
from tumoar.vocabulary.contrasts import Contrast, default_contrasts
from tumoar.vocabulary.errors import (
    ChannelError,
    IntegrityError,
    TumoarError,
    UnreadableFileError,
    write_error,
)
from tumoar.vocabulary.notes import Note

KEY, RECORD = "watch.key", "watch.json"
POLL = (0.05, 15.0)  # seconds between looks at the folder; a quarter of the quiet time within these
LEAST = 0.6
"""Confidence in the contrast of a series, below which it is not used."""
SAME = 0.02
"""Relative difference of voxel volumes below which two series are equally fine."""

NEW_NAMES = "remove it; all studies are then segmented again under new names"
LOOK_AGAIN = "remove it; finished studies are then recognized by their results"

Signature = str
Contrasts = Mapping[str, Contrast]


@dataclass(frozen=True)
class Watched:
    """What to watch: studies in `folder`, quiet for so many seconds; `again` retries those that failed."""

    folder: Path
    quiet: float
    tumor: bool = True
    contrasts: Contrasts | None = None
    once: bool = False
    again: bool = False


def watch_folder(
    watched: Watched,
    order: Order,
    tell: Tell = lambda event: None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Subject, Outcome]]:
    """Segment each study when it is quiet; yield subject and outcome. Ends only with `once`.

    With `once`, it ends when every study that was there has been quiet and dealt with.
    """
    key = read_key(order)
    record = read_record(order)
    if watched.again:
        record = {name: row for name, row in record.items() if row.get("state") == "done"}
    quiet: dict[Path, tuple[Signature, float]] = {}
    while True:
        places = find_studies(watched.folder)
        waiting = 0
        for place in places:
            signature = sign(place)
            name = name_of(key, place, signature)
            if name in record or not signature:
                continue
            since = quiet.get(place, ("", 0.0))
            if since[0] != signature:
                quiet[place] = since = signature, time.monotonic()
            if time.monotonic() - since[1] < watched.quiet:
                waiting += 1
                continue
            del quiet[place]
            subject, outcome = take(name, place, watched, order, tell)
            if outcome.state == "stopped":
                return
            if sign(place) != signature:  # it changed meanwhile, and is another study now
                waiting += 1
            record[name] = {"state": "failed" if outcome.state == "failed" else "done", "code": outcome.code}
            write_record(order, record)
            yield subject, outcome
        if watched.once and not waiting:
            return
        pause(min(max(watched.quiet / 4, POLL[0]), POLL[1]))


def take(name: str, place: Path, watched: Watched, order: Order, tell: Tell) -> tuple[Subject, Outcome]:
    """Choose the series of a study and segment them, or set the study aside."""
    try:
        subject = choose_series(name, find_series(place), place, watched.contrasts)
        (subject,) = check_contrasts([subject], watched.tumor, watched.contrasts)
    except TumoarError as refusal:
        plain = type(refusal)(refusal.id, refusal.what, found=refusal.found, do=refusal.do)  # no file name
        subject = Subject(name, images={"study": str(place)})
        return subject, _without_names(record_failure(subject, order, plain), subject)
    return subject, _without_names(supervise(subject, order, tell), subject)


def _without_names(outcome: Outcome, subject: Subject) -> Outcome:
    return replace(outcome, reason=remove_names(outcome.reason, subject))


# ---- studies -----------------------------------------------------------------------------------------------


def find_studies(folder: Path) -> list[Path]:
    """Subfolders, by name; hidden ones and links are left alone."""
    try:
        found = [p for p in folder.iterdir() if not p.name.startswith(".")]
        return sorted(p for p in found if p.is_dir() and not p.is_symlink())
    except OSError as error:
        raise UnreadableFileError(
            "B1", "cannot read the folder of studies", file=folder, do="check its name and permissions"
        ) from error


def list_studies(folder: Path, order: Order) -> list[tuple[str, str, str]]:
    """Subfolder, name of its result and state of every study; for its owner, and never stored."""
    if not (Path(order.out) / LOGS / KEY).exists():
        return []
    key, record = read_key(order), read_record(order)
    names = [(place.name, name_of(key, place, sign(place))) for place in find_studies(folder)]
    return [(place, case_name(name), record.get(name, {}).get("state", "waiting")) for place, name in names]


def sign(place: Path) -> Signature:
    """Digest of names, sizes and times of all files of a study; empty if there are none."""
    rows = []
    for folder, _, names in os.walk(place):
        for name in names[: MOST_FILES + 1]:
            path = os.path.join(folder, name)
            with suppress(OSError):  # moved meanwhile
                state = os.stat(path, follow_symlinks=False)
                rows.append(f"{os.path.relpath(path, place)}\0{state.st_size}\0{state.st_mtime_ns}")
        if len(rows) > MOST_FILES:  # refused when it is read
            break
    return hashlib.sha256(os.fsencode("\n".join(sorted(rows)))).hexdigest() if rows else ""


def name_of(key: bytes, place: Path, signature: Signature) -> str:
    """Label of a study: it changes with its files, and tells nothing without the key."""
    text = os.fsencode(place.name) + b"\0" + signature.encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:12]


def choose_series(
    name: str, found: Sequence[Series], place: Path, contrasts: Contrasts | None = None
) -> Subject:
    """One series, the finest, for each contrast guessed with confidence; refuse to choose among equals."""
    known = default_contrasts() if contrasts is None else contrasts
    studies = {str(h.get("StudyInstanceUID") or "") for s in found for h in s.headers.values()}
    if len(studies) > 1:
        raise ChannelError(
            "watch", f"the folder holds {len(studies)} studies", do="put each study into a folder of its own"
        )
    images: dict[str, str] = {}
    notes: list[Note] = []
    for contrast in (c for c in known if any(s.guess.contrast == c for s in found)):
        members = [
            (n, s)
            for n, s in enumerate(found, 1)
            if s.guess.contrast == contrast and s.guess.confidence >= LEAST and len(s.slices) > 1
        ]
        if not members:
            continue
        sizes = [_voxel_mm3(s) for _, s in members]
        finest = min(sizes)
        ties = [m for m, size in zip(members, sizes) if size <= finest * (1 + SAME)]
        if len(ties) > 1:
            raise ChannelError(
                "watch",
                f"{len(ties)} series could be the {contrast}",
                found=", ".join(f"#{n} {s.name}" for n, s in ties),
                do="segment it with `tumoar segment`, naming the series",
            )
        number, series = ties[0]
        images[contrast] = f"{place}#{number}"
        others = len(members) - 1
        more = f", the finest of {len(members)}" if others else ""
        text = f"series #{number}, {series.guess.text}{more}"
        notes.append(Note("watch", text, level="info", where=contrast))
    if not images:
        listing = ", ".join(f"#{n} {s.name} ({s.guess.text})" for n, s in enumerate(found, 1))
        raise ChannelError(
            "watch",
            "no series with a known contrast",
            found=listing or "no CT or MR images",
            do="segment it with `tumoar segment`, naming the series",
        )
    return Subject(name, images=images, notes=tuple(notes))


def _voxel_mm3(series: Series) -> float:
    """Voxel volume; infinite for a series that is not one even stack, which is then not preferred."""
    try:
        return grid_of(series)[0].voxel_volume
    except TumoarError:
        return math.inf


# ---- records -----------------------------------------------------------------------------------------------


def read_key(order: Order) -> bytes:
    """Secret of this output folder, made at the first start; only its owner can read it."""
    path = Path(order.out) / LOGS / KEY
    require_own(Path(order.out), path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
    except OSError as error:
        raise write_error("cannot write the key of the folder", error, path.name) from error
    try:
        key = bytes.fromhex(read_text(path, "the key"))
    except (ValueError, TumoarError) as error:
        raise _damaged(KEY, NEW_NAMES) from error
    if len(key) != 32:
        raise _damaged(KEY, NEW_NAMES)
    return key


def read_record(order: Order) -> dict[str, dict[str, Any]]:
    """What was done with each study, by its name."""
    path = Path(order.out) / LOGS / RECORD
    require_own(Path(order.out), path)
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path, "the record of studies"))
    except (ValueError, RecursionError) as error:
        raise _damaged(RECORD, LOOK_AGAIN) from error
    if not isinstance(found, dict) or not all(isinstance(row, dict) for row in found.values()):
        raise _damaged(RECORD, LOOK_AGAIN)
    return found


def write_record(order: Order, record: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the record atomically."""
    replace_text(Path(order.out) / LOGS / RECORD, json.dumps(record, indent=1) + "\n")


def _damaged(name: str, do: str) -> IntegrityError:
    return IntegrityError("watch", f"{LOGS}/{name} is damaged", do=do)
