"""The review in a real browser: what is painted lands where it was painted, and nothing leaves the machine."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread
from small_review import served, write_small, write_spot
from starlette.responses import JSONResponse
from starlette.routing import Route
from storage_orders import ORDERS, stored

from tumoar.geometry.image import Grid, Image
from tumoar.io.manifest import digest_files
from tumoar.review.session import Session
from tumoar.web.app import review_app
from tumoar.web.places import identify
from tumoar.web.reviews import Review
from tumoar.web.routes import review_routes
from tumoar.web.server import build

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium is not installed")
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
PATIENCE = 120  # seconds: machines that test may be busy
SHAPE = (12, 14, 9)
READY = "#review[data-state=ready]"


class Visit:
    """An open page, with what it said and what it asked for."""

    def __init__(self, page, address):
        self.page, self.said, self.asked, self.address = page, [], [], address
        page.set_default_timeout(1000 * PATIENCE)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(address)

    def ready(self):
        self.page.wait_for_selector(READY)
        return self

    def choose(self, **values):
        """Choose radio buttons by their name and value."""
        for name, value in values.items():
            self.page.evaluate(
                "([name, value]) => document.querySelector(`input[name=${name}][value='${value}']`).click()", [name, value]
            )

    def brush(self, mm):
        self.page.evaluate(
            "mm => { const r = document.getElementById('radius'); r.value = mm; r.dispatchEvent(new Event('input')); }", mm
        )

    def stage(self):
        return self.page.locator("#above").bounding_box()

    def pixels(self):
        return imread(BytesIO(self.page.locator("#stage").screenshot()), format="png")[..., :3]

    def wait(self, script, *values):
        self.page.wait_for_function(script, arg=list(values))

    def press(self, keys):
        self.page.locator("#above").focus()
        self.page.keyboard.press(keys)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("web") / "template")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path / "case")
    return tmp_path / "case"


@pytest.fixture
def visit(browser, folder):
    with ExitStack() as stack:
        address = stack.enter_context(served(lambda token, port: review_app(folder, None, token, port)))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        stack.callback(page.close)
        yield Visit(page, address).ready()


def until(condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


# ---- where strokes land ------------------------------------------------------------------------------------


def oblique():
    a, b = 0.35, -0.25
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    turn = turn @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([1.5, 1.0, 2.5])
    affine[:3, 3] = 10, -20, 30
    return Grid(SHAPE, affine)


def brightest(pixels):
    """Center of the bright spot, in pixels of a screenshot: the image is gray, the letters are at the edge."""
    rows, columns = pixels.shape[:2]
    gray = pixels.min(-1) * (np.ptp(pixels, axis=-1) < 0.08)
    gray[: rows // 12], gray[-rows // 12 :], gray[:, : columns // 20], gray[:, -columns // 20 :] = 0, 0, 0, 0
    weights = np.where(gray > 0.75 * gray.max(), gray, 0)
    y, x = np.indices(weights.shape)
    return (weights * x).sum() / weights.sum(), (weights * y).sum() / weights.sum()


def test_a_stroke_lands_in_the_bright_voxel_for_all_48_storage_orders(browser, template, tmp_path):
    """The user sees a bright spot and paints it; the known voxel of the stored image is in the record."""
    canonical, reviews, wanted = oblique(), {}, {}
    rng = np.random.default_rng(0)
    for number, order in enumerate(ORDERS):
        spot = np.array([rng.integers(3, n - 3) for n in SHAPE])
        marked = np.zeros(SHAPE, np.uint8)
        marked[tuple(spot)] = 1
        image = stored(Image(marked, canonical), *order)
        voxel = np.argwhere(image.data)[0]
        out = write_spot(tmp_path / f"{number}", template, image.grid, voxel)
        reviews[identify(out)], wanted[identify(out)] = Review(out), (spot, voxel)

    async def about(request):
        return JSONResponse({"app": True, "review": next(iter(reviews)), "folders": []})

    make = lambda token, port: build([Route("/api", about), *review_routes(reviews.__getitem__)], token, port)  # noqa: E731
    with served(make) as address:
        visit = Visit(browser.new_page(viewport={"width": 400, "height": 500}), address).ready()
        for number, (key, (spot, voxel)) in enumerate(wanted.items()):
            if number:
                visit.page.evaluate("key => { location.hash = `#/review/${key}`; }", key)
                visit.wait("([key]) => document.getElementById('review').dataset.key === key", key)
                visit.ready()
            axis, plane = [(2, "axial"), (1, "coronal"), (0, "sagittal")][number % 3]
            visit.choose(layout=plane, tool="look")
            steps = int(spot[axis]) - SHAPE[axis] // 2  # the page begins in the middle
            for _ in range(abs(steps)):
                visit.press("PageUp" if steps > 0 else "PageDown")
            visit.choose(tool="brush")
            visit.brush(0.5)
            stage = visit.stage()
            x, y = brightest(visit.pixels())
            visit.page.mouse.click(stage["x"] + x, stage["y"] + y)
            until(lambda: reviews[key].session.strokes)
            (stroke,) = Session.open(reviews[key].folder).strokes
            assert stroke.voxels.tolist() == [voxel.tolist()], (ORDERS[number], plane)
            assert stroke.structure == "GTV"
            assert stroke.inside
        assert visit.said == []
        visit.page.close()
