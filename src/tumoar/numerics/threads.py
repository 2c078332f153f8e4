"""How many threads the kernels use; results do not depend on it."""

from __future__ import annotations

import numba as nb

MOST: int = nb.get_num_threads()
"""As many as the process was started with."""


def use_threads(count: int | None) -> int:
    """Set the number of threads, within what the machine allows; returns what is used."""
    if count is not None:
        nb.set_num_threads(max(1, min(count, MOST)))
    return int(nb.get_num_threads())
