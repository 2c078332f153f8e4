"""Open reviews: what the page shows of a result, and what it sends back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.orientation import find_orientation
from tumoar.io.manifest import REPORT
from tumoar.report.content import organ_color
from tumoar.report.page import read_page
from tumoar.result.prediction import describe_interval
from tumoar.result.segmentation import STORED, Volume
from tumoar.review.again import CancelledError
from tumoar.review.between import fill_between
from tumoar.review.session import Session
from tumoar.review.strokes import Stroke, group_parts
from tumoar.vocabulary.errors import BusyError, TumoarError, UsageError
from tumoar.web.palette import color_of
from tumoar.web.voxels import picture_on, to_page, to_stored

MOST_EXPORTS = 1000

Mask = npt.NDArray[np.bool_]


@dataclass
class Sampling:
    """A sampling that runs or has ended: `state` is idle, running, done, stopped or failed."""

    state: str = "idle"
    share: float = 0.0
    changed: tuple[str, ...] = ()
    message: str = ""
    began: float = 0.0
    took: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def describe(self) -> dict[str, Any]:
        """For the page."""
        running = self.state == "running"
        return {
            "state": self.state,
            "share": round(self.share, 3),
            "changed": list(self.changed),
            "message": self.message,
            "seconds": round(time.monotonic() - self.began if running else self.took, 1),
        }


class Review:
    """A review that is open in the browser."""

    def __init__(self, folder: Path, series: Path | None = None) -> None:
        self.folder = folder
        self.series = series
        self.session = Session.open(folder)
        self.orientation = find_orientation(self.session.grid)
        self.sampling = Sampling()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._seen: dict[str, tuple[Mask, int]] = {}

    # ---- what the page shows -------------------------------------------------------------------------------

    @cached_property
    def _report(self) -> dict[str, Any]:
        """Data of the report: images in it have no face unless the user kept it."""
        return read_page(self.folder / REPORT)

    def contrast(self, number: int) -> bytes:
        """An image of the report on the voxels of the result, as bytes from black to white."""
        rows = self._report["contrasts"]
        if not 0 <= number < len(rows):
            raise UsageError("review", "no such image")
        return to_page(picture_on(rows[number]["nifti"], self.session.grid), self.orientation)

    def mask(self, name: str, *, automatic: bool = False) -> bytes:
        """Mask of a structure, as corrected or as segmented."""
        self._require(name)
        mask = self.session.automatic(name) if automatic else self.session.mask(name)
        return to_page(np.asarray(mask, bool), self.orientation)

    def probability(self, name: str, *, predicted: bool = False) -> bytes:
        """Chance that a voxel belongs to a structure, 255 for 1: of the samples, or as an expert's would."""
        self._require(name)
        result = self.session.result
        try:
            found = result.predicted(name) if predicted else result.probability(name)
        except KeyError as error:
            raise UsageError("review", "not calibrated for this structure", found=name) from error
        return to_page(np.rint(255 * np.clip(found, 0, 1)).astype(np.uint8), self.orientation)

    def describe(self) -> dict[str, Any]:
        """What does not change while the review is open."""
        result, grid = self.session.result, self.orientation.grid
        files, organs = result.manifest["files"], {organ.name: organ for organ in result.table.organs}
        return {
            "name": self.folder.name,
            "result": self.session.identity,
            "shape": list(grid.shape),
            "spacing": grid.spacing.tolist(),
            "contrasts": [{"name": c["name"], "window": c["window"]} for c in self._report["contrasts"]],
            "first": self._report.get("shown_first", self._report["contrasts"][0]["name"]),
            "structures": [
                {
                    "name": name,
                    "color": color_of(name, organ_color(result.table, organs[name])),
                    "whole": bool(organs[name].tissue) or len(organs[name].structures) > 2,
                    "predicted": f"predicted/{name}.nii.gz" in files,
                }
                for name in self.session.names
            ],
            "status": result.status,
            "stamps": list(result.stamps),
            "notes": [note.sentence for note in result.notes],
            "has_series": self.series is not None,
        }

    def state(self) -> dict[str, Any]:
        """What changes with every stroke, in this tab or another."""
        session = self.session
        revision, masks = session.revision, {name: session.mask(name) for name in session.names}
        return {
            "revision": revision,
            "versions": {name: self._version(name, mask) for name, mask in masks.items()},
            "corrected": [name for name, mask in masks.items() if (mask != session.automatic(name)).any()],
            "volumes": {name: _volume(session.volume(name)) for name in session.names},
            "strokes": [_describe_stroke(parts) for parts in group_parts(session.strokes)],
            "can_undo": session.can_undo,
            "can_redo": session.can_redo,
            "can_sample": session.can_sample,
            "why_not": session.why_not,
            "approved": session.approved,
            "sampling": self.sampling.describe(),
        }

    def stamp(self) -> tuple[object, ...]:
        """Differs as soon as the page should ask again."""
        try:
            about = (self.folder / "review" / "record.jsonl").stat()
            record: tuple[int, ...] = (about.st_mtime_ns, about.st_size)
        except OSError:
            record = ()
        clock = int(time.monotonic()) if self.sampling.state == "running" else 0
        return (record, self.sampling.state, round(self.sampling.share, 2), clock)

    # ---- what the page sends -------------------------------------------------------------------------------

    def paint(self, structure: str, inside: bool, runs: Sequence[int], who: str) -> int:
        """Append a stroke; returns its number."""
        self._require(structure)
        return self.session.paint(structure, inside, to_stored(runs, self.orientation), who).id

    def draw(self, structure: str, runs: Sequence[int], axis: int, who: str) -> int:
        """Append a contour, the section of a structure across an axis of the page; returns its number."""
        self._require(structure)
        voxels = to_stored(runs, self.orientation)
        return self.session.draw(structure, voxels, self.orientation.axes[axis], who)[0].id

    def fill_between(self, structure: str, who: str) -> int:
        """Append a stroke that fills the slices between the last two strokes of a structure."""
        self._require(structure)
        last = group_parts(s for s in self.session.strokes if s.structure == structure)[-2:]
        voxels, axis = fill_between([parts[0] for parts in last], self.session.grid)
        if all(len(parts) > 1 for parts in last):
            return self.session.draw(structure, voxels, axis, who)[0].id
        return self.session.paint(structure, last[-1][0].inside, voxels, who).id

    def sample(self) -> None:
        """Begin to sample again, in the background: it goes on when the page is closed."""
        with self._lock:
            if self.sampling.state == "running":
                raise UsageError("review", "already sampling", do="wait, or stop it")
            self.sampling = Sampling("running", began=time.monotonic())
            self._thread = threading.Thread(target=self._sample, args=(self.sampling,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling; what was there stays."""
        self.sampling.stop.set()

    def close(self, seconds: float = 10) -> None:
        """Stop sampling and wait for its end."""
        self.stop()
        if self._thread is not None:
            self._thread.join(seconds)

    def approve(self, initials: str, comment: str, revision: int | None = None) -> None:
        """Approve the outlines of `revision`; refused while they are sampled again, or after a change."""
        if self.sampling.state == "running":
            do = "wait for its end or stop it, then approve"
            raise BusyError("review", "the outlines are being sampled again", do=do)
        self.session.approve(initials, comment, revision)

    def export(self) -> list[str]:
        """Write the outlines beside the result, with RTSTRUCT and SEG if a series is known."""
        name = f"{self.folder.name}-reviewed"
        for number in range(1, MOST_EXPORTS):
            out = self.folder.with_name(name if number == 1 else f"{name}-{number}")
            if not os.path.lexists(out):
                written = self.session.export(out, reference=self.series)
                return [f"{out.name}/{path.relative_to(out)}" for path in written]
        raise UsageError("export", "there are too many exports of this result", do="move some of them away")

    def _sample(self, sampling: Sampling) -> None:
        def progress(share: float) -> None:
            sampling.share = share

        try:
            sampling.changed = self.session.sample_again(progress, sampling.stop.is_set)
            sampling.state = "done"  # also if it was stopped too late
        except CancelledError:
            sampling.state = "stopped"
        except TumoarError as refusal:
            sampling.message = ": ".join(filter(None, (refusal.what, refusal.do)))
            sampling.state = "failed"
        except Exception as fault:  # its message may contain a path, and so a patient's name
            sampling.message, sampling.state = f"internal error: {type(fault).__name__}", "failed"
        finally:
            sampling.took = time.monotonic() - sampling.began

    def _version(self, name: str, mask: Mask) -> int:
        """Grows whenever the mask differs from what it was: the page then asks for it."""
        with self._lock:
            before, version = self._seen.get(name, (None, 0))
            if before is None or not np.array_equal(before, mask):
                version += 1
                self._seen[name] = mask, version
            return version

    def _require(self, name: str) -> None:
        if name not in self.session.names:
            raise UsageError("review", "no such structure", do="choose one from the list")


class Reviews:
    """All open reviews, by identifier; each is opened once, however many tabs show it."""

    def __init__(self) -> None:
        self._open: dict[str, Review] = {}
        self._lock = threading.Lock()

    def get(self, key: str, open_it: Callable[[], Review]) -> Review:
        """The review with this identifier, opened if necessary, and again if its result was replaced."""
        with self._lock:
            if key not in self._open or not self._open[key].session.is_current:
                self._open[key] = open_it()
            return self._open[key]

    def close(self) -> None:
        """Stop everything that runs."""
        for review in self._open.values():
            review.stop()
        for review in self._open.values():
            review.close()


def _describe_stroke(parts: Sequence[Stroke]) -> Mapping[str, Any]:
    """For the list of corrections."""
    first = parts[0]
    return {
        "id": first.id,
        "structure": first.structure,
        "kind": "contour" if len(parts) > 1 else "is" if first.inside else "is not",
        "voxels": len(first.voxels),
        "who": first.who,
        "when": first.when,
    }


def _volume(volume: Volume) -> Mapping[str, Any]:
    low, high = volume.predicted.get(STORED, volume.central)
    bounds = {} if np.isnan(low) else {"low": low, "high": high}
    return {
        "cm3": volume.outlined,
        "low": None,
        "high": None,
        "what": describe_interval(volume.calibrated_on),
        **bounds,
    }
