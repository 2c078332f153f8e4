"""Number of threads of the kernels; results do not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numba as nb

from tumoar.vocabulary.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")


def _start_threads() -> int:
    try:
        return int(nb.get_num_threads())
    except ValueError as error:
        raise UsageError(
            "environment",
            "numba cannot start its threads",
            do="unset NUMBA_THREADING_LAYER and NUMBA_NUM_THREADS, and check .numba_config.yaml",
        ) from error


MOST: int = _start_threads()
"""Number of threads available at the start of the process."""

PIECES = 8
"""Pieces of work per thread: blocks differ in size."""


def use_threads(count: int | None) -> int:
    """Set the number of threads, up to the maximum of the machine; returns the number used."""
    if count is not None:
        nb.set_num_threads(max(1, min(count, MOST)))
    return int(nb.get_num_threads())


def run_blocks(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run kernel(start, stop, *arguments) over all blocks 0 to count, on as many threads as are in use.

    The kernel must release the GIL and write only to its own blocks; then the result does not depend on the
    threads. With `prange` instead, a kernel takes about twice as long to compile.
    """
    threads = int(nb.get_num_threads())
    size = -(-count // (PIECES * threads))
    if threads == 1 or count <= size:
        kernel(0, count, *arguments)
        return
    with ThreadPoolExecutor(threads) as pool:
        starts = range(0, count, size)
        tasks = [pool.submit(kernel, start, min(start + size, count), *arguments) for start in starts]
        for task in tasks:
            task.result()


def map_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply a function to all items, in order, on as many threads as the kernels use.

    For functions that release the GIL and do not call parallel kernels, which must not run concurrently. The
    first exception in the order of items is raised; items not yet started are skipped.
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
