"""A table before it is drawn, and its forms: terminal, Markdown, LaTeX, HTML, a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_html
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: What TeX would not print as it stands.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Δ": r"$\Delta$",
    "ρ": r"$\rho$",
    "−": "$-$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Sheet:
    title: str
    columns: tuple[str, ...]  # the first is text, the others numbers
    rows: list[list[str]]
    notes: list[str]
    strong: int | None = None  # the row that is set in bold


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """First column left, numbers right; narrow enough for 80 characters."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=True)
    return table


def print_sheet(sheet: Sheet, console: Console, hidden: Sequence[str] = ()) -> None:
    """``hidden`` columns are those a terminal has no room for."""
    shown = [k for k, name in enumerate(sheet.columns) if name not in hidden]
    table = plain_table(sheet.title, [sheet.columns[k] for k in shown])
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for number, row in enumerate(sheet.rows):
        style = "bold" if number == sheet.strong else ""
        table.add_row(*(escape(row[k]) for k in shown), style=style)
    console.print(table)
    for note in sheet.notes:
        console.print(escape(note))
    console.print()


def to_markdown(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"### {sheet.title}", "", *(f"{note}  " for note in sheet.notes), ""]
    lines += [line(sheet.columns), "|" + "---|" * len(sheet.columns), *map(line, sheet.rows), ""]
    return "\n".join(lines)


def to_latex(sheet: Sheet) -> str:
    """A table environment for booktabs."""

    def line(cells: Sequence[str], strong: bool = False) -> str:
        texts = [escape_latex(cell) for cell in cells]
        return " & ".join(rf"\textbf{{{text}}}" if strong else text for text in texts) + r" \\"

    caption = " ".join([f"{sheet.title}.", *sheet.notes])
    rows = [line(row, number == sheet.strong) for number, row in enumerate(sheet.rows)]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.columns) - 1)}}}",
            r"\toprule",
            line(sheet.columns),
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def to_html(sheet: Sheet) -> str:
    """Head cells hold buttons, which the page's script lets sort the rows."""
    head = "".join(
        f'<th scope="col"><button type="button" class="sort">{escape_html(name)}</button></th>'
        for name in sheet.columns
    )
    rows = []
    for number, row in enumerate(sheet.rows):
        strong = ' class="strong"' if number == sheet.strong else ""
        first = f'<th scope="row">{escape_html(row[0])}</th>'
        cells = "".join(f"<td>{escape_html(cell)}</td>" for cell in row[1:])
        rows.append(f"<tr{strong}>{first}{cells}</tr>")
    notes = "".join(f'<p class="note">{escape_html(note)}</p>' for note in sheet.notes)
    return (
        '<figure class="sheet"><div class="scroll"><table>'
        f"<caption>{escape_html(sheet.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{notes}</figure>"
    )


def draw_sheet(sheet: Sheet, paths: Sequence[Path]) -> None:
    """As a picture, in the format of each path's suffix."""
    from matplotlib.figure import Figure

    cells = [list(sheet.columns), *sheet.rows]
    widths = [max(len(row[k]) for row in cells) + 2 for k in range(len(sheet.columns))]
    height = 0.26 * (len(cells) + 2)
    figure = Figure(figsize=(max(0.085 * sum(widths), 4), height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, sum(widths)), ylim=(len(cells) + 1, -1))
    axes.text(0.5, -0.4, sheet.title, fontsize=9, fontweight="bold", va="center")
    for number, row in enumerate(cells):
        weight = "bold" if sheet.strong is not None and number == sheet.strong + 1 else "normal"
        right = 0
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            right += width
            place = right - 1 if column else 1
            side = "right" if column else "left"
            axes.text(place, number + 0.5, text, fontsize=8, ha=side, va="center", weight=weight)
    for rule, line in ((0.0, 1.0), (1.0, 0.6), (len(cells), 1.0)):
        axes.plot((0.5, sum(widths) - 0.5), (rule, rule), color="black", linewidth=line)
    for path in paths:
        figure.savefig(path, dpi=300, bbox_inches="tight")
