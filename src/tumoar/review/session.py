"""One open review of one result: paint, undo, redo, sample again, approve, export.

Every change is a line of the record `review/record.jsonl` in the folder of the result, and is on disk before
the call returns. The automatic result is never changed. Sessions in several threads and processes see each
other's changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock, RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.io.files import absolute, read_text
from tumoar.io.manifest import MANIFEST, REVIEW, read_manifest
from tumoar.io.manifest_schema import parse
from tumoar.io.record import Appending, Record, digest_line
from tumoar.io.rois import Review
from tumoar.result.segmentation import Volume
from tumoar.result.state import STATE, State, read_state
from tumoar.result.stored import Stored, volume_of
from tumoar.review.again import Before, automatic_states, sample_again
from tumoar.review.contour import around_contour
from tumoar.review.export import describe_rows, export_dicom, write_reviewed
from tumoar.review.history import History, read_history
from tumoar.review.sampled import Saved, follow, load_sampled, save_sampled
from tumoar.review.strokes import Mask, Stroke, apply_stroke, from_line, to_line
from tumoar.vocabulary.errors import BusyError, IntegrityError, TumoarError, UsageError

RECORD = f"{REVIEW}/record.jsonl"
IDENTITY = "segmentation.nii.gz"
"""File of a result whose digest says which result a record belongs to."""
INITIALS = re.compile(r"[^\W\d_][\w.\- ]{0,15}")
LONGEST_COMMENT = 2000
_COMPUTING = Lock()
"""Held while parallel kernels run, which must not run concurrently."""


class Session:
    """A review; thread-safe. `open` one for a folder of a result."""

    def __init__(self, result: Stored) -> None:
        self.result = result
        self._record = Record(result.folder, RECORD)
        self._lock = RLock()
        self._masks: tuple[tuple[str, ...], dict[str, Mask]] | None = None
        self._state: State | None = None
        self._require_same(list(self._record.read()))

    @classmethod
    def open(cls, folder: Path) -> Session:
        """Open the review of a finished result, or begin it."""
        place = absolute(folder)
        return cls(Stored(place, read_manifest(place)))

    # ---- what there is -------------------------------------------------------------------------------------

    @property
    def grid(self) -> Grid:
        """Voxels of all masks: those of the reference image as it is stored."""
        return self.result.grid

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Structures that can be corrected."""
        return tuple(str(row["name"]) for row in self.result.manifest["volumes"])

    @property
    def revision(self) -> int:
        """Number of changes so far."""
        return self._history().revision

    @property
    def strokes(self) -> tuple[Stroke, ...]:
        """Strokes in force, oldest first; the two parts of a contour follow each other."""
        return self._strokes(self._history().done)

    @property
    def can_undo(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._history().done)

    @property
    def can_redo(self) -> bool:
        """Whether there is something to redo."""
        return bool(self._history().undone)

    @property
    def can_sample(self) -> bool:
        """Whether `sample_again` is possible; `why_not` says why it is not."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why nothing can be sampled again; empty if it can."""
        if STATE in self.result.manifest["files"]:
            return ""
        return "the result is of an earlier version and has no stored state; corrections take what you draw"

    @property
    def approved(self) -> dict[str, Any] | None:
        """Who approved, when, and with which comment; None as soon as something changed after it."""
        return _approved(self._history())

    def automatic(self, name: str) -> Mask:
        """(X, Y, Z) mask of a structure as segmented."""
        with self._lock:
            return self._automatic[self._known(name)].copy()

    def mask(self, name: str) -> Mask:
        """(X, Y, Z) mask of a structure as corrected now."""
        with self._lock:
            return self._current(self._history())[self._known(name)].copy()

    def volume(self, name: str) -> Volume:
        """Volume of a structure as corrected now; its interval is unknown until it is sampled again."""
        with self._lock:
            return self._volume(self._known(name), self._history())

    def _volume(self, name: str, history: History) -> Volume:
        now, before = self._current(history)[name], self._automatic[name]
        if np.array_equal(now, before):
            return self.result.volume(name)
        outlined = float(now.sum()) * self.grid.voxel_volume / 1000
        row = history.sampled[-1]["volumes"].get(name) if history.sampled else None
        found = Volume(np.nan) if row is None else volume_of(row)
        return found if abs(found.outlined - outlined) < 1e-3 else Volume(outlined)

    # ---- changes -------------------------------------------------------------------------------------------

    def paint(self, structure: str, inside: bool, voxels: npt.ArrayLike, who: str = "") -> Stroke:
        """Say that voxels are in a structure, or that they are not."""
        return self._append(structure, bool(inside), self._checked(voxels), who, lambda masks: ())[0]

    def draw(self, structure: str, voxels: npt.ArrayLike, axis: int, who: str = "") -> tuple[Stroke, ...]:
        """Say that voxels in one or more slices across an axis are the sections of a structure there."""
        found = self._checked(voxels)
        outside = lambda masks: (around_contour(found, axis, masks[structure], self.grid),)  # noqa: E731
        return self._append(structure, True, found, who, outside)

    def _append(
        self,
        structure: str,
        inside: bool,
        voxels: npt.NDArray[np.int32],
        who: str,
        others: Callable[[Mapping[str, Mask]], Iterable[npt.NDArray[np.int32]]],
    ) -> tuple[Stroke, ...]:
        """Append a stroke; `others` finds what is its opposite from the outlines as they are then."""
        self._known(structure)
        initials = who and _initials(who)
        with self._changing() as (record, history):
            stroke = Stroke(history.strokes + 1, structure, inside, voxels, initials, utc_now())
            opposite = others(self._current(history))
            parts = (stroke, *(replace(stroke, inside=not inside, voxels=v) for v in opposite if len(v)))
            record.append(to_line(parts, self.grid.shape))
            return parts

    def undo(self) -> None:
        """Take back the last stroke or sampling in force."""
        self._step("undo")

    def redo(self) -> None:
        """Put back what was undone last."""
        self._step("redo")

    def sample_again(
        self,
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> tuple[str, ...]:
        """Sample around the strokes since the last sampling; returns the structures that changed."""
        if self.why_not:
            raise UsageError("sample-again", self.why_not)
        with _COMPUTING:
            with self._lock:
                history = self._history()
                new = self._strokes(history.unsampled)
                if not new:
                    return ()
                before = self._before(history)
            made = sample_again(before, new, progress, cancelled)
            with self._changing() as (record, now):
                if not now.has_grown_from(history):
                    do = "sample once more"
                    raise BusyError("review", "the review changed meanwhile", file=RECORD, do=do)
                number = now.revision + 1
                path = self.result.folder / REVIEW / f"sampled-{number:04}.npz"
                digest = save_sampled(path, made.states, made.masks, made.state, made.box)
                line = {
                    "what": "sample",
                    "id": number,
                    "strokes": list(dict.fromkeys(stroke.id for stroke in before.strokes)),
                    "file": path.name,
                    "sha256": digest,
                    "volumes": made.volumes,
                    "seconds": round(made.seconds, 2),
                    "when": utc_now(),
                }
                record.append(line)
        return made.names

    def approve(self, initials: str, comment: str = "", revision: int | None = None) -> None:
        """Approve the outlines as they are now; with `revision`, only if they are still those of it."""
        who = _initials(initials)
        if len(comment) > LONGEST_COMMENT:
            raise UsageError("review", "the comment is too long", do=f"use at most {LONGEST_COMMENT} letters")
        with self._changing() as (record, history):
            if revision not in (None, history.revision):
                do = "look at the outlines again, then approve"
                raise BusyError("review", "the review changed meanwhile", file=RECORD, do=do)
            masks = {
                name: hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()
                for name, mask in self._current(history).items()
            }
            record.append(
                {"what": "approve", "who": who, "when": utc_now(), "comment": comment, "masks": masks}
            )

    def export(
        self, out: Path, *, reference: Path | str | None = None, rtstruct: bool = True, seg: bool = True
    ) -> list[Path]:
        """Write the outlines as they are now to a new folder: a result with masks and margins of its own.

        With `reference`, a DICOM series, also RTSTRUCT and SEG, approved only if this review is.
        """
        with self._lock:
            lines = self._record.read()
            history = read_history(lines)
            masks = self._current(history)
            differ = frozenset(n for n in self.names if not np.array_equal(masks[n], self._automatic[n]))
            line = history.approval
            when = datetime.fromisoformat(str(line["when"])).astimezone() if line is not None else None
            review = Review(
                differ,
                "" if line is None else str(line["who"]),
                "" if when is None else when.strftime("%Y%m%d"),
                "" if when is None else when.strftime("%H%M%S"),
            )
            digest = digest_line(json.dumps(lines, sort_keys=True).encode())
            about = {"record": digest, "corrected": sorted(differ), "approved": _approved(history)}
            volumes = {name: self._volume(name, history) for name in differ}
            rows = describe_rows(self.result, masks, volumes, differ)
            place = absolute(out)
            write_reviewed(place, self.result, masks, rows, review, about)
        written = [place / f"structures/{name}.nii.gz" for name in self.names]
        if reference is not None and (rtstruct or seg):
            with _COMPUTING:
                written += export_dicom(place, reference, review, digest, rtstruct=rtstruct, seg=seg)
        return written

    # ---- inside --------------------------------------------------------------------------------------------

    @cached_property
    def _automatic(self) -> dict[str, Mask]:
        return {name: self.result.mask(name) for name in self.names}

    def _history(self) -> History:
        with self._lock:
            return read_history(self._record.read())

    def _current(self, history: History) -> dict[str, Mask]:
        """Masks as corrected; kept until something changes."""
        key = tuple(f"{line['what']} {line['id']}" for line in history.done)
        if self._masks is None or self._masks[0] != key:
            masks = self._sampled_masks(history)
            for stroke in self._strokes(history.unsampled):
                masks = apply_stroke(masks, stroke, self.result.table)
            self._masks = key, masks
        return self._masks[1]

    def _sampled_masks(self, history: History) -> dict[str, Mask]:
        masks = dict(self._automatic)
        for line in history.sampled[-1:]:
            masks |= self._saved(line).masks
        return masks

    def _saved(self, line: Mapping[str, Any]) -> Saved:
        return load_sampled(self.result.folder / REVIEW / str(line["file"]), str(line["sha256"]))

    def _strokes(self, lines: Iterable[Mapping[str, Any]]) -> tuple[Stroke, ...]:
        parts = (from_line(line, self.grid.shape) for line in lines if line["what"] == "stroke")
        return tuple(chain.from_iterable(parts))

    def _before(self, history: History) -> Before:
        """What sampling again begins with."""
        if self._state is None:
            self._state = read_state(self.result.folder / STATE)
        state, states = self._state, automatic_states(self.result)
        for line in history.sampled:
            saved = self._saved(line)
            state, states = follow(state, saved), saved.states
        masks = self._sampled_masks(history)
        return Before(self.result, state, states, masks, self._automatic, self._strokes(history.done))

    @contextmanager
    def _changing(self) -> Iterator[tuple[Appending, History]]:
        """Lock the record of the result that was opened, for a change that depends on what it says."""
        if not self.is_current:  # else a record would begin in the folder of another result
            do = "open it again"
            raise IntegrityError("record", "the result was replaced by another one", file=RECORD, do=do)
        with self._lock, self._record.appending() as record:
            yield record, self._begin(record)

    def _begin(self, record: Appending) -> History:
        """History of a locked record; a new one begins with the identity of the result."""
        self._require_same(record.lines)
        if not record.lines:
            record.append({"what": "begin", "result": self.identity, "when": utc_now()})
        return read_history(record.lines)

    def _step(self, what: str) -> None:
        with self._changing() as (record, history):
            if history.done if what == "undo" else history.undone:
                record.append({"what": what, "when": utc_now()})

    @property
    def identity(self) -> str:
        """Digest that tells the result from others."""
        return str(self.result.manifest["files"][IDENTITY])

    @property
    def is_current(self) -> bool:
        """Whether the folder still holds the result that was opened."""
        try:
            text = read_text(self.result.folder / MANIFEST, "the manifest")
            files = parse(text, self.result.folder)["files"]
        except TumoarError:
            return False
        return str(files.get(IDENTITY)) == self.identity

    def _require_same(self, lines: list[dict[str, Any]]) -> None:
        if lines and lines[0].get("result") != self.identity:
            raise IntegrityError(
                "record",
                "the record belongs to another result",
                file=RECORD,
                do="move the folder review away to begin a new one",
            )

    def _known(self, name: str) -> str:
        if name not in self.names:
            raise UsageError(
                "review", "no such structure", found=name, do=f"choose one of {', '.join(self.names)}"
            )
        return name

    def _checked(self, voxels: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Voxels of a stroke, each once; refused if they are not voxels of the image."""
        found = np.asarray(voxels)
        is_list = found.ndim == 2 and found.shape[1:] == (3,) and np.issubdtype(found.dtype, np.integer)
        if not is_list or not len(found):
            raise UsageError(
                "review", "a stroke is a list of voxels", found=f"an array of shape {found.shape}"
            )
        if (found < 0).any() or (found >= self.grid.shape).any():
            raise UsageError(
                "review", "the stroke leaves the image", found=f"an image of {self.grid.shape} voxels"
            )
        return np.unique(found, axis=0).astype(np.int32)


def _approved(history: History) -> dict[str, Any] | None:
    line = history.approval
    return None if line is None else {k: line[k] for k in ("who", "when", "comment", "masks")}


def _initials(text: str) -> str:
    if not INITIALS.fullmatch(text):
        raise UsageError("review", "no initials", found=text[:16], do="give 1 to 16 letters, such as ABC")
    return text


def utc_now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
