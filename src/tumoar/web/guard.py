"""What every request must show before it reaches a route: host, origin, token and a bounded body.

The server listens on the loopback address, where any user of the machine and any page in the user's browser
can reach it. So a request must name this server (a foreign name that resolves to 127.0.0.1 is refused), must
not come from a page of another origin, and must carry the token, which only the user's own browser was given.
The page keeps the token in the storage of its tab and sends it as a header: there is no cookie that a page
on another port of this machine could make the browser send.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY = 16 * 1024**2
"""Bytes of a request, except uploads, which have their own limit."""
OPEN = ("/", "/static/")
"""Paths without the token: the empty page and its scripts, which contain nothing about a patient."""
UPLOADS = "/api/uploads/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self' data: blob:; font-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class TooLargeError(Exception):
    """A body exceeds its limit."""


class Guard:
    """Refuses requests with a foreign host or origin, without the token, or with a body that is too large."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, most_upload: int) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self.most_upload = most_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        most = self.most_upload if path.startswith(UPLOADS) else MOST_BODY
        refusal = self._refusal(path, headers) or _size_refusal(headers, most)
        if refusal is not None:
            await _answer(*refusal)(scope, receive, _with_headers(send))
            return
        started = False

        async def told(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, _limited(receive, most), _with_headers(told))
        except TooLargeError:
            if not started:
                await _answer(413, "the request is too large")(scope, receive, _with_headers(send))

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts or len(headers.getlist("host")) != 1:
            return 421, "this server answers only to 127.0.0.1"
        if origin is not None and origin != f"http://{host}":
            return 403, "requests from another page are refused"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not _is_visit(headers):
            return 403, "requests from another page are refused"
        if path in OPEN or path.startswith(OPEN[1]):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or not hmac.compare_digest(given.encode("utf-8", "replace"), self.token):
            return 401, "open the address that tumoar printed: this page does not have its token"
        return None


def _is_visit(headers: Headers) -> bool:
    """Whether a browser opens the page itself, as from the file that `tumoar` opens."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _size_refusal(headers: Headers, most: int) -> tuple[int, str] | None:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and len(length) < 20):
        return 400, "the length of the request is not a number"
    return (413, "the request is too large") if int(length) > most else None


def _limited(receive: Receive, most: int) -> Receive:
    """Count what arrives: a request need not say its length, or may say a wrong one."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise TooLargeError
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def extended(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return extended


def _answer(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)
