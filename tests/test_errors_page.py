"""docs/errors.md has a row for everything that is refused or noted at the file border."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BORDER = [
    "io/nifti.py",
    "io/nifti_header.py",
    "quality.py",
    "cli/inspect.py",
    "cli/images.py",
    "assemble.py",
    "inference/place.py",
    "inference/head.py",
]


@pytest.mark.parametrize("module", BORDER)
def test_every_id_has_a_row(module):
    source = (ROOT / "src" / "tumoar" / module).read_text(encoding="utf-8")
    ids = set(re.findall(r'(?:Error|Note)\(\s*"(\w+)"', source))
    rows = set(re.findall(r"^\| (\w+) \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M))
    assert ids
    assert ids <= rows, f"not in docs/errors.md: {sorted(ids - rows)}"
