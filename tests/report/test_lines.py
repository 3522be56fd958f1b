"""Plots with many lines: every name can be read."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from matplotlib.text import Text

from redi.report.lines import Line, draw_lines, spread
from redi.report.saving import new_figure


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).map(sorted))
def test_places_are_apart_in_order_and_within_the_plot(heights: list[float]) -> None:
    places = spread(heights, 0.05)
    assert all(high - low >= 0.05 - 1e-9 for low, high in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 1 + 1e-9


def test_heights_that_are_far_apart_stay_and_close_ones_keep_their_mean() -> None:
    assert spread([0.1, 0.5, 0.9], 0.05) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.2, 0.5, 0.5], 0.1) == pytest.approx([0.2, 0.45, 0.55])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_no_two_names_of_twenty_lines_overlap(scale: str) -> None:
    figure = new_figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(yscale=scale, xlabel="cost", title="twenty lines")
    draw_lines(axes, [Line(f"line {k}", [0.5, 0.6 + k / 100], [1 + k / 1000, 2], own=k == 3) for k in range(20)])
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 20
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert all(box.x1 < axes.get_window_extent().x0 for box in boxes), "the names are left of the plot"
    assert min(box.x0 for box in boxes) >= 0, "and within the figure"
