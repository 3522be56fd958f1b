"""Figures for print: their fonts, and that nothing is cut off."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

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
    for figure in drawn:
        box = figure.get_tightbbox()  # in inches
        width, height = figure.get_size_inches()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    assert len(drawn[0].axes[-2].get_yticks()) == 5, "the maps of Figure 1 have a colour bar"
