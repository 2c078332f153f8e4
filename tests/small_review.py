"""A small result with its report, and a server for it in a thread."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import uvicorn
from small_result import small_result

from tumoar.report import render, report_data
from tumoar.result.folder import Options, write_result
from tumoar.web.server import bind


def write_small(out, notes=()):
    """The small result, with its report."""
    result = small_result()
    manifest = {"reference": "T1c", "version": "0.0.1"}
    page = lambda written: render(report_data(result, list(notes), {**manifest, **written}))  # noqa: E731
    write_result(out, result, list(notes), manifest, Options(), page, [])
    return out


@contextmanager
def served(make):
    """Address of an application that `make(token, port)` builds, while it is served."""
    token, listening = "secret", bind(0)
    port = listening.getsockname()[1]
    listening.listen()
    config = uvicorn.Config(
        make(token, port), log_level="critical", ws="none", timeout_graceful_shutdown=1, lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/#token={token}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
