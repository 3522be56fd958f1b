"""LaTeX of tables and figures: what pdflatex reads, and pdflatex itself where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from redi.report.figures import write_figures
from redi.report.latex import cell_latex, escape_latex, to_latex
from redi.report.sheets import Sheet

PRINTABLE = "".join(map(chr, range(0x20, 0x7F))) + "Größe ñ š Å ρ Δ λ − × → ² ß –"


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("-1.718", "$-1.718$"),
        ("+0.00", "$+0.00$"),
        ("84.706", "84.706"),
        ("-7.2 +1.4", "$[-7.2, +1.4]$"),
        ("0.0003", r"$3\times10^{-4}$"),
        ("0.003", "0.003"),
        ("4e-41", r"$4\times10^{-41}$"),
        ("words 64-3", "words 64-3"),
        ("[gt] a--b", "{[}gt{]} a-{}-b"),
    ],
)
def test_numbers_are_formulas_and_words_are_not(text: str, latex: str) -> None:
    assert cell_latex(text) == latex


def test_a_minus_sign_of_a_sentence_is_one() -> None:
    assert escape_latex("ViT-B/16 at (-0.3 to +1.2), Top-1") == "ViT-B/16 at ($-$0.3 to +1.2), Top-1"


def test_every_letter_becomes_ascii_that_tex_reads_as_text() -> None:
    """What remains after all commands and formulas are taken away holds no character with a meaning for TeX."""
    latex = escape_latex(PRINTABLE + "猫\n")
    assert latex.isascii()
    assert "U+732B" in latex
    rest = re.sub(r"\$[^$]*\$|\\[A-Za-z]+\{\w?\}|\\[\W_](\{\w\})?|\{[\[\]]\}", "", latex)
    assert not set(rest) & set('\\{}$&#%_^~<>|"[]\n')


def test_a_table_has_a_caption_without_its_number_and_a_label() -> None:
    latex = to_latex(Sheet("Accuracy, %", ("Row", "p"), [["a", "1e-05"]], [], number=1), "table1-probe")
    assert r"\caption{Accuracy, \%.}" in latex
    assert r"\label{tab:table1-probe}" in latex


def test_the_document_compiles(seen_run: Path, tmp_path: Path) -> None:
    """Every file is part of it, the comparisons' too."""
    shutil.copytree(seen_run, tmp_path / "run")
    written = {path.name for path in write_figures(tmp_path / "run")}
    folder = tmp_path / "run" / "figures"
    shown = set(re.findall(r"\\input\{(.*?)\}", (folder / "all.tex").read_text()))
    assert shown == {name for name in written if name.endswith(".tex")} - {"all.tex"}
    assert any(name.startswith("compare-grid-") for name in shown)
    assert {"curves.tex", "curves.pdf"} <= written
    for name in shown:
        text = (folder / name).read_text()
        assert text.isascii()
        assert len(re.findall(r"(?<!\\)[{}]", text)) % 2 == 0
        for picture in re.findall(r"\\includegraphics\[.*?\]\{(.*?)\}", text):
            assert picture in written
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=folder,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert b"Overfull" not in done.stdout
