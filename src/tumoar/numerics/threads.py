"""How many threads the kernels use; results do not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numba as nb

from tumoar.vocabulary.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")


def _started() -> int:
    try:
        return int(nb.get_num_threads())
    except ValueError as error:
        raise UsageError(
            "environment",
            "numba cannot start its threads",
            do="unset NUMBA_THREADING_LAYER and NUMBA_NUM_THREADS, and look into .numba_config.yaml",
        ) from error


MOST: int = _started()
"""As many as the process was started with."""


def use_threads(count: int | None) -> int:
    """Set the number of threads, within what the machine allows; returns what is used."""
    if count is not None:
        nb.set_num_threads(max(1, min(count, MOST)))
    return int(nb.get_num_threads())


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """function(item) of all items, in their order, on as many threads as the kernels use.

    For work that releases the interpreter, and calls no parallel kernel: these must not meet. The first
    failure in the order of the items is raised, and what has not begun by then is left undone.
    """
    threads = int(nb.get_num_threads())
    if threads == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(function, item) for item in items]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
