"""Curves of accuracy against cost."""

from collections.abc import Sequence
from pathlib import Path

from redi.corpus import TRUE_CLASS
from redi.records.deployed import OWN
from redi.records.results import Results, Row
from redi.reduction.titles import title
from redi.report.lines import LETTERS, Line, draw_lines, panels_for
from redi.report.saving import save_figure
from redi.rows import DENSE, marked_title

LINES = {"dashed": "--", "dotted": ":", "solid": "-"}
MEANINGS = {"dashed": "an oracle that needs the true class", "dotted": "a score that needs a dense pass first"}


def draw_curves(results: Results, paths: Sequence[Path]) -> bool:
    """Top-1 against analytic cost: one line per (score, reducer), one panel per classifier.

    If nothing was measured at two costs or more, no file is written and the result is False.
    """
    curves = {name: curves_of(results, name) for name in results.classifiers}
    if not any(curves.values()):
        return False
    names = sorted({name for lines in curves.values() for name in lines})
    figure, panels = panels_for(names, len(curves))
    for axes, (classifier, lines) in zip(panels, curves.items(), strict=True):
        dense = results.row(DENSE, classifier)
        axes.set(
            xlabel="cost relative to dense", ylabel="Top-1, %", title=f"{classifier} classifier, {dense.images} images"
        )
        axes.grid(alpha=0.25)
        axes.axhline(dense.top1, color="0.5", linewidth=0.8)
        drawn = {
            name: Line(
                name,
                [row.cost for row in points] + [1.0],
                [row.top1 for row in points] + [dense.top1],
                own=points[0].reducer == OWN,
                style=LINES[line_style(points[0])],
            )
            for name, points in lines.items()
        }
        draw_lines(axes, [drawn.get(name) for name in names])
    figure.supxlabel(styles_note(results, results.classifiers), fontsize=LETTERS)
    for path in paths:
        save_figure(figure, path, dpi=200)
    return True


def curves_caption(results: Results) -> str:
    return (
        "Top-1 against analytic cost. Every line ends at the dense model. "
        f"{styles_note(results, results.classifiers)}Cost counts the matrix products of the blocks and of the reducer, "
        "relative to dense, without making the scores."
    )


def styles_note(results: Results, classifiers: Sequence[str]) -> str:
    """A sentence on the line styles that occur in the curves of some classifiers; empty if all lines are solid."""
    curves = [points for name in classifiers for points in curves_of(results, name).values()]
    styles = {line_style(points[0]) for points in curves}
    note = "; ".join(f"{style}: {meaning}" for style, meaning in MEANINGS.items() if style in styles)
    return f"{note.capitalize()}. " if note else ""


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
    parts = [title(row.reducer)]
    if row.scorer:
        parts.append(marked_title(row.score, row.label_source))
    if row.after:
        parts.append(f"after block {row.after}")
    return ", ".join(parts)
