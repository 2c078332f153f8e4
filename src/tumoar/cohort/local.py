"""Run several subjects in parallel on this machine, with threads that supervise processes through pipes.

Each subject runs in its own process and needs one waiting thread. No socket is opened, so that no other user
can submit work.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from tumoar.cohort.plan import Order
from tumoar.cohort.subjects import Subject
from tumoar.cohort.supervise import Outcome, Tell, record_failure, supervise
from tumoar.vocabulary.errors import ResourceError, TumoarError


def run_here(subjects: Sequence[Subject], order: Order, workers: int, tell: Tell) -> Iterator[Outcome]:
    """Run subjects and yield outcomes as they finish; `tell` receives progress. The rest is stopped."""
    stop = threading.Event()

    def turn(subject: Subject) -> Outcome:
        tell({"name": subject.name, "stage": "start"})
        return supervise(subject, order, tell, stop.is_set)

    pool = ThreadPoolExecutor(max(1, min(workers, len(subjects))), "subject")
    waiting: dict[Future[Outcome], Subject] = {}
    try:
        waiting |= {pool.submit(turn, subject): subject for subject in subjects}
        for future in as_completed(list(waiting)):
            yield _outcome(future, waiting.pop(future), order)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(future: Future[Outcome], subject: Subject, order: Order) -> Outcome:
    """Outcome of a subject; an internal error does not stop the others."""
    try:
        return future.result()
    except Exception as fault:
        # The message of an exception may contain a path, and so a patient's name.
        return record_failure(subject, order, TumoarError("fault", f"internal error: {type(fault).__name__}"))


@contextmanager
def spread_here(workers: int, threads: int) -> Iterator[Callable[..., list[Any]]]:
    """Map a function over items in parallel processes; see `train.atlas.run_serially`."""
    from multiprocessing import active_children, get_context

    before = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (threads,))

    def each(function: Callable[..., Any], shared: Sequence[Any], *items: Sequence[Any]) -> list[Any]:
        try:
            return [f.result() for f in [pool.submit(function, *shared, *row) for row in zip(*items)]]
        except BrokenProcessPool as error:
            raise ResourceError(
                "worker", "a process of the training was ended", do="use fewer --workers"
            ) from error

    try:
        yield each
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.terminate()


def _begin(threads: int) -> None:
    """In each process: end with the parent, and leave Ctrl-C to it."""
    from multiprocessing import parent_process

    from tumoar.numerics.threads import use_threads

    def follow() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow, daemon=True).start()
    use_threads(threads)
