"""`tumoar segment` on the small head in processes of its own, many of them: started, stopped, limited.

One process imports everything, waits for orders and forks for each: a command takes a second, not ten.
Threads are numba's own, which survive a fork, as those of OpenMP do not.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tumoar.io.manifest import read_manifest


@dataclass(frozen=True)
class Started:
    """A running command."""

    server: Server
    pid: int
    log: Path

    def stop(self, how: signal.Signals) -> tuple[int, float, float]:
        """Its exit code, and the seconds it took to end: of a processor, and by the clock."""
        before = sum(psutil.Process(self.pid).cpu_times()[:2])
        begin = time.monotonic()
        os.kill(self.pid, how)
        code, seconds = self.server.ask(wait=self.pid).split()
        return int(code), float(seconds) - before, time.monotonic() - begin

    def wait(self) -> int:
        """Its exit code; that of a signal is negative."""
        return int(self.server.ask(wait=self.pid).split()[0])

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8")


class Server:
    """Starts commands on request."""

    def __init__(self, folder: Path, threads: int = 1, **environment: str) -> None:
        self.folder, self.count = folder, 0
        path = os.pathsep.join(map(str, (Path(__file__).parent, os.environ.get("PYTHONPATH", ""))))
        own = {"NUMBA_NUM_THREADS": str(threads), "NUMBA_THREADING_LAYER": "workqueue", "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | own | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **order: object) -> str:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return self.process.stdout.readline()

    def start(self, *arguments: object, more_memory: int | None = None) -> Started:
        """`tumoar segment` with these; it may take so many bytes more than when it began."""
        self.count += 1
        log = self.folder / f"log{self.count}"
        log.touch()  # a command may be stopped before it can say a word
        words = list(map(str, arguments))
        return Started(self, int(self.ask(words=words, log=str(log), more_memory=more_memory)), log)

    def run(self, *arguments: object, **options) -> tuple[int, str]:
        started = self.start(*arguments, **options)
        return started.wait(), started.told()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def bits(out: Path) -> dict[str, str]:
    """What must be equal between runs: everything but manifest, log and report, which tell times."""
    files = read_manifest(out)["files"]
    return {name: digest for name, digest in files.items() if name.endswith((".nii.gz", ".tsv"))}


def stopped_at_random(server: Server, out: Path, signals, span: float, rng, *, most: int) -> int:
    """Stop a run again and again, at random times within `span`, until it ends; how many stops there were."""
    for count in range(most):
        begun = server.start("--t1c", "x", "-o", out, "--resume")
        time.sleep(rng.uniform(0, span))
        how = signals[int(rng.integers(len(signals)))]
        code, used, waited = begun.stop(how)
        assert used < 10, "it takes too long to end"
        assert waited < 60, "it hangs"  # by the clock, on a machine that may be busy
        if code == 0:
            assert "stopped" not in begun.told(), "it went on after it was stopped"
            return count
        is_early = not begun.told()  # before anybody listens to signals
        assert code == -how or code == 128 + how, begun.told()
        assert how == signal.SIGKILL or is_early or code == 128 + how
        if out.exists():  # stopped after its last step: what is there is whole
            read_manifest(out)
    code, told = server.run("--t1c", "x", "-o", out, "--resume")
    assert code == 0, told
    return most


def _serve() -> None:
    import small_run  # noqa: F401 - imported once, for all

    import tumoar.cli
    from tumoar.app import segment  # noqa: F401

    # A Ctrl-C before anybody listens ends a process as SIGTERM does; Python's own way is a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status, used = os.wait4(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _be(tumoar.cli.main, order)
        print(pid, flush=True)


def _be(main, order) -> None:
    from small_run import stand_ins

    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    for place, name, value in stand_ins():
        setattr(place, name, value)
    if order["more_memory"] is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + order["more_memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        main(["segment", *order["words"]])
    except SystemExit as end:  # a stop that strikes here is one more of them, and ends what was forked, too
        os._exit(int(end.code or 0))


if __name__ == "__main__":
    _serve()
