"""Routes of the list of results and of new cases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tumoar.io.files import read_text
from tumoar.io.manifest import MANIFEST
from tumoar.io.manifest_schema import RESULT, parse
from tumoar.io.record import Record
from tumoar.review.history import read_history
from tumoar.review.session import RECORD
from tumoar.vocabulary.errors import TumoarError, UsageError
from tumoar.web.cases import Cases
from tumoar.web.findings import Inspector
from tumoar.web.places import Places, identify
from tumoar.web.reviews import Review, Reviews
from tumoar.web.routes import Body, read_body, review_routes, stream
from tumoar.web.uploads import Uploads, receive

Endpoint = Callable[[Request], Awaitable[Response]]
Name = Annotated[str, Field(max_length=4096)]


class InspectBody(Body):
    """A chosen folder with a name below it, or an upload."""

    number: int = 0
    name: Name = ""
    upload: Annotated[str, Field(max_length=64)] = ""


class ChosenImage(Body):
    """A row of what was found, and its contrast."""

    row: int
    contrast: Annotated[str, Field(max_length=32)]


class StartBody(Body):
    """A new case."""

    name: Annotated[str, Field(max_length=64)]
    found: Annotated[str, Field(max_length=64)]
    images: Annotated[list[ChosenImage], Field(max_length=64)]
    options: Annotated[dict[str, bool], Field(default_factory=dict)]


def describe_result(folder: Path) -> dict[str, Any]:
    """A row of the list; the files are checked only when the result is opened."""
    row: dict[str, Any] = {"key": identify(folder), "name": folder.name}
    try:
        manifest = parse(read_text(folder / MANIFEST, "the manifest"), folder)
        if manifest["format"] != f"tumoar {RESULT}":
            return {}
        approval = read_history(Record(folder, RECORD).read()).approval
        state = "approved" if approval else "OK" if manifest["status"] == "OK" else "needs review"
    except TumoarError as refusal:
        return {**row, "state": "damaged", "reason": refusal.what}
    volumes = {v["name"]: v["outlined_cm3"] for v in manifest.get("volumes", ())}
    return {
        **row,
        "state": state,
        "stamps": list(manifest.get("stamps", ())),
        "contrasts": [given["contrast"] for given in manifest.get("inputs", ())],
        "gtv": volumes.get("GTV"),
        "when": (folder / MANIFEST).stat().st_mtime,
    }


def app_routes(places: Places, cases: Cases, reviews: Reviews, uploads: Uploads) -> list[Route]:
    """Everything that `tumoar app` serves, reviews included."""
    inspector = Inspector()

    def find(key: str) -> Review:
        folder = next((path for path in places.results() if identify(path) == key), None)
        if folder is None:
            raise UsageError("review", "no such result", do="choose one from the list")
        return reviews.get(key, lambda: Review(folder, cases.series(folder)))

    def state() -> dict[str, Any]:
        return {
            "cases": [row for row in cases.describe() if row["state"] != "done"],
            "results": [row for row in map(describe_result, places.results()) if row],
        }

    def answer(work: Callable[[Request], Any]) -> Endpoint:
        async def respond(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(work, request) or {})

        return respond

    async def begin_upload(request: Request) -> Response:
        return JSONResponse({"upload": await run_in_threadpool(uploads.begin)})

    async def upload(request: Request) -> Response:
        place = uploads.get(request.path_params["upload"])
        await receive(place, request.query_params.get("name", ""), request.stream())
        return JSONResponse({"files": len(place.names)})

    async def inspect(request: Request) -> Response:
        body = await read_body(request, InspectBody)
        if body.upload:
            sent = uploads.get(body.upload)
            folder, names = sent.folder, sent.names
        else:
            folder, names = await run_in_threadpool(places.find, body.number, body.name), {}
        return JSONResponse(await run_in_threadpool(inspector.inspect, folder, names))

    async def start(request: Request) -> Response:
        body = await read_body(request, StartBody)
        images = inspector.images(body.found, {image.row: image.contrast for image in body.images})
        name = await run_in_threadpool(cases.start, body.name, images, body.options)
        return JSONResponse({"name": name})

    async def events(request: Request) -> Response:
        return stream(state, state, 1.0)

    def about(request: Request) -> dict[str, Any]:
        return {"app": True, "review": None, "folders": [root.name or "/" for root in places.roots]}

    def entries(request: Request) -> dict[str, Any]:
        number = request.query_params.get("number", "0")
        if not number.isdecimal():
            raise UsageError("folder", "no such folder", do="choose one from the list")
        found = places.entries(int(number), request.query_params.get("name", ""))
        return {"entries": [{"name": entry.name, "folder": entry.is_folder} for entry in found]}

    async def live(request: Request) -> Response:
        picture = await run_in_threadpool(cases.live, request.path_params["name"])
        if picture is None:
            return JSONResponse({"error": "no picture yet"}, 404)
        return Response(picture, media_type="image/png")

    case = "/api/cases/{name}"
    return [
        Route("/api", answer(about)),
        Route("/api/list", answer(lambda request: state())),
        Route("/api/events", events),
        Route("/api/folders", answer(entries)),
        Route("/api/uploads", begin_upload, methods=["POST"]),
        Route("/api/uploads/{upload}", upload, methods=["PUT"]),
        Route("/api/inspect", inspect, methods=["POST"]),
        Route("/api/cases", start, methods=["POST"]),
        Route(f"{case}/live", live),
        Route(f"{case}/stop", answer(lambda q: cases.cancel(q.path_params["name"])), methods=["POST"]),
        Route(f"{case}/resume", answer(lambda q: cases.resume(q.path_params["name"])), methods=["POST"]),
        *review_routes(find),
    ]
