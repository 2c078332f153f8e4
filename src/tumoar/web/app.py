"""What is served: one review, or a work folder with results and cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tumoar.io.files import absolute
from tumoar.io.lock import lock_output
from tumoar.vocabulary.errors import UsageError, write_error
from tumoar.web.app_routes import app_routes
from tumoar.web.cases import Cases
from tumoar.web.places import Places, identify
from tumoar.web.reviews import Review, Reviews
from tumoar.web.routes import review_routes
from tumoar.web.server import ADDRESS, bind, build, new_token, serve
from tumoar.web.uploads import MOST_FILE, Uploads

Announce = Callable[[str], None]


def review_app(folder: Path, series: Path | None, token: str, port: int) -> Starlette:
    """One review; an unusable result is refused at once."""
    reviews, key = Reviews(), identify(folder)
    reviews.get(key, lambda: Review(folder, series))

    def find(wanted: str) -> Review:
        if wanted != key:
            raise UsageError("review", "no such result", do="start with `tumoar review` and its folder")
        return reviews.get(key, lambda: Review(folder, series))

    async def about(request: Request) -> Response:
        return JSONResponse({"app": False, "review": key})

    routes = [Route("/api", about), *review_routes(find)]
    return build(routes, token, port, close=reviews.close)


def work_app(
    work: Path,
    folders: Sequence[Path],
    token: str,
    port: int,
    *,
    threads: int | None = None,
    command: tuple[str, ...] = (),
) -> Starlette:
    """A work folder: its results, those of other chosen folders, and new cases."""
    try:
        work.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise write_error("cannot write the work folder", error, work) from error
    places, cases, reviews = Places.choose([work, *folders]), Cases(work, threads, command), Reviews()
    uploads = Uploads(work / ".uploads")

    def close() -> None:
        reviews.close()
        cases.close()

    return build(app_routes(places, cases, reviews, uploads), token, port, most_upload=MOST_FILE, close=close)


def serve_review(folder: Path, series: Path | None, port: int, announce: Announce) -> None:
    """Serve one review until a signal asks to stop."""
    _serve(lambda token, port: review_app(folder, series, token, port), port, announce)


def serve_work(
    work: Path, folders: Sequence[Path], port: int, announce: Announce, *, threads: int | None = None
) -> None:
    """Serve a work folder until a signal asks to stop; only one server may use it."""
    work = absolute(work)
    with lock_output(work):
        _serve(lambda token, port: work_app(work, folders, token, port, threads=threads), port, announce)


def _serve(make: Callable[[str, int], Starlette], port: int, announce: Announce) -> None:
    listening, token = bind(port), new_token()
    with listening:
        port = listening.getsockname()[1]
        app = make(token, port)
        announce(f"http://{ADDRESS}:{port}/#token={token}")
        serve(app, listening)
