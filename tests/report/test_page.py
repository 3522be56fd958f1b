"""The report's page in a real browser: Chromium, headless, driven by Playwright, from disk."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Position, expect, sync_playwright

from redi.budget import Budget
from redi.comparison.compare import compare
from redi.images.preprocessing import to_bytes
from redi.pipeline import execute
from redi.records.deployed import earlier_deployed
from redi.records.explained import Fate
from redi.records.results import read_results
from redi.reduction import reduce
from redi.report.build import build_report
from redi.report.explorer import Explorer
from redi.report.sheets import ADDED
from redi.rows import SCORES
from redi.runs.config import saved_config

#: Playwright brings no browser of its own here: the system's is used.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
NAMES = ("</script><img src=x onerror=\"document.title='taken over'\">", "<b>blue</b>", "green & co", "red")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM and not os.environ.get("REDI_NEEDS_BROWSER"):
        pytest.skip("needs Chromium on the path: `apt-get install chromium`, or run `make browser`")
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(seen_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its classes bear hostile names, in the file of names as in the folders. What can be deployed is measured."""
    place = tmp_path_factory.mktemp("page")
    shutil.copytree(seen_run, place / "run")
    compare(saved_config(place / "run"), ["accelerate"])
    (place / "names.txt").write_text("\n".join(NAMES))
    build_report(place / "run", place / "names.txt")
    return place / "run"


@pytest.fixture(scope="module")
def explorer(folder: Path) -> Explorer:
    return Explorer(folder, folder.parent / "names.txt")


class Watched:
    """A page, everything it complained about and every request it made."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.address = "file://" + quote(str(folder / "report" / "index.html"))
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, anchor: str = "") -> Page:
        self.page.goto(self.address + anchor)
        return self.page

    def outside(self) -> list[str]:
        """Requests for anything but the file itself and the pictures within it."""
        own = (self.address, "data:")
        return [address for address in self.requests if not address.startswith(own)]


@pytest.fixture
def watched(browser: Browser, folder: Path) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    watched = Watched(page, folder)
    yield watched
    page.close()
    assert watched.complaints == []
    assert watched.outside() == []


def counts_on(page: Page) -> list[int]:
    place = page.locator("#counts")
    return [int(place.get_attribute(f"data-{role}") or -1) for role in ("keep", "merge", "compress")]


def slide(page: Page, name: str, percent: int) -> None:
    page.locator(f"#{name}").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", percent
    )


def test_loads_from_disk_without_a_complaint_or_a_request(watched: Watched) -> None:
    page = watched.open()
    expect(page.locator("h1")).to_contain_text("201 tokens become 107")
    expect(page.locator(".oracle")).to_contain_text("Labels were used")
    expect(page.locator("#grid .tile")).to_have_count(20)
    expect(page.locator("#shown")).to_have_text("20 of 20 images")
    expect(page.locator("#curves-probe > svg")).to_be_visible()
    expect(page.locator("#frequency-chart path")).to_have_count(3)  # blocks of a depth of three
    assert page.locator("img:not([alt])").count() == 0
    assert page.title() == "REDI on backbone", "no name in the data was run as a script"
    assert page.locator("#hero canvas").count() == 5


def test_a_request_would_be_refused(watched: Watched) -> None:
    page = watched.open()
    refused = page.evaluate("fetch('https://example.org/').then(() => false, () => true)")
    assert refused is True
    assert any("Content Security Policy" in text for text in watched.complaints)
    watched.complaints.clear()


def test_hostile_names_are_text(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    hostile = explorer.names[0]
    assert "</script>" in hostile
    page.locator("#grid .tile").first.click()
    expect(page.locator("#viewer-title")).to_contain_text(hostile)
    expect(page.locator("#viewer-title")).to_contain_text(NAMES[0])
    page.keyboard.press("Escape")
    expect(page.locator("#class")).to_contain_text(NAMES[1])
    page.locator(".word-card").filter(has_text=NAMES[0]).first.click()
    expect(page.locator("#word-body")).to_contain_text(NAMES[0])
    assert page.locator("img[src='x'], b").count() == 0
    assert page.title() == "REDI on backbone"


def test_role_counts_equal_the_operators_for_every_image_score_and_budget(watched: Watched, explorer: Explorer) -> None:
    """The page computes roles itself; the Python operator is asked for the same scores and budgets."""
    page = watched.open()
    assert len(explorer) >= 20
    for number, index in enumerate(explorer.indices):
        row = SCORES[number % len(SCORES)]
        page.evaluate(f"location.hash = 'image={index}&score={row}'")
        expect(page.locator("#viewer-title")).to_contain_text(explorer.names[number])
        scores = explorer.stored[f"scores/{row}"][number].float()[None]
        for keep, merge in ((50, 25), (10 + 3 * number, 20), (33, 67), (100, 0)):
            slide(page, "keep", keep)
            slide(page, "merge", merge)
            budget = Budget(keep / 100, min(merge / 100, 1 - keep / 100))
            assert counts_on(page) == list(budget.counts(196)), (index, keep, merge)
            reduction = reduce(torch.zeros(1, 196, 2), scores, budget)
            fate = Fate(reduction.source[0], reduction.positions[0], budget.counts(196)[0])
            # Which patch has which role, read off the page patch by patch through its own script.
            assert roles_on(page) == kept_and_compressed(fate), (index, keep, merge)
            assert page.locator("#counts").get_attribute("data-tokens") == str(len(fate.positions))
            share = own_cost(5 + len(fate.positions)) / own_cost(201)
            expect(page.locator("#counts")).to_contain_text(f"{share:.3f} of the blocks' arithmetic")
            leaders = page.locator("#roles").get_attribute("data-leaders") or ""
            assert [int(patch) for patch in leaders.split()] == fate.leaders
            arrows = "drawn" if (keep, merge) == (50, 25) else "none"
            expect(page.locator("#roles")).to_have_attribute("data-arrows", arrows)


def own_cost(tokens: int) -> int:
    """Multiply-adds of a block of the run's backbone: width 32, an MLP of twice the width."""
    return 8 * tokens * 32**2 + 2 * tokens**2 * 32


def roles_on(page: Page) -> tuple[list[int], list[int]]:
    """(kept patches, compressed patches) that the roles canvas was drawn from."""
    text = page.locator("#roles").get_attribute("data-roles") or ""
    return [k for k, role in enumerate(text) if role == "0"], [k for k, role in enumerate(text) if role == "2"]


def kept_and_compressed(fate: Fate) -> tuple[list[int], list[int]]:
    roles = fate.roles
    return [k for k, role in enumerate(roles) if role == 0], [k for k, role in enumerate(roles) if role == 2]


def test_the_viewer_switches_scores_views_and_layers(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    page.locator("#grid .tile").nth(3).click()
    expect(page.locator("#viewer")).to_be_visible()
    drawn = page.locator("#map").evaluate("canvas => canvas.toDataURL()")
    page.select_option("#viewer-row", "cls_mean")
    expect(page.locator("#map-caption")).to_have_text("CLS mean, coloured by rank")
    page.wait_for_function("old => document.querySelector('#map').toDataURL() !== old", arg=drawn)
    expect(page.locator("#answers thead")).to_contain_text("Reduced by CLS mean")
    page.locator("#aligned button").nth(2).click()
    expect(page.locator("#map-caption")).to_contain_text("TF-IDF, random crop 1, aligned")
    page.locator("#views button").nth(1).click()
    expect(page.locator("#map-caption")).to_contain_text("TF-IDF, its mirror image")
    roles = page.locator("#roles").evaluate("canvas => canvas.toDataURL()")
    page.locator("#arrows").uncheck()
    page.wait_for_function("old => document.querySelector('#roles').toDataURL() !== old", arg=roles)
    guesses = explorer.guesses(3, "probe", "cls_mean")
    for place, guess in enumerate(guesses):
        expect(page.locator("#answers tbody tr").nth(place)).to_contain_text(guess.name)


def test_a_patch_says_its_word_factors_rank_and_role(watched: Watched, explorer: Explorer) -> None:
    page = watched.open(f"#image={explorer.indices[2]}&score=redi_mass")
    box = page.locator("#roles").bounding_box()
    assert box is not None
    row, column = 5, 9
    patch = 14 * row + column
    page.mouse.move(box["x"] + (column + 0.5) / 14 * box["width"], box["y"] + (row + 0.5) / 14 * box["height"])
    image = explorer.explain(2, "probe")
    word = int(image.words[0, patch])
    place = page.locator("#patch")
    expect(place).to_contain_text(f"Row {row + 1}, column {column + 1}")
    expect(place).to_contain_text(f"visual word {word}")
    label = explorer.labels[2]
    contrast = float(explorer.tfidf["contrast"][label, word])
    support = float(explorer.tfidf["support"][label, word])
    table = float(explorer.tfidf["table"][label, word])
    idf = float(explorer.tfidf["idf"][word])
    _, numbers = steps_on(page)[0]
    assert numbers == pytest.approx([contrast, support, idf, table], rel=1e-3)
    for name, row_name in (("TF-IDF", "tfidf"), ("Incoming", "mass"), ("REDI", "redi_mass")):
        shown = next(numbers[-1] for step, numbers in steps_on(page) if step.startswith(name) and "word" not in step)
        assert shown == pytest.approx(float(image.scores[row_name][patch]), rel=1e-3, abs=1e-3)
    order = image.scores["redi_mass"].argsort(descending=True, stable=True).tolist()
    expect(place).to_contain_text(f"{order.index(patch) + 1} of 196")
    role = ("keep", "merge", "compress")[image.fates["redi_mass"].roles[patch]]
    expect(place).to_contain_text(role)
    page.locator("#roles").focus()
    page.keyboard.press("ArrowRight")
    expect(place).to_contain_text(f"Row {row + 1}, column {column + 2}")
    place.get_by_role("button", name="visual word").click()
    expect(page.locator("#word-title")).to_have_text(f"Visual word {int(image.words[0, patch + 1])}")


def steps_on(page: Page) -> list[tuple[str, list[float]]]:
    """The steps of the selected patch as a reader sees them: the name of each, and the numbers of its line."""
    items = page.locator("#patch .steps li").evaluate_all(
        "items => items.map(item => [...item.children].map(part => part.innerText))"
    )
    lines = ((name, re.sub(r"\[word \d+\]", "", line)) for name, line in items)
    return [(name, [float(text) for text in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", line)]) for name, line in lines]


@pytest.mark.parametrize("row", ["redi_mass", "cls_max", "random"])
def test_the_last_number_of_a_patch_can_be_recomputed_from_the_first(
    watched: Watched, explorer: Explorer, row: str
) -> None:
    """Only numbers that the page shows are used, with the digits that it shows."""
    page = watched.open(f"#image={explorer.indices[3]}&score={row}")
    page.locator("#roles").focus()
    for patch in range(4):
        for _ in range(3):
            page.keyboard.press(("ArrowDown", "ArrowRight")[patch % 2])
        steps = dict(steps_on(page))
        numbers = iter(steps.values())
        contrast, support, idf, tfidf = next(numbers)
        assert contrast * support * idf == shown(tfidf)
        aligned = []
        for name in ("centre crop", "its mirror image", "random crop 1", "random crop 2"):
            parts = next(numbers)
            if name not in steps:  # else the view does not cover the patch
                *terms, value, low, high, again, result = parts
                assert low == again
                mixed = sum(a * b for a, b in zip(terms[:-1:2], terms[1:-1:2], strict=True)) if terms[1:] else terms[0]
                assert mixed == shown(value)
                assert (mixed - low) / (high - low) == shown(result)
                aligned.append(result)
        mean_weight, mean, rest, most, mixed = next(numbers)
        assert (mean_weight, rest) == (0.8, 0.2)
        assert [mean, most] == shown([sum(aligned) / len(aligned), max(aligned)])
        assert 0.8 * mean + 0.2 * most == shown(mixed)
        factors = []
        for before in (mixed, None):
            value, low, high, again, result = next(numbers)
            assert low == again
            assert before is None or before == value, "the step before shows it"
            assert (value - low) / (high - low) == shown(result)
            factors.append(result)
        if row.startswith("redi"):
            *parts, product = next(numbers)
            assert parts == factors
            assert parts[0] * parts[1] == shown(product)
            value, low, high, _, factors[1] = next(numbers)
            assert value == product
            assert (value - low) / (high - low) == shown(factors[1])
        (final,) = next(numbers) if row == "random" else factors[1:]
        score = page.locator("#patch-facts dd").first.inner_text()
        assert final == shown(float(score)), "the score that the page shows first"


def shown(value: float | list[float]) -> Any:
    """A number as the page shows it, with four digits; scores are stored with eleven bits."""
    return pytest.approx(value, rel=2e-3, abs=3e-4)


def test_tables_sort(watched: Watched) -> None:
    """The paper's rows and the added ones each by themselves, below their own label."""
    page = watched.open()
    table = page.locator("#tables table").filter(has_text="Table 1.").first
    paper, label, added = (table.locator("tbody").nth(k) for k in range(3))
    names = paper.locator("th").all_inner_texts()
    assert names == ["Dense baseline", "TF-IDF [gt]", "Incoming mass", "REDI, mass [gt]"]
    rule = "element => getComputedStyle(element).borderTopWidth"
    assert paper.locator("tr").nth(3).locator("td").first.evaluate(rule) == "1px"
    head = table.locator("thead button").nth(2)
    for reverse in (True, False):
        head.click()
        for body in (paper, added):
            values = [float(text) for text in body.locator("td:nth-child(3)").all_inner_texts()]
            assert values == sorted(values, reverse=reverse)
    expect(table.locator("thead th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    assert paper.locator(".ruled td").first.evaluate(rule) == "0px", "its place is lost"
    table.locator("thead button").first.click()
    for body in (paper, added):
        texts = body.locator("th").all_inner_texts()
        assert texts == sorted(texts, key=str.casefold)
    assert label.locator("th").inner_text() == ADDED
    assert paper.locator("tr").count() == 4


def test_the_best_cells_are_bold_and_the_added_columns_have_a_border(watched: Watched) -> None:
    page = watched.open()
    table = page.locator("#tables table").filter(has_text="Table 1.").first
    best = table.locator("tbody").first.locator("td:nth-child(3)")
    weights = best.evaluate_all("cells => cells.map(cell => [cell.innerText, !!cell.querySelector('strong')])")
    highest = max(float(text) for text, _ in weights)
    assert [strong for _, strong in weights] == [float(text) == highest for text, _ in weights]
    assert table.locator("thead .groups th").inner_text() == ADDED
    place = "element => element.getBoundingClientRect().left"
    added = table.locator("thead button").nth(5).evaluate(place)
    assert table.locator(".groups th").evaluate(place) == pytest.approx(added, abs=1)
    border = "element => getComputedStyle(element).borderLeftWidth"
    assert table.locator("colgroup").evaluate_all(f"groups => groups.map({border})") == ["0px", "1px"]


def test_filters_by_outcome_class_and_disagreement(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    total = 0
    for kind in ("rescued", "lost", "right", "wrong"):
        page.select_option("#kind", kind)
        expected = [k for k in range(len(explorer)) if outcome(explorer, k) == kind]
        expect(page.locator("#grid .tile")).to_have_count(len(expected))
        total += len(expected)
    assert total == len(explorer)
    page.select_option("#kind", "")
    page.select_option("#class", "2")
    expect(page.locator("#grid .tile")).to_have_count(5)
    page.select_option("#class", "")
    least = 5 * int(20 * sorted(differs(explorer, k) for k in range(len(explorer)))[10])
    slide(page, "disagreement", least)
    page.locator("#filters").dispatch_event("input")
    expected = [k for k in range(len(explorer)) if differs(explorer, k) >= least / 100 - 1e-9]
    assert 0 < len(expected) < 20
    expect(page.locator("#grid .tile")).to_have_count(len(expected))
    page.select_option("#order", "disagreement")
    first = max(expected, key=lambda k: differs(explorer, k))
    shown = page.locator("#grid .tile").first.get_attribute("data-index")
    assert differs(explorer, explorer.indices.index(int(shown or -1))) == differs(explorer, first)


def outcome(explorer: Explorer, number: int) -> str:
    label = explorer.labels[number]
    dense, reduced = (explorer.predictions.top5("probe", row, number)[0][0] == label for row in ("dense", "redi_mass"))
    return {(1, 1): "right", (1, 0): "lost", (0, 1): "rescued", (0, 0): "wrong"}[dense, reduced]


def differs(explorer: Explorer, number: int) -> float:
    kept = []
    for row in ("redi_mass", "tfidf"):
        scores = explorer.stored[f"scores/{row}"][number].float()
        kept.append(set(scores.argsort(descending=True, stable=True)[:98].tolist()))
    return len(kept[0] - kept[1]) / 98


def test_deep_links_and_the_keyboard(watched: Watched, explorer: Explorer) -> None:
    page = watched.open(f"#image={explorer.indices[4]}&score=tfidf")
    expect(page.locator("#viewer-title")).to_contain_text(explorer.names[4])
    expect(page.locator("#map-caption")).to_contain_text("TF-IDF [gt]")
    page.locator("#close").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-title")).to_contain_text(explorer.names[5])
    assert page.url.endswith(f"#image={explorer.indices[5]}&score=tfidf")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#map-caption")).to_contain_text("Incoming mass")
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()
    page.locator("#grid .tile").nth(2).click()
    page.locator("#next").click()
    page.keyboard.press("Escape")
    expect(page.locator("#grid .tile").nth(3)).to_be_focused()
    page.locator("#grid .tile").first.click()
    expect(page.locator("#viewer")).to_be_visible()
    page.go_back()
    expect(page.locator("#viewer")).to_be_hidden()
    page.goto(watched.address + "#word=3")
    expect(page.locator("#word-title")).to_have_text("Visual word 3")
    page.keyboard.press("Escape")
    page.evaluate("location.hash = 'image=123456'")
    expect(page.locator("#shown")).to_contain_text("Image 123456 is not among the images")


def test_the_vocabulary_shows_words_classes_and_numbers(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    expect(page.locator(".word-card")).to_have_count(60)
    page.locator("#more-words").click()
    expect(page.locator(".word-card")).to_have_count(80)
    expect(page.locator("#more-words")).to_be_hidden()
    counts = explorer.tfidf["word_counts"].sum(dim=0)
    first = int(counts.argsort(descending=True, stable=True)[0])
    expect(page.locator(".word-card").first).to_contain_text(f"word {first}")
    expect(page.locator(".word-card").first).to_contain_text(f"{int(counts[first]):,} patches")
    label = int(explorer.tfidf["table"].amax(dim=1).argmax())
    page.select_option("#word-class", str(label))
    best = int(explorer.tfidf["table"][label].argmax())
    card = page.locator(".word-card").first
    expect(card).to_contain_text(f"word {best}, TF-IDF")
    card.click()
    value = float(explorer.tfidf["table"][label, best])
    expect(page.locator("#word-body")).to_contain_text(f"{value:.4f}")


def test_curves_can_be_switched_off_and_read(watched: Watched) -> None:
    page = watched.open()
    chart = page.locator("#curves-native")
    circles = chart.locator("svg").first.locator("circle")
    prune = chart.locator(".legend button").filter(has_text="prune")
    for button in chart.locator(".legend button").all():
        if button.inner_text() != prune.inner_text():
            button.click()
    assert circles.count() == 3 + 1, "and dense"
    circles.nth(1).hover(force=True)
    expect(chart.locator(".tip")).to_contain_text("prune, Incoming mass")
    prune.click()
    assert circles.count() == 0


def test_a_narrow_screen_and_print(watched: Watched, folder: Path, tmp_path: Path) -> None:
    page = watched.open()
    page.set_viewport_size({"width": 375, "height": 740})
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 375, "nothing sticks out sideways"
    page.locator("#grid .tile").nth(1).click()
    expect(page.locator("#roles")).to_be_visible()
    assert page.evaluate("document.querySelector('#viewer').scrollWidth") <= 375
    page.keyboard.press("Escape")
    page.emulate_media(media="print")
    expect(page.locator(".bar")).to_be_hidden()
    expect(page.locator("#filters")).to_be_hidden()
    expect(page.locator("#tables table").first).to_be_visible()
    expect(page.locator("#curves-probe .legend")).to_be_visible()
    shape = page.locator("#grid img").first.bounding_box()
    assert shape is not None
    assert shape["width"] == pytest.approx(shape["height"], abs=1), "pictures are not squeezed"
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000


def test_a_tap_on_a_phone_is_answered_beside_the_picture_and_row_names_stay(browser: Browser, folder: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = Watched(context.new_page(), folder).open()
    assert page.evaluate("innerWidth") == 390, "nothing widens the page"
    table = page.locator("#tables .scroll").filter(has_text="Table 1.").first
    name, value = table.locator("tbody th").nth(1), table.locator("tbody td").nth(1)
    name_left, value_left = left(name), left(value)
    table.evaluate("element => element.scrollLeft = 60")
    assert left(value) == pytest.approx(value_left - 60, abs=1)
    assert left(name) == pytest.approx(name_left, abs=1)
    page.locator("#grid .tile").nth(1).tap()
    expect(page.locator("#patch")).to_be_hidden()
    for canvas in ("#map", "#roles", "#merges"):
        page.locator(canvas).tap(position={"x": 200, "y": 100})
        expect(page.locator("#patch")).to_contain_text("Row 5, column 9")
        picture, answer = page.locator(canvas).bounding_box(), page.locator("#patch").bounding_box()
        assert picture is not None
        assert answer is not None
        assert 0 <= picture["y"] <= picture["y"] + picture["height"] <= answer["y"], "it covers no part of the picture"
        assert answer["y"] + answer["height"] <= 844
        page.locator(".dismiss").tap()
        expect(page.locator("#patch")).to_be_hidden()
    context.close()


def left(place: Locator) -> float:
    box = place.bounding_box()
    assert box is not None
    return box["x"]


def test_merges_are_shown_block_by_block(watched: Watched, explorer: Explorer) -> None:
    page = watched.open(f"#image={explorer.indices[6]}")
    assert explorer.merges is not None
    schedule = explorer.merges.notes["schedule"]
    block, into = explorer.merges.block[6].tolist(), explorer.merges.into[6].tolist()
    pictures = set()
    for last in range(len(schedule) + 1):
        slide(page, "block", last)
        expect(page.locator("#merges")).to_have_attribute("data-tokens", str([196, *schedule][last]))
        names = [int(name) for name in (page.locator("#merges").get_attribute("data-names") or "").split()]
        for patch, name in enumerate(names):
            merged = 0 < block[patch] <= last
            assert name == (names[into[patch]] if merged else patch)
        page.wait_for_timeout(150)
        pictures.add(page.locator("#merges").evaluate("canvas => canvas.toDataURL()"))
    assert len(pictures) > 2
    expect(page.locator("#merged")).to_contain_text(
        f"After block {len(schedule)}: {schedule[-1]} tokens for 196 patches"
    )
    patch = block.index(max(block))
    page.locator("#merges").focus()
    page.locator("#merges").click(position=centre_of(page, patch))
    others = sum(names[other] == names[patch] for other in range(196)) - 1
    expect(page.locator("#merged-patch")).to_contain_text(f"one token with {others} other patches")


def centre_of(page: Page, patch: int) -> Position:
    box = page.locator("#merges").bounding_box()
    assert box is not None
    return {"x": (patch % 14 + 0.5) * box["width"] / 14, "y": (patch // 14 + 0.5) * box["height"] / 14}


def test_what_can_be_deployed_stands_beside_the_oracle(watched: Watched, folder: Path) -> None:
    page = watched.open()
    cards = page.locator(".card")
    assert cards.count() == 4, "two per classifier"
    deployed = earlier_deployed(folder)
    results = read_results(folder)
    assert deployed is not None
    own = [(results.row(timing.row, "probe"), timing) for timing in deployed.timings if "protected" in timing.row]
    lines = cards.nth(0).locator("tbody tr").all_inner_texts()
    table = page.locator("#tables table").filter(has_text="What you can deploy, probe").inner_text()
    for row, timing in own:
        line = next(line for line in lines if line.startswith(f"{row.cost:.2f}"))
        assert f"{timing.speedup:.2f}" in line
        assert f"{row.delta_dense:+.1f}" in line
        assert f"{timing.speedup:.2f} ({timing.speedup_low:.2f}-{timing.speedup_high:.2f})" in table


def test_axe_finds_nothing(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        width = 1280 if scheme == "light" else 390
        page.set_viewport_size({"width": width, "height": 844})
        for place in ("#top", f"#image={explorer.indices[3]}", "#word=3"):
            page.evaluate("place => location.hash = place", place)
            if place.startswith("#image"):
                page.locator("#roles").focus()
                page.keyboard.press("ArrowRight")
            found = Axe().run(page)
            assert found.violations_count == 0, (scheme, width, place, found.generate_report())


def test_light_and_dark(watched: Watched, tmp_path: Path) -> None:
    page = watched.open()
    levels = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=tmp_path / f"{scheme}.png")
        with Image.open(tmp_path / f"{scheme}.png") as picture:
            levels.append(picture.convert("L").resize((1, 1)).tobytes()[0])
    assert levels[0] > levels[1] + 60
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_nothing_jumps_while_the_page_loads(watched: Watched) -> None:
    page = watched.page
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver(list => { for (const entry of list.getEntries())"
        " window.shift += entry.value; }).observe({type: 'layout-shift', buffered: true});"
    )
    watched.open()
    page.wait_for_timeout(400)
    assert page.evaluate("window.shift") < 0.02


def test_the_mirrored_view_is_the_mirror_image_of_the_first(
    watched: Watched, explorer: Explorer, tmp_path: Path
) -> None:
    page = watched.open(f"#image={explorer.indices[3]}")
    page.select_option("#colour", "none")
    pixels = []
    for number in (0, 1):
        page.locator("#views button").nth(number).click()
        expect(page.locator("#map-caption")).to_contain_text(("centre", "mirror")[number])
        page.wait_for_timeout(200)
        path = tmp_path / f"{number}.png"
        page.locator("#map").screenshot(path=path)
        with Image.open(path) as picture:
            pixels.append(to_bytes(picture.convert("RGB")).int())
    first, mirrored = pixels
    assert (first - mirrored.flip(2)).abs().float().mean() < 2
    assert (first - mirrored).abs().float().mean() > 10


def test_the_native_classifier_has_its_own_answers(watched: Watched, explorer: Explorer) -> None:
    page = watched.open()
    page.select_option("#classifier", "native")
    right = [
        explorer.predictions.top5("native", "dense", k)[0][0] == explorer.own("native", explorer.labels[k])
        for k in range(len(explorer))
    ]
    page.select_option("#kind", "right")
    both = page.locator("#grid .tile").count()
    page.select_option("#kind", "lost")
    assert both + page.locator("#grid .tile .dot").count() == sum(right)
    page.select_option("#kind", "")
    page.locator("#grid .tile").nth(9).click()
    for place, guess in enumerate(explorer.guesses(9, "native", "redi_mass")):
        expect(page.locator("#answers tbody tr").nth(place)).to_contain_text(guess.name)


def test_sliders_remember_what_was_wanted(watched: Watched, explorer: Explorer) -> None:
    page = watched.open(f"#image={explorer.indices[0]}")
    slide(page, "keep", 100)
    assert counts_on(page) == [196, 0, 0]
    slide(page, "keep", 50)
    assert counts_on(page) == [98, 49, 49]
    slide(page, "keep", 0)
    assert counts_on(page) == [0, 0, 196]
    page.locator("#reset").click()
    assert counts_on(page) == [98, 49, 49]


def test_a_page_whose_comparisons_are_gone_still_works(browser: Browser, folder: Path, tmp_path: Path) -> None:
    """Its rows are in results.json, so the curves are drawn; the tables of comparisons are missing."""
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "compare.json").unlink()
    build_report(tmp_path / "run")
    watched = Watched(browser.new_page(), tmp_path / "run")
    page = watched.open()
    expect(page.locator("#grid .tile")).to_have_count(20)
    expect(page.locator("#curves-probe > svg")).to_be_visible()
    assert page.locator("#curves details").count() == 0
    page.close()
    assert watched.complaints == []


def test_other_cells_than_two_by_two(browser: Browser, seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    config = saved_config(tmp_path / "run")
    execute(replace(config, budget=Budget(0.4, 0.2, cells=3)))
    build_report(tmp_path / "run")
    explorer = Explorer(tmp_path / "run")
    watched = Watched(browser.new_page(), tmp_path / "run")
    for number in (1, 13):
        page = watched.open(f"#image={explorer.indices[number]}&score=mass")
        fate = explorer.fate(number, "mass")
        leaders = page.locator("#roles").get_attribute("data-leaders") or ""
        assert [int(patch) for patch in leaders.split()] == fate.leaders
        assert roles_on(page) == kept_and_compressed(fate)
        page.goto("about:blank")
    watched.page.close()
    assert watched.complaints == []
