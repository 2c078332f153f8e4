"""Cases that were begun on the page: each is a supervised process, as in a cohort, and survives its tab."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tumoar.app.live import LIVE
from tumoar.cohort.names import LOGS, label_of
from tumoar.cohort.plan import CASE_GB, Limits, Order, cores, digest_flags, has_checkpoints
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import Outcome, read_record, record_failure, supervise
from tumoar.cohort.tree import begin_tree
from tumoar.io.files import read_bytes, read_text
from tumoar.io.manifest import replace_text
from tumoar.vocabulary.errors import BusyError, TumoarError, UsageError, write_error
from tumoar.web.progress import Progress

RECORD = ".case.json"
"""Suffix of the images and flags of a case, in its logs."""
MOST_PICTURE = 4 * 1024**2
"""Bytes of a picture of a case in progress."""
FLAGS = {"postop": "--postop", "stripped": "--skull-stripped", "fast": "--fast"}


@dataclass
class Job:
    """A case that waits or runs."""

    progress: Progress = field(default_factory=Progress)
    stop: threading.Event = field(default_factory=threading.Event)
    is_running: bool = False


class Cases:
    """The cases in a work folder; one runs at a time, the others wait."""

    def __init__(self, work: Path, threads: int | None = None, command: tuple[str, ...] = ()) -> None:
        import psutil

        gb = max(CASE_GB, round(0.8 * psutil.virtual_memory().available / 1e9, 1))
        self.work = work
        self.limits = Limits(gb=gb, threads=threads or cores(), retries=0)
        self.command = command
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "case")
        begin_tree(self._order(()))

    def start(self, name: str, images: Mapping[str, str], options: Mapping[str, bool]) -> str:
        """Begin a case; its name becomes part of file names."""
        if not images:
            raise UsageError("images", "no image chosen", do="choose a contrast for at least one")
        subject = Subject(label_of(name), images=dict(images))
        flags = tuple(flag for option, flag in FLAGS.items() if options.get(option))
        path = self._order(flags).log(subject.name, RECORD)
        if path.exists():
            raise UsageError(
                "case", "a case of this name exists", found=subject.label, do="give another name"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise write_error("cannot write the case", error) from error
        replace_text(path, json.dumps({"images": subject.images, "flags": flags}) + "\n")
        self._submit(subject, flags)
        return subject.name

    def resume(self, name: str) -> None:
        """Continue a case that was stopped, or that failed."""
        self._submit(*self._known(name))

    def cancel(self, name: str) -> None:
        """Stop a case; what it has computed is kept."""
        with self._lock:
            job = self._jobs.get(name)
        if job is not None:
            job.stop.set()

    def close(self) -> None:
        """Stop everything, and wait for the processes to end."""
        with self._lock:
            for job in self._jobs.values():
                job.stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def describe(self) -> list[dict[str, Any]]:
        """All cases without a result, and those that run, newest last."""
        rows = []
        for path in sorted((self.work / LOGS).glob(f"*{RECORD}")):
            name = path.name.removesuffix(RECORD)
            with self._lock:
                job = self._jobs.get(name)
            try:
                subject, flags = self._known(name)
            except TumoarError:
                continue
            order = self._order(flags)
            record = read_record(order, name)
            state = record.state or "stopped"
            if job is not None:
                state = "running" if job.is_running else "waiting"
            elif record.state == "done" and not order.result(name).exists():
                state = "stopped"
            rows.append(
                {
                    "name": name,
                    "state": state,
                    "reason": record.reason if state == "failed" else "",
                    "contrasts": list(subject.images),
                    "can_continue": has_checkpoints(subject, order),
                    "live": _stamp(self._live(name, flags)),
                    "progress": job.progress.describe() if job is not None and job.is_running else None,
                }
            )
        return rows

    def live(self, name: str) -> bytes | None:
        """Picture of a case in progress, PNG; None before the first."""
        subject, flags = self._known(name)
        try:
            return read_bytes(self._live(subject.name, flags), "the picture", MOST_PICTURE)
        except TumoarError:
            return None

    def _live(self, name: str, flags: tuple[str, ...]) -> Path:
        result = self._order(flags).result(name)
        return result.with_name(f".{result.name}.checkpoints") / LIVE

    def series(self, result: Path) -> Path | None:
        """DICOM series of the case of a result, for its contours."""
        try:
            subject, _ = self._known(result.name)
        except TumoarError:
            return None
        found = next((image for image in subject.images.values() if "#" in Path(image).name), None)
        return None if found is None else Path(found)

    def _submit(self, subject: Subject, flags: tuple[str, ...]) -> None:
        with self._lock:
            if subject.name in self._jobs:
                raise BusyError("B59", "this case runs already", do="wait for it to end")
            job = self._jobs[subject.name] = Job()
            self._pool.submit(self._run, subject, self._order(flags), job)

    def _run(self, subject: Subject, order: Order, job: Job) -> Outcome | None:
        try:
            if job.stop.is_set():
                return None
            job.progress, job.is_running = Progress(), True
            order.log(subject.name, ".json").unlink(missing_ok=True)  # the outcome of an earlier attempt
            return supervise(subject, order, job.progress.tell, job.stop.is_set)
        except Exception as fault:  # its message may contain a path, and so a patient's name
            return record_failure(
                subject, order, TumoarError("fault", f"internal error: {type(fault).__name__}")
            )
        finally:
            with self._lock:
                del self._jobs[subject.name]

    def _order(self, flags: tuple[str, ...]) -> Order:
        return Order(
            str(self.work), flags, digest=digest_flags(flags, ()), limits=self.limits, command=self.command
        )

    def _known(self, name: str) -> tuple[Subject, tuple[str, ...]]:
        path = self._order(()).log(name, RECORD)
        if path.name != f"{name}{RECORD}" or not name.startswith("sub-"):
            raise UsageError("case", "no such case", do="choose one from the list")
        try:
            about = json.loads(read_text(path, "the case"))
            images = {str(k): str(v) for k, v in about["images"].items()}
            return Subject(name.removeprefix("sub-"), images=images), tuple(map(str, about["flags"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError("case", "the case cannot be read", do="begin it again") from error


def _stamp(path: Path) -> int | None:
    """When a file was last written, in nanoseconds; None without one."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None
