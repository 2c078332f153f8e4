"""Compile kernels with numba and cache them in a private folder.

A file of the cache belongs to one kernel and signature. Its name is a digest of all that the machine code
depends on: sources, numba, processor. No index is shared by processes that compile at the same time, and an
upgrade that leaves the sources of a kernel alone finds it again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba as nb
from numba.core import caching, types
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from tumoar.numerics.cache import Place, choose_place, list_places

ENDING = ".nbc"
PINNED = {"fastmath": False, "error_model": "python", "forceinline": False, "no_cfunc_wrapper": True}
"""What numba would otherwise inherit from whichever kernel happens to be compiled first."""

_IMPORT = re.compile(r"^from tumoar\.numerics(?:\.(\w+) import|\s+import \(([^)]*)\))", re.MULTILINE)


def _place() -> Place | None:
    below = caching._CacheLocator.get_suitable_cache_subpath(__file__)
    return choose_place(list_places(str(getattr(nb.config, "CACHE_DIR", "")), Path(__file__).parent, below))


PLACE: Place | None = _place()
"""Cache folder of compiled kernels; None if no folder is private, and kernels are compiled in every run."""


@cache
def digest_sources(module: str) -> str:
    """Digest of the source of a module of this package, and of those that it imports from this package."""
    texts: dict[str, bytes] = {}
    left = [module, "jit"]
    while left:
        name = left.pop()
        if name not in texts:
            texts[name] = Path(__file__).with_name(f"{name}.py").read_bytes()
            for one, several in _IMPORT.findall(texts[name].decode()):
                left += [one] if one else re.findall(r"\w+", several)
    whole = hashlib.sha256()
    for name in sorted(texts):
        whole.update(f"{name} {len(texts[name])}\n".encode() + texts[name])
    return whole.hexdigest()


def identify_makers(codegen: Any) -> tuple[Any, ...]:
    """The versions that compile, and the processor that they compile for."""
    return (nb.__version__, sys.version_info[:2], *codegen.magic_tuple())


class _Cache(caching.NullCache):
    """Compiled signatures of one kernel; if a file cannot be read or written, the kernel is compiled."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._module = function.__module__.rpartition(".")[2]
        self._name = f"{self._module}.{function.__qualname__}".replace("<", "").replace(">", "")
        self._folder = folder

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def path(self, signature: Any, codegen: Any) -> Path:
        """The file of one signature."""
        rest = hashlib.sha256(repr((signature, identify_makers(codegen))).encode()).hexdigest()
        return self._folder / f"{self._name}-{digest_sources(self._module)[:16]}-{rest[:16]}{ENDING}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self.path(sig, target_context.codegen())
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(path.read_bytes()))
        except Exception:  # there is no file, or it is damaged: then its pickle may raise anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.lifted or data.library.has_dynamic_globals:
            return
        path = self.path(sig, data.codegen)
        new = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
        with suppress(OSError):
            try:
                new.write_bytes(dumps(data._reduce()))
                os.replace(new, path)
            finally:
                new.unlink(missing_ok=True)
            self._remove_outdated(path)

    def _remove_outdated(self, path: Path) -> None:
        """Remove what was compiled from other sources than this file."""
        current = path.name[: -len(ENDING) - 16]
        for other in self._folder.glob(f"{self._name}-*{ENDING}"):
            if not other.name.startswith(current):
                other.unlink(missing_ok=True)


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: numba's `njit` with these options, cached between runs."""

    def compiled(function: Callable[..., Any]) -> Any:
        found = _njit(PINNED | options, function)
        if PLACE is not None and _is_compiled(found):
            found._cache = _Cache(function, PLACE.folder)
        return found

    return compiled


def inner(*, constants: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator for a function that only kernels call: it is compiled into them.

    Without the code that would convert Python's objects, it is compiled in half the time. With `constants`,
    it is compiled for every value of a constant argument, so that its loops unroll.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        found = _njit(PINNED | {"no_cpython_wrapper": True} | options, function)
        if _is_compiled(found):
            if not constants:
                _ignore_constants(found)
            found.add_overload = lambda result: found.overloads.update({tuple(result.signature.args): result})
            found._compile_for_args = _refuse_python
        return found

    return compiled


def _njit(options: dict[str, Any], function: Callable[..., Any]) -> Any:
    njit: Any = nb.njit
    return njit(**options)(function)


def _is_compiled(found: Any) -> bool:
    """False if numba is disabled."""
    return isinstance(found, Dispatcher)


def _refuse_python(*_: Any, **__: Any) -> None:
    raise TypeError("this function has no entry from Python; only kernels call it")


def _ignore_constants(found: Any) -> None:
    """Compile one version for all constant arguments; numba compiles one for every value."""
    resolve = found.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        return resolve([types.unliteral(a) for a in args], {k: types.unliteral(a) for k, a in kws.items()})

    found.get_call_template = get_call_template
