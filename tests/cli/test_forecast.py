"""How long a run will still take, as far as it is known."""

import importlib
import time

import pytest

from tumoar.app.pipeline import Progress
from tumoar.cli.forecast import SECONDS, Forecast, clock
from tumoar.cli.watch import Watch


def test_a_run_with_the_pace_of_the_benchmark_is_foreseen():
    forecast, now, whole = Forecast(), 0.0, sum(SECONDS.values())
    assert forecast.left(0.0) is None
    for name, seconds in SECONDS.items():
        forecast.update(name, 0, 10, now)
        if name != "read":
            assert forecast.left(now) == pytest.approx(whole - now)
        forecast.update(name, 5, 10, now + seconds / 2)
        assert forecast.left(now + seconds / 2) == pytest.approx(whole - now - seconds / 2)
        now += seconds


def test_compilation_does_not_count_and_a_stage_has_its_own_pace():
    forecast = Forecast()
    forecast.update("read", 0, 1, 0.0)
    forecast.update("compile", 0, 6, 12.0)
    assert forecast.left(20.0) is None
    forecast.update("place", 0, 1, 40.0)
    assert forecast.left(40.0) == pytest.approx(sum(SECONDS.values()) - 12.0)
    forecast.update("sample 1", 0, 100, 90.0)
    forecast.update("sample 1", 10, 100, 190.0)
    assert forecast.left(190.0) > 900.0


def test_minutes_and_seconds():
    assert [clock(s) for s in (0.0, 59.9, 60.0, 230.4)] == ["0:00", "0:59", "1:00", "3:50"]


def test_silence_is_broken(monkeypatch, capsys):
    # the package also has a command of this name
    monkeypatch.setattr(importlib.import_module("tumoar.cli.watch"), "SILENCE", 0.1)
    with Watch() as shown:
        shown(Progress("fit", 5, 10, {}))
        lines = len(shown.lines)
        for _ in range(200):
            if "elapsed" in (told := capsys.readouterr().err):
                break
            time.sleep(0.05)
    assert "fitting (Algorithm 2) · elapsed 0:0" in told
    assert "left" in told
    assert len(shown.lines) == lines, "the log of the result has no such lines"
