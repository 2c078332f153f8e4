"""Closed, full and broken streams, and environments that make no sense: never a fault, never a trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tumoar

SRC = Path(tumoar.__file__).resolve().parents[1]
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}


def shell(script, **environment):
    given = {k: v for k, v in (PLAIN | environment).items() if v is not None}
    given |= {"TUMOAR": f"{sys.executable} -m tumoar", "PYTHONPATH": str(SRC)}
    done = subprocess.run(["bash", "-c", script], env=given, capture_output=True, text=True, timeout=300)
    assert "E1-" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("$TUMOAR doctor >&-", 0),
        ("$TUMOAR doctor 2>&-", 0),
        ("$TUMOAR doctor >&- 2>&- <&-", 0),
        ("$TUMOAR nonsense 2>&-", 2),
        ("$TUMOAR --version >&-", 0),
        ("$TUMOAR doctor | head -0; exit ${PIPESTATUS[0]}", 141),
        ("$TUMOAR --help | head -0; exit ${PIPESTATUS[0]}", 141),
        ("$TUMOAR --version > /dev/full", 9),
    ],
)
def test_a_stream_that_is_closed_broken_or_full(script, code):
    found, out, err = shell(script)
    assert found != 1
    assert code == found, err
    if code == 141:
        assert (out, err) == ("", "")
    if code == 9:
        assert err.startswith("E9-B58 cannot write")


def test_a_closed_stream_is_not_taken_by_a_file(tmp_path):
    """What a library prints must not end up in an output that happened to get the number of the stream."""
    code = (
        "import os\nfrom tumoar.cli.streams import prepare_streams\nprepare_streams()\n"
        f"file = os.open({str(tmp_path / 'x')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "os.write(1, b'noise'); os.write(2, b'noise'); os._exit(file)"
    )
    number, _, _ = shell(f"{sys.executable} -c '{code.replace(chr(39), chr(34))}' <&- >&- 2>&-")
    assert number > 2
    assert (tmp_path / "x").read_bytes() == b""


@pytest.mark.parametrize(
    "environment",
    [
        {"NUMBA_NUM_THREADS": "0"},
        {"NUMBA_NUM_THREADS": "abc"},
        {"NUMBA_NUM_THREADS": "100000"},
        pytest.param({"NUMBA_NUM_THREADS": "9" * 5000}, marks=pytest.mark.slow),
        pytest.param({"NUMBA_NUM_THREADS": ""}, marks=pytest.mark.slow),
        {"NUMBA_THREADING_LAYER": "bogus"},
        {"NUMBA_OPT": "zz"},
        {"NUMBA_CACHE_DIR": "relative"},
    ],
    ids=lambda e: " ".join(f"{k}={v[:9]}" for k, v in e.items()),
)
def test_an_environment_that_numba_cannot_use_is_refused_or_passed_over(environment, tmp_path):
    code, _, err = shell(f"cd {tmp_path} && $TUMOAR doctor", **environment)
    if "NUMBA_CACHE_DIR" in environment:
        assert (code, err) == (0, "")
    else:
        assert code == 2
        assert err.startswith("E2-environment ")
        assert len(err) < 300


@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_NUM_THREADS": "x", "OPENBLAS_NUM_THREADS": "0"},
        pytest.param({"COLUMNS": "0", "LINES": "-1"}, marks=pytest.mark.slow),
        pytest.param({"TERM": None, "HOME": None, "LANG": "C"}, marks=pytest.mark.slow),
        {"LC_ALL": "nowhere", "PYTHONUTF8": "0", "COLUMNS": "x"},
    ],
    ids=str,
)
def test_an_odd_environment_changes_nothing(environment):
    code, out, _ = shell("$TUMOAR doctor", **environment)
    assert code == 0
    assert out.startswith("tumoar ")
    code, out, err = shell("$TUMOAR cohort --help", **environment)
    assert (code, "--scheduler" in out) == (0, True), err


@pytest.mark.parametrize(
    "flags",
    [
        "--threads 100000",
        "--workers 0",
        "--max-memory nan",
        "--max-memory inf",
        "--timeout nan",
        "--timeout 1e9",
    ],
)
def test_limits_of_a_cohort_that_make_no_sense(flags, tmp_path):
    (tmp_path / "list.csv").write_text("subject,t1c\nA,list.csv\n")
    code, _, err = shell(f"$TUMOAR cohort {tmp_path}/list.csv {tmp_path}/out participant --dry-run {flags}")
    assert code == 2, err
