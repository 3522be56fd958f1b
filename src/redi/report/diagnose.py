"""The diagnostics across backbones as one table, in the terminal and as diagnose.md."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from redi import artifacts
from redi.diagnose import Diagnosis, DiagnosisRow
from redi.report.tables import ORACLE, TITLES, plain_table

NATIVE = "native: the checkpoint's own head. probe: a linear classifier on its dense features."
CORRECTED = (
    "Δ: points against dense; gain: REDI against attention alone. p: exact McNemar tests, corrected "
    "by Holm's method over the rows of the table."
)


def publish(folder: Path, diagnosis: Diagnosis, console: Console | None = None) -> Path:
    """Print the table and write diagnose.md beside the runs."""
    console = console or Console()
    table = plain_table(
        "Diagnostics across backbones, Top-1, %",
        ("Backbone, classifier", "Dense", "Attention", "REDI", "Δ", "p", "Gain", "p"),
    )
    for number, row in enumerate(diagnosis.rows):
        if number == 0 or _group(row) != _group(diagnosis.rows[number - 1]):
            table.add_row(escape(_group(row)), f"{row.dense:.2f}")
        table.add_row(
            f"  {TITLES[row.score]}",
            "",
            f"{row.attention:.2f}",
            f"{row.hybrid:.2f}",
            f"{row.hybrid_delta:+.2f}",
            f"{row.hybrid_p:.1g}",
            f"{row.gain:+.2f}",
            f"{row.gain_p:.1g}",
        )
    console.print(table)
    for line in (NATIVE, CORRECTED, ORACLE.replace("[gt]", "REDI")):
        console.print(line, markup=False, highlight=False)
    path = folder / "diagnose.md"
    artifacts.write_text(path, to_markdown(diagnosis))
    return path


def to_markdown(diagnosis: Diagnosis) -> str:
    data = diagnosis.data
    lines = [
        "# Diagnostics across backbones",
        "",
        f"{data['train_images']} training and {data['val_images']} validation images of "
        f"{data['classes']} classes, seed {data['seed']}.",
        f"{NATIVE} {CORRECTED} {ORACLE.replace('[gt]', 'REDI')}",
        "",
        "| Backbone | Classifier | Score | Tokens | Dense | Attention | Δ | p | REDI | Δ | 95 % of Δ "
        "| p | Gain | 95 % of gain | p |",
        "|---|---|---|" + "---:|" * 12,
    ]
    for row in diagnosis.rows:
        cells = (
            row.backbone,
            row.classifier,
            TITLES[row.score],
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
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {name}: `{source}`" for name, source in diagnosis.backbones.items())]
    return "\n".join(lines) + "\n"


def _group(row: DiagnosisRow) -> str:
    return f"{row.backbone}, {row.classifier}"


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.1f} to {interval[1]:+.1f}"
