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
