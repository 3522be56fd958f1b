"""The diagnostics across backbones: one narrow table per classifier in the terminal, one table in diagnose.md."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rich.console import Console

from redi.records import artifacts
from redi.records.diagnosis import TABLE, Diagnosis, DiagnosisRow
from redi.records.outputs import MARK
from redi.report.sheets import Sheet, print_sheet, to_markdown
from redi.report.tables import ORACLE
from redi.rows import Score

COLUMNS = (
    "Backbone, classifier, score",
    "Tokens",
    "Dense",
    "Attention",
    "Δ attention",
    "p attention",
    "REDI",
    "Δ REDI",
    "95 % of Δ",
    "p REDI",
    "Gain",
    "95 % of gain",
    "p gain",
)
#: The columns in the terminal, beside the score; dense stands in the title.
NARROW = ("Attention", "REDI", "Δ REDI", "p REDI", "Gain", "p gain")
NOTES = (
    "native: the checkpoint's own head. probe: a linear classifier on its dense features.",
    "Δ: points against dense; gain: REDI against attention alone. p: exact McNemar tests, corrected by Holm's method "
    "over the rows of the table.",
    ORACLE.replace("[gt]", "REDI"),
)


def publish(folder: Path, diagnosis: Diagnosis, console: Console | None = None) -> Path:
    """Print the tables and write diagnose.md beside the runs."""
    console = console or Console()
    for narrow in narrow_sheets(diagnosis):
        print_sheet(narrow, console)
    sheet = diagnosis_sheet(diagnosis)
    path = folder / TABLE
    sources = [f"- {name}: `{source}`" for name, source in diagnosis.backbones.items()]
    artifacts.write_text(path, "\n".join([to_markdown(sheet), *sources, "", f"<!-- {MARK} -->", ""]))
    return path


def diagnosis_sheet(diagnosis: Diagnosis) -> Sheet:
    data = diagnosis.data
    data_note = (
        f"{data.train_images} training and {data.val_images} validation images of "
        f"{data.classes} classes, {f'{data.trial}, ' if data.trial else ''}{data.size} px, seed {data.seed}."
    )
    return Sheet(
        "Diagnostics across backbones, Top-1, %", COLUMNS, [_cells(row) for row in diagnosis.rows], [data_note, *NOTES]
    )


def narrow_sheets(diagnosis: Diagnosis) -> list[Sheet]:
    """A table per backbone and classifier that fits 80 characters; the notes are below the last."""
    places = [COLUMNS.index(name) for name in NARROW]
    sheets = []
    for (backbone, classifier), group in groupby(diagnosis.rows, lambda row: (row.backbone, row.classifier)):
        rows = list(group)
        cells = [[Score.parse(row.score).title, *(_cells(row)[k] for k in places)] for row in rows]
        title = f"{backbone}, {classifier}: Top-1, dense {rows[0].dense:.2f} %"
        sheets.append(Sheet(title, ("Score", *NARROW), cells, []))
    notes = diagnosis_sheet(diagnosis).notes
    return [*sheets[:-1], replace(sheets[-1], notes=notes)]


def _cells(row: DiagnosisRow) -> list[str]:
    return [
        f"{row.backbone}, {row.classifier}, {Score.parse(row.score).title}",
        f"{row.tokens[0]} → {row.tokens[1]}",
        f"{row.dense:.2f}",
        f"{row.attention:.2f}",
        f"{row.attention_delta:+.2f}",
        f"{row.attention_p:.1g}",
        f"{row.hybrid:.2f}",
        f"{row.hybrid_delta:+.2f}",
        _interval(row.hybrid_interval),
        f"{row.hybrid_p:.1g}",
        f"{row.gain:+.2f}",
        _interval(row.gain_interval),
        f"{row.gain_p:.1g}",
    ]


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.1f} to {interval[1]:+.1f}"
