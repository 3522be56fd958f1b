"""The page of ``redi dense`` in a real browser, from disk."""

import os
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright

from families import save_checkpoint
from redi.records.dense import DenseConfig
from redi.report.dense_page import build_dense_report
from redi.segmentation.bench import measure_dense
from scenes import write_scenes

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dense-page")
    write_scenes(folder / "data", 3, 4)
    save_checkpoint("dinov2", folder / "backbone")
    config = DenseConfig(
        str(folder / "backbone"),
        str(folder / "data" / "train"),
        str(folder / "data" / "val"),
        str(folder / "out"),
        rows=("accelerate", "tome"),
        costs=(0.7, 0.85),
        steps=5,
        repeats=1,
        workers=0,
        device="cpu",
    )
    measure_dense(config)
    return build_dense_report(folder / "out").as_uri()


@pytest.fixture
def page(address: str) -> Iterator[Page]:
    if not CHROMIUM and not os.environ.get("REDI_NEEDS_BROWSER"):
        pytest.skip("needs Chromium on the path: `apt-get install chromium`, or run `make browser`")
    complaints: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
        page.goto(address)
        expect(page.locator("html[data-drawn='1']")).to_be_attached()
        yield page
        browser.close()
    assert complaints == []


def test_a_scene_a_row_and_a_cost_can_be_chosen_and_pointed_at(page: Page) -> None:
    expect(page.locator("#thumbs button")).to_have_count(4)
    expect(page.locator("#row option")).to_have_count(4)
    expect(page.locator("#row-caption")).to_contain_text("redi.accelerate, residual at cost 0.7")
    page.select_option("#row", label="ToMe, copy")
    page.select_option("#cost", label="0.85")
    expect(page.locator("#row-caption")).to_contain_text("ToMe, copy at cost 0.85")
    page.locator("#thumbs button").nth(1).click()
    expect(page.locator("#merged-caption")).to_contain_text("36 patches became")
    page.locator("#panel-merged").hover(position={"x": 40, "y": 40})
    expect(page.locator("#place")).to_contain_text("in a token of")
    expect(page.locator("#miou-chart svg").first).to_be_visible()


def test_class_maps_reach_the_canvas_exactly(page: Page) -> None:
    """Where dense and a row are drawn in different colours is where the caption counts them."""
    caption = page.locator("#change-caption").inner_text()
    counts = page.evaluate(
        """() => {
          const canvas = document.getElementById("panel-change");
          const seen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const all = { "64,201,120": 0, "255,70,70": 0, "255,196,0": 0 };
          for (let k = 0; k < seen.length; k += 4) {
            const colour = `${seen[k]},${seen[k + 1]},${seen[k + 2]}`;
            if (colour in all) all[colour]++;
          }
          return Object.values(all);
        }"""
    )
    for count in counts:
        assert f"({count:,})" in caption


def test_the_page_is_accessible_and_fits_a_phone(page: Page) -> None:
    violations = Axe().run(page).response["violations"]
    assert [entry["id"] for entry in violations] == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
