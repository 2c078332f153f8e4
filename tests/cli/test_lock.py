"""One run at a time on an output, for as long as it lives and no longer."""

from __future__ import annotations

import errno
import os

import pytest

from tumoar.io.lock import lock_output
from tumoar.io.manifest import publish_folder, read_manifest, write_manifest
from tumoar.vocabulary.errors import BusyError, OutputError


def test_a_lock_that_a_dead_run_left_stops_nobody(tmp_path):
    (tmp_path / ".out.lock").write_text("")
    with lock_output(tmp_path / "out"), pytest.raises(BusyError, match="B59"), lock_output(tmp_path / "out"):
        pass
    assert not (tmp_path / ".out.lock").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / ".out.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="E9-B58"), lock_output(tmp_path / "out"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_without_locks_is_not_called_busy(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(OutputError, match="E9-B58 cannot lock the output"), lock_output(tmp_path / "out"):
        pass


def contender(out, number, begin, hold):
    """Wait for the start, take the lock or leave; whoever has it publishes when all have tried."""
    os.read(begin, 1)
    try:
        with lock_output(out):
            os.write(hold[0], b"x")
            os.read(hold[1], 1)
            with publish_folder(out, "the result") as work:
                (work / "a.tsv").write_text(str(number) * 1000)
                write_manifest(work, {"key": str(number)})
        return 0
    except BusyError:
        os.write(hold[0], b"x")
        return BusyError.exit_code


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_sixteen_at_once_many_times(tmp_path, times, record_property):
    for number in range(times):
        out = tmp_path / str(number) / "out"
        begin, started = os.pipe()
        tried, done = os.pipe(), os.pipe()
        pids = []
        for contestant in range(16):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = contender(out, contestant, begin, (tried[1], done[0]))
                finally:
                    os._exit(code)
            pids.append(pid)
        os.write(started, bytes(16))
        for _ in range(16):
            os.read(tried[0], 1)
        os.write(done[1], b"x")
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        assert sorted(codes) == [0] + [BusyError.exit_code] * 15
        assert read_manifest(out)["key"] == str(codes.index(0))
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        for end in (begin, started, *tried, *done):
            os.close(end)
    record_property("tried", times)
