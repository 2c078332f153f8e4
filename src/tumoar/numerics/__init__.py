"""Numerical kernels and distributions on plain arrays, independent of the medical model."""

from __future__ import annotations

import os
import warnings

from tumoar.vocabulary.errors import UsageError

MOST_THREADS = 1024


def _require_usable_environment() -> None:
    """Reject environment variables that numba cannot use, before it fails or prints a traceback."""
    given = os.environ.get("NUMBA_NUM_THREADS")
    if given is not None and not _is_count(given):
        raise UsageError(
            "environment",
            "NUMBA_NUM_THREADS is not a number of threads",
            found=repr(given[:20]),
            do=f"unset it, or set it to 1 to {MOST_THREADS}",
        )
    if not any(name.startswith("NUMBA_") for name in os.environ):
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import numba  # noqa: F401
    for name in (n for n in os.environ if n.startswith("NUMBA_")):
        if any(f"'{name}'" in str(warning.message) for warning in caught):
            raise UsageError("environment", f"{name} has a value that numba cannot use", do="unset it")


def _is_count(text: str) -> bool:
    digits = text.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) < 6 and 1 <= int(digits) <= MOST_THREADS


_require_usable_environment()
