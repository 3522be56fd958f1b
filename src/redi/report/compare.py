"""Comparisons as tables, in the terminal and in Markdown, and as curves of accuracy against cost."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from redi import artifacts
from redi.compare.records import Bundle, Comparison, Line, Rankings, read_bundle
from redi.corpus import LABEL_SOURCES
from redi.records import Results, Row, read_results
from redi.reduction import OPERATOR
from redi.report.sheets import Sheet, print_sheet, to_markdown
from redi.report.tables import ORACLE, TITLES
from redi.variants import PRODUCT_TERMS

#: Names of scores beyond the paper's.
FURTHER = {
    "bm25": "BM25",
    "col_l2": "Col-L2",
    "col_l4": "Col-L4",
    "shannon": "Shannon entropy",
    "renyi": "Rényi entropy",
    "key_norm": "Key norm",
    "feature_norm": "Feature norm",
    "mean_distance": "Distance to mean",
    "centre": "Centre prior",
}
#: Tables with more columns are for compare.md alone.
MOST_COLUMNS = 16
#: Columns that a terminal of 80 characters has no room for; compare.md has them.
WIDE = ("Tokens", "95 %", "ρ", "Agree", "p KL")
#: What a curve's line says: dashed an oracle, dotted a score that needs a dense pass.
LINES = {"dashed": "--", "dotted": ":", "solid": "-"}
CORRECTED = (
    "p: exact McNemar tests, p KL: a paired z-test of KL, corrected by Holm's method over the rows. "
    "Intervals: 95 %, paired bootstrap. Agree: percent of images with dense's Top-1. "
    "KL: divergence from dense's output, nats. "
    "Cost: matrix products relative to dense, without making the scores."
)


def score_title(scorer: str) -> str:
    """``redi_col_l2`` -> REDI, Col-L2; ``mass@4`` -> Incoming mass of block 4."""
    if scorer in TITLES:
        return TITLES[scorer]
    prefix, _, rest = scorer.partition("_")
    if prefix in PRODUCT_TERMS and rest:
        return f"{prefix.upper()}, {score_title(rest)}"
    name, at, block = scorer.partition("@")
    title = FURTHER.get(name, TITLES.get(name, name))
    return f"{title} of block {block}" if at else title


def describe(row: Row) -> str:
    """What a row is, in one cell: score, label source, reducer and where it works."""
    parts = [score_title(row.scorer)] if row.scorer else []
    if row.labels:
        parts[-1] += f" [{row.labels}]"
    if row.reducer and (not row.scorer or row.reducer != OPERATOR):
        parts.append(row.reducer)
    if row.after:
        parts.append(f"after block {row.after}")
    return ", ".join(parts) or "dense"


def comparison_sheet(comparison: Comparison, vocabulary: Mapping[str, Any]) -> Sheet:
    """``vocabulary`` holds the run's own settings, which ablations differ from."""
    reference, lines = comparison.reference, comparison.lines
    left_out: tuple[str, ...] = (
        ("Tokens", "Cost") if comparison.study == "scorers" else ("ρ", "Overlap")
    )
    notes = [CORRECTED, f"Δ ref, p ref, p KL, ρ and overlap: against {describe(reference)}."]
    if comparison.study == "sweep":  # its rows are of different cost than any one reference
        left_out, notes = ("ρ", "Overlap", "Δ ref", "p ref", "p KL"), notes[:1]
    first: Callable[[Line], str] = lambda line: describe(line.row)  # noqa: E731
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


def changed(row: Row, base: Row, vocabulary: Mapping[str, Any]) -> str:
    """What an ablation's row changes of the base row's settings."""
    own = {"features": "prenorm", "start": "spread", **vocabulary}
    titles = {"n_words": "words", "n_passes": "passes", "features": "features", "start": "start"}
    book = row.corpus["codebook"] or {}
    parts = [f"{titles[k]} {book[k]}" for k in titles if book and book[k] != own[k]]
    if row.corpus["views"] != base.corpus["views"]:
        parts.append(f"views {row.corpus['views']}")
    if row.corpus["mean_weight"] != base.corpus["mean_weight"]:
        weight = row.corpus["mean_weight"]
        parts.append(f"mean {weight:g}, maximum {1 - weight:g}")
    parts += [f"{k} {v:g}" for k, v in row.budget.items() if v != base.budget[k]]
    return ", ".join(parts) or "nothing"


def label_sheet(comparison: Comparison) -> Sheet:
    """Top-1 of every score with a corpus term, by whose label it looked up."""
    found: dict[str, dict[str, Row]] = {}
    for line in comparison.lines:
        found.setdefault(line.row.scorer, {})[line.row.labels] = line.row
    rows = []
    for scorer, by_label in found.items():
        if set(LABEL_SOURCES) - set(by_label):
            continue
        alone = found.get(scorer.partition("_")[2], {}).get("")
        cells = [f"{by_label[source].top1:.1f}" for source in LABEL_SOURCES]
        rows.append([score_title(scorer), f"{alone.top1:.1f}" if alone else "", *cells])
    return Sheet(
        f"Top-1 by label source, {comparison.classifier} classifier",
        ("Score", "no corpus", *LABEL_SOURCES),
        rows,
        ["no corpus: the attention score alone, without the corpus term."],
    )


def ranking_sheet(rankings: Rankings) -> Sheet:
    """Spearman above the diagonal, overlap of the kept patches (percent) below it."""
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
    found = []
    for entry in bundle.comparisons:
        if entry.study == "scorers":
            found.append(label_sheet(entry))
        found.append(comparison_sheet(entry, results.notes["vocabulary"]))
    return [*found, *map(ranking_sheet, bundle.rankings)]


def print_sheets(all_sheets: Sequence[Sheet], console: Console | None = None) -> None:
    console = console or Console()
    console.print(escape(f"{ORACLE}\n"))
    for sheet in all_sheets:
        if len(sheet.columns) > MOST_COLUMNS:
            console.print(f"{sheet.title}: too wide for a terminal, see compare.md.\n")
            continue
        print_sheet(sheet, console, hidden=WIDE)


def publish(folder: Path, bundle: Bundle) -> list[Path]:
    """Print what was compared now; write all that ever was as Markdown, and the curves."""
    results = read_results(folder)
    print_sheets(sheets(bundle, results))
    everything = sheets(read_bundle(folder), results)
    text = "\n".join([ORACLE, "", *map(to_markdown, everything)])
    artifacts.write_text(folder / "compare.md", text)
    written = [folder / "compare.json", folder / "compare.md"]
    if draw_curves(results, folder / "curves.png"):
        written.append(folder / "curves.png")
    return written


def draw_curves(results: Results, path: Path) -> bool:
    """Top-1 against analytic cost: one line a (score, reducer), one panel a classifier.

    False, and no file, where no reducer was measured at three costs or more.
    """
    from matplotlib.figure import Figure

    names = results.classifiers
    curves = {name: curves_of(results, name) for name in names}
    if not any(curves.values()):
        return False
    figure = Figure(figsize=(5.6 * len(names) + 0.6, 5.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    every = sorted({name for found in curves.values() for name in found})
    for axes, classifier in zip(panels, names, strict=True):
        dense = results.row("dense", classifier)
        for name, points in sorted(curves[classifier].items()):
            number = every.index(name)
            axes.plot(
                [row.cost for row in points] + [1.0],
                [row.top1 for row in points] + [dense.top1],
                marker="osD^v<>ph*"[number % 10],
                markersize=4,
                linewidth=1.4,
                linestyle=LINES[line_style(points[0])],
                label=name,
                color=f"C{number % 10}",
            )
        axes.axhline(dense.top1, color="0.5", linewidth=0.8)
        axes.set(
            xlabel="cost relative to dense",
            ylabel="Top-1, %",
            title=f"{classifier} classifier, {dense.images} images",
        )
        axes.grid(alpha=0.25)
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=2 if len(names) == 1 else 4,
        fontsize=8,
        frameon=False,
        title="dashed: an oracle, needs the true class; dotted: needs a dense pass for its score",
        title_fontsize=8,
    )
    figure.savefig(path, dpi=160)
    return True


def curves_of(results: Results, classifier: str) -> dict[str, list[Row]]:
    """Rows of three costs or more, cheapest first, by what they have in common."""
    curves: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.classifier == classifier and row.reducer and not row.after and _usual(row):
            curves.setdefault(_curve_name(row), []).append(row)
    return {
        name: sorted(points, key=lambda row: row.cost)
        for name, points in curves.items()
        if len(points) > 2
    }


def _usual(row: Row) -> bool:
    """Of the paper's proportions: ablations of the budget are no points of a curve."""
    if row.schedule:
        return not row.scorer
    half = abs(row.budget["merge"] - (1 - row.budget["keep"]) / 2) < 1e-6
    usual = {"codebook": None, "views": 4, "mean_weight": 0.8}
    settings = not row.corpus or row.corpus == usual
    return half and settings and (row.budget["cells"], row.budget["spatial"]) == (2, 0.3)


def line_style(row: Row) -> str:
    if row.labels == "gt":
        return "dashed"
    return "dotted" if row.scorer else "solid"


def _curve_name(row: Row) -> str:
    score = score_title(row.scorer) + (f" [{row.labels}]" if row.labels else "")
    return f"{row.reducer}, {score}" if row.scorer else row.reducer
