"""Subjects on a Dask cluster: one of our own on this machine, or any that is running.

A task of the cluster is to watch over one subject's process, so workers stay small. A worker that is lost
takes its process along, and the scheduler gives the subject to another one. The only module that knows Dask.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tumoar.cohort.plan import Order
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import Outcome, Tell, supervise, write_record
from tumoar.errors import ResourceError, TumoarError, UsageError

if TYPE_CHECKING:
    from distributed import Client, Future

LOST = 3
"""Workers that a subject may lose before it counts as failed."""
EVERY = 2.0  # seconds between two words of one subject
PATIENCE = 20  # seconds for a scheduler to answer


@contextmanager
def connect(workers: int, scheduler: str | None) -> Iterator[Client]:
    """A client of a cluster: of the scheduler at this address, or of one made here with so many workers."""
    import dask
    from distributed import Client, LocalCluster

    quiet = {"logging.distributed": "error", "distributed.scheduler.allowed-failures": LOST}
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                "scheduler",
                "no Dask scheduler answers",
                found=scheduler,
                do="start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`",
            ) from error
        with client:
            yield client
        return
    with (
        dask.config.set(quiet),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def run(client: Client, subjects: Sequence[Subject], order: Order, tell: Tell) -> Iterator[Outcome]:
    """Outcomes as they come; `tell` hears of the steps in between. What is left undone is stopped."""
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
    """On a worker: watch over one subject for as long as somebody waits for it."""
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
    """What a task has to report, or what became of it; no failure stops the others."""
    from distributed import KilledWorker

    try:
        found: Outcome = future.result()
        return found
    except KilledWorker:
        refusal: TumoarError = ResourceError(
            "worker", f"its worker was lost {LOST + 1} times", do="look at the memory of the workers"
        )
    except Exception as fault:
        # The message of a fault may hold a path, so a patient's name.
        refusal = TumoarError("fault", f"fault on a worker: {type(fault).__name__}")
    outcome = Outcome(subject.name, "failed", refusal.exit_code, str(refusal))
    write_record(order, outcome)
    return outcome


def spread(client: Client, threads: int) -> Callable[..., list[Any]]:
    """A function over items, all at once on a cluster: see `tumoar.train.atlas.in_turn`."""

    def each(function: Callable[..., Any], shared: Sequence[Any], *items: Sequence[Any]) -> list[Any]:
        common = client.scatter(tuple(shared), broadcast=True, hash=False)
        rows = [client.scatter(row, hash=False) for row in zip(*items)]
        futures = [client.submit(_call, function, common, row, threads, pure=False) for row in rows]
        found: list[Any] = client.gather(futures)
        return found

    return each


def _call(function: Callable[..., Any], shared: Sequence[Any], row: Sequence[Any], threads: int) -> Any:
    """On a worker. Arrays arrive read-only; kernels compiled anew for that may round differently."""
    import numpy as np

    from tumoar.numerics.threads import use_threads

    use_threads(threads)
    return function(*(np.array(a) if isinstance(a, np.ndarray) else a for a in (*shared, *row)))
