"""Run one subject in its own process: supervise, retry and record it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tumoar.cohort.plan import Order, cores
from tumoar.cohort.private import remove_names
from tumoar.cohort.subjects import Subject
from tumoar.cohort.tree import publish_tree, require_own_places
from tumoar.io.dicom_folder import MOST_FILES
from tumoar.io.files import read_bytes
from tumoar.io.manifest import add_files, digest_of_file, read_manifest, replace_text
from tumoar.version import __version__
from tumoar.vocabulary.errors import (
    BusyError,
    OutputError,
    ResourceError,
    TumoarError,
    UnreadableFileError,
    UsageError,
    write_error,
)

POLL = 0.5  # seconds between checks of a process
GRACE = 10.0  # seconds for a process to end by itself
PAUSE = 5.0  # seconds before the second attempt; doubled for each further one
LARGEST_RECORD = 1 << 20
LONGEST_LINE = 1 << 16
MAY_HELP = (OutputError.exit_code, ResourceError.exit_code, BusyError.exit_code)
"""Exit codes of temporary problems (full disk, low memory, another run); a bad image stays bad."""
_REFUSAL = re.compile(r"E\d+-\S+ .+")
_THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ITK_THREADS = "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a subject: "done", "skipped" (already done), "failed" or "stopped"."""

    name: str
    state: str
    code: int = 0
    reason: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_gb: float = 0.0
    attempts: int = 0

    __pydantic_config__ = ConfigDict(extra="ignore", allow_inf_nan=False)  # for reading a record


class Usage(NamedTuple):
    """Resources of a process: CPU seconds, and peak resident memory in 10⁹ bytes."""

    cpu_seconds: float = 0.0
    peak_gb: float = 0.0


class End(NamedTuple):
    """End of a process; a negative code is the signal that ended it."""

    code: int
    reason: str
    usage: Usage = Usage()
    is_final: bool = True  # another attempt would not help


class StoppedError(Exception):
    """The subject is no longer wanted."""


def supervise(
    subject: Subject,
    order: Order,
    tell: Tell = lambda event: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run a subject unless the same result exists, and record its outcome."""
    start = time.monotonic()
    cpu, peak, attempts = 0.0, 0.0, 0
    try:
        if subject.problem:
            end = End(subject.code, subject.problem)
        else:
            require_own_places(subject, order)
            request = _request(subject, order)
            if not order.overwrite and is_finished(order.result(subject.name), request):
                return _skip(subject, order)
            while True:
                attempts += 1
                end = _attempt(subject, order, attempts, tell, stopped)
                cpu, peak = cpu + end.usage.cpu_seconds, max(peak, end.usage.peak_gb)
                if end.is_final or attempts > order.limits.retries:
                    break
                _wait(PAUSE * 2 ** (attempts - 1), stopped)
            if end.code == 0:
                with add_files(order.result(subject.name), cohort={"request": request}):
                    pass  # no files, but the identity
                publish_tree(subject, order)
    except TumoarError as refusal:
        end = End(refusal.exit_code, str(refusal))
    except StoppedError:
        return Outcome(subject.name, "stopped", seconds=time.monotonic() - start, attempts=attempts)
    state = "done" if end.code == 0 else "failed"
    outcome = Outcome(
        subject.name,
        state,
        end.code,
        end.reason,
        round(time.monotonic() - start, 1),
        round(cpu, 1),
        round(peak, 2),
        attempts,
    )
    write_record(subject, order, outcome)
    return outcome


def record_failure(subject: Subject, order: Order, refusal: TumoarError) -> Outcome:
    """Record the failure of a subject that could not be supervised to its end."""
    outcome = Outcome(subject.name, "failed", refusal.exit_code, str(refusal))
    write_record(subject, order, outcome)
    return outcome


def _skip(subject: Subject, order: Order) -> Outcome:
    """Skip a subject whose result exists; make sure that it is in the tree and recorded."""
    publish_tree(subject, order)
    if read_record(order, subject.name).state != "done":
        write_record(subject, order, Outcome(subject.name, "done"))
    return Outcome(subject.name, "skipped")


def write_record(subject: Subject, order: Order, outcome: Outcome) -> None:
    """Write the outcome next to the log, for the summary, without file names."""
    outcome = replace(outcome, reason=remove_names(outcome.reason, subject))
    path = order.log(outcome.name, ".json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error("cannot write a record", error, path) from error
    replace_text(path, json.dumps(asdict(outcome), indent=1) + "\n")


def read_record(order: Order, name: str) -> Outcome:
    """Read the outcome of a subject's last run; its state is empty if it cannot be read."""
    try:
        content = read_bytes(order.log(name, ".json"), "a record", LARGEST_RECORD)
        return TypeAdapter(Outcome).validate_json(content)
    except (TumoarError, ValidationError):
        return Outcome(name, "")


def is_finished(result: Path, request: str) -> bool:
    """Whether a result is complete and belongs to this request."""
    try:
        about = read_manifest(result).get("cohort", {})
    except TumoarError:
        return False
    return isinstance(about, dict) and about.get("request") == request


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, or of all files of a DICOM folder (FOLDER#2 is one of its series)."""
    folder, mark, number = str(path).rpartition("#")
    place = Path(folder) if mark and number.isdecimal() and not path.exists() else path
    try:
        if place.is_file():
            return digest_of_file(place)
        if not place.is_dir():
            raise UnreadableFileError("B1", "cannot read the image: no such file", file=path)
        files = sorted(islice((p for p in place.rglob("*") if p.is_file()), MOST_FILES + 1))
        if len(files) > MOST_FILES:
            raise ResourceError("files", f"more than {MOST_FILES} files in this folder", do="give one study")
        listed = [path.name, *(f"{p.relative_to(place)} {digest_of_file(p)}" for p in files)]
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read the image", file=path) from error
    return hashlib.sha256(os.fsencode("\n".join(listed))).hexdigest()


def _request(subject: Subject, order: Order) -> str:
    """SHA-256 of images, flags and version, to recognize a finished result."""
    if order.version != __version__:
        raise UsageError(
            "version", "this worker has another version", found=__version__, do=f"install {order.version}"
        )
    images = {contrast: fingerprint(Path(image)) for contrast, image in subject.images.items()}
    return hashlib.sha256(json.dumps([order.digest, order.version, images]).encode()).hexdigest()


# ---- one process -------------------------------------------------------------------------------------------


def _attempt(subject: Subject, order: Order, attempt: int, tell: Tell, stopped: Callable[[], bool]) -> End:
    """Start the process and supervise it to its end."""
    log = order.log(subject.name, ".txt")
    threads = str(min(order.limits.threads, cores()))
    environment = os.environ | dict.fromkeys((*_THREADS, _ITK_THREADS), threads)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if attempt == 1:
            log.unlink(missing_ok=True)  # opening a pipe in its place would block
        with open(log, "xb" if attempt == 1 else "ab") as file:
            begin = file.tell()
            child = subprocess.Popen(
                _command(subject, order),
                cwd=order.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            writer = threading.Thread(target=_write_log, args=(child, log, subject), daemon=True)
            writer.start()
    except OSError as error:
        raise write_error("cannot start", error, log) from error
    try:
        with open(log, "rb") as written:
            written.seek(begin)
            named = lambda event: tell({"name": subject.name, **event})  # noqa: E731
            return _watch(child, written, writer, order, named, stopped)
    finally:
        _end(child, signal.SIGTERM)
        writer.join(GRACE)


def _write_log(child: subprocess.Popen[bytes], log: Path, subject: Subject) -> None:
    """Copy output of a process to its log without file names; lines are lost if the disk is full."""
    assert child.stdout is not None
    with child.stdout as said:
        for line in iter(lambda: said.readline(LONGEST_LINE), b""):
            text = remove_names(line.decode(errors="replace").rstrip(), subject)
            with suppress(OSError), open(log, "ab") as file:
                file.write(f"{text}\n".encode())


def _command(subject: Subject, order: Order) -> list[str]:
    own = order.command or (sys.executable, "-m", "tumoar.cli.child")
    images = [word for name, file in subject.images.items() for word in ("--image", f"{file}:{name}")]
    limits = ["--threads", str(order.limits.threads), "--max-memory", str(order.limits.gb)]
    again = "--overwrite" if order.overwrite else "--resume"
    out = ["--output", str(order.result(subject.name))]
    return [*own, "segment", *images, *out, *limits, again, "--json", *order.flags]


def _watch(
    child: subprocess.Popen[bytes],
    log: BinaryIO,
    writer: threading.Thread,
    order: Order,
    tell: Tell,
    stopped: Callable[[], bool],
) -> End:
    """Supervise a process; end it if it exceeds its limits or is no longer wanted."""
    start, used, last = time.monotonic(), Usage(), ""
    limits = order.limits
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(POLL)
            writer.join(GRACE)
            last = _read_progress(log, last, tell)
            return _classify_end(code, last, used)
        last = _read_progress(log, last, tell)
        used = usage(child.pid, used)
        if used.peak_gb > limits.gb:
            _end(child, signal.SIGKILL)
            refusal = ResourceError(
                "memory",
                "memory limit exceeded",
                found=f"{used.peak_gb:.1f} GB",
                do=f"allow more than {limits.gb:g} GB with --max-memory",
            )
            return End(refusal.exit_code, str(refusal), used)
        if time.monotonic() - start > 60 * limits.minutes:
            _end(child, signal.SIGTERM)
            refusal = ResourceError(
                "time",
                "time limit exceeded",
                found=f"{limits.minutes:g} minutes",
                do="run the cohort again with a longer --timeout to continue it",
            )
            return End(refusal.exit_code, str(refusal), used)
        if stopped():
            raise StoppedError


def _classify_end(code: int, refusal: str, used: Usage) -> End:
    if code == 0:
        return End(code, "", used)
    if code < 0:
        names = {s.value: f" ({s.name})" for s in signal.Signals}  # real-time signals have none
        return End(code, f"ended by signal {-code}{names.get(-code, '')}", used, is_final=False)
    return End(code, refusal or f"ended with code {code}", used, is_final=code not in MAY_HELP)


def _read_progress(log: BinaryIO, last: str, tell: Tell) -> str:
    """Report the latest progress in the log; return its last refusal."""
    step = None
    for line in log:
        text = line.decode(errors="replace").strip()
        if _REFUSAL.fullmatch(text):
            last = text
        elif text.startswith('{"event": "progress"'):
            with suppress(ValueError):
                step = json.loads(text)
    if step is not None:
        tell({name: step[name] for name in ("stage", "done", "total", "figures") if name in step})
    return last


def _end(child: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """End a process and its children, gently first if requested."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()


def usage(pid: int, before: Usage) -> Usage:
    """Resources of a process so far; `before` if it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info().rss / 1e9
    except psutil.Error:
        return before
    return Usage(times.user + times.system, max(memory, before.peak_gb))


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stopped():
            raise StoppedError
        time.sleep(POLL)
