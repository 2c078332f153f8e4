"""The process of one subject: `python -m tumoar.cli.child segment …`.

The supervisor keeps its standard input open. When the supervisor ends, even by being killed, this process
must end too: the subject will be restarted elsewhere, and only one process may write its output.
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
