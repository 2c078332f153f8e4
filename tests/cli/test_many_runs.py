"""Runs stopped, limited, repeated and let loose on one output: what is published is always the same bits."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from small_command import Server, bits, stopped_at_random

ENDING = (signal.SIGTERM, signal.SIGINT)
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("logs"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """Bits of an undisturbed run, and how long one takes once kernels are compiled."""
    out = tmp_path_factory.mktemp("whole") / "out"
    code, told = server.run("--t1c", "x", "-o", out)
    assert code == 0, told
    start = time.monotonic()
    assert server.run("--t1c", "x", "-o", out, "--overwrite")[0] == 0
    return bits(out), time.monotonic() - start


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def stopped(server, whole, folder, signals, wanted, seed):
    """Runs that are stopped until so many stops were counted; each ends as if nothing had been."""
    expected, span = whole
    rng, stops = np.random.default_rng(seed), 0
    while stops < wanted:
        out = folder / "out"
        stops += stopped_at_random(server, out, signals, span, rng, most=min(10, wanted - stops))
        assert bits(out) == expected
        assert server.run("--t1c", "x", "-o", out, "--resume")[0] == 0
        assert names(folder) == ["out"]
        out.rename(folder.with_name(f"{folder.name}-{stops}-{time.monotonic_ns()}"))
    return stops


@pytest.mark.slow
def test_a_few_stops(server, whole, tmp_path):
    stopped(server, whole, tmp_path, (*ENDING, signal.SIGKILL), 3, 1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_signals(server, whole, tmp_path, record_property):
    record_property("tried", stopped(server, whole, tmp_path, ENDING, 100, 2))


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_three_hundred_kills(server, whole, tmp_path, record_property):
    record_property("tried", stopped(server, whole, tmp_path, (signal.SIGKILL,), 300, 3))


# ---- memory ------------------------------------------------------------------------------------------------


def limited(server, whole, out, more):
    """A run that may take so many bytes more than it began with; then the same without a limit."""
    code, told = server.run("--t1c", "x", "-o", out, more_memory=more)
    assert code in (0, 10), told
    if code == 10:
        assert told.splitlines()[-1].startswith("E10-"), told
        assert not out.exists()
        assert server.run("--t1c", "x", "-o", out, "--resume")[0] == 0
    assert bits(out) == whole[0]
    assert names(out.parent) == [out.name]
    return code


@pytest.mark.slow
def test_too_little_memory(server, whole, tmp_path):
    assert limited(server, whole, tmp_path / "out", 8 * MEGABYTE) == 10


@pytest.mark.long
def test_twenty_limits_of_memory(server, whole, tmp_path, record_property):
    codes = []
    for number, more in enumerate(np.geomspace(100, 2000, 20)):
        folder = tmp_path / str(number)
        folder.mkdir()
        codes.append(limited(server, whole, folder / "out", int(more * MEGABYTE)))
    assert set(codes) == {0, 10}
    record_property("tried", len(codes))


@pytest.mark.parametrize("gigabytes", [0.1, 0.25, 0.5])
def test_a_plan_above_the_limit_is_refused_before_the_work(server, tmp_path, gigabytes):
    code, told = server.run("--t1c", "x", "-o", tmp_path / "out", "--max-memory", gigabytes)
    assert (code, "E10-memory this case needs about" in told) == (10, True)
    assert names(tmp_path) == []


# ---- threads -----------------------------------------------------------------------------------------------


def with_threads(server, folder):
    """Outputs of three runs on each number of threads."""
    for repeat in range(3):
        for threads in (1, 2, 4, 8):
            out = folder / f"{threads}-{repeat}"
            code, told = server.run("--t1c", "x", "-o", out, "--threads", threads)
            assert code == 0, told
            yield out


@pytest.mark.long
def test_threads_change_no_bit(whole, tmp_path, record_property):
    server = Server(tmp_path, threads=8)
    try:
        assert all(bits(out) == whole[0] for out in with_threads(server, tmp_path))
    finally:
        server.close()
    record_property("tried", 12)


# An old processor as far as one can be had here: kernels, BLAS and numpy use nothing newer than SSE4.2.
OLDER = {
    "NUMBA_CPU_NAME": "nehalem",
    "NUMBA_CPU_FEATURES": "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX F16C",
}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_another_processor_gives_the_same_labels(server, tmp_path, record_property):
    """Rounding may differ, and chains part: labels agree on 99.9 %; its own threads change no bit there."""
    from tumoar.io.nifti import read_nifti

    assert server.run("--t1c", "x", "-o", tmp_path / "here")[0] == 0
    here = read_nifti(tmp_path / "here" / "segmentation.nii.gz").data
    older = Server(tmp_path, threads=8, **OLDER)
    found = []
    try:
        for out in with_threads(older, tmp_path):
            found.append(bits(out))
            assert (read_nifti(out / "segmentation.nii.gz").data == here).mean() >= 0.999
    finally:
        older.close()
    assert all(b == found[0] for b in found)
    record_property("tried", len(found))


# ---- at the same time --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_sixteen_runs_on_one_output(server, whole, tmp_path, record_property):
    """Whoever comes second is told so, or finds it done; one run alone writes."""
    for number in range(4):
        out = tmp_path / str(number) / "out"
        started = [server.start("--t1c", "x", "-o", out) for _ in range(16)]
        ended = [(run.wait(), run.told()) for run in started]
        assert sum(code == 0 and "already done" not in told for code, told in ended) == 1
        assert {code for code, _ in ended} <= {0, 11}
        assert all("E11-B59" in told for code, told in ended if code == 11)
        assert bits(out) == whole[0]
        assert names(out.parent) == ["out"]
    record_property("tried", 4)
