"""The curve of ``redi tune`` as a table, a picture and one sentence."""

from pathlib import Path
from typing import Any

from rich.console import Console

from redi.records.tuning import Point, Tuned
from redi.report.numbers import against_dense
from redi.report.saving import new_figure, save_figure
from redi.report.sheets import Sheet, print_sheet


def tune_sheet(tuned: Tuned) -> Sheet:
    """The table of all settings, with the recommended one in bold."""
    labelled = tuned.dense_accuracy is not None
    distance = "Cosine" if tuned.dense_task else "KL"
    columns = ("Cost", "Speed-up", *(("Top-1",) if labelled else ()), "Agree", "Drop", "At most", "Needs", distance)
    rows = []
    for point in tuned.points:
        low, median, high = point.speedup
        speed = f"{median:.2f} ({low:.2f} {high:.2f})"
        top1 = [f"{point.accuracy:.1f}"] if labelled else []
        needs = "-" if point.needed is None else f"{point.needed:,}"
        numbers = [f"{point.agreement:.1f}", f"{point.drop:+.1f}", f"{point.drop_bound:+.2f}", needs]
        value = point.cosine if tuned.dense_task else point.divergence
        rows.append([f"{point.cost:.3f}", speed, *top1, *numbers, f"{value:.3f}"])
    notes = [
        f"Drop: points of {tuned.measure} lost, on {tuned.images} images that the schedule was not calibrated on. At "
        f"most: its upper bound with 95 % confidence, which decides ({tuned.allowed:g} allowed). Needs: the number of "
        "images for which the bound would be within that, if they were like these.",
        f"Speed-up: against dense, batch {tuned.config.batch}, median and quartiles.",
    ]
    if tuned.dense_task:
        notes.append(
            "Agree: percent of the patches whose nearest patch among some of other images is the same as in the dense "
            "model, per image and averaged over images. Cosine: of patches to those of the dense model."
        )
    if labelled:
        notes.append(f"Dense: {tuned.dense_accuracy:.1f} % Top-1.")
    chosen = None if tuned.setting.outside else tuned.chosen
    strong = [] if chosen is None else [(chosen, column) for column in range(len(columns))]
    return Sheet("Cost, speed and what is lost", columns, rows, notes, frozenset(strong))


def verdict(tuned: Tuned) -> str:
    """What to use, how sure that is, and how many images would allow more."""
    if tuned.chosen is None:
        return "Stay with dense: no setting is faster on this machine. The setting written is dense, cost 1."
    point, cost = tuned.points[tuned.chosen], tuned.setting.cost
    speed = against_dense(point.speedup)
    if tuned.setting.outside:
        more = ""
        if point.needed:
            more = f" Some {point.needed:,} images to check on would be enough for it, at the same rate of changes."
        return (
            f"Nothing is recommended. Outside the tolerance, but the best measured: cost {cost:g}, {speed}; "
            f"{tuned.setting.outside}.{more}"
        )
    more = ""
    if further := _next_cheaper(tuned, point):
        more = f" Cost {further[0].cost:.2f} would need some {further[1]:,} images to check on."
    return (
        f"Recommended: cost {cost:g}, {speed}. The drop in {tuned.measure} is {point.drop:+.1f} points on "
        f"{tuned.images} images, and at most {point.drop_bound:+.2f} with 95 % confidence "
        f"({tuned.allowed:g} allowed).{more}"
    )


def _next_cheaper(tuned: Tuned, chosen: Point) -> tuple[Point, int] | None:
    """The next cheaper setting that more images could recommend, and their number.

    Costs are tested from the highest down, so all between must pass with that number too.
    """
    needed = tuned.images
    for point in sorted(tuned.points, key=lambda point: point.cost, reverse=True):
        if point.cost >= chosen.cost:
            continue
        if point.needed is None:
            return None
        needed = max(needed, point.needed)
        if needed > tuned.images and point.faster:
            return point, needed
    return None


def print_tuned(tuned: Tuned, console: Console | None = None) -> None:
    console = console or Console()
    calibration, shape = tuned.calibration, tuned.calibration.shape
    print_sheet(tune_sheet(tuned), console)
    if shape == calibration.default:
        outcome = "no other shape is clearly better than the default"
    else:
        distance = "1 - cosine to dense" if tuned.dense_task else "KL from dense"
        outcome = (
            f"{distance} on images that it was not calibrated on is {calibration.unseen[0]:.4f}, "
            f"with the default shape {calibration.unseen[1]:.4f}"
        )
    console.print(
        f"Schedule: blocks {shape.first + 1} to {shape.last}, start {shape.start:g}, hold {shape.hold:g}; "
        f"{calibration.trials} trials at cost {calibration.cost:g}: {outcome}.",
        highlight=False,
    )
    if tuned.steps is not None:
        console.print(str(tuned.steps), highlight=False)
    console.print(verdict(tuned), style="bold", highlight=False)


def draw_curve(tuned: Tuned, path: Path | None = None) -> Any:
    """Draw the loss against the speed-up, into a file if a path is given."""
    figure = new_figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    speeds = [point.speedup.median for point in tuned.points]
    drops = [point.drop for point in tuned.points]
    above = [point.drop_bound - point.drop for point in tuned.points]
    bars = [[0] * len(drops), above]
    axes.errorbar(speeds, drops, bars, fmt="o-", color="C0", ecolor="0.7", capsize=2, label="up to the 95 % bound")
    for k, point in enumerate(tuned.points):
        place = (5, 5) if k % 2 else (5, -12)  # neighbours may be equally fast
        axes.annotate(f"{point.cost:.2f}", (speeds[k], drops[k]), place, textcoords="offset points", fontsize=8)
    if tuned.chosen is not None:
        mark = "outside the tolerance" if tuned.setting.outside else "recommended"
        ring = {"marker": "o", "ms": 11, "mfc": "none", "mec": "C3", "mew": 2}
        axes.plot(speeds[tuned.chosen], drops[tuned.chosen], linestyle="none", label=mark, **ring)
    axes.axhline(tuned.allowed, color="C3", linewidth=0.8, linestyle="--", label=f"allowed: {tuned.allowed:g}")
    axes.axvline(1, color="0.5", linewidth=0.8)
    axes.set(
        xlabel="times as fast as dense (the number is the cost)",
        ylabel=f"points of {tuned.measure} lost",
        title=f"What is lost, on {tuned.images} images",
    )
    axes.margins(x=0.1, y=0.1)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    if path is not None:
        save_figure(figure, path, dpi=160)
    return figure
