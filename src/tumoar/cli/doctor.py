"""`tumoar doctor`: installation and machine."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer

TABLES = ("calibration.json", "tumor_means.toml")
"""Parts of the model that are tables."""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="First compile the kernels, so that the first run need not.")
    ] = False,
    contrasts: Annotated[
        int, typer.Option("--contrasts", min=1, max=16, help="Number of contrasts to compile for.")
    ] = 4,
) -> None:
    """Show versions, threads, memory and the embedded model."""
    if warm:
        warm_up(contrasts)
    facts = examine()
    if json:
        import json as json_module

        typer.echo(json_module.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        words = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        typer.echo(f"{name:10}{words}")


def warm_up(contrasts: int) -> None:
    """Compile what `segment` needs for this number of contrasts."""
    from tumoar.app.warm import Warming
    from tumoar.cli.watch import Watch
    from tumoar.numerics.jit import PLACE
    from tumoar.vocabulary.errors import UsageError

    if PLACE is None:
        raise UsageError(
            "environment",
            "compiled kernels cannot be kept: no private cache folder",
            do="set NUMBA_CACHE_DIR to a folder of your own that others cannot write to",
        )
    with Watch() as watch, Warming() as kernels:
        kernels.start(contrasts)
        if not kernels.wait(watch):
            watch.say("not all kernels could be compiled ahead; the first run compiles the others")


def examine() -> dict[str, object]:
    """Facts about the installation and the machine."""
    from tumoar.numerics.jit import PLACE
    from tumoar.numerics.threads import use_threads
    from tumoar.version import __version__

    return {
        "tumoar": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _dependencies()},
        "threads": {"cores": os.cpu_count(), "used": use_threads(None)},
        "kernels": f"kept in {PLACE.name}" if PLACE else "compiled in every run: no private cache folder",
        "memory": _memory(),
        "model": _models(),
    }


def _dependencies() -> list[str]:
    """Names of required packages, without extras."""
    import re
    from importlib.metadata import requires

    lines = [line for line in requires("tumoar") or [] if "extra ==" not in line]
    return [re.split(r"[<>=!~ ;\[]", line, maxsplit=1)[0] for line in lines]


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _memory() -> dict[str, str]:
    """Total and available memory from the kernel; empty if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    except OSError:
        return {}
    gigabytes = {"total": kilobytes["MemTotal"] / 1e6, "available": kilobytes["MemAvailable"] / 1e6}
    return {name: f"{size:.1f} GB" for name, size in gigabytes.items()}


def _models() -> dict[str, str]:
    """The first digits of the SHA-256 of every model file in the package."""
    import hashlib
    from importlib.resources import files

    data = files("tumoar").joinpath("data")
    found = (f for f in data.iterdir() if f.name.endswith(".npz") or f.name in TABLES)
    return {
        f.name: hashlib.sha256(f.read_bytes()).hexdigest()[:16] for f in sorted(found, key=lambda f: f.name)
    }
