"""docs/errors.md has a row for everything that is refused or noted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src" / "tumoar").rglob("*.py"))
RAISED = re.compile(
    r"(?:Usage|UnreadableFile|Geometry|Channel|ModelFile|Fit|Cohort|Output|Resource|Busy|Integrity)Error"
    r'\(\s*"([\w-]+)"|Note\(\s*"([\w-]+)"'
)


def _ids(path: Path) -> set[str]:
    return {a or b for a, b in RAISED.findall(path.read_text(encoding="utf-8"))}


def _rows() -> set[str]:
    first_cells = re.findall(r"^\| ([\w, -]+?) \|", (ROOT / "docs" / "errors.md").read_text("utf-8"), re.M)
    return {row for cell in first_cells for row in cell.split(", ")}


@pytest.mark.parametrize("path", [p for p in SOURCES if _ids(p)], ids=lambda p: p.stem)
def test_every_id_has_a_row(path):
    missing = _ids(path) - _rows()
    assert not missing, f"not in docs/errors.md: {sorted(missing)}"


def test_ids_are_found_at_all():
    assert len(set().union(*map(_ids, SOURCES))) > 40


# ---- fast tests --------------------------------------------------------------------------------------------


def _parts(path: Path) -> Iterator[tuple[bool, str]]:
    """Parts of a file of tests, and whether each is a test marked `slow` or `long` as a whole."""
    text = path.read_text("utf-8")
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min(n.lineno for n in (node, *decorators))
        marks = {ast.unparse(d) for d in decorators}
        is_fast = not marks & {"pytest.mark.slow", "pytest.mark.long"}
        yield is_fast, "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def test_what_any_test_refuses_a_fast_test_refuses():
    parts = [part for path in (ROOT / "tests").rglob("*.py") for part in _parts(path)]
    named = [{a or b for a, b in re.findall(r"E\d+-([\w-]+)|\"([\w-]+)\"", text)} for _, text in parts]
    anywhere = set().union(*named)
    fast = set().union(*(names for names, (is_fast, _) in zip(named, parts) if is_fast))
    ids = set().union(*map(_ids, SOURCES))
    assert len(ids & anywhere) > 100
    assert sorted(ids & anywhere - fast) == []
