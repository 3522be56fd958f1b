"""Figures for print: their fonts, and that nothing is cut off."""

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from redi.records.results import read_results
from redi.report.curves import draw_curves
from redi.report.figures import write_figures


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written, each once."""
    figures: list[Figure] = []
    real = Figure.savefig

    def spy(self: Figure, *arguments: Any, **settings: Any) -> None:
        figures.extend([] if self in figures else [self])
        real(self, *arguments, **settings)

    monkeypatch.setattr(Figure, "savefig", spy)
    return figures


def is_complete(figure: Figure) -> bool:
    """Whether nothing lies outside of the page."""
    box = figure.get_tightbbox()  # in inches
    width, height = figure.get_size_inches()
    return bool(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height)


def test_figures_for_print_have_truetype_fonts_and_no_text_is_cut_off(
    seen_run: Path, tmp_path: Path, drawn: list[Figure]
) -> None:
    shutil.copytree(seen_run, tmp_path / "run")
    pdfs = [path for path in write_figures(tmp_path / "run") if path.suffix == ".pdf"]
    assert [path.name for path in pdfs] == ["figure1.pdf", "figure2.pdf", "curves.pdf"]
    for path in pdfs:
        content = path.read_bytes()
        assert b"/FontFile2" in content, "a TrueType font"
        assert b"/Type3" not in content
    assert len(drawn) == 3
    assert all(map(is_complete, drawn))
    assert len(drawn[0].axes[-2].get_yticks()) == 5, "the maps of Figure 1 have a colour bar"


def test_many_curves_with_long_names_fit_on_the_page(seen_run: Path, tmp_path: Path, drawn: list[Figure]) -> None:
    results = read_results(seen_run)
    rows = [row for row in results.rows if row.reducer == "prune"]
    more = [
        replace(row, scorer="redi_cls_mean@2", label_source="posterior", after=after)
        for row, after in product(rows, range(1, 15))
    ]
    assert draw_curves(replace(results, rows=[*results.rows, *more]), [tmp_path / "curves.png"])
    assert is_complete(drawn[0])
    one = [row for row in [*results.rows, *more] if row.classifier == "probe"]
    assert draw_curves(replace(results, rows=one), [tmp_path / "curves.png"])
    assert is_complete(drawn[1])
