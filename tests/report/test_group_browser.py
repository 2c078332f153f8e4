"""The page of a cohort in a real browser: it shows, sorts and finds everybody, and asks for nothing."""

from __future__ import annotations

import shutil

import pytest

from tumoar.report.group import render_group
from tumoar.vocabulary.notes import Note

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium is not installed")


def row(number, gtv, state="done", flags=(), unusual=()):
    done = state == "done"
    return {
        "name": f"sub-{number:02}",
        "state": state,
        "status": ("NEEDS REVIEW" if flags else "OK") if done else "",
        "code": 0 if done else 5,
        "reason": "" if done else "E5-B23 no signal in T1c",
        "flags": [Note(flag, "look") for flag in flags],
        "unusual": [{"name": name, "cm3": 1.0, "median": 2.0} for name in unusual],
        "stamps": [],
        "contrasts": ["T1c"],
        "volumes": {"GTV": {"outlined_cm3": gtv}} if done else {},
        "pictures": [],
    }


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    rows = [row(1, 5.0), row(2, 9.0, flags=["B43"]), row(3, 7.0, unusual=["GTV"]), row(4, 0, "failed")]
    path = tmp_path_factory.mktemp("group") / "group.html"
    counts = {"done": 3, "failed": 1, "interrupted": 0, "not run": 0}
    path.write_text(render_group(rows, counts, "0.0.1"), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(120_000)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if "group.html" not in request.url else 0)
        page.goto(path.as_uri())
        yield page, said
        browser.close()


def shown(page):
    return page.eval_on_selector_all("article", "a => a.filter(e => e.offsetParent).map(e => e.id)")


def test_everybody_is_shown_sorted_filtered_and_found(visit):
    page, said = visit
    assert shown(page) == ["sub-01", "sub-02", "sub-03"]
    assert "E5-B23 no signal" in page.inner_text("#others")
    page.select_option("#order", "gtv")
    assert shown(page) == ["sub-02", "sub-03", "sub-01"]
    page.get_by_text("needs review", exact=True).click()
    assert shown(page) == ["sub-02"]
    assert page.inner_text("#shown") == "1 shown"
    page.get_by_text("unusual volume", exact=True).click()
    assert shown(page) == ["sub-03"]
    page.evaluate("location.hash = 'sub-01'")
    page.wait_for_function("!document.getElementById('sub-01').hidden")
    assert len(shown(page)) == 3
    page.fill("#name", "02")
    assert shown(page) == ["sub-02"]
    assert page.locator(".box circle").count() == 3
    assert page.locator(".box circle.odd").count() == 1
    assert said == []
