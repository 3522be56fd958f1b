"""A table before it is drawn, and its forms: terminal, Markdown, LaTeX, HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_html

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from redi.errors import printable

#: Characters that TeX would not print as they are.
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
    """A table: title, column titles, rows of texts, and notes below it."""

    title: str
    columns: tuple[str, ...]  # the first is text, the others numbers
    rows: list[list[str]]
    notes: list[str]
    strong: int | None = None  # the row that is set in bold


def escape(text: str) -> str:
    """A text of the user's data, ready to be printed on a terminal: no markup, no control characters."""
    return escape_markup(printable(text))


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """An empty table for the terminal: the first column is aligned left, numbers are aligned right."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=True)
    return table


def print_sheet(sheet: Sheet, console: Console, hidden: Sequence[str] = ()) -> None:
    """Print a table without the ``hidden`` columns, for which a terminal has no room."""
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
    """An HTML table. The head cells hold buttons; the page's script makes them sort the rows."""
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
