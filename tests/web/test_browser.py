"""The review in a real browser: strokes land where they were painted, and nothing leaves the machine."""

from __future__ import annotations

import shutil
import time
from base64 import b64decode
from contextlib import ExitStack
from io import BytesIO
from threading import Event

import numpy as np
import pytest
from matplotlib.image import imread
from small_review import served, write_small, write_spot
from starlette.responses import JSONResponse
from starlette.routing import Route

from tumoar.geometry.image import Grid, Image
from tumoar.io.manifest import digest_files
from tumoar.review.again import CancelledError
from tumoar.review.session import Session
from tumoar.simulate.orders import ORDERS, stored
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


GRAB = """() => {
  const from = document.getElementById("slices"), to = document.createElement("canvas");
  [to.width, to.height] = [from.clientWidth, from.clientHeight];
  to.getContext("2d").drawImage(from, 0, 0, to.width, to.height);
  return to.toDataURL();
}"""


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
                "([name, value]) => document.querySelector(`input[name=${name}][value='${value}']`).click()",
                [name, value],
            )

    def brush(self, mm):
        self.page.evaluate(
            "mm => { radius.value = mm; radius.dispatchEvent(new Event('input')); }",
            mm,
        )

    def stage(self):
        return self.page.locator("#above").bounding_box()

    def image(self):
        """What the viewer has drawn below the outlines, as gray values, one for each pixel of the page."""
        url = self.page.evaluate(GRAB)
        return imread(BytesIO(b64decode(url.partition(",")[2])), format="png")[..., 0]

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


# ---- where strokes land ------------------------------------------------------------------------------------


def oblique():
    a, b = 0.35, -0.25
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    turn = turn @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([1.5, 1.0, 2.5])
    affine[:3, 3] = 10, -20, 30
    return Grid(SHAPE, affine)


def brightest(image):
    """Center of the bright spot."""
    weights = np.where(image > 0.75 * image.max(), image, 0)
    y, x = np.indices(weights.shape)
    return (weights * x).sum() / weights.sum(), (weights * y).sum() / weights.sum()


@pytest.mark.parametrize(
    "orders", [pytest.param(ORDERS[::13], id="some"), pytest.param(ORDERS, id="all", marks=pytest.mark.slow)]
)
def test_a_stroke_lands_in_the_bright_voxel_for_all_48_storage_orders(browser, template, tmp_path, orders):
    """The user sees a bright spot and paints it; the known voxel of the stored image is in the record."""
    canonical, reviews, wanted = oblique(), {}, {}
    rng = np.random.default_rng(0)
    for number, order in enumerate(orders):
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
            x, y = brightest(visit.image())
            visit.page.mouse.click(stage["x"] + x, stage["y"] + y)
            strokes(visit, 1)
            (stroke,) = Session.open(reviews[key].folder).strokes
            assert stroke.voxels.tolist() == [voxel.tolist()], (orders[number], plane)
            assert stroke.structure == "GTV"
            assert stroke.inside
        assert visit.said == []
        visit.page.close()


# ---- a review ----------------------------------------------------------------------------------------------


def masks(folder):
    session = Session.open(folder)
    return {name: session.mask(name) for name in session.names}


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in other)


def paint(visit, *, plane="axial", tool="brush", at=(0.5, 0.35)):
    visit.choose(layout=plane, tool=tool)
    stage = visit.stage()
    visit.page.mouse.move(stage["x"] + at[0] * stage["width"], stage["y"] + at[1] * stage["height"])
    visit.page.mouse.down()
    visit.page.mouse.move(stage["x"] + (at[0] + 0.04) * stage["width"], stage["y"] + at[1] * stage["height"])
    visit.page.mouse.up()


def strokes(visit, count):
    visit.wait("([n]) => document.querySelectorAll('#strokes li').length === n", count)


@pytest.mark.slow
def test_undo_restores_the_bits_and_the_automatic_result_is_never_touched(visit, folder):
    automatic, before = digest_files(folder), masks(folder)
    paint(visit)
    strokes(visit, 1)
    painted = masks(folder)
    assert painted["GTV"].sum() > before["GTV"].sum()
    assert (painted["GTV"] & before["GTV"]).sum() == before["GTV"].sum()
    paint(visit, tool="eraser", at=(0.3, 0.5))
    strokes(visit, 2)
    visit.press("Control+z")
    strokes(visit, 1)
    assert same(masks(folder), painted)
    visit.page.click("#undo")
    strokes(visit, 0)
    assert same(masks(folder), before)
    visit.press("Control+Shift+z")
    strokes(visit, 1)
    assert same(masks(folder), painted)
    now = digest_files(folder)
    assert {name: now[name] for name in automatic} == automatic
    assert visit.said == []


@pytest.mark.slow
def test_letters_of_the_sides_agree_with_what_is_painted_there(visit, folder):
    """R on the left of the screen: what is painted beside it lies to the patient's right, at higher x."""
    places = {"axial": (0, 1), "coronal": (0, 2), "sagittal": (1, 2)}
    letters = {"R": (0, 1), "L": (0, 0), "A": (1, 1), "P": (1, 0), "S": (2, 1), "I": (2, 0)}
    expected = {"axial": "RLAP", "coronal": "RLSI", "sagittal": "APSI"}
    for plane in places:
        ends = []
        for at in ((0.4, 0.5), (0.6, 0.5), (0.5, 0.4), (0.5, 0.6)):  # left, right, top, bottom
            paint(visit, plane=plane, at=at)
            count = 4 * list(places).index(plane) + len(ends) + 1
            strokes(visit, count)
            ends.append(Session.open(folder).strokes[-1].voxels.mean(0))
        shown = visit.page.get_attribute("#above", f"data-{plane}")
        assert shown == expected[plane]
        for (low, high), pair in (((ends[0], ends[1]), shown[:2]), ((ends[2], ends[3]), shown[2:])):
            axis, is_high = letters[pair[0]]
            assert letters[pair[1]] == (axis, 1 - is_high)
            assert (low[axis] > high[axis]) == bool(is_high), (plane, pair)


@pytest.mark.slow
def test_two_tabs_lose_no_stroke(visit, folder, browser):
    other = Visit(browser.new_page(viewport={"width": 900, "height": 700}), visit.address).ready()
    paint(visit)
    paint(other, at=(0.6, 0.6))
    for tab in (visit, other):
        strokes(tab, 2)
    assert len(Session.open(folder).strokes) == 2
    volume = "tr.active td:nth-child(3)"
    assert visit.page.inner_text(volume) == other.page.inner_text(volume)
    other.page.close()


@pytest.mark.slow
def test_fill_between_slices_and_painting_with_the_keyboard(visit, folder):
    visit.page.get_by_role("button", name="Edema").click()
    visit.choose(layout="axial")
    visit.press("b")
    visit.press("Enter")
    strokes(visit, 1)
    for _ in range(4):
        visit.press("PageUp")
    visit.press("Enter")
    strokes(visit, 2)
    visit.press("i")
    strokes(visit, 3)
    one, other, between = Session.open(folder).strokes
    assert sorted(set(between.voxels[:, 2])) == [z + one.voxels[0, 2] for z in (1, 2, 3)]
    assert between.structure == "Edema"
    for z in set(between.voxels[:, 2]):  # the brush is the same in both, and so between them
        at = between.voxels[between.voxels[:, 2] == z][:, :2]
        assert np.array_equal(np.unique(at, axis=0), np.unique(other.voxels[:, :2], axis=0))


@pytest.mark.slow
def test_fill_encloses_and_a_click_cuts_out_a_piece(visit, folder):
    visit.choose(layout="axial", tool="fill")
    stage = visit.stage()
    corners = [(0.4, 0.3), (0.6, 0.3), (0.6, 0.45), (0.4, 0.45), (0.4, 0.31)]
    to = [(stage["x"] + x * stage["width"], stage["y"] + y * stage["height"]) for x, y in corners]
    visit.page.mouse.move(*to[0])
    visit.page.mouse.down()
    for x, y in to[1:]:
        visit.page.mouse.move(x, y, steps=3)
    visit.page.mouse.up()
    strokes(visit, 1)
    (stroke,) = Session.open(folder).strokes
    spread = np.ptp(stroke.voxels, axis=0) + 1
    assert spread[2] == 1
    assert len(stroke.voxels) > 0.85 * spread[0] * spread[1]  # nearly a rectangle
    visit.choose(tool="cut")
    visit.page.mouse.click(stage["x"] + 0.5 * stage["width"], stage["y"] + 0.35 * stage["height"])
    strokes(visit, 2)
    at = tuple(stroke.voxels.T)
    assert not Session.open(folder).mask("GTV")[at].any()


@pytest.mark.slow
def test_a_contour_replaces_the_outline_in_its_slice_and_undo_brings_it_back(visit, folder):
    before = masks(folder)["GTV"]
    visit.choose(layout="coronal", tool="contour")
    stage = visit.stage()
    center = np.array([stage["x"] + 0.5 * stage["width"], stage["y"] + 0.5 * stage["height"]])
    turns = np.linspace(0, 2 * np.pi, 30)
    ring = center + 0.04 * stage["height"] * np.stack([np.cos(turns), np.sin(turns)], 1)
    visit.page.mouse.move(*ring[0])
    visit.page.mouse.down()
    for x, y in ring[1:]:
        visit.page.mouse.move(x, y)
    visit.page.mouse.up()
    strokes(visit, 1)
    assert "contour GTV" in visit.page.text_content("#strokes")
    inside, outside = Session.open(folder).strokes
    assert len(set(inside.voxels[:, 1]) | set(outside.voxels[:, 1])) == 1
    after = masks(folder)["GTV"]
    expected = before.copy()  # pieces in the slice that the contour does not meet stay
    expected[tuple(outside.voxels.T)] = False
    expected[tuple(inside.voxels.T)] = True
    assert np.array_equal(after, expected)
    assert not np.array_equal(after, before)
    width, height = np.ptp(inside.voxels[:, [0, 2]], axis=0) + 1
    assert len(inside.voxels) == pytest.approx(np.pi / 4 * width * height, rel=0.15)
    visit.press("Control+z")
    strokes(visit, 0)
    assert np.array_equal(masks(folder)["GTV"], before)
    assert visit.said == []


@pytest.mark.slow
def test_approve_says_who_and_a_change_takes_it_back(visit, folder):
    visit.page.fill("#initials", "ABC")
    visit.page.fill("#comment", "<b>looks right</b>")
    visit.page.click("text=Approve outlines")
    visit.wait("() => document.getElementById('approved').textContent.includes('ABC')")
    assert "<b>looks right</b>" in visit.page.inner_text("#approved")
    assert Session.open(folder).approved["who"] == "ABC"
    visit.page.click("#export")
    visit.wait("() => document.getElementById('exported').textContent.startsWith('Written')")
    assert (folder.parent / "case-reviewed" / "structures" / "GTV.nii.gz").is_file()
    paint(visit)
    strokes(visit, 1)
    visit.wait("() => document.getElementById('approved').textContent === ''")
    assert Session.open(folder).approved is None
    assert Session.open(folder).strokes[0].who == "ABC"


@pytest.mark.slow
def test_a_sampling_goes_on_over_a_reload_and_can_be_stopped(visit, folder, monkeypatch):
    running, let_go = Event(), Event()

    def slow(self, progress, cancelled):
        progress(0.4)
        running.set()
        while not cancelled() and not let_go.is_set():
            time.sleep(0.02)
        if cancelled():
            raise CancelledError("review", "cancelled")
        return ("GTV",)

    monkeypatch.setattr(Session, "why_not", "")
    monkeypatch.setattr(Session, "sample_again", slow)
    paint(visit)
    strokes(visit, 1)
    visit.page.click("#sample")
    assert running.wait(PATIENCE)
    visit.wait("() => document.getElementById('sampling').textContent.includes('elapsed')")
    visit.page.reload()
    visit.ready()
    visit.wait("() => document.getElementById('sampling').textContent.includes('left')")
    assert visit.page.is_disabled("#sample")
    assert visit.page.input_value("#initials") is not None
    strokes(visit, 1)
    let_go.set()
    visit.wait("() => document.getElementById('sampling').textContent.includes('GTV changed')")
    running.clear()
    let_go.clear()
    visit.page.click("#sample")
    assert running.wait(PATIENCE)
    visit.page.click("#stop")
    visit.wait("() => document.getElementById('sampling').textContent.includes('Stopped')")


@pytest.mark.slow
def test_the_token_leaves_the_address_and_nothing_leaves_the_machine(visit):
    page = visit.page
    assert "token" not in page.url
    assert page.evaluate("history.length") <= 2  # the empty page and ours
    for layout in ("planes", "3d", "axial"):
        visit.choose(layout=layout)
    page.select_option("#chance", "map GTV")
    page.select_option("#window", index=1)
    page.get_by_text("FLAIR", exact=True).click()
    visit.press("x")
    assert page.is_visible("#before-note")
    visit.press("x")
    page.click("#zoom-in")
    origin = visit.address.partition("#")[0]
    foreign = [url for url in visit.asked if not url.startswith((origin, "data:", "blob:"))]
    assert foreign == []
    assert not [url for url in visit.asked if "secret" in url]
    assert visit.said == []


def test_a_page_without_the_token_says_what_to_do(visit, browser):
    page = browser.new_context().new_page()
    page.goto(visit.address.partition("#")[0])
    page.wait_for_selector("#message:not([hidden])")
    assert "tumoar printed" in page.inner_text("#message")
    assert page.is_hidden("#review")


def test_a_phone_is_not_wider_than_its_screen(visit):
    visit.page.set_viewport_size({"width": 390, "height": 844})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "not a medical device" in visit.page.inner_text(".use")
