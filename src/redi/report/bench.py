"""Measured speed as tables, one per batch, precision and mode."""

from rich.console import Console, Group, RenderableType
from rich.text import Text

from redi.records.timing import BenchResult, Overhead, Timing
from redi.reduction.titles import title as reducer_title
from redi.report.sheets import Sheet, plain_table

PRECISION = {"fp32": "FP32", "bf16": "BF16"}
MODE = {"eager": "eager SDPA", "compile": "torch.compile", "onnxruntime": "onnxruntime"}


def print_bench(result: BenchResult, console: Console | None = None) -> None:
    console = console or Console()
    environment = result.environment
    library = "onnxruntime" if "onnxruntime" in environment else "torch"
    console.print(
        f"{environment['backbone']}, {environment['input']} px, on {environment['processor']} "
        f"({environment['device']}, {environment['threads']} threads), {library} {environment[library]}.\n",
        markup=False,
        highlight=False,
    )
    for sheet in bench_sheets(result):
        console.print(_narrow_table(sheet) if sheet.rows else Text(f"{sheet.title}: {sheet.notes[0]}\n"))
    for name, meaning in environment["definitions"].items():
        console.print(f"{name.capitalize()}: {meaning}", markup=False, highlight=False)


def bench_sheets(result: BenchResult) -> list[Sheet]:
    """A table per batch, precision and mode, and one of the overheads."""
    groups: dict[tuple[int, str, str], list[Timing]] = {}
    for row in result.rows:
        groups.setdefault((row.batch, row.dtype, row.mode), []).append(row)
    overheads = [overhead_sheet(result.overheads)] if result.overheads else []
    return [*map(timing_sheet, groups.values()), *overheads]


def timing_sheet(rows: list[Timing]) -> Sheet:
    """The table of one batch, precision and mode: medians and, in parentheses, quartiles.

    The notes say how long compiling took, and what could not be measured and why.
    """
    first = rows[0]
    title = f"Batch {first.batch}, {PRECISION[first.dtype]}, {MODE[first.mode]}"
    measured = [row for row in rows if row.median_ms is not None]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.median_ms is None:
            reasons.setdefault(row.note, []).append(_name(row))
    if not measured:
        return Sheet(title, (), [], [f"not measured, {'; '.join(reasons)}"])
    slow = max(row.high_ms or 0 for row in measured) >= 9999.5  # five digits would not fit
    unit, scale = ("s", 1e-3) if slow else ("ms", 1)
    width = 6 if any(row.memory_mb is not None for row in rows) else 5
    cells = [
        [
            "  with scoring" if row.scoring else reducer_title(row.row),
            _number(row.tokens),
            _quartiles(row.median_ms, row.low_ms, row.high_ms, scale),
            _quartiles(row.speedup, row.speedup_low, row.speedup_high),
            _number(row.predicted),
            _number(row.memory_mb),
        ]
        for row in measured
    ]
    notes = [f"Not measured: {', '.join(names)}, {note}" for note, names in reasons.items()]
    times = [(_name(row), row.compile_seconds) for row in measured if row.compile_seconds]
    if times:
        notes.append("Compiling, s: " + ", ".join(f"{name} {_number(seconds)}" for name, seconds in times))
    columns = ("Configuration", "Tokens", unit, "Speed-up", "Analytic", "MB")
    return Sheet(title, columns[:width], [row[:width] for row in cells], notes)


def overhead_sheet(overheads: list[Overhead]) -> Sheet:
    rows = [
        [str(row.batch), PRECISION[row.dtype], MODE[row.mode], f"{row.percent:+.2f}", f"{row.low:+.2f} {row.high:+.2f}"]
        for row in overheads
    ]
    title = "Overhead of the operator over Top-K pruning, % of its time"
    return Sheet(title, ("Batch", "Precision", "Mode", "Overhead", "Quartiles"), rows, [])


def _narrow_table(sheet: Sheet) -> RenderableType:
    table = plain_table(sheet.title, sheet.columns)
    table.padding, table.show_edge = (0, 1, 0, 0), False  # to fit 80 characters
    for row in sheet.rows:
        table.add_row(*row)
    return Group(table, *map(Text, sheet.notes), "")


def _name(row: Timing) -> str:
    return f"{reducer_title(row.row)} with scoring" if row.scoring else reducer_title(row.row)


def _quartiles(median: float | None, low: float | None, high: float | None, scale: float = 1) -> str:
    if median is None or low is None or high is None:
        return ""
    return f"{_number(median * scale)} ({_number(low * scale)}-{_number(high * scale)})"


def _number(value: float | None) -> str:
    """Format with three digits, which are enough for a measurement."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
