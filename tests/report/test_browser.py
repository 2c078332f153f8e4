"""The report in a real browser: it draws, its controls work, it is silent, and it asks for nothing."""

from __future__ import annotations

import shutil
import time
from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread
from small_result import small_result

from tumoar.report import render, report_data
from tumoar.report.volumes import center
from tumoar.vocabulary.notes import Note

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium is not installed")
SOFTWARE_GL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
NO_GL = ["--disable-gpu", "--disable-3d-apis"]
PATIENCE = 120  # seconds: machines that test may be busy


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    data = report_data(small_result(), [Note("B40", "eyes cannot be seen")], {"version": "0.0.1"})
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(data), encoding="utf-8")
    return path.as_uri()


class Visit:
    """An open page, with what it said and what it asked for."""

    def __init__(self, page, address):
        self.page, self.said, self.asked = page, [], []
        page.set_default_timeout(1000 * PATIENCE)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#viewer:not([data-state=waiting])", state="attached")

    def slices(self):
        """(rows, columns, 3) what the viewer shows."""
        return imread(BytesIO(self.page.locator("#slices").screenshot()), format="png")[..., :3]

    def becomes(self, condition):
        """What the viewer shows once that meets a condition."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            shown = self.slices()
            if condition(shown):
                return shown
            time.sleep(0.1)
        raise AssertionError("the viewer never showed it")


@pytest.fixture(scope="module")
def browse():
    with playwright.sync_playwright() as driver:
        browsers = []

        def start(flags):
            browsers.append(driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *flags]))
            return browsers[-1].new_page(viewport={"width": 1200, "height": 900})

        yield start
        for browser in browsers:
            browser.close()


@pytest.fixture(scope="module")
def visit(browse, address):
    return Visit(browse(SOFTWARE_GL), address)


def colorful(pixels):
    """Number of pixels with a clear color: overlays and the crosshair, for the images are gray."""
    return int((np.ptp(pixels, axis=-1) > 0.1).sum())


def differ(a, b):
    return bool(np.abs(a - b).max() > 0.05)


def test_the_slices_are_drawn(visit):
    assert visit.page.get_attribute("#viewer", "data-state") == "ready"
    shown = visit.becomes(lambda pixels: (pixels.max(-1) > 0.5).mean() > 0.05)
    assert colorful(shown) > 100
    assert visit.page.is_hidden("#no-viewer")
    assert "core" in visit.page.inner_text("#where")


def test_labels_go_and_come_back(visit):
    with_labels = visit.slices()
    visit.page.uncheck("#show-labels")
    without = visit.becomes(lambda pixels: colorful(pixels) < colorful(with_labels) / 2)
    visit.page.check("#show-labels")
    visit.becomes(lambda pixels: not differ(pixels, with_labels))
    visit.page.locator("#opacity").fill("0")
    visit.becomes(lambda pixels: not differ(pixels, without))
    visit.page.locator("#opacity").fill("0.5")
    visit.becomes(lambda pixels: not differ(pixels, with_labels))


def test_one_structure_goes_and_comes_back(visit):
    before = visit.slices()
    visit.page.get_by_label("edema", exact=True).uncheck()
    visit.becomes(lambda pixels: colorful(pixels) < colorful(before))
    visit.page.get_by_label("edema", exact=True).check()
    visit.becomes(lambda pixels: not differ(pixels, before))


def test_contrasts_and_maps_change_what_is_shown(visit):
    first = visit.slices()
    visit.page.get_by_text("FLAIR", exact=True).first.click()
    second = visit.becomes(lambda pixels: differ(pixels, first))
    visit.page.select_option("#map", label="P(GTV)")
    visit.becomes(lambda pixels: differ(pixels, second))
    result = small_result()
    assert f"GTV {result.probability('GTV')[tuple(center(result))]:.2f}" in visit.page.inner_text("#where")
    visit.page.select_option("#map", label="entropy")
    visit.page.wait_for_function("document.getElementById('where').textContent.includes('entropy')")
    visit.page.select_option("#map", label="none")
    visit.becomes(lambda pixels: not differ(pixels, second))
    visit.page.get_by_text("T1c", exact=True).first.click()
    visit.becomes(lambda pixels: not differ(pixels, first))


def test_the_page_is_silent_and_asks_for_nothing(visit, address):
    assert visit.said == []
    assert [url for url in visit.asked if not url.startswith(("data:", "blob:"))] == [address]


def test_without_webgl_the_pictures_remain(browse, address):
    visit = Visit(browse(NO_GL), address)
    assert visit.page.get_attribute("#viewer", "data-state") == "absent"
    assert visit.page.is_visible("#no-viewer")
    assert visit.page.is_hidden("#slices")
    widths = visit.page.eval_on_selector_all("#pictures img", "images => images.map(i => i.naturalWidth)")
    assert widths == [96] * 6
    assert [text for text in visit.said if "WebGL" not in text] == []
