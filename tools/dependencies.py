"""Render docs/dependencies.md from requirements.lock, pyproject.toml and tools/dependencies.toml.

`python tools/dependencies.py` writes the page; tests/test_dependencies.py compares it.
Only the standard library is used: the build of a wheel imports this module.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
HEAD = """# Dependencies

What tumoar {version} is made of. Versions are those of `requirements.lock`, which pins them by hash; the
column "accepted" is what `pyproject.toml` allows. The wheel contains the same list as a CycloneDX bill of
materials (`tumoar-….dist-info/sboms/tumoar.cdx.json`), with the SHA-256 of every model file.

This page is made by `python tools/dependencies.py`; do not edit it.
"""
MATPLOTLIB = """
LicenseRef-Matplotlib is the license of matplotlib, a BSD-like license based on that of Python. Binary wheels
of numpy, scipy, SimpleITK and others contain further libraries, which they list themselves.
"""


@dataclass(frozen=True)
class Package:
    """A package that tumoar needs; `only` is the environment marker, `wanted` the accepted versions."""

    name: str
    version: str
    license: str
    role: str
    needs: tuple[str, ...]
    wanted: str = ""
    extra: str = ""
    only: str = ""

    @property
    def is_direct(self) -> bool:
        """Whether pyproject.toml names it."""
        return bool(self.wanted)


@dataclass(frozen=True)
class Bundled:
    """Other people's software inside the wheel that is no Python package."""

    name: str
    version: str
    license: str
    role: str
    file: str


def normalize(name: str) -> str:
    """Name of a package as in the lock."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_packages(root: Path = ROOT) -> list[Package]:
    """Every package of the lock, by name; all must be described, and nothing else."""
    about = tomllib.loads((root / "tools" / "dependencies.toml").read_text("utf-8"))["package"]
    wanted = dict(_wanted(root))
    pins = dict(_pins((root / "requirements.lock").read_text("utf-8")))
    if set(pins) != set(about):
        raise ValueError(f"tools/dependencies.toml and requirements.lock differ: {set(pins) ^ set(about)}")
    lacking = set(wanted) - set(pins)
    if lacking:
        raise ValueError(f"not in requirements.lock: {lacking}")
    return [
        Package(
            name, version, row["license"], row["role"], tuple(row["needs"]), *wanted.get(name, ("", "")), only
        )
        for name, (version, only) in sorted(pins.items())
        for row in [about[name]]
    ]


def read_bundled(root: Path = ROOT) -> list[Bundled]:
    """Software inside the wheel."""
    rows = tomllib.loads((root / "tools" / "dependencies.toml").read_text("utf-8"))["bundled"]
    return [Bundled(**row) for row in rows]


def read_version(root: Path = ROOT) -> str:
    """Version of tumoar."""
    text = (root / "src" / "tumoar" / "version.py").read_text("utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise ValueError("no version in src/tumoar/version.py")
    return found[1]


def _pins(lock: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for line in lock.splitlines():
        found = re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$", line)
        if found:
            yield normalize(found[1]), (found[2], (found[3] or "").strip())


def _wanted(root: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Accepted versions and extra of every direct dependency of the lock."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], "cluster": project["optional-dependencies"]["cluster"]}
    for extra, lines in groups.items():
        for line in lines:
            found = re.fullmatch(r"([A-Za-z0-9][\w.-]*)(.*)", line.strip())
            if found is None:
                raise ValueError(f"a dependency that cannot be read: {line}")
            yield normalize(found[1]), (found[2] or "any", extra)


def render(root: Path = ROOT) -> str:
    """The page."""
    packages = read_packages(root)
    direct = [p for p in packages if p.is_direct]
    others = [p for p in packages if not p.is_direct]
    lines = [HEAD.format(version=read_version(root)), "## Direct", ""]
    lines += ["| package | version | accepted | license | role |", "|---|---|---|---|---|"]
    lines += [f"| {p.name} | {p.version} | {p.wanted} | {p.license} | {p.role} |" for p in direct]
    lines += ["", "## Needed by these", "", "| package | version | license | role | needed by |"]
    lines += ["|---|---|---|---|---|"]
    for p in others:
        users = ", ".join(q.name for q in packages if p.name in q.needs)
        only = f" ({p.only})" if p.only else ""
        lines.append(f"| {p.name} | {p.version} | {p.license} | {p.role} | {users}{only} |")
    lines += ["", "## In the wheel", "", "| software | version | license | role |", "|---|---|---|---|"]
    lines += [f"| {b.name} | {b.version} | {b.license} | {b.role} |" for b in read_bundled(root)]
    return "\n".join(lines) + "\n" + MATPLOTLIB


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
