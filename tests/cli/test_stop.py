"""A stop ends the program wherever it strikes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tumoar.cli.stop import STOPS

STOPPED = """
import os, signal, time
signal.signal({number}, signal.SIG_DFL)  # under nohup, SIGHUP would be ignored from the start
from tumoar.cli.stop import end_when_stopped

class Dying:
    def __del__(self):
        os.kill(os.getpid(), {number})
        len([])

end_when_stopped("stopped", once={once})
{strike}
time.sleep(100)
"""
STRIKES = {"in a finalizer": "Dying()", "anywhere": "os.kill(os.getpid(), {number})"}


def test_nohup_keeps_a_run_alive():
    program = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from tumoar.cli.stop import end_when_stopped
end_when_stopped("stopped")
os.kill(os.getpid(), signal.SIGHUP)
print("alive")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "alive\n")


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("place", STRIKES)
def test_a_stop_is_never_lost(place, stop, once):
    number = int(stop)
    program = STOPPED.format(number=number, once=once, strike=STRIKES[place].format(number=number))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 128 + number
    assert ended.stderr == "stopped\n"
