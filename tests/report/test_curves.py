"""Curves of accuracy against cost: which rows are their points."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from redi.budget import Budget
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.pipeline import execute
from redi.records.results import Results, Row, read_results
from redi.reduction import OPERATOR
from redi.reduction.titles import TITLES
from redi.report.content import content
from redi.report.curves import curves_caption, curves_of, draw_curves, styles_note
from redi.report.explorer import Explorer
from redi.rows import Codebook, CorpusSettings
from redi.runs.config import saved_config

#: Keep and merge have the paper's proportions, cells and spatial weight do not.
OTHER = Budget(0.4, 0.3, cells=3, spatial=0.5)
KEEPS = [0.25, 0.5, 0.75]
PRUNE, OWN = "prune, Incoming mass", f"{OPERATOR}, Incoming mass"
REFERENCE = f"{OPERATOR}, REDI, mass [gt]"


@pytest.fixture(scope="module")
def other_run(seen_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with another budget, compared at three keep rates. The copy also has rows of the old one."""
    folder = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(seen_run, folder)
    config = replace(saved_config(folder), budget=OTHER)
    execute(config)
    compare(config, [], Request(scorers=["mass"], reducers=["prune", OPERATOR], keeps=KEEPS))
    return folder


def ablated(row: Row, own: Budget) -> list[Row]:
    """The row with one setting changed at a time, as the study of ablations does."""
    assert row.budget == own
    assert row.corpus == CorpusSettings()
    budgets = [replace(own, cells=own.cells + 1), replace(own, spatial=own.spatial + 0.1), replace(own, merge=0.0)]
    corpora = [CorpusSettings(Codebook()), CorpusSettings(views=1), CorpusSettings(mean_weight=0.5)]
    changed = [replace(row, budget=budget) for budget in budgets]
    return changed + [replace(row, corpus=corpus) for corpus in corpora]


def with_ablations(results: Results) -> Results:
    rows = [
        row
        for classifier in results.classifiers
        for row in ablated(results.row("redi_mass", classifier), results.notes.budget)
    ]
    return replace(results, rows=[*results.rows, *rows])


def test_a_run_with_other_cells_and_spatial_weight_has_its_curves(other_run: Path, tmp_path: Path) -> None:
    results = read_results(other_run)
    assert results.notes.budget == OTHER
    for classifier in ("probe", "native"):
        curves = curves_of(results, classifier)
        assert set(curves) == {PRUNE, OWN, REFERENCE}
        keeps = {name: [row.budget.keep for row in curves[name] if row.budget] for name in curves}
        assert keeps[PRUNE] == KEEPS
        assert keeps[OWN] == sorted([*KEEPS, OTHER.keep]), "and the run's own row"
        for row in (row for rows in curves.values() for row in rows):
            assert row.budget is not None
            assert (row.budget.cells, row.budget.spatial) == (OTHER.cells, OTHER.spatial)
    assert draw_curves(results, [tmp_path / "curves.png"])
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    on_page = content(other_run, results, Explorer(other_run))["curves"]
    assert [entry["classifier"] for entry in on_page] == ["probe", "native"]
    for entry in on_page:
        assert {line["name"]: len(line["points"]) for line in entry["lines"]} == {PRUNE: 3, OWN: 4, REFERENCE: 4}


def test_rows_of_an_earlier_budget_are_no_points(seen_run: Path, other_run: Path) -> None:
    """They stay in results.json, with the cells that they were measured with."""
    before = curves_of(read_results(seen_run), "probe")[PRUNE]
    assert [row.budget.keep for row in before if row.budget] == KEEPS
    kept = [
        row for row in read_results(other_run).rows if row.budget and (row.reducer, row.budget.cells) == ("prune", 2)
    ]
    assert kept
    assert not any(row.is_usual(OTHER) for row in kept)


@pytest.mark.parametrize("which", ["seen_run", "other_run"])
def test_ablations_are_no_points_of_a_curve(which: str, request: pytest.FixtureRequest) -> None:
    results = read_results(request.getfixturevalue(which))
    own = results.notes.budget
    row = results.row("redi_mass", "probe")
    assert row.is_usual(own)
    assert [one.is_usual(own) for one in ablated(row, own)] == [False] * 6
    more = with_ablations(results)
    for classifier in results.classifiers:
        assert curves_of(more, classifier) == curves_of(results, classifier)


def crowded(results: Results) -> Results:
    """With a line per reducer that has a title, at two costs, all close together."""
    rows = [
        replace(
            results.row("mass", classifier),
            name=f"{reducer}-{cost}",
            scorer="",
            reducer=reducer,
            budget=None,
            schedule=[4],
            cost=cost,
            top1=50 + cost,
        )
        for classifier in results.classifiers
        for reducer in TITLES
        for cost in (0.5, 0.6)
    ]
    return replace(results, rows=[*results.rows, *rows])


def test_lines_are_named_by_the_titles_of_their_reducers(seen_run: Path) -> None:
    assert set(TITLES.values()) <= set(curves_of(crowded(read_results(seen_run)), "probe"))


def test_only_line_styles_that_occur_are_explained(seen_run: Path) -> None:
    results = read_results(seen_run)
    assert styles_note(results, ["probe"]).startswith("Dashed: an oracle")
    assert "dotted: a score that needs a dense pass" in styles_note(results, ["probe"])
    free = replace(results, rows=[row for row in crowded(results).rows if not row.scorer])
    assert curves_of(free, "probe")
    assert styles_note(free, ["probe"]) == ""
    assert "ashed" not in curves_caption(free)
