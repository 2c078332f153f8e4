"""The process of one subject: `python -m tumoar.cli.child segment …`.

Its standard input is held open by whoever watches over it. When that ends, even by being killed, this process
must go too: the subject will be taken up elsewhere, and its output belongs to one process at a time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_follow, daemon=True).start()
    from tumoar.cli import main

    main(sys.argv[1:])
