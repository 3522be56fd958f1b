"""Comparisons as tables, in the terminal and in Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from redi.corpus import LABEL_SOURCES
from redi.records import artifacts
from redi.records.comparison import SCORERS_STUDY, Bundle, Comparison, Line, Rankings, read_bundle
from redi.records.results import Results, Row, VocabularyNotes, read_results
from redi.report.curves import draw_curves
from redi.report.sheets import Sheet, print_sheet, to_markdown
from redi.report.tables import ORACLE
from redi.rows import Codebook, Score

#: Tables with more columns are written to compare.md only.
MOST_COLUMNS = 16
#: Columns that a terminal of 80 characters has no room for; compare.md has them.
WIDE = ("Tokens", "95 %", "ρ", "Agree", "p KL")
CORRECTED = (
    "p: exact McNemar tests, p KL: a paired z-test of KL, corrected by Holm's method over the rows. "
    "Intervals: 95 %, paired bootstrap. Agree: percent of images with dense's Top-1. "
    "KL: divergence from dense's output, nats. Cost: matrix products relative to dense, without making the scores."
)


def comparison_sheet(comparison: Comparison, vocabulary: VocabularyNotes) -> Sheet:
    """The table of a comparison. ``vocabulary`` holds the run's own settings, from which ablations differ."""
    reference, lines = comparison.reference, comparison.lines
    left_out: tuple[str, ...] = ("Tokens", "Cost") if comparison.study == SCORERS_STUDY else ("ρ", "Overlap")
    notes = [CORRECTED, f"Δ ref, p ref, p KL, ρ and overlap: against {reference.title}."]
    if comparison.study == "sweep":  # its rows differ in cost, so no single reference fits
        left_out, notes = ("ρ", "Overlap", "Δ ref", "p ref", "p KL"), notes[:1]
    first: Callable[[Line], str] = lambda line: line.row.title  # noqa: E731
    if comparison.study == "ablations":
        first = lambda line: changed(line.row, reference, vocabulary)  # noqa: E731
    else:
        lines = sorted(lines, key=lambda line: (round(line.row.cost, 2), -line.row.top1))
    columns = [column for column in _NUMBERS if column[0] not in left_out]
    return Sheet(
        f"{comparison.title}, {comparison.classifier} classifier, {reference.images} images",
        ("Changed" if comparison.study == "ablations" else "Row", *(name for name, _ in columns)),
        [[first(line), *(cell(line) for _, cell in columns)] for line in lines],
        notes,
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}"


def _interval(value: tuple[float, float]) -> str:
    return f"{value[0]:+.1f} {value[1]:+.1f}"


def _p(value: float) -> str:
    return f"{value:.1g}" if value < 0.995 else "1"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


Columns = list[tuple[str, Callable[[Line], str]]]
_NUMBERS: Columns = [
    ("Tokens", lambda line: str(line.row.tokens)),
    ("Cost", lambda line: f"{line.row.cost:.3f}"),
    ("Top-1", lambda line: f"{line.row.top1:.1f}"),
    ("Δ dense", lambda line: _signed(line.row.delta_dense)),
    ("95 %", lambda line: _interval(line.dense_interval)),
    ("p", lambda line: _p(line.p_dense)),
    ("Δ ref", lambda line: _signed(line.delta_reference)),
    ("p ref", lambda line: _p(line.p_reference)),
    ("Agree", lambda line: f"{line.row.agreement:.1f}"),
    ("KL", lambda line: f"{line.row.divergence:.3f}"),
    ("p KL", lambda line: _p(line.p_divergence)),
    ("ρ", lambda line: _optional(line.spearman, ".2f")),
    ("Overlap", lambda line: _optional(line.overlap, ".0f")),
]


def changed(row: Row, base: Row, vocabulary: VocabularyNotes) -> str:
    """The settings in which an ablation's row differs from the base row."""
    assert row.corpus is not None
    assert base.corpus is not None
    assert row.budget is not None
    assert base.budget is not None
    parts = []
    if row.corpus.codebook is not None:
        own = asdict(Codebook(vocabulary.n_words, vocabulary.n_passes))
        values = asdict(row.corpus.codebook)
        parts += [f"{name.removeprefix('n_')} {values[name]}" for name in own if values[name] != own[name]]
    if row.corpus.views != base.corpus.views:
        parts.append(f"views {row.corpus.views}")
    if (weight := row.corpus.mean_weight) != base.corpus.mean_weight:
        parts.append(f"mean {weight:g}, maximum {1 - weight:g}")
    before = asdict(base.budget)
    parts += [f"{k} {v:g}" for k, v in asdict(row.budget).items() if v != before[k]]
    return ", ".join(parts) or "nothing"


def label_sheet(comparison: Comparison) -> Sheet:
    """Top-1 of every score with a corpus term, by label source."""
    measured = {(line.row.score, line.row.label_source): line.row for line in comparison.lines}
    rows = []
    for score in dict.fromkeys(score for score, _ in measured):
        if any((score, source) not in measured for source in LABEL_SOURCES):
            continue
        alone = measured.get((Score(local=score.local, block=score.block), ""))
        cells = [f"{measured[score, source].top1:.1f}" for source in LABEL_SOURCES]
        rows.append([score.title, f"{alone.top1:.1f}" if alone else "", *cells])
    return Sheet(
        f"Top-1 by label source, {comparison.classifier} classifier",
        ("Score", "no corpus", *LABEL_SOURCES),
        rows,
        ["no corpus: the attention score alone, without the corpus term."],
    )


def ranking_sheet(rankings: Rankings) -> Sheet:
    """Spearman's rho above the diagonal, overlap of the kept patches (percent) below it."""
    rows = []
    for i, name in enumerate(rankings.names):
        cells = [name]
        for j in range(len(rankings.names)):
            above, below = f"{rankings.spearman[i][j]:.2f}", f"{rankings.overlap[i][j]:.0f}"
            cells.append("" if i == j else above if j > i else below)
        rows.append(cells)
    return Sheet(
        f"Agreement of rankings, {rankings.classifier} classifier",
        ("", *(str(k + 1) for k in range(len(rankings.names)))),
        [[f"{k + 1} {row[0]}", *row[1:]] for k, row in enumerate(rows)],
        ["Above the diagonal Spearman's ρ, below it the overlap of the kept patches in percent."],
    )


def sheets(bundle: Bundle, results: Results) -> list[Sheet]:
    tables = []
    for entry in bundle.comparisons:
        if entry.study == SCORERS_STUDY:
            tables.append(label_sheet(entry))
        tables.append(comparison_sheet(entry, results.notes.vocabulary))
    return [*tables, *map(ranking_sheet, bundle.rankings)]


def print_sheets(all_sheets: Sequence[Sheet], console: Console | None = None) -> None:
    console = console or Console()
    console.print(escape(f"{ORACLE}\n"))
    for sheet in all_sheets:
        if len(sheet.columns) > MOST_COLUMNS:
            console.print(f"{sheet.title}: too wide for a terminal; see compare.md.\n")
            continue
        print_sheet(sheet, console, hidden=WIDE)


def publish(folder: Path) -> list[Path]:
    """Write all comparisons of the run as Markdown, and draw the curves."""
    results = read_results(folder)
    everything = sheets(read_bundle(folder), results)
    text = "\n".join([ORACLE, "", *map(to_markdown, everything)])
    artifacts.write_text(folder / "compare.md", text)
    written = [folder / "compare.json", folder / "compare.md"]
    if draw_curves(results, folder / "curves.png"):
        written.append(folder / "curves.png")
    return written
