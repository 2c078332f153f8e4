"""The rules of the house, read off the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "tumoar"
FILES = sorted(SRC.rglob("*.py"))

# A module imports only from its own layer or a lower one.
LAYERS = {
    "errors": 0, "labels": 0, "contrasts": 0, "config": 0, "aliases": 0, "tables": 0,
    "numerics": 1,
    "image": 2, "orientation": 2, "quality": 2,
    "model": 3,
    "inference": 4,
    "train": 5,
    "io": 6, "assemble": 6, "evaluate": 6, "simulate": 6, "result": 6, "review": 6, "deliver": 6,
    "dose": 6, "contours": 6, "planes": 6, "limits": 6, "margins": 6,
    "pipeline": 7, "report": 7,
    "api": 8, "cohort": 8, "cli": 8, "__main__": 9, "__init__": 9,
}  # fmt: skip
READS_FILES = {"io", "cli", "report", "cohort"}


def _name(path):
    return path.relative_to(SRC).with_suffix("").parts


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(_name(p)))
def test_imports_point_one_way(path):
    own = LAYERS[_name(path)[0]]
    for module in _imports(path):
        head, *rest = module.split(".")
        if head == "tumoar" and rest:
            assert LAYERS[rest[0]] <= own, f"{'/'.join(_name(path))} imports {module} from a higher layer"


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
