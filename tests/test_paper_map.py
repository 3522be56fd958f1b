"""docs/PAPER_MAP.md: every name in it resolves, and every labelled equation of the paper is in it."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "PAPER_MAP.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(redi(?:\.\w+)+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)`", TEXT)))
EQUATIONS = (
    "tf classcontrast idf tfidfgt norm01 viewtfidf viewaggregate attentionmassraw hybrid "
    "mergeassignment mergeupdate compressupdate blockcompute"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_function_exists(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            named = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            named = getattr(named, attribute)
        return
    pytest.fail(f"{name} does not resolve")


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_test_exists(file: str, name: str) -> None:
    """A test is named by its file and its function; the file may lie in any folder of the tests."""
    files = (ROOT / "tests").rglob(file)
    assert any(f"def {name}(" in path.read_text(encoding="utf-8") for path in files)


def test_every_equation_table_and_figure_has_a_row_with_a_function_and_a_test() -> None:
    items = [f"Eq. {name}" for name in EQUATIONS]
    items += [f"Table {number}" for number in (1, 2, 3)] + ["Figure 1", "Figure 2"]
    for item in items:
        (row,) = re.findall(rf"^\| {re.escape(item)} \|.*$", TEXT, flags=re.MULTILINE)
        assert "`redi." in row
        assert "::test_" in row


@pytest.mark.parametrize(
    "choice",
    [
        "Another resize filter (`--resize`)",
        "EXIF rotation",
        "Before or after the final norm",
        "FP16 score maps",
        "Learned positions of merged tokens",
        "Linear classifier",
        "Figure 2",
    ],
)
def test_a_choice_that_the_paper_leaves_open_has_a_function_a_test_and_a_decision(choice: str) -> None:
    (row,) = re.findall(rf"^\| {re.escape(choice)} \|.*$", TEXT, flags=re.MULTILINE)
    _, _, functions, tests, decision, _ = row.split("|")
    assert "`redi." in functions
    assert "::test_" in tests
    assert len(decision.split()) > 10


def test_the_equations_are_those_of_the_paper(shared: Path) -> None:
    paper = (shared / "paper.tex").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\\label\{eq:(\w+)\}", paper)) == sorted(EQUATIONS)
