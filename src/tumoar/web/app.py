"""What is served: one review, or a work folder with results and cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tumoar.vocabulary.errors import UsageError
from tumoar.web.places import identify
from tumoar.web.reviews import Review, Reviews
from tumoar.web.routes import review_routes
from tumoar.web.server import ADDRESS, bind, build, new_token, serve

Announce = Callable[[str], None]


def review_app(folder: Path, series: Path | None, token: str, port: int) -> Starlette:
    """One review; an unusable result is refused at once."""
    review, reviews, key = Review(folder, series), Reviews(), identify(folder)

    def find(wanted: str) -> Review:
        if wanted != key:
            raise UsageError("review", "no such result", do="start with `tumoar review` and its folder")
        return reviews.get(key, lambda: review)

    async def about(request: Request) -> Response:
        return JSONResponse({"app": False, "review": key})

    routes = [Route("/api", about), *review_routes(find)]
    return build(routes, token, port, close=reviews.close)


def serve_review(folder: Path, series: Path | None, port: int, announce: Announce) -> None:
    """Serve one review until a signal asks to stop."""
    listening, token = bind(port), new_token()
    with listening:
        port = listening.getsockname()[1]
        app = review_app(folder, series, token, port)
        listening.listen()
        announce(f"http://{ADDRESS}:{port}/#token={token}")
        serve(app, listening)
