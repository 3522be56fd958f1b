"""Comparisons as tables, in the terminal and in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from redi.corpus import LABEL_SOURCES, TRUE_CLASS
from redi.early import place_title
from redi.records import artifacts
from redi.records.comparison import SCORERS_STUDY, Bundle, Comparison, Line, Rankings, read_bundle
from redi.records.deployed import earlier_deployed
from redi.records.results import Notes, Results, Row, VocabularyNotes, read_results
from redi.reduction import OPERATOR
from redi.reduction.reducer import TOLERANCE
from redi.report.curves import draw_curves
from redi.report.deployed import deployed_sheets
from redi.report.numbers import interval, p_text, signed
from redi.report.saving import save_figure
from redi.report.sheets import Sheet, escape, print_sheet, to_markdown
from redi.report.tables import ORACLE
from redi.report.tasks import task_figures, task_sheets
from redi.rows import Codebook, Score

#: Tables with more columns are written to compare.md only.
MOST_COLUMNS = 16
#: Columns that a terminal of 80 characters has no room for; compare.md has them.
WIDE = ("Tokens", "95 %", "ρ", "Agree", "p KL", "p kNN", "Δ mAP ref", "p mAP ref", "IoU ranks", "Best IoU", "at")
#: Columns that compare with the reference row.
PAIRED = ("Δ ref", "p ref", "p KL", "ρ", "Overlap")
FOOTNOTES = (
    (("Cost",), "matrix products of the blocks and of the reducer relative to dense, without making the scores."),
    (("95 %",), "interval of Δ dense, paired bootstrap."),
    (("p", "p ref"), "exact McNemar tests, corrected by Holm's method over the rows of this table."),
    (("Agree",), "percent of images with dense's Top-1."),
    (("KL",), "divergence from dense's output, nats."),
    (("p KL",), "paired t-test of KL, corrected by Holm's method."),
    (("ρ",), "Spearman's correlation of the scores."),
    (("Overlap",), "percent of the kept patches that both rows keep."),
)
BEST = (("Top-1",), "percent; bold is the best.")
REDUCERS_NAMED = f"Row: a reducer that is not named is the paper's operator, {OPERATOR}."
#: Rows whose costs differ by no more are at equal cost.
EQUAL = 2 * TOLERANCE


def comparison_sheet(comparison: Comparison, notes: Notes) -> Sheet:
    """The table of a comparison. ``notes`` hold the run's own settings, from which ablations differ.

    Rows of equal cost are sorted by Top-1, and the best is in bold.
    """
    reference, lines = comparison.reference, comparison.lines
    costs = [line.row.cost for line in lines]
    equal = max(costs, default=1) - min(costs, default=1) <= EQUAL
    left_out: tuple[str, ...] = ("Tokens", "Cost") if comparison.study == SCORERS_STUDY else ("ρ", "Overlap")
    if comparison.study == "sweep":  # its rows differ in cost, so no single reference fits
        left_out = PAIRED
    several = len({line.row.reducer for line in lines}) > 1
    first: Callable[[Line], str] = lambda line: line.row.title  # noqa: E731
    if comparison.study == "ablations":
        first = lambda line: changed(line.row, reference, notes.vocabulary)  # noqa: E731
    else:
        lines = sorted(lines, key=lambda line: (not equal and round(line.row.cost, 2), -line.row.top1))
    columns = [column for column in _NUMBERS if column[0] not in left_out]
    names = [name for name, _ in columns]
    best = {row for row, line in enumerate(lines) if _top1(line) == _top1(max(lines, key=lambda line: line.row.top1))}
    return Sheet(
        f"{comparison.title}, {comparison.classifier} classifier, {reference.images} images",
        ("Changed" if comparison.study == "ablations" else "Row", *names),
        [
            [first(line), *("" if line.row == reference and name in PAIRED else cell(line) for name, cell in columns)]
            for line in lines
        ],
        [ORACLE] * any(line.row.label_source == TRUE_CLASS for line in lines)
        + _zero_shot_notes(lines, notes)
        + _place_notes(lines, notes)
        + [REDUCERS_NAMED] * several,
        strong=frozenset((row, k) for row in best for k in (0, 1 + names.index("Top-1")) if equal),
        footnotes=(*FOOTNOTES, *[BEST] * equal, (PAIRED, f"against {reference.title} (Cost {reference.cost:.3f}).")),
    )


def _zero_shot_notes(lines: Sequence[Line], notes: Notes) -> list[str]:
    """One line on rows that weigh the classes by their names, if there are any."""
    if notes.zero_shot is None or not any(line.row.label_source == "text" for line in lines):
        return []
    return [
        "[text] rows weigh the classes by the zero-shot probabilities of their names, whose Top-1 is "
        f"{notes.zero_shot:.1f} %."
    ]


def _place_notes(lines: Sequence[Line], notes: Notes) -> list[str]:
    """Two lines on rows whose scores come from early blocks or a glance, if there are any."""
    places = [place for place in notes.early_top1 or {} if any(line.row.place == place for line in lines)]
    if not places:
        return []
    top1 = ", ".join(f"{(notes.early_top1 or {})[place]:.1f} % {place_title(place)}" for place in places)
    return [
        "Rows of a block or a glance take words, class and attention from there: no label and no dense pass, except "
        "for [gt]. Unlike that of other rows, their cost counts all that their scores need.",
        f"Top-1 of the class that they use: {top1}.",
    ]


def _top1(line: Line) -> str:
    return f"{line.row.top1:.1f}"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


Columns = list[tuple[str, Callable[[Line], str]]]
_NUMBERS: Columns = [
    ("Tokens", lambda line: str(line.row.tokens)),
    ("Cost", lambda line: f"{line.row.cost:.3f}"),
    ("Top-1", _top1),
    ("Δ dense", lambda line: signed(line.row.delta_dense)),
    ("95 %", lambda line: interval(line.dense_interval)),
    ("p", lambda line: p_text(line.p_dense)),
    ("Δ ref", lambda line: signed(line.delta_reference)),
    ("p ref", lambda line: p_text(line.p_reference)),
    ("Agree", lambda line: f"{line.row.agreement:.1f}"),
    ("KL", lambda line: f"{line.row.divergence:.3f}"),
    ("p KL", lambda line: p_text(line.p_divergence)),
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


def label_sheet(comparison: Comparison, notes: Notes) -> Sheet:
    """Top-1 of every score with a corpus term, by label source. Not every run has the source ``text``."""
    measured = {(line.row.score, line.row.label_source): line.row for line in comparison.lines}
    used = {source for _, source in measured}
    sources = [name for name, source in LABEL_SOURCES.items() if name in used or not source.uses_text]
    rows = []
    for score in dict.fromkeys(score for score, _ in measured):
        if any((score, source) not in measured for source in sources):
            continue
        alone = measured.get((Score(local=score.local, block=score.block), ""))
        cells = [f"{measured[score, source].top1:.1f}" for source in sources]
        rows.append([score.title, f"{alone.top1:.1f}" if alone else "", *cells])
    return Sheet(
        f"Top-1 by label source, {comparison.classifier} classifier",
        ("Score", "no corpus", *sources),
        rows,
        [
            "no corpus: the attention score alone, without the corpus term.",
            "gt looks up the true class of each image: an oracle, not a method to deploy.",
            *_zero_shot_notes(comparison.lines, notes),
        ],
    )


def ranking_sheet(rankings: Rankings) -> Sheet:
    """Spearman's rho above the diagonal, overlap of the kept patches (percent) below it."""
    rows = []
    for i, name in enumerate(rankings.names):
        cells = [name]
        for j in range(len(rankings.names)):
            above, below = f"{round(rankings.spearman[i][j], 2) + 0.0:.2f}", f"{rankings.overlap[i][j]:.0f}"
            cells.append("" if i == j else above if j > i else below)
        rows.append(cells)
    return Sheet(
        f"Agreement of rankings, {rankings.classifier} classifier",
        ("", *(str(k + 1) for k in range(len(rankings.names)))),
        [[f"{k + 1} {row[0]}", *row[1:]] for k, row in enumerate(rows)],
        ["Above the diagonal Spearman's ρ, below it the overlap of the kept patches in percent."],
    )


def sheets(bundle: Bundle, results: Results) -> list[Sheet]:
    return list(named_sheets(bundle, results).values())


def named_sheets(bundle: Bundle, results: Results) -> dict[str, Sheet]:
    """The tables of all comparisons by the names of their files."""
    tables = {}
    for entry in bundle.comparisons:
        if entry.study == SCORERS_STUDY:
            tables[f"compare-labels-{entry.classifier}"] = label_sheet(entry, results.notes)
        tables[f"compare-{entry.study}-{entry.classifier}"] = comparison_sheet(entry, results.notes)
    return tables | {f"compare-rankings-{entry.classifier}": ranking_sheet(entry) for entry in bundle.rankings}


def print_sheets(all_sheets: Iterable[Sheet], console: Console | None = None) -> None:
    console = console or Console()
    for sheet in all_sheets:
        if len(sheet.columns) > MOST_COLUMNS:
            console.print(escape(f"{sheet.title}: too wide for a terminal; see compare.md."), end="\n\n")
            continue
        print_sheet(sheet, console, hidden=WIDE)


def publish(folder: Path) -> list[Path]:
    """Write all comparisons of the run as Markdown, and draw the curves."""
    results = read_results(folder)
    deployed = deployed_sheets(results, earlier_deployed(folder))
    tasks = [sheet for tables in task_sheets(folder, results).values() for sheet in tables.values()]
    everything = [*deployed.values(), *sheets(read_bundle(folder), results), *tasks]
    artifacts.write_text(folder / "compare.md", "\n".join(map(to_markdown, everything)))
    written = [folder / "compare.json", folder / "compare.md"]
    if draw_curves(results, [folder / "curves.png"]):
        written.append(folder / "curves.png")
    for study, (figure, _) in task_figures(folder, results).items():
        save_figure(figure, folder / f"{study}.png", dpi=200)
        written += [folder / f"{study}.json", folder / f"{study}.png"]
    return written
