"""Routes of a review: JSON, voxels as bytes, and a stream of changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tumoar.review.session import INITIALS
from tumoar.vocabulary.errors import BusyError, IntegrityError, TumoarError, UsageError
from tumoar.web.reviews import Review

POLL = 0.2  # seconds between looks for changes
SILENCE = 15.0  # seconds after which a stream says that it is still there

PAGE = files("tumoar.web").joinpath("page")
STATIC = {
    "review.js": "text/javascript",
    "app.js": "text/javascript",
    "talk.js": "text/javascript",
    "view.js": "text/javascript",
    "draw.js": "text/javascript",
    "main.js": "text/javascript",
    "page.css": "text/css",
}
"""Files that are served without the token; nothing else is read for an address."""

B = TypeVar("B", bound="Body")
Find = Callable[[str], Review]


Runs = Annotated[list[Annotated[int, Field(ge=0, le=2**40)]], Field(max_length=2_000_000)]
Initials = Annotated[str, Field(pattern=rf"^({INITIALS.pattern})?$")]


class Body(BaseModel):
    """Body of a request; unknown members are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class PaintBody(Body):
    """A stroke: runs of voxels (start, length, …) in the order of the page."""

    structure: Annotated[str, Field(max_length=64)]
    inside: bool
    runs: Runs
    who: Initials = ""


class ContourBody(Body):
    """A contour: what is inside of it in one slice, as runs of voxels."""

    structure: Annotated[str, Field(max_length=64)]
    runs: Runs
    axis: Annotated[int, Field(ge=0, le=2)]
    who: Initials = ""


class BetweenBody(Body):
    """Fill the slices between the last two strokes."""

    structure: Annotated[str, Field(max_length=64)]
    who: Initials = ""


class ApproveBody(Body):
    """Approval."""

    initials: Annotated[str, Field(max_length=64)]
    comment: Annotated[str, Field(max_length=4000)] = ""
    revision: Annotated[int, Field(ge=0)] | None = None


async def read_body(request: Request, kind: type[B]) -> B:
    """Body of a request, checked."""
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError("review", "the request is not valid", found=f"{where}: {first['msg']}") from error


def refuse(request: Request, error: Exception) -> Response:
    """A refusal as JSON: what is wrong and what to do, without the name of a folder."""
    assert isinstance(error, TumoarError)
    status = 409 if isinstance(error, BusyError) else 422
    text = error.what + (f" ({error.found})" if error.found else "")
    return JSONResponse({"error": text, "do": error.do or "", "id": error.id}, status)


async def serve_static(request: Request) -> Response:
    """A script or style of the page."""
    from tumoar.report.page import VIEWER

    name = request.path_params["name"]
    if name == "niivue.js":
        packed = files("tumoar").joinpath("data", "vendor", VIEWER).read_bytes()
        return Response(packed, media_type="text/javascript", headers={"Content-Encoding": "gzip"})
    if name not in STATIC:
        return JSONResponse({"error": "no such file"}, 404)
    return Response(PAGE.joinpath(name).read_bytes(), media_type=STATIC[name])


async def serve_page(request: Request) -> Response:
    """The page, which contains no data."""
    return Response(PAGE.joinpath("page.html").read_bytes(), media_type="text/html")


def review_routes(find: Find) -> list[Route]:
    """Routes of the reviews that `find` opens by their identifiers.

    A page that is open adds the digest of its result: it is refused if another result took the place.
    """

    def review_of(request: Request) -> Review:
        key, _, result = request.path_params["key"].partition("-")
        review = find(key)
        if result and review.session.identity != result:
            raise IntegrityError("review", "the result was replaced by another one", do="reload the page")
        return review

    def answer(work: Callable[[Review], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            found = await run_in_threadpool(lambda: work(review_of(request)))
            return JSONResponse({} if found is None else found)

        return respond

    def voxels(work: Callable[[Review, Request], bytes]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            found = await run_in_threadpool(lambda: work(review_of(request), request))
            return Response(found, media_type="application/octet-stream")

        return respond

    def change(work: Callable[[Review], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Do something, then answer with the new state."""
        return answer(lambda review: (work(review), review.state())[1])

    async def paint(request: Request) -> Response:
        body = await read_body(request, PaintBody)
        return await change(lambda r: r.paint(body.structure, body.inside, body.runs, body.who))(request)

    async def draw(request: Request) -> Response:
        body = await read_body(request, ContourBody)
        return await change(lambda r: r.draw(body.structure, body.runs, body.axis, body.who))(request)

    async def between(request: Request) -> Response:
        body = await read_body(request, BetweenBody)
        return await change(lambda r: r.fill_between(body.structure, body.who))(request)

    async def approve(request: Request) -> Response:
        body = await read_body(request, ApproveBody)
        return await change(lambda r: r.approve(body.initials, body.comment, body.revision))(request)

    async def events(request: Request) -> Response:
        review = await run_in_threadpool(review_of, request)
        return stream(review.stamp, review.state)

    def name(request: Request) -> str:
        return str(request.path_params["name"])

    routes: Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = (
        ("GET", "", answer(lambda r: {**r.describe(), "state": r.state()})),
        ("GET", "/state", answer(Review.state)),
        ("GET", "/contrasts/{number:int}", voxels(lambda r, q: r.contrast(q.path_params["number"]))),
        ("GET", "/masks/{name}", voxels(lambda r, q: r.mask(name(q)))),
        ("GET", "/automatic/{name}", voxels(lambda r, q: r.mask(name(q), automatic=True))),
        ("GET", "/probabilities/{name}", voxels(lambda r, q: r.probability(name(q)))),
        ("GET", "/predicted/{name}", voxels(lambda r, q: r.probability(name(q), predicted=True))),
        ("GET", "/events", events),
        ("POST", "/strokes", paint),
        ("POST", "/contours", draw),
        ("POST", "/between", between),
        ("POST", "/undo", change(lambda r: r.session.undo())),
        ("POST", "/redo", change(lambda r: r.session.redo())),
        ("POST", "/sample", change(Review.sample)),
        ("POST", "/stop", change(Review.stop)),
        ("POST", "/approve", approve),
        ("POST", "/export", answer(lambda r: {"files": r.export()})),
    )
    prefix = "/api/reviews/{key}"
    return [Route(prefix + path, endpoint, methods=[method]) for method, path, endpoint in routes]


def stream(stamp: Callable[[], object], state: Callable[[], Any], poll: float = POLL) -> StreamingResponse:
    """Server-sent events: the state now, and whenever `stamp` differs."""

    async def events() -> AsyncIterator[str]:
        last: object = None
        silent = 0.0
        while True:
            now = await run_in_threadpool(stamp)
            if now != last:
                last, silent = now, 0.0
                yield f"data: {json.dumps(await run_in_threadpool(state))}\n\n"
            elif silent >= SILENCE:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(poll)
            silent += poll

    return StreamingResponse(events(), media_type="text/event-stream")
