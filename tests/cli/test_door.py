"""The door: version, help, refusals, faults."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer

import tumoar.cli as cli
from tumoar.version import __version__
from tumoar.vocabulary.errors import GeometryError

ROOT = Path(__file__).resolve().parents[2]


def _run(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code or 0, capsys.readouterr()


def test_version(capsys):
    code, out = _run(["--version"], capsys)
    assert (code, out.out.strip()) == (0, f"tumoar {__version__}")


def test_unknown_command_is_a_usage_error(capsys):
    code, out = _run(["nonsense"], capsys)
    assert code == 2
    assert "nonsense" in out.err


def test_doctor_tells_versions_threads_memory_and_model(capsys):
    code, out = _run(["doctor", "--json"], capsys)
    facts = json.loads(out.out)
    assert code == 0
    assert facts["tumoar"] == __version__
    assert facts["threads"]["used"] >= 1
    assert "missing" not in facts["packages"].values()
    assert "memory" in facts
    card = (ROOT / "docs" / "model-card.md").read_text("utf-8")
    assert set(facts["model"]) == set(re.findall(r"^\| [^|]+ \| `([\w.]+)` \| [0-9a-f]{64} \|$", card, re.M))


@pytest.fixture
def app_that(monkeypatch):
    def install(error):
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command()
        def fail():
            raise error

        monkeypatch.setattr(cli, "app", app)

    return install


def test_a_stop_within_compiled_code_is_a_stop_and_no_fault(app_that, capsys):
    def wrapped(error, times):
        for _ in range(times):
            outer = SystemError("<function> returned a result with an exception set")
            outer.__cause__, error = error, outer
        return error

    for times in (1, 2):
        app_that(wrapped(SystemExit(143), times))
        code, out = _run([], capsys)
        assert (code, out.err) == (143, "")
    for fault in (SystemError("something else"), wrapped(ValueError("no stop"), 1)):
        app_that(fault)
        code, out = _run([], capsys)
        assert (code, out.err.split()[0]) == (1, "E1-fault")


def test_a_refusal_is_one_sentence_and_its_code(app_that, capsys):
    app_that(
        GeometryError(
            "B11", "orientation unknown", file="/home/Jane Doe/t1.nii", found="two codes 0", do="set one"
        )
    )
    code, out = _run([], capsys)
    assert code == 4
    assert out.err == "E4-B11 orientation unknown | file: t1.nii | found: two codes 0 | do: set one\n"


def test_a_fit_that_breaks_down_and_a_full_disk_are_refusals(app_that, capsys):
    app_that(np.linalg.LinAlgError("Matrix is not positive definite"))
    code, out = _run([], capsys)
    assert (code, out.err.partition(" |")[0]) == (7, "E7-numbers the model cannot be fitted to these images")
    app_that(OSError(errno.ENOSPC, "No space left on device", "/home/Jane Doe/x"))
    code, out = _run([], capsys)
    assert (code, "Jane" in out.err) == (9, False)
    assert out.err.startswith("E9-B58 cannot write")


def test_too_little_memory_is_a_refusal(app_that, capsys):
    app_that(MemoryError("Unable to allocate 99 GiB"))
    code, out = _run([], capsys)
    assert code == 10
    assert out.err.startswith("E10-memory not enough memory")


def test_a_fault_shows_no_traceback_and_no_message(app_that, capsys, monkeypatch):
    monkeypatch.delenv("TUMOAR_DEBUG", raising=False)
    app_that(RuntimeError("/home/Jane Doe"))
    code, out = _run([], capsys)
    assert code == 1
    assert "internal error: RuntimeError" in out.err
    assert "Jane" not in out.err
    assert "Traceback" not in out.err
