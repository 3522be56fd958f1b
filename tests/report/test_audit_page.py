"""The page of ``redi audit``: its data, and the page itself in Chromium, from disk."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from redi.api import audit
from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts
from redi.records.audit import FIXED_PLACE, PICTURES, UNATTENDED, read_audit, write_audit
from redi.report.audit import class_sentence, class_sheets, ranking_sheet, titles_of, word_sentence
from redi.report.audit_page import build_audit_page, page_data
from redi.report.build import build_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
NAMES = ("</script><img src=x onerror=\"document.title='taken over'\">", "<b>blue</b>", "green & co", "red")


@pytest.fixture(scope="module")
def folder(seen_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audited run whose first class is flagged, with hostile names."""
    place = tmp_path_factory.mktemp("audit-page")
    shutil.copytree(seen_run, place / "run")
    (place / "names.txt").write_text("\n".join(NAMES))
    result = audit(place / "run", names=place / "names.txt", workers=0)
    assert result is not None
    assert result.written == [place / "run" / "audit.json", place / "run" / "report" / "audit.html"]
    record = result.record
    words = [replace(word, suspicion=9.0, reason=FIXED_PLACE) for word in record.classes[0].words]
    classes = [replace(record.classes[0], suspicion=90.0, flagged=True, words=words), *record.classes[1:]]
    order = [0, *[label for label in record.order if label != 0]]
    write_audit(place / "run", replace(record, classes=classes, order=order))
    build_report(place / "run", place / "names.txt")
    return place / "run"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM and not os.environ.get("REDI_NEEDS_BROWSER"):
        pytest.skip("needs Chromium on the path: `apt-get install chromium`, or run `make browser`")
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def test_the_page_leads_from_the_ranking_to_a_class_and_back(browser: Browser, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 800})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"file://{folder / 'report' / 'audit.html'}")
    expect(page.locator("h1").first).to_contain_text("1 of 4 classes may be told by a shortcut")
    expect(page.locator("#ranking a").first).to_contain_text(NAMES[0])
    expect(page.locator("#list li")).to_have_count(4)
    page.fill("#query", "blue")
    expect(page.locator("#list li")).to_have_count(1)
    page.locator("#ranking a").first.click()
    expect(page.locator("#class-title")).to_contain_text(NAMES[0])
    expect(page.locator("#verdict")).to_contain_text("above the limit")
    record = read_audit(folder)
    expect(page.locator(".audit-word")).to_have_count(len(record.classes[0].words))
    expect(page.locator(".audit-word.suspect .badge").first).to_have_text(FIXED_PLACE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator("#next").click()
    expect(page.locator("#class-title")).not_to_contain_text(NAMES[0])
    page.goto(f"file://{folder / 'report' / 'audit.html'}#class=99")
    expect(page.locator("#overview")).to_be_visible()
    assert page.locator("img[src='x'], b").count() == 0
    assert page.title() == "Audit of run"
    assert complaints == []
    page.close()


def test_the_report_links_to_the_audit_only_if_there_is_one(folder: Path, seen_run: Path, tmp_path: Path) -> None:
    assert '<a href="audit.html">Audit</a>' in (folder / "report" / "index.html").read_text()
    shutil.copytree(seen_run, tmp_path / "run")
    assert "audit.html" not in build_report(tmp_path / "run").read_text()


def test_strips_are_made_small_beyond_the_budget_and_foreign_pictures_are_refused(folder: Path) -> None:
    record, stored = read_audit(folder), artifacts.load_named(folder, PICTURES)[0]
    titles = titles_of(record)
    whole, small = page_data(record, titles, stored), page_data(record, titles, stored, strip_bytes=0)
    pairs = zip(whole["classes"], small["classes"], strict=True)
    assert all(len(b["words"][0]["strip"]) < len(a["words"][0]["strip"]) for a, b in pairs)
    foreign = {**stored, "entries": stored["entries"] + 1}
    with pytest.raises(ArtifactError, match="use `redi audit` again"):
        page_data(record, titles, foreign)


def test_a_run_that_was_not_audited_says_what_to_do(seen_run: Path) -> None:
    with pytest.raises(ArtifactError, match="run `redi audit` first"):
        build_audit_page(seen_run)


def test_sentences_and_sheets_say_why(folder: Path) -> None:
    record = read_audit(folder)
    own = record.classes[0]
    assert "from one and the same place" in word_sentence(own.words[0])
    assert "does not attend to" in word_sentence(replace(own.words[0], reason=UNATTENDED))
    assert word_sentence(replace(own.words[0], reason="")).startswith("It is in ")
    assert "above the limit" in class_sentence(own, record.limit)
    assert class_sentence(replace(own, words=[]), 6.0) == "No word of this class is a suspect."
    titles = titles_of(record)
    sheet = ranking_sheet(record, titles, top=1)
    assert len(sheet.rows) == 1
    assert sheet.rows[0][2] == "yes"
    words, alike = class_sheets(record, titles, 0)
    assert len(words.rows) == len(own.words)
    assert len(alike.rows) == len(own.alike)


def test_an_unknown_class_is_an_error_before_any_work(seen_run: Path, tmp_path: Path) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    with pytest.raises(ConfigError, match="no class 'rot'"):
        audit(tmp_path / "run", class_name="rot", workers=0)
    assert not (tmp_path / "run" / "audit").exists()
