"""The rules of the house, read off the source."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "tumoar"
FILES = sorted(SRC.rglob("*.py"))

# A module imports only from its own package or a lower one, wherever in the file the import stands.
LAYERS = {
    "version": 0, "vocabulary": 0,
    "numerics": 1,
    "geometry": 2,
    "model": 3,
    "preprocess": 4, "placement": 5, "inference": 5,
    "train": 6, "simulate": 6, "io": 6,
    "result": 7,
    "radiotherapy": 8, "report": 9,
    "review": 10,
    "app": 11,
    "api": 12, "cohort": 12,
    "web": 13,
    "cli": 14, "__main__": 15, "__init__": 15,
}  # fmt: skip
READS_FILES = {"io", "cli", "report", "cohort"}


def _name(path):
    return path.relative_to(SRC).with_suffix("").parts


def _imports(path):
    """Full names of modules, also of those that `from tumoar import X` and `from tumoar.io import x` name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _ours(path):
    """Packages of ours that a file imports from."""
    for module in _imports(path):
        head, *rest = module.split(".")
        if head == "tumoar" and rest and rest[0] in LAYERS:
            yield rest[0], module


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(_name(p)))
def test_imports_point_one_way(path):
    own = _name(path)[0]
    for package, module in _ours(path):
        is_lower = LAYERS[package] < LAYERS[own] or package == own
        assert is_lower, f"{'/'.join(_name(path))} imports {module}, which is not below it"


def test_every_package_has_its_layer():
    found = {_name(path)[0] for path in FILES}
    assert found == set(LAYERS)


def test_modules_of_a_package_import_each_other_in_no_circle():
    names = {".".join(("tumoar", *_name(path))): path for path in FILES}
    graph = {name: {m for m in _imports(path) if m in names and m != name} for name, path in names.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(_name(p)))
def test_habits(path):
    text = path.read_text(encoding="utf-8")
    name = _name(path)
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 400, "too long to read in one sitting"
    assert ast.get_docstring(tree), "a module says what it is for"
    if name[0] != "numerics":
        assert not any(m.split(".")[0] == "numba" for m in _imports(path)), "numba lives in numerics"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print" or name[0] == "cli", "only the command line prints"
            assert node.func.id != "open" or name[0] in READS_FILES, "files are opened at the border only"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random":
            allowed = ("Generator", "default_rng", "SeedSequence", "Philox")
            assert node.attr in allowed, "no global randomness"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "no bare except"


def test_the_door_is_light():
    """Heavy libraries are imported inside commands, so that --help answers at once."""
    import subprocess
    import sys

    code = "import sys, tumoar.cli; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    heavy = "numpy scipy numba nibabel SimpleITK matplotlib pydantic dask distributed"
    assert not loaded & set(heavy.split())
