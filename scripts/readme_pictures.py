"""Make the README's pictures from a finished run: Figure 1 and two views of its report.

    python scripts/readme_pictures.py runs/demo docs

It needs Chromium, and Playwright from the extra `dev`.
"""

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from redi.report.build import build_report
from redi.report.figures import write_figures

WIDTH, HEIGHT = 1280, 870


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    options = parser.parse_args()

    figure = next(path for path in write_figures(options.run) if path.name == "figure1.png")
    with Image.open(figure) as picture:
        small = picture.convert("RGB")
        small.thumbnail((1800, 1800), Image.Resampling.LANCZOS)
        small.save(options.out / "figure1.jpg", quality=85)
    page_file = build_report(options.run).resolve()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium") or "", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_file.as_uri())
        page.locator("#hero canvas[data-drawn]").nth(4).wait_for()
        page.screenshot(path=options.out / "report.jpg", type="jpeg", quality=80)
        page.emulate_media(color_scheme="dark")
        page.locator("#hero").click()
        page.locator("#roles[data-drawn]").wait_for()
        page.locator("#roles").hover(position={"x": 150, "y": 190})
        page.locator("#patch dl").wait_for()
        page.screenshot(path=options.out / "viewer.jpg", type="jpeg", quality=80)
        browser.close()


if __name__ == "__main__":
    main()
