"""Plots of measured rows: a dot with its interval per row, and the tokens after each block."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redi.errors import printable
from redi.report.saving import new_figure


class Dot(NamedTuple):
    """A measured value with its interval."""

    name: str
    value: float
    low: float
    high: float


def draw_dots(panels: Mapping[str, Sequence[Dot]], axis: str, reference: float) -> Any:
    """One panel per title, one line per dot, and a line at the value of the reference, which is dense."""
    heights = [len(dots) + 1.5 for dots in panels.values()]
    figure = new_figure(figsize=(7, 0.24 * sum(heights) + 0.6), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (title, dots) in zip(all_axes, panels.items(), strict=True):
        places = range(len(dots))
        values = [dot.value for dot in dots]
        # The interval of a few images may leave out the value itself.
        below = [max(dot.value - dot.low, 0) for dot in dots]
        above = [max(dot.high - dot.value, 0) for dot in dots]
        axes.errorbar(values, places, xerr=[below, above], fmt="o", markersize=4, color="C0", ecolor="0.6", capsize=2)
        axes.set_yticks(places, [printable(dot.name) for dot in dots], fontsize=8, parse_math=False)
        axes.set_ylim(len(dots) - 0.4, -0.6)
        axes.set_title(printable(title), fontsize=9, loc="left", parse_math=False)
        axes.axvline(reference, color="0.5", linewidth=0.8)
        axes.grid(axis="x", alpha=0.25)
    all_axes[-1].set_xlabel(axis, fontsize=9)
    return figure


def draw_schedule(patches: int, schedule: Sequence[int], title: str) -> Any:
    """The number of patch tokens after each block, beside the number before the first."""
    figure = new_figure(figsize=(6, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(schedule) + 1), [patches, *schedule], color=["0.7", *["C0"] * len(schedule)])
    axes.set(xlabel="block (0: the image)", ylabel="patch tokens")
    axes.set_title(printable(title), fontsize=9, loc="left", parse_math=False)
    axes.set_xticks(range(len(schedule) + 1))
    return figure
