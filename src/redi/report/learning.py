"""How a reducer was learned, as a table, a picture and one sentence."""

from typing import Any

from rich.console import Console

from redi.records.learning import Training
from redi.reduction.titles import title
from redi.report.saving import new_figure
from redi.report.sheets import Sheet, print_sheet


def learning_sheet(training: Training) -> Sheet:
    """The held-out distances after some steps; the state that was kept is bold."""
    best, costs = training.best, list(training.untrained.distances)
    rows = [
        [
            str(check.step),
            "-" if check.loss is None else f"{check.loss:.4f}",
            *(f"{check.distances[cost]:.4f}" for cost in costs),
        ]
        for check in training.checks
    ]
    columns = ("Step", "Loss", *(f"Cost {cost}" for cost in costs))
    notes = [
        f"{training.measure} on {training.held} held-out images, with the reducer as it is used. Step 0 is untrained.",
        f"{training.parameters:,} parameters, {training.images:,} images without labels, {training.steps} batches of "
        f"{training.config.batch}, {training.seconds:.0f} s without reading the images and the dense pass.",
    ]
    at = training.checks.index(best)
    strong = frozenset((at, column) for column in range(len(columns)))
    return Sheet(f"{title(training.method)}: distance from dense", columns, rows, notes, strong)


def learning_verdict(training: Training) -> str:
    """Whether learning has paid."""
    before, after = training.untrained.mean, training.best.mean
    if training.best is training.untrained:
        return f"Learning has not paid: no state is closer to dense than the untrained one ({before:.4f})."
    return (
        f"{training.measure}, mean over the costs: {before:.4f} untrained, {after:.4f} after step {training.best.step}."
    )


def print_learning(training: Training, console: Console | None = None) -> None:
    print_sheet(learning_sheet(training), console or Console())
    print(learning_verdict(training))


def draw_learning(training: Training) -> Any:
    """The held-out distance at each cost over the steps."""
    figure = new_figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    steps = [check.step for check in training.checks]
    for cost in training.untrained.distances:
        axes.plot(steps, [check.distances[cost] for check in training.checks], marker="o", label=f"cost {cost}")
    axes.set_xlabel("step")
    axes.set_ylabel(f"{training.measure}, held out")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure
