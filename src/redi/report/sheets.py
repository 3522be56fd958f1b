"""A table before it is drawn, and its forms: terminal, Markdown, HTML; :mod:`redi.report.latex` has the fourth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from rich.box import Box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from redi.errors import printable

#: The label of rows and columns that the paper's table does not have.
ADDED = "Added here"
#: A line below the head and between groups of rows, as booktabs draws them.
RULES = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")


@dataclass(frozen=True)
class Sheet:
    """A table: title, column titles, rows of texts, and notes below it."""

    title: str
    columns: tuple[str, ...]  # the first is text, the others numbers
    rows: list[list[str]]
    notes: list[str]
    strong: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the cells in bold
    ruled: int | None = None  # a row with a rule above it
    added_rows: int | None = None  # the first row of those that the paper's table does not have; they come last
    added_columns: int | None = None  # the first of such columns
    number: int | None = None  # of the paper's table that it is
    footnotes: tuple[tuple[tuple[str, ...], str], ...] = ()  # (titles of columns, what they hold)

    @property
    def heading(self) -> str:
        return self.title if self.number is None else f"Table {self.number}. {self.title}"

    def notes_without(self, hidden: Sequence[str] = ()) -> list[str]:
        """The notes, and the footnotes of all columns that the table has and that are not hidden."""
        shown = [name for name in self.columns if name not in hidden]
        explained = [([name for name in names if name in shown], text) for names, text in self.footnotes]
        return [*self.notes, *(f"{', '.join(names)}: {text}" for names, text in explained if names)]

    def row_groups(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The label and the row numbers of each group of rows: the paper's without a label, then the added ones."""
        border = len(self.rows) if self.added_rows is None else self.added_rows
        yield "", range(border)
        if border < len(self.rows):
            yield ADDED, range(border, len(self.rows))


def escape(text: str) -> str:
    """A text of the user's data, ready to be printed on a terminal: no markup, no control characters."""
    return escape_markup(printable(text))


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """An empty table for the terminal: the first column is aligned left, numbers are aligned right."""
    table = Table(title=escape(title), title_justify="left", box=RULES, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=True)
    return table


def print_sheet(sheet: Sheet, console: Console, hidden: Sequence[str] = ()) -> None:
    """Print a table without the ``hidden`` columns, for which a terminal has no room."""
    shown = [k for k, name in enumerate(sheet.columns) if name not in hidden]
    border = None if sheet.added_columns is None else sum(k < sheet.added_columns for k in shown)

    def line(cells: list[Text]) -> list[Text]:
        return cells if border is None else [*cells[:border], Text("│"), *cells[border:]]

    names = line([Text(sheet.columns[k]) for k in shown])
    table = plain_table(sheet.heading, [name.plain for name in names])
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    if border is not None:
        table.padding = (0, 1, 0, 0)  # to fit 80 characters
    for label, numbers in sheet.row_groups():
        if label:
            table.add_section()
            table.add_row(*line([Text(label, "italic"), *[Text()] * (len(shown) - 1)]))
        for number in numbers:
            if number == sheet.ruled:
                table.add_section()
            cells = [Text(sheet.rows[number][k], "bold" if (number, k) in sheet.strong else "") for k in shown]
            table.add_row(*line(cells))
    console.print(table)
    for note in sheet.notes_without(hidden):
        console.print(escape(note))
    console.print()


def to_markdown(sheet: Sheet) -> str:
    """A Markdown table. It can have no rules, so what the paper's table does not have is in italics."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def text(cell: str, mark: str = "") -> str:
        return mark + cell.replace("|", "\\|") + mark

    paper = len(sheet.columns) if sheet.added_columns is None else sheet.added_columns
    lines = [f"### {sheet.heading}", "", *(f"{note}  " for note in sheet.notes_without()), ""]
    lines.append(line([text(name, "" if k < paper else "*") for k, name in enumerate(sheet.columns)]))
    lines.append("|" + "---|" * len(sheet.columns))
    for label, numbers in sheet.row_groups():
        if label:
            lines.append(line([text(label, "*"), *[""] * (len(sheet.columns) - 1)]))
        for number in numbers:
            cells = enumerate(sheet.rows[number])
            lines.append(line([text(cell, "**" if (number, k) in sheet.strong else "") for k, cell in cells]))
    return "\n".join([*lines, ""])


def to_html(sheet: Sheet) -> str:
    """An HTML table. The head cells hold buttons; the page's script makes them sort the rows of each group."""
    width = len(sheet.columns)
    paper = width if sheet.added_columns is None else sheet.added_columns
    groups, above = "", ""
    if paper < width:
        groups = f'<colgroup span="{paper}"></colgroup><colgroup span="{width - paper}" class="added"></colgroup>'
        label = f'<th colspan="{width - paper}" scope="colgroup">{ADDED}</th>'
        above = f'<tr class="groups"><td colspan="{paper}"></td>{label}</tr>'
    head = "".join(
        f'<th scope="col"><button type="button" class="sort">{escape_html(name)}</button></th>'
        for name in sheet.columns
    )
    bodies = ""
    for label, numbers in sheet.row_groups():
        if label:
            bodies += f'<tbody class="label"><tr><th colspan="{width}" scope="rowgroup">{label}</th></tr></tbody>'
        bodies += f"<tbody>{''.join(_html_row(sheet, number) for number in numbers)}</tbody>"
    notes = "".join(f'<p class="note">{escape_html(note)}</p>' for note in sheet.notes_without())
    return (
        '<figure class="sheet"><div class="scroll"><table>'
        f"<caption>{escape_html(sheet.heading)}</caption>{groups}"
        f"<thead>{above}<tr>{head}</tr></thead>{bodies}</table></div>{notes}</figure>"
    )


def _html_row(sheet: Sheet, number: int) -> str:
    texts = [escape_html(cell) for cell in sheet.rows[number]]
    first, *rest = (f"<strong>{text}</strong>" if (number, k) in sheet.strong else text for k, text in enumerate(texts))
    ruled = ' class="ruled"' if number == sheet.ruled else ""
    return f'<tr{ruled}><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
