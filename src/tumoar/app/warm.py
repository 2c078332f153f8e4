"""Compile kernels in processes of their own while images are read; threads would wait for numba's lock."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import tumoar
from tumoar.app.pipeline import Progress
from tumoar.app.watch import Callback
from tumoar.numerics import warm
from tumoar.numerics.threads import use_threads

STAGE = "compile"


class Warming(AbstractContextManager["Warming"]):
    """Processes that compile; they end with the block."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, contrasts: int) -> None:
        """Compile what a patient with this number of contrasts needs, unless it is in the cache."""
        if contrasts > 0 and not warm.is_warm(contrasts):
            shares = [str(share) for share in range(len(warm.SHARES))]
            groups = [shares] if use_threads(None) == 1 else [[share] for share in shares]
            self._running = [_start(contrasts, group) for group in groups]

    def wait(self, watch: Callback) -> bool:
        """Wait until all is compiled. Returns False if something is not; it will be compiled when needed."""
        if not self._running:
            return True
        done = 0
        watch(Progress(STAGE, done, warm.STEPS, {}))
        told = [process.stdout for process in self._running if process.stdout is not None]
        while told:
            for pipe in select.select(told, [], [])[0]:
                steps = len(os.read(pipe.fileno(), warm.STEPS))
                if steps == 0:
                    told.remove(pipe)
                done += steps
                watch(Progress(STAGE, done, warm.STEPS, {}))
        codes = [process.wait() for process in self._running]
        return not any(codes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


def _start(contrasts: int, shares: list[str]) -> subprocess.Popen[bytes]:
    paths = [str(Path(tumoar.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "tumoar.numerics.warm", str(contrasts), *shares],
        stdin=subprocess.PIPE,  # closed when this process ends, even if it is killed
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "NUMBA_NUM_THREADS": "1"},
    )
