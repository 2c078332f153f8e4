"""docs/errors.md has a row for everything that is refused or noted."""

from __future__ import annotations

import re
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
