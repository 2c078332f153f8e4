"""Voxels of strokes, as the page finds them."""

from __future__ import annotations

import shutil

import pytest
from small_review import served

from tumoar.web.server import build

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium is not installed")

COUNTS = """async () => {
  const { fillPath, flood } = await import("/static/draw.js");
  const size = [40, 40];
  const count = (bitmap) => bitmap && bitmap.reduce((sum, value) => sum + value, 0);
  const drawn = (path) => {
    const bitmap = new Uint8Array(1600);
    fillPath(bitmap, size, path);
    return count(bitmap);
  };
  const around = (turns) => Array.from({ length: Math.round(400 * turns) }, (_, i) => {
    const angle = (2 * Math.PI * i) / 400;
    return [20 + 12 * Math.cos(angle), 20 + 12 * Math.sin(angle)];
  });
  const edge = new Uint8Array(1600);
  for (let v = 0; v < 40; v++) edge[40 * v] = 1;
  return {
    paths: [1, 1.3, 2, 2.5].map((turns) => drawn(around(turns))),
    backwards: drawn(around(1.3).reverse()),
    piece: count(flood(edge, size, [0, 5])),
    hole: count(flood(edge, size, [5, 5])),
  };
}"""


@pytest.fixture(scope="module")
def counts():
    with (
        playwright.sync_playwright() as driver,
        served(lambda token, port: build([], token, port)) as address,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        found = page.evaluate(COUNTS)
        browser.close()
    return found


def test_a_path_that_goes_around_more_than_once_fills_what_is_inside(counts):
    assert counts["paths"] == [439] * 4  # voxels whose center lies in the circle
    assert counts["backwards"] == 439


def test_a_click_takes_a_piece_at_the_border_and_fills_no_open_hole(counts):
    assert counts["piece"] == 40
    assert counts["hole"] is None
