"""The curve of ``redi tune`` as a table, a picture and one sentence."""

from pathlib import Path
from typing import Any

from rich.console import Console

from redi.records.tuning import Tuned
from redi.report.saving import new_figure, save_figure
from redi.report.sheets import Sheet, print_sheet


def tune_sheet(tuned: Tuned) -> Sheet:
    """The table of all settings, with the recommended one in bold."""
    labelled = tuned.dense_accuracy is not None
    columns = ("Cost", "Speed-up", *(("Top-1",) if labelled else ()), "Agree", "Drop", "95 %", "KL")
    rows = []
    for point in tuned.points:
        low, median, high = point.speedup
        speed = f"{median:.2f} ({low:.2f} {high:.2f})"
        top1 = [f"{point.accuracy:.1f}"] if labelled else []
        interval = f"{point.drop_interval[0]:+.1f} {point.drop_interval[1]:+.1f}"
        numbers = [f"{point.agreement:.1f}", f"{point.drop:+.1f}", interval]
        rows.append([f"{point.cost:.3f}", speed, *top1, *numbers, f"{point.divergence:.3f}"])
    notes = [
        f"Drop: points of {tuned.measure} lost, on {tuned.images} images that the schedule was not calibrated on.",
        f"Speed-up: against dense, batch {tuned.config.batch}, median and quartiles.",
    ]
    if labelled:
        notes.append(f"Dense: {tuned.dense_accuracy:.1f} % Top-1.")
    chosen = [] if tuned.chosen is None else [(tuned.chosen, column) for column in range(len(columns))]
    return Sheet("Cost, speed and what is lost", columns, rows, notes, frozenset(chosen))


def verdict(tuned: Tuned) -> str:
    allowed = tuned.config.max_drop
    if tuned.chosen is None:
        inside = [point for point in tuned.points if point.drop <= allowed]
        if not inside:
            return f"Stay with dense: every setting loses more than {allowed:g} points."
        return "Stay with dense: no setting inside the allowed loss is faster on this machine."
    point = tuned.points[tuned.chosen]
    return (
        f"Recommended: cost {tuned.setting.cost:g}, {point.speedup.median:.2f} times as fast as dense, "
        f"{point.drop:+.1f} points of {tuned.measure} lost (95 %: {point.drop_interval[0]:+.1f} to "
        f"{point.drop_interval[1]:+.1f}; allowed {allowed:g})."
    )


def print_tuned(tuned: Tuned, console: Console | None = None) -> None:
    console = console or Console()
    calibration, shape = tuned.calibration, tuned.calibration.shape
    print_sheet(tune_sheet(tuned), console)
    if shape == calibration.default:
        outcome = "no other shape is clearly better than the default"
    else:
        outcome = (
            f"KL from dense on images that it was not calibrated on is {calibration.unseen[0]:.4f}, "
            f"with the default shape {calibration.unseen[1]:.4f}"
        )
    console.print(
        f"Schedule: blocks {shape.first + 1} to {shape.last}, power {shape.power:g}; "
        f"{calibration.trials} trials at cost {calibration.cost:g}: {outcome}.",
        highlight=False,
    )
    console.print(verdict(tuned), style="bold", highlight=False)


def draw_curve(tuned: Tuned, path: Path | None = None) -> Any:
    """Draw the loss against the speed-up, into a file if a path is given."""
    figure = new_figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    speeds = [point.speedup.median for point in tuned.points]
    drops = [point.drop for point in tuned.points]
    # The interval of a few images may leave out the loss itself.
    below = [max(point.drop - point.drop_interval[0], 0) for point in tuned.points]
    above = [max(point.drop_interval[1] - point.drop, 0) for point in tuned.points]
    axes.errorbar(speeds, drops, yerr=[below, above], fmt="o-", color="C0", ecolor="0.7", capsize=2)
    for point in tuned.points:
        place = (point.speedup.median, point.drop)
        axes.annotate(f"{point.cost:.2f}", place, textcoords="offset points", xytext=(5, 5), fontsize=8)
    if tuned.chosen is not None:
        axes.plot(speeds[tuned.chosen], drops[tuned.chosen], "o", ms=11, mfc="none", mec="C3", mew=2)
    allowed = tuned.config.max_drop
    axes.axhline(allowed, color="C3", linewidth=0.8, linestyle="--")
    axes.axvline(1, color="0.5", linewidth=0.8)
    axes.set(
        xlabel="times as fast as dense (the number is the cost)",
        ylabel=f"points of {tuned.measure} lost",
        title=f"{tuned.images} images, 95 % intervals; dashed: {allowed:g} points allowed",
    )
    axes.margins(x=0.1)
    axes.grid(alpha=0.25)
    if path is not None:
        save_figure(figure, path, dpi=160)
    return figure
