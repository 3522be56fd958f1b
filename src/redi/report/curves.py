"""Curves of accuracy against cost."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from redi.corpus import TRUE_CLASS
from redi.records.results import Results, Row
from redi.report.saving import new_figure, save_figure
from redi.rows import DENSE, marked_title

#: Line styles: dashed is an oracle, dotted a score that needs a dense pass.
LINES = {"dashed": "--", "dotted": ":", "solid": "-"}
STYLES = "Dashed: an oracle that needs the true class; dotted: a score that needs a dense pass first"
CURVES_CAPTION = (
    f"Top-1 against analytic cost. Every line ends at the dense model. {STYLES}. Cost counts the matrix products of "
    "the blocks and of the reducer, relative to dense, without making the scores."
)
MARKERS = "osD^v<>ph*"
#: Width of a letter of the legend in inches.
LETTER = 0.066


def draw_curves(results: Results, paths: Sequence[Path]) -> bool:
    """Top-1 against analytic cost: one line per (score, reducer), one panel per classifier.

    If nothing was measured at two costs or more, no file is written and the result is False.
    """
    names = results.classifiers
    curves = {name: curves_of(results, name) for name in names}
    if not any(curves.values()):
        return False
    labels = sorted({name for lines in curves.values() for name in lines})
    width = 5.6 * len(names) + 0.6
    columns = max(1, int(width / (0.5 + LETTER * max(map(len, labels)))))
    figure = new_figure(figsize=(width, 4.2 + 0.17 * ceil(len(labels) / columns)), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, classifier in zip(panels, names, strict=True):
        dense = results.row(DENSE, classifier)
        for name, points in sorted(curves[classifier].items()):
            number = labels.index(name)
            axes.plot(
                [row.cost for row in points] + [1.0],
                [row.top1 for row in points] + [dense.top1],
                marker=MARKERS[(number + number // 10) % 10],  # the eleventh line has the first colour again
                markersize=4,
                linewidth=1.4,
                linestyle=LINES[line_style(points[0])],
                label=name,
                color=f"C{number % 10}",
            )
        axes.axhline(dense.top1, color="0.5", linewidth=0.8)
        axes.set(
            xlabel="cost relative to dense", ylabel="Top-1, %", title=f"{classifier} classifier, {dense.images} images"
        )
        axes.grid(alpha=0.25)
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
        title=STYLES,
        title_fontsize=8,
    )
    for path in paths:
        save_figure(figure, path, dpi=200)
    return True


def curves_of(results: Results, classifier: str) -> dict[str, list[Row]]:
    """The rows of each curve, cheapest first; a curve has two costs or more."""
    curves: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.classifier == classifier and row.reducer and row.is_usual(results.notes.budget):
            curves.setdefault(_curve_name(row), []).append(row)
    return {
        name: sorted(points, key=lambda row: row.cost)
        for name, points in curves.items()
        if len({round(row.cost, 3) for row in points}) > 1
    }


def line_style(row: Row) -> str:
    if row.label_source == TRUE_CLASS:
        return "dashed"
    # A score of a block before the reduction is at hand when it is needed.
    at_hand = row.score.block is not None and row.score.block <= row.after and not row.score.term
    return "dotted" if row.scorer and not at_hand else "solid"


def _curve_name(row: Row) -> str:
    parts = [row.reducer]
    if row.scorer:
        parts.append(marked_title(row.score, row.label_source))
    if row.after:
        parts.append(f"after block {row.after}")
    return ", ".join(parts)
