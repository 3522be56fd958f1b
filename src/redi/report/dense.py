"""The results of ``redi dense`` as tables, a plot and one sentence."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from redi.records.dense import ACCELERATE, DenseRecord, DenseRow, interval_warning
from redi.records.setting import RESTORES, Setting
from redi.reduction.titles import title
from redi.report.lines import LETTERS, Line, draw_lines, panels_for
from redi.report.numbers import against_dense, speed_of
from redi.report.saving import save_figure
from redi.report.sheets import Sheet, print_sheet
from redi.rows import DENSE

#: Titles that differ from those of reducers elsewhere.
TITLES = {DENSE: "Dense", ACCELERATE: "redi.accelerate", "protected": "redi.accelerate for CLS"}
COLUMNS = (
    *("Row", "mIoU", "Δ dense", "95 % of Δ", "Δ first", "95 %", "Pixels, %", "Same, %", "p same", "Cosine", "p cosine"),
    *("Tokens", "Cost", "Speed-up", "Quartiles", "MB"),
)
#: Columns for which a terminal has no room.
WIDE = ("Δ first", "95 %", "Pixels, %", "Cosine", "p cosine", "Tokens", "Cost", "Quartiles", "MB")
FOOTNOTES = (
    (("mIoU",), "mean IoU in percent over the pixels of all images, without void."),
    (("Δ dense", "95 % of Δ"), "points of mIoU against dense, with a paired bootstrap interval over images."),
    (("Δ first", "95 %"), "the same against the first reduced row."),
    (("Pixels, %",), "labelled pixels whose class is right."),
    (("Same, %", "p same"), "pixels with dense's class; p of a paired test against the first reduced row, after Holm."),
    (("Cosine", "p cosine"), "of the final patch tokens with dense's; p likewise."),
    (("Tokens",), "patch tokens after the last block."),
    (("Cost",), "multiply-adds of blocks and reducer, relative to dense."),
    (("Speed-up", "Quartiles"), "measured against dense in turn, batch 1, up to the tokens on the full grid."),
    (("MB",), "peak memory beyond weights and input; on a CPU of live tensors."),
)


def row_title(row: DenseRow) -> str:
    """The title of a row with the way it restores the grid: "ToMe, copy"."""
    name = TITLES.get(row.row) or title(row.row)
    return f"{name}, {row.restore}" if row.restore else name


def dense_sheets(record: DenseRecord) -> list[Sheet]:
    """One table per cost: dense, the row that ships, then the others by their agreement with dense."""
    return [_sheet(record, cost) for cost in record.costs]


def _sheet(record: DenseRecord, cost: float) -> Sheet:
    first = record.reference(cost)
    others = sorted((row for row in record.at(cost) if row != first), key=lambda row: -row.agreement)
    rows = [record.dense, first, *others]
    strong = {(number, column) for column in (1, 7, 9) for number in _best(rows, column)}
    shipped = first.row == ACCELERATE
    notes = [
        f"{record.images} images, void pixels ({record.void}) left out. All rows read the same linear head, which was "
        f"trained on dense tokens of {record.head.images} images.",
        *([] if shipped else ["redi.accelerate was not measured at this cost."]),
        *filter(None, [interval_warning(record.images)]),
    ]
    return Sheet(
        f"Dense prediction at cost {cost:g}",
        COLUMNS,
        [_cells(row) for row in rows],
        notes,
        frozenset(strong),
        ruled=1,
        footnotes=FOOTNOTES,
    )


def _best(rows: Sequence[DenseRow], column: int) -> list[int]:
    """The positions of the best reduced rows in a column."""
    value = {1: attrgetter("miou"), 7: attrgetter("agreement"), 9: attrgetter("cosine")}[column]
    values = [value(row) for row in rows]
    return [number for number, value in enumerate(values) if number and value == max(values[1:])]


def _cells(row: DenseRow) -> list[str]:
    dense, first, timing = row.to_dense, row.to_reference, row.timing
    speed = quartiles = memory = ""
    if timing is not None and timing.speedup is not None and not row.is_dense:
        speed, quartiles = f"{timing.speedup:.2f}", f"{timing.speedup_low:.2f} {timing.speedup_high:.2f}"
    if timing is not None and timing.memory_mb is not None:
        memory = f"{timing.memory_mb:.1f}"
    return [
        row_title(row),
        f"{row.miou:.2f}",
        f"{dense.miou:+.2f}" if dense else "",
        interval(dense.miou_interval) if dense else "",
        f"{first.miou:+.2f}" if first else "",
        interval(first.miou_interval) if first else "",
        f"{row.accuracy:.2f}",
        f"{row.agreement:.2f}",
        _p(first.p_agreement if first else None),
        f"{row.cosine:.4f}",
        _p(first.p_cosine if first else None),
        f"{row.tokens:.0f}",
        f"{row.analytic:.3f}",
        speed,
        quartiles,
        memory,
    ]


def interval(ends: tuple[float, float]) -> str:
    return "{:+.2f} {:+.2f}".format(*ends)


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def class_sheet(record: DenseRecord) -> Sheet:
    """IoU of every class: dense, and what ships at each cost."""
    rows = [record.dense, *(record.reference(cost) for cost in record.costs)]
    heads = [row_title(rows[0]), *(f"{row_title(row)}, {row.cost:g}" for row in rows[1:])]

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    lines = [[name, *(cell(row.class_iou[k]) for row in rows)] for k, name in enumerate(record.classes)]
    return Sheet("IoU of each class, %", ("Class", *heads), lines, ["Empty: no label has the class."])


def dense_verdict(record: DenseRecord) -> str:
    """What the row that ships loses and gains, at the cost closest to the default."""
    row = record.reference(min(record.costs, key=lambda cost: abs(cost - Setting().cost)))
    assert row.to_dense is not None
    low, high = row.to_dense.miou_interval
    speedup = speed_of(row.timing)
    speed = f"{against_dense(speedup)}, " if speedup else ""
    return (
        f"{row_title(row)} at cost {row.cost:g}: {speed}{row.to_dense.miou:+.2f} points of mIoU ({low:+.2f} to "
        f"{high:+.2f}), the same class as dense in {row.agreement:.1f} % of the pixels."
    )


def print_dense(record: DenseRecord, console: Console | None = None) -> None:
    console = console or Console()
    sheets = dense_sheets(record)
    for number, sheet in enumerate(sheets):
        last = number == len(sheets) - 1  # the columns mean the same in every table
        shown = sheet if last else Sheet(sheet.title, sheet.columns, sheet.rows, [], sheet.strong, sheet.ruled)
        print_sheet(shown, console, WIDE)
    for reason in record.left_out:
        console.print(f"Left out: {reason}", highlight=False, markup=False)
    console.print(dense_verdict(record), style="bold", highlight=False, markup=False)


def draw_dense(record: DenseRecord, path: Path | None = None) -> Any:
    """mIoU and agreement against cost, one line per row; copies are dashed."""
    kinds = list(dict.fromkeys((row.row, row.restore) for row in record.rows if not row.is_dense))
    lines = {kind: [row for row in record.rows if (row.row, row.restore) == kind] for kind in kinds}
    names = {kind: row_title(rows[0]) for kind, rows in lines.items()}
    figure, panels = panels_for(list(names.values()), 2)
    measures = {"mIoU, %": (lambda row: row.miou), "pixels with dense's class, %": (lambda row: row.agreement)}
    for axes, (label, value) in zip(panels, measures.items(), strict=True):
        axes.set(xlabel="cost relative to dense", ylabel=label)
        axes.grid(alpha=0.25)
        if label.startswith("mIoU"):
            axes.axhline(record.dense.miou, color="0.5", linewidth=0.8)
        draw_lines(
            axes,
            [
                Line(
                    names[kind],
                    [row.analytic for row in (*rows, record.dense)],
                    [value(row) for row in (*rows, record.dense)],
                    own=kind[0] == ACCELERATE and kind[1] == RESTORES[0],
                    style="-" if kind[1] == RESTORES[0] else "--",
                )
                for kind, rows in lines.items()
            ],
        )
    figure.supxlabel(f"{record.images} images. Every line ends at dense. Dashed: copies of tokens.", fontsize=LETTERS)
    if path is not None:
        save_figure(figure, path, dpi=160)
    return figure
