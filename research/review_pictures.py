"""Pictures for docs/review.md from a simulated patient: two screens, and a stroke that is sampled again.

python research/review_pictures.py RESULT    # the folder that `tumoar demo` wrote, with its stored state
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from io import BytesIO
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from plots import model_of, stamp

from tumoar.web.app import review_app
from tumoar.web.server import bind, new_token

OUT = Path(__file__).resolve().parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
PATIENCE = 600_000  # ms
COLORS = 64


def main(result: Path) -> None:
    """Draw all pictures from a copy of the result."""
    with tempfile.TemporaryDirectory() as work:
        case = Path(work) / "simulated"
        shutil.copytree(result, case)
        shutil.rmtree(case / "review", ignore_errors=True)
        listening, token = bind(0), new_token()
        port = listening.getsockname()[1]
        listening.listen()
        config = uvicorn.Config(review_app(case, None, token, port), log_level="critical", ws="none")
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            address = f"http://127.0.0.1:{port}/#token={token}"
            page = open_page(browser.new_page(viewport={"width": 1280, "height": 860}), address)
            save(shoot(page), "review_1280.png")
            animate(page)
            page.close()
            page = open_page(browser.new_page(viewport={"width": 390, "height": 844}), address)
            save(shoot(page), "review_390.png")
            browser.close()
        server.should_exit = True


def open_page(page: Page, address: str) -> Page:
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_selector("#review[data-state=ready]")
    return page


def shoot(page: Page) -> Image.Image:
    time.sleep(0.5)
    return Image.open(BytesIO(page.screenshot())).convert("RGB")


def save(picture: Image.Image, name: str) -> None:
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(OUT / name, optimize=True)
    stamp(OUT / name, model_of("uncertainty"))


def animate(page: Page) -> None:
    """A stroke of the brush, and sampling again."""
    frames, times = [shoot(page)], [1500]
    box = page.locator("#above").bounding_box()
    assert box is not None
    x, y = box["x"] + 0.31 * box["width"], box["y"] + 0.5 * box["height"]  # the crosshair of the axial slice
    page.keyboard.press("b")
    for step in range(5):
        page.mouse.move(x + 12 * step, y - 45 + 6 * step)
        if step == 0:
            page.mouse.down()
        frames.append(shoot(page))
        times.append(250)
    page.mouse.up()
    page.locator("#strokes li").first.wait_for(state="attached")
    frames.append(shoot(page))
    times.append(1200)
    page.click("#sample")
    frames.append(shoot(page))
    times.append(800)
    page.locator("#sampling", has_text="Sampled").wait_for(state="attached")
    print(page.inner_text("#sampling"))
    frames.append(shoot(page))
    times.append(2500)
    small = [frame.resize((800, 538), Image.Resampling.LANCZOS) for frame in frames]
    options = {"duration": times, "loop": 0, "quality": 60, "method": 6}
    small[0].save(OUT / "review.webp", save_all=True, append_images=small[1:], **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
