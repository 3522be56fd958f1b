r"""Tables and figures as LaTeX: a file for ``\input`` each, and one document that shows them all.

The files are plain ASCII and need the packages booktabs and graphicx. They compile with pdflatex.
"""

import re
import unicodedata
from collections.abc import Sequence

from redi.report.sheets import ADDED, Sheet

_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
        "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
        strict=True,
    )
)
#: Accents by their combining character.
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0308\u030c\u0327\u030a\u0304\u0307\u030b\u0306", "`'^~\"vcr=.Hu", strict=True)
)
#: Characters that TeX would not print as they are.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textquoteleft{}",
    '"': "''",
    "[": "{[}",  # at the begin of a row, a bracket would be the optional argument of the row above
    "]": "{]}",
    "−": "$-$",
    "×": r"$\times$",
    "→": r"$\to$",
    "²": "$^2$",
    "–": r"\textendash{}",
    "ß": r"\ss{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},
    **{letter: rf"$\{name}$" for letter, name in _GREEK.items()},
}
_NUMBER = r"[+-]\d+(?:\.\d+)?"
_INTERVAL = re.compile(rf"({_NUMBER}) ({_NUMBER})")
_POWER = re.compile(r"(\d+)e([+-]\d+)")
_SMALL = re.compile(r"0\.(0{3,})([1-9])")
#: A table with more rows is set in small type, so that it fits on a page.
MOST_ROWS = 40
#: Shrinks a table that is wider than the text, and no other.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it. A hyphen before a number is a minus sign."""
    text = re.sub(r"(?<![\w.)])-(?=\d)", "−", text)
    return "".join(map(_letter, text)).replace("--", "-{}-")


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter if letter.isprintable() else " "
    base, accent, *more = [*unicodedata.normalize("NFD", letter), ""]
    if base.isascii() and accent in _ACCENTS and more == [""]:
        return rf"\{_ACCENTS[accent]}{{{base}}}"
    return f"{{[}}U+{ord(letter):04X}{{]}}"  # pdflatex has no letter for it


def cell_latex(text: str, strong: bool = False) -> str:
    """A cell. Signed numbers, powers of ten and intervals are formulas, so that a minus sign is one."""
    formula = ""
    if power := _POWER.fullmatch(text):
        formula = rf"{power[1]}\times10^{{{int(power[2])}}}"
    elif small := _SMALL.fullmatch(text):
        formula = rf"{small[2]}\times10^{{{-1 - len(small[1])}}}"
    elif interval := _INTERVAL.fullmatch(text):
        formula = f"[{interval[1]}, {interval[2]}]"
    elif re.fullmatch(_NUMBER, text):
        formula = text
    if formula:
        return rf"{{\boldmath${formula}$}}" if strong else f"${formula}$"
    return rf"\textbf{{{escape_latex(text)}}}" if strong else escape_latex(text)


def to_latex(sheet: Sheet, name: str) -> str:
    r"""A table environment for booktabs; ``\ref{tab:name}`` refers to it."""
    width = len(sheet.columns)
    paper = width if sheet.added_columns is None else sheet.added_columns
    layout = "l" + "r" * (paper - 1)
    above: list[str] = []
    if paper < width:
        layout += r"@{\hspace{2em}}" + "r" * (width - paper)
        above = [
            rf"\multicolumn{{{paper}}}{{l}}{{}} & \multicolumn{{{width - paper}}}{{c}}{{{ADDED}}} \\",
            rf"\cmidrule(l){{{paper + 1}-{width}}}",
        ]
    rows = []
    for label, numbers in sheet.row_groups():
        if label:
            rows += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textit{{{label}}}}} \\"]
        for number in numbers:
            rows += [r"\midrule"] * (number == sheet.ruled)
            cells = [cell_latex(text, (number, k) in sheet.strong) for k, text in enumerate(sheet.rows[number])]
            rows.append(" & ".join(cells) + r" \\")
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            r"\setlength{\belowcaptionskip}{6pt}",
            *[r"\scriptsize"] * (len(sheet.rows) > MOST_ROWS),
            rf"\caption{{{escape_latex(' '.join([f'{sheet.title}.', *sheet.notes_without()]))}}}",
            rf"\label{{tab:{name}}}",
            _FIT,
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            *above,
            " & ".join(map(escape_latex, sheet.columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def figure_latex(name: str, caption: str) -> str:
    r"""A figure environment for ``name.pdf``, as wide as the page; ``\ref{fig:name}`` refers to it."""
    return "\n".join(
        [
            r"\begin{figure*}[t]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{{name}.pdf}}",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{fig:{name}}}",
            r"\end{figure*}",
            "",
        ]
    )


def document(names: Sequence[str]) -> str:
    """A document with the files of these names, one per page. It also says what they need."""
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage{booktabs,graphicx}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\begin{document}",
            *(rf"\input{{{name}.tex}}\clearpage" for name in names),
            r"\end{document}",
            "",
        ]
    )
