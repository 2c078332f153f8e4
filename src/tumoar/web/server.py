"""The server: one process on the loopback address, until Ctrl-C."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from tumoar.vocabulary.errors import TumoarError, UsageError
from tumoar.web.guard import Guard
from tumoar.web.routes import refuse, serve_page, serve_static

MOST_CONNECTIONS = 64
PATIENCE = 2  # seconds for open requests when the server ends
ADDRESS = "127.0.0.1"


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def build(
    routes: Sequence[Route],
    token: str,
    port: int,
    *,
    most_upload: int = 0,
    close: Callable[[], None] = lambda: None,
) -> Starlette:
    """The application: the page, its scripts, and routes behind the guard."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        close()

    app = Starlette(
        routes=[Route("/", serve_page), Route("/static/{name}", serve_static), *routes],
        middleware=[Middleware(Guard, token=token, port=port, most_upload=most_upload)],
        exception_handlers={TumoarError: refuse},
        lifespan=lifespan,
    )
    app.state.close = close
    return app


def bind(port: int) -> socket.socket:
    """Listen on a port of the loopback address; 0 chooses a free one."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen()  # at once: until then, another process may bind the same port
    except (OSError, OverflowError) as error:
        found.close()
        raise UsageError(
            "port", "cannot listen on this port", found=port, do="choose another --port, or omit it"
        ) from error
    return found


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serve until a signal asks to stop."""
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        app.state.close()  # again, harmlessly: a closed terminal ends the loop before the application


def open_browser(address: str) -> Path | None:
    """Open an address without showing it to other users of this machine; None without a browser.

    Command lines are visible to all users, so the browser gets the name of a file that only its owner can
    read, which leads to the address.
    """
    handle, name = tempfile.mkstemp(prefix="tumoar-", suffix=".html")  # readable by its owner alone
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}">\n'
        )
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    try:
        if webbrowser.open(path.as_uri()):
            return path
    except webbrowser.Error:
        pass
    return None
