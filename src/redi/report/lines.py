"""Many lines in one plot: our own stands out, the others are muted, and each has its name at its left end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redi.report.saving import new_figure

#: Colours that readers with any common colour blindness can tell apart, from Paul Tol's muted and bright schemes.
COLOURS = ("#332288", "#44AA99", "#882255", "#4477AA", "#999933", "#AA4499", "#117733")
OWN_COLOUR = "#D55E00"
MARKERS = "osD^v<>p"
#: Points between the left edge of a plot and the names, and the size of their letters.
GAP, LETTERS = 26, 8
#: Distance between names, in heights of letters.
SPACING = 1.3


@dataclass(frozen=True)
class Line:
    """A named line, its points from left to right. ``own`` is the line that stands out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    own: bool = False
    style: str = "-"


def panels_for(names: Sequence[str], count: int, stacked: bool = False) -> tuple[Any, Sequence[Any]]:
    """A figure with some panels, each with room for the names of its lines: side by side or on top of each other."""
    widest = 0.6 * LETTERS / 72 * max(map(len, names))
    height = max(4.2, 0.9 + SPACING * LETTERS / 72 * len(names))
    rows, columns = (count, 1) if stacked else (1, count)
    figure = new_figure(figsize=((4.6 + widest) * columns + 0.4, height * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15)  # letters are not equally wide at every resolution
    return figure, list(figure.subplots(rows, columns, squeeze=False).flatten())


def draw_lines(axes: Any, lines: Sequence[Line | None]) -> None:
    """Draw the lines, with their names left of the plot; so the numbers of the vertical axis are on the right.

    The place in the list decides colour and marker; None keeps a place free for a line of another plot. All else that
    takes room (titles, a logarithmic axis) must be set before.
    """
    colours: dict[str, str] = {}
    for number, line in enumerate(lines):
        if line is None:
            continue
        colours[line.name] = OWN_COLOUR if line.own else COLOURS[number % len(COLOURS)]
        axes.plot(
            line.x,
            line.y,
            color=colours[line.name],
            linestyle=line.style,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5 if line.own else 3.5,
            linewidth=2.8 if line.own else 1.1,
            alpha=1 if line.own else 0.8,
            zorder=3 if line.own else 2,
        )
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.margins(x=0.03)
    axes.set_xlim(*axes.get_xlim())  # the names must not change the limits
    axes.set_ylim(*axes.get_ylim())
    axes.figure.draw_without_rendering()  # the layout decides how high the plot is
    _name_lines(axes, [line for line in lines if line], colours)


def _name_lines(axes: Any, lines: Sequence[Line], colours: dict[str, str]) -> None:
    """The names in a column, at the heights of the lines' left ends or as near as they fit."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((line.x[0], line.y[0]))[1]) for line in lines]
    inches = axes.get_position().height * axes.figure.get_figheight()
    order = sorted(range(len(lines)), key=heights.__getitem__)
    places = spread([heights[k] for k in order], SPACING * LETTERS / 72 / inches)
    for k, place in zip(order, places, strict=True):
        line = lines[k]
        axes.annotate(
            line.name,
            (line.x[0], line.y[0]),
            (-GAP, place),
            textcoords=("axes points", "axes fraction"),
            ha="right",
            va="center",
            fontsize=LETTERS,
            fontweight="bold" if line.own else "normal",
            color=OWN_COLOUR if line.own else "0.2",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colours[line.name],
                "linewidth": 0.8,
                "linestyle": ":",
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (1, 0.5),
            },
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The places nearest to some ascending heights that are ``gap`` apart, between 0 and 1 if there is room.

    Neighbours that are too close form a group, whose middle is at the mean of its heights.
    """
    groups: list[tuple[float, int]] = []  # the lowest place of a group, and its number of places
    for height in heights:
        start, count = height, 1
        while groups and groups[-1][0] + groups[-1][1] * gap > start:
            below, many = groups.pop()
            start = (below * many + (start - many * gap) * count) / (many + count)
            count += many
        groups.append((start, count))
    places = [start + number * gap for start, count in groups for number in range(count)]
    for number in range(len(places)):  # what lies below the plot moves up
        places[number] = max(places[number], number * gap)
    for number in range(1, len(places) + 1):  # what lies above it moves down
        places[-number] = min(places[-number], 1 - (number - 1) * gap)
    return places
