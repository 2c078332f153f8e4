"""Compile kernels with numba and cache them in a private folder."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba as nb
from numba.core import caching

from tumoar.numerics.cache import Place, choose_place, list_places


def _place() -> Place | None:
    below = caching._CacheLocator.get_suitable_cache_subpath(__file__)
    return choose_place(list_places(str(getattr(nb.config, "CACHE_DIR", "")), Path(__file__).parent, below))


PLACE: Place | None = _place()
"""Cache folder of compiled kernels; None if no folder is private, and kernels are compiled in every run."""


class _Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file
        self._lineno = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        assert PLACE is not None
        return str(PLACE.folder)


class _Files(caching.CompileResultCacheImpl):
    """Cache files with numba's names, in our folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        file = inspect.getfile(function)
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, file)
        name = f"{Path(file).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class _Cache(caching.FunctionCache):
    """A cache that tolerates failures: unreadable kernels are compiled, unwritable ones not cached."""

    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle may raise anything
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: numba's `njit` with these options, cached between runs."""

    def compiled(function: Callable[..., Any]) -> Any:
        found = nb.njit(**options)(function)
        if PLACE is not None and hasattr(found, "enable_caching"):  # not if numba is disabled
            found._cache = _Cache(function)
        return found

    return compiled
