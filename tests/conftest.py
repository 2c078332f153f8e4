"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("TUMOAR_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data folder beside the project; tests that need it skip, visibly, where it is absent."""
    if not DATA.is_dir():
        pytest.skip("needs the data folder: TUMOAR_DATA, or shared/data beside the project")
    return DATA


# ---- kernels are compiled once ----------------------------------------------------------------------------


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels of two contrasts before workers start, each of which would compile them."""
    config = session.config
    if config.getoption("numprocesses", None) and not config.option.collectonly:
        from tumoar.app.warm import Warming

        with Warming() as kernels:
            kernels.start(2)
            kernels.wait(lambda progress: None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Neighboring tests on one worker, unless asked otherwise: a module's fixtures are then made once."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture(autouse=True)
def compiles_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands do not compile ahead: most are refused, or run on other contrasts than they name."""
    monkeypatch.setattr("tumoar.app.warm.Warming.start", lambda self, contrasts: None)
