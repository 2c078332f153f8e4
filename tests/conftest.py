"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("TUMOAR_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data folder beside the project; tests that need it skip, visibly, where it is absent."""
    if not DATA.is_dir():
        pytest.skip("needs the data folder: TUMOAR_DATA, or shared/data beside the project")
    return DATA
