"""New cases in a real browser: choose files, correct what they are taken for, start, watch, continue."""

from __future__ import annotations

import shutil
import sys

import fake_segment
import numpy as np
import pytest
from small_review import served

from tumoar.web.app import work_app

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: chromium is not installed")
PATIENCE = 120_000  # ms: machines that test may be busy
COMMAND = (sys.executable, fake_segment.__file__)


@pytest.fixture
def page():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 1280, "height": 900})
        found.set_default_timeout(PATIENCE)
        yield found
        browser.close()


def write_nifti(path):
    import nibabel as nib

    nib.save(nib.Nifti1Image(np.random.default_rng(0).normal(100, 20, (64, 64, 64)), np.eye(4)), path)
    return path


@pytest.mark.slow
def test_a_case_from_files_to_its_result(page, tmp_path):
    files = [write_nifti(tmp_path / name) for name in ("Doe_T1c.nii.gz", "scan.nii.gz")]
    work, said, asked = tmp_path / "work", [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    make = lambda token, port: work_app(work, [], token, port, threads=1, command=COMMAND)  # noqa: E731
    with served(make) as address:
        page.goto(address)
        page.locator("input[type=file]").first.set_input_files(files)
        known, unknown = (page.get_by_label(f"contrast of {path.name}") for path in files)
        known.wait_for()
        assert (known.input_value(), unknown.input_value()) == ("T1c", "")
        unknown.select_option("FLAIR")
        (sent,) = (work / ".uploads").iterdir()
        (sent / "000001.nii.gz").write_text("hang")  # what the stand-in for a segmentation reads
        page.get_by_placeholder("study-01").fill("01")
        page.get_by_role("button", name="Start", exact=True).click()
        page.locator(".stages .now", has_text="fitting").wait_for()
        assert page.locator(".case .quiet").first.inner_text() == "T1c, FLAIR"

        folder = work / "results" / ".sub-01.checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        picture = bytes.fromhex(
            "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
            "0000000a49444154789c6360000000020001e527dea20000000049454e44ae426082"
        )
        (folder / "live.png").write_bytes(picture)
        page.locator(".case img.live").wait_for()

        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Continue").wait_for()
        (sent / "000001.nii.gz").write_text("good")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("link", name="sub-01").wait_for()
        for status, count in (("approved", 0), ("OK", 1), ("needs review", 0), ("all", 1)):
            page.get_by_text(status, exact=True).first.click()
            page.wait_for_function(
                "n => document.querySelectorAll('[data-part=results] tbody tr').length === n", arg=count
            )
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    origin = address.partition("#")[0]
    assert [url for url in asked if not url.startswith((origin, "data:", "blob:"))] == []
    assert said == []
