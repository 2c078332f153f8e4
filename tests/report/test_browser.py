"""The report in a real browser: it draws, its controls work, it is silent, and it asks for nothing."""

from __future__ import annotations

import re
import shutil
import time
from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import ndimage as ndi
from small_result import small_result

from tumoar.report import add_targets, render, report_data
from tumoar.report.volumes import center
from tumoar.vocabulary.case_name import CaseName
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_structure_goes_and_comes_back(visit):
    before = visit.slices()
    visit.page.get_by_label("edema", exact=True).uncheck()
    visit.becomes(lambda pixels: colorful(pixels) < colorful(before))
    visit.page.get_by_label("edema", exact=True).check()
    visit.becomes(lambda pixels: not differ(pixels, before))


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def with_margins(tmp_path_factory):
    result = small_result()
    masks = [ndi.binary_dilation(result.mask("GTV"), iterations=n) for n in (5, 9)]
    rows = [{"name": n, "outlined_cm3": m.sum() / 1000, "how": n} for n, m in zip(("CTV", "PTV"), masks)]
    notes = [Note("B37", "NOT SEEN", where=name) for name in ("Eye_L", "Eye_R")]
    data = report_data(result, notes, {}, case_name=CaseName("Phantom 7", "2026-11-18"))
    path = tmp_path_factory.mktemp("margins") / "report.html"
    path.write_text(render(add_targets(data, rows, masks, "#00ff00")), encoding="utf-8")
    return path.as_uri()


def green(visit):
    """Number of pixels of the canvas over the slices in the color of the margins."""
    script = """() => {
      const over = document.getElementById("over");
      const bytes = over.getContext("2d").getImageData(0, 0, over.width, over.height).data;
      let count = 0;
      for (let i = 0; i < bytes.length; i += 4) count += bytes[i + 1] > 200 && bytes[i] < 60;
      return count;
    }"""
    before, found = -1, visit.page.evaluate(script)
    while found != before:  # until the page has its size
        visit.page.wait_for_timeout(500)
        before, found = found, visit.page.evaluate(script)
    return found


@pytest.mark.slow
def test_margins_are_lines_that_go_and_come_back(browse, with_margins):
    visit = Visit(browse(SOFTWARE_GL), with_margins)
    visit.page.wait_for_function("document.getElementById('over').width > 300")
    green(visit)  # once pixels are read, the browser draws without the GPU, with other edges
    visit.page.locator("#opacity").fill("0.6")  # draws again, as every control does
    both = green(visit)
    assert both > 100
    visit.page.locator("#lines label", has_text="CTV").locator("input").uncheck()
    without = green(visit)
    assert 0 < without < both
    visit.page.locator("#lines label", has_text="PTV").locator("input").uncheck()
    assert green(visit) == 0
    for name in ("CTV", "PTV"):
        visit.page.locator("#lines label", has_text=name).locator("input").check()
    assert green(visit) == both
    assert [text for text in visit.said if "getImageData" not in text] == []  # the test's own reading


@pytest.mark.slow
def test_the_bar_shows_the_scale_of_the_map(browse, with_margins):
    visit = Visit(browse(SOFTWARE_GL), with_margins)
    assert visit.page.is_hidden("#bar")
    visit.page.select_option("#map", label="entropy")
    visit.page.wait_for_selector("#bar", state="visible")
    top = small_result().entropy().max()
    assert visit.page.inner_text("#bar-top") == f"{top:.2f}"
    visit.page.select_option("#map", label="P(GTV)")
    visit.page.wait_for_function("document.getElementById('bar-name').textContent === 'P(GTV)'")
    assert visit.page.inner_text("#bar-top") == "1"


@pytest.mark.slow
def test_the_page_fits_a_phone_and_a4(browse, with_margins):
    """Nothing is wider than the screen; on paper, no table is wider than the page."""
    visit = Visit(browse(SOFTWARE_GL), with_margins)
    visit.page.set_viewport_size({"width": 390, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.emulate_media(media="print")
    visit.page.set_viewport_size({"width": 703, "height": 1000})  # A4 without margins, at 96 pixels per inch
    wide = (
        "[...document.querySelectorAll('table, figure')].filter(e => e.getBoundingClientRect().right > 703.5)"
    )
    assert visit.page.evaluate(f"{wide}.length") == 0
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 703
    pdf = visit.page.pdf(prefer_css_page_size=True)
    assert re.search(rb"/MediaBox \[0 0 59[45][.\d]* 84[12][.\d]*\]", pdf), "A4 in points"
