"""Run subjects on a Dask cluster, over TLS unless explicitly disabled.

A task supervises the process of one subject, so workers stay small. If a worker is lost, its process ends
with it, and the scheduler assigns the subject to another worker. This is the only module that uses Dask.
"""

from __future__ import annotations

import logging
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tumoar.cohort.plan import Order
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import Outcome, Tell, record_failure, supervise
from tumoar.vocabulary.errors import ResourceError, TumoarError, UsageError

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

LOST = 3
"""Lost workers after which a subject counts as failed: the default of Dask."""
EVERY = 2.0  # seconds between progress events of a subject
PATIENCE = 20  # seconds until a scheduler must respond
TLS_FILES = {"ca": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}


@dataclass(frozen=True)
class Scheduler:
    """A running Dask scheduler and its TLS files; files not given are taken from Dask's configuration."""

    address: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False


@contextmanager
def connect(scheduler: Scheduler) -> Iterator[Client]:
    """Connect to a running scheduler."""
    require_protection(scheduler)
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "scheduler", "Dask is not installed", do="install it with `pip install 'tumoar[cluster]'`"
        ) from error
    logging.getLogger("distributed").setLevel(logging.ERROR)
    security = _security(scheduler) if _scheme(scheduler) == "tls" else None
    try:
        client = Client(scheduler.address, timeout=PATIENCE, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(
            "scheduler",
            "no Dask scheduler responds",
            found=scheduler.address,
            do="start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`",
        ) from error
    with client:
        yield client


def require_protection(scheduler: Scheduler) -> None:
    """Refuse an unencrypted connection unless explicitly allowed."""
    scheme = _scheme(scheduler)
    if scheme not in ("tls", "tcp"):
        raise UsageError("scheduler", "the address must begin with tls://", found=scheduler.address)
    if scheme == "tcp" and (scheduler.ca or scheduler.cert or scheduler.key):
        raise UsageError(
            "scheduler", "TLS files, but no tls:// scheduler", found=scheduler.address, do="use tls://"
        )
    if scheme == "tcp" and not scheduler.insecure:
        raise UsageError(
            "scheduler",
            "this connection is not encrypted",
            found=scheduler.address,
            do="use tls://, or --insecure-scheduler in a private network: anyone who can reach a scheduler "
            "without TLS can run programs as you",
        )


def _scheme(scheduler: Scheduler) -> str:
    scheme, mark, _ = scheduler.address.partition("://")
    return scheme if mark else "tcp"


def _security(scheduler: Scheduler) -> Security:
    """Certificates as given, or from Dask's configuration and environment."""
    from distributed.security import Security

    given = {name: getattr(scheduler, part) for part, name in TLS_FILES.items()}
    security = Security(require_encryption=True, **{k: str(v) for k, v in given.items() if v is not None})
    for part, name in TLS_FILES.items():
        file = getattr(security, name)
        if not file:
            raise UsageError(
                "scheduler", f"tls:// needs --tls-{part}", do="give it, or set it in Dask's configuration"
            )
        if "\n" not in file:  # Dask also accepts the text of a certificate
            _require_file(part, file)
    return security


def _require_file(part: str, file: str) -> None:
    try:
        state = os.stat(file)
        usable = stat.S_ISREG(state.st_mode) and os.access(file, os.R_OK)
    except (OSError, ValueError):
        usable = False
    if not usable:
        raise UsageError("scheduler", f"cannot read the file of --tls-{part}", file=file)
    if part == "key" and state.st_mode & stat.S_IROTH:
        raise UsageError("scheduler", "other users can read the TLS key", file=file, do="chmod 600 it")


def run(client: Client, subjects: Sequence[Subject], order: Order, tell: Tell) -> Iterator[Outcome]:
    """Run subjects and yield outcomes as they finish; `tell` receives progress. The rest is stopped."""
    from distributed import as_completed

    name = f"tumoar-{uuid.uuid4().hex}"
    client.subscribe_topic(name, lambda event: tell(event[1]))
    waiting: dict[Future, Subject] = {
        client.submit(_task, subject, order, name, key=f"{subject.name}-{name}", pure=False): subject
        for subject in subjects
    }
    try:
        for future in as_completed(list(waiting), loop=client.loop):
            subject = waiting.pop(future)
            outcome = _outcome(future, subject, order)
            future.release()
            yield outcome
    finally:
        client.cancel(list(waiting), force=True)
        client.unsubscribe_topic(name)


def _task(subject: Subject, order: Order, topic: str) -> Outcome:
    """On a worker: supervise one subject while the client waits for it."""
    from distributed import get_worker

    worker: Any = get_worker()
    key, last = worker.get_current_task(), 0.0

    def tell(event: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            worker.log_event(topic, event)

    def stopped() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled" or worker.status.name in ("closing", "closed")

    worker.log_event(topic, {"name": subject.name, "stage": "start"})
    return supervise(subject, order, tell, stopped)


def _outcome(future: Future, subject: Subject, order: Order) -> Outcome:
    """Outcome of a task, or of its failure; a failure does not stop the others."""
    from distributed import KilledWorker

    try:
        found: Outcome = future.result()
        return found
    except KilledWorker:
        refusal: TumoarError = ResourceError(
            "worker", f"its worker was lost {LOST + 1} times", do="check the memory of the workers"
        )
    except Exception as fault:
        # The message of an exception may contain a path, and so a patient's name.
        refusal = TumoarError("fault", f"error on a worker: {type(fault).__name__}")
    return record_failure(subject, order, refusal)


def spread(client: Client, threads: int) -> Callable[..., list[Any]]:
    """Map a function over items in parallel on a cluster; see `tumoar.train.atlas.run_serially`."""

    def each(function: Callable[..., Any], shared: Sequence[Any], *items: Sequence[Any]) -> list[Any]:
        common = client.scatter(tuple(shared), broadcast=True, hash=False)
        rows = [client.scatter(row, hash=False) for row in zip(*items)]
        futures = [client.submit(_call, function, common, row, threads, pure=False) for row in rows]
        found: list[Any] = client.gather(futures)
        return found

    return each


def _call(function: Callable[..., Any], shared: Sequence[Any], row: Sequence[Any], threads: int) -> Any:
    """On a worker: copy arrays, because kernels compiled for read-only arrays may round differently."""
    import numpy as np

    from tumoar.numerics.threads import use_threads

    use_threads(threads)
    return function(*(np.array(a) if isinstance(a, np.ndarray) else a for a in (*shared, *row)))
