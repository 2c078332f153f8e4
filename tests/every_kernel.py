"""All compiled functions of the package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from tumoar import numerics
from tumoar.numerics.jit import Dispatcher


def dispatchers() -> Iterator[Any]:
    for info in pkgutil.iter_modules(numerics.__path__):
        module = importlib.import_module(f"tumoar.numerics.{info.name}")
        own = (x for x in vars(module).values() if isinstance(x, Dispatcher))
        yield from (x for x in own if x.py_func.__module__ == module.__name__)
