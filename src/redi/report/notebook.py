"""Tables in Python: they print as in a terminal, and a notebook shows them as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO

from rich.console import Console

from redi.errors import printable
from redi.report.sheets import Sheet, print_sheet

#: Characters per line of a printed table.
WIDTH = 120


@dataclass(frozen=True, repr=False)
class Table:
    """One or more tables of a result. ``print(table)`` prints them; as the last line of a cell they are shown."""

    sheets: Sequence[Sheet]

    def __str__(self) -> str:
        text = StringIO()
        console = Console(file=text, width=WIDTH, color_system=None, force_jupyter=False)
        for sheet in self.sheets:
            print_sheet(sheet, console)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(map(_html, self.sheets))


def _html(sheet: Sheet) -> str:
    """A small table without scripts or classes, for a page whose style is unknown."""
    lines = [_line("th", sheet.columns)]
    for label, numbers in sheet.row_groups():
        if label:
            cell = f'<td colspan="{len(sheet.columns)}" style="text-align: left"><em>{_text(label)}</em></td>'
            lines.append(f"<tr>{cell}</tr>")
        for number in numbers:
            bold = {column for row, column in sheet.strong if row == number}
            lines.append(_line("td", sheet.rows[number], bold))
    title = f'<caption style="text-align: left; white-space: nowrap"><strong>{_text(sheet.title)}</strong></caption>'
    notes = "".join(f"<div><small>{_text(note)}</small></div>" for note in sheet.notes)
    return f"<table>{title}{''.join(lines)}</table>{notes}"


def _line(tag: str, cells: Sequence[str], bold: set[int] | frozenset[int] = frozenset()) -> str:
    texts = [f"<strong>{_text(cell)}</strong>" if k in bold else _text(cell) for k, cell in enumerate(cells)]
    styles = ["text-align: left", *["text-align: right; white-space: nowrap"] * (len(cells) - 1)]
    parts = (f'<{tag} style="{style}">{text}</{tag}>' for style, text in zip(styles, texts, strict=True))
    return f"<tr>{''.join(parts)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))
