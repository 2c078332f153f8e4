"""How long something takes."""

from __future__ import annotations

import time


def best(run, repeats):
    """Seconds of the fastest of several repeats, after one that compiles and warms up."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def alternately(runs, repeats):
    """CPU seconds of the fastest repeat of each of several runs, taken in turn after one that warms up.

    What other work slows the machine down then slows all of them: ratios move less than seconds do.
    """
    for run in runs.values():
        run()
    seconds = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: min(times) for name, times in seconds.items()}
