"""The paper's Tables 1, 2 and 3 for a run."""

from collections.abc import Sequence

from rich.console import Console

from redi.cost import ARITHMETIC, CostRow
from redi.records.results import Results, Row
from redi.report.sheets import ADDED, Sheet, print_sheet
from redi.rows import DENSE, MAIN_ROW, Score

#: The rows of the paper's Tables 1 and 2 in their order.
PAPER_ROWS = (DENSE, "tfidf", "mass", MAIN_ROW)
PAPER_ATTENTION = ("mass", "rollout", "cls_max", "cls_mean")
#: The number of evaluation images from which an accuracy has three decimals; with fewer, the third means nothing.
THREE_DECIMALS = 10_000
#: The line of Table 3 that the paper does not have.
WITH_OPERATOR = "Blocks and the operator's own products"
ORACLE = "[gt] rows look up the true class of each image: an oracle, not a method to deploy."


def print_tables(results: Results, console: Console | None = None) -> None:
    console = console or Console()
    for sheet in paper_tables(results).values():
        print_sheet(sheet, console)


def paper_tables(results: Results) -> dict[str, Sheet]:
    """Tables 1 and 2 for each classifier, and Table 3."""
    sheets = {}
    for classifier in results.classifiers:
        sheets[f"table1-{classifier}"] = table1(results, classifier)
        sheets[f"table2-{classifier}"] = table2(results, classifier)
    return {**sheets, "table3": table3(results.costs, results.row(MAIN_ROW, results.classifiers[0]).cost)}


def table1(results: Results, classifier: str) -> Sheet:
    """The paper's four rows, then the rows of all other scores. Bold: the best of each group, dense included."""
    names = _paper_first(PAPER_ROWS, results.scores)
    rows = [results.row(name, classifier) for name in names]
    paper, dense, digits = len(PAPER_ROWS), rows[0], decimals(rows[0])
    best = [
        best_cells(2, [row.top1 for row in rows], digits, paper),
        best_cells(3, [row.delta_dense for row in rows], digits, paper),
        best_cells(4, [row.top5 for row in rows], digits, paper),
    ]
    # The paper sets the name and the tokens of its row in bold too: it is the best in every column.
    leaders = set.intersection(*({row for row, _ in cells} for cells in best))
    low, high = dense.top1_interval
    trial = f", {results.notes.trial}" if results.notes.trial else ""
    return Sheet(
        f"Accuracy of the {classifier} classifier, %",
        ("Configuration", "Tokens", "Top-1", "Δ dense", "Top-5", "95 % of Δ", "p"),
        [_cells(row, digits) for row in rows],
        [
            f"{dense.images} images{trial}; dense Top-1 within {low:.1f} to {high:.1f} (95 %).",
            ORACLE,
            f"{ADDED}: rows and columns that the paper's table does not have. Bold: the best of the paper's rows, and "
            "the best of the added rows.",
        ],
        strong=frozenset().union(*best, {(row, k) for row in leaders for k in (0, 1)}),
        ruled=PAPER_ROWS.index(MAIN_ROW),
        added_rows=paper,
        added_columns=5,
        number=1,
        footnotes=(
            (("95 % of Δ",), "Wald's interval of a paired difference."),
            (("p",), "exact McNemar test against dense, not corrected."),
        ),
    )


def _paper_first(paper: Sequence[str], names: Sequence[str]) -> list[str]:
    return [*paper, *(name for name in names if name not in paper)]


def decimals(row: Row) -> int:
    """Decimals of an accuracy in percent. The paper prints three, for 50,000 images."""
    return 3 if row.images >= THREE_DECIMALS else 2


def best_cells(column: int, values: Sequence[float], digits: int, paper: int) -> set[tuple[int, int]]:
    """(row, column) of the highest values as they are printed, ties included.

    The first ``paper`` rows compete with each other, and so do the others.
    """
    printed = [round(value, digits) for value in values]
    groups = range(paper), range(paper, len(printed))
    return {(row, column) for group in groups for row in group if printed[row] == max(printed[k] for k in group)}


def _cells(row: Row, digits: int) -> list[str]:
    is_dense = row.name == DENSE
    low, high = row.delta_interval
    return [
        row.title,
        str(row.tokens),
        f"{row.top1:.{digits}f}",
        f"{0:.{digits}f}" if is_dense else _signed(row.delta_dense, digits),
        f"{row.top5:.{digits}f}",
        "" if is_dense else f"{low:+.{digits - 1}f} {high:+.{digits - 1}f}",
        "" if is_dense else f"{row.p_value:.1g}",
    ]


def _signed(value: float, digits: int) -> str:
    """With a sign; a difference that rounds to zero is +0, never -0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def table2(results: Results, classifier: str) -> Sheet:
    """Gain: Top-1 of the REDI product minus that of its attention score alone. The paper marks no best gain."""
    measured = results.notes.attention_scores
    names = [name for name in _paper_first(PAPER_ATTENTION, measured) if name in measured]
    alone = [results.row(name, classifier) for name in names]
    products = [results.row(Score("tfidf", name).name, classifier) for name in names]
    digits, paper = decimals(alone[0]), min(len(names), len(PAPER_ATTENTION))
    best = [
        best_cells(1, [row.top1 for row in alone], digits, paper),
        best_cells(2, [row.top1 for row in products], digits, paper),
        best_cells(4, [row.top5 for row in products], digits, paper),
    ]
    return Sheet(
        f"Attention score alone and as a product, {classifier}, %",
        ("Attention score", "Attention Top-1", "REDI Top-1", "Gain", "REDI Top-5"),
        [
            [
                before.title,
                f"{before.top1:.{digits}f}",
                f"{after.top1:.{digits}f}",
                _signed(after.top1 - before.top1, digits),
                f"{after.top5:.{digits}f}",
            ]
            for before, after in zip(alone, products, strict=True)
        ],
        [],
        strong=frozenset().union(*best),
        added_rows=paper,
        number=2,
    )


def table3(costs: list[CostRow], compared: float | None = None) -> Sheet:
    """The paper's Table 3. ``compared`` is the operator's cost in comparisons, which counts its own products too."""
    notes = ["Excludes score construction, reduction overhead and hardware effects."]
    notes += [
        f"{row.quantity}: {row.reduced:.3f} counts the products of the backbone's own blocks. Eq. blockcompute, which "
        f"assumes an MLP of hidden width 4 D, gives {row.formula:.3f}."
        for row in costs
        if row.formula is not None
    ]
    rows = [[row.quantity, *_amounts(row), f"{row.reduction:.1f} %"] for row in costs]
    if compared is not None:
        rows.append([WITH_OPERATOR, "1.000", f"{compared:.3f}", f"{100 * (1 - compared):.1f} %"])
        notes[0] += (
            " The added line also counts the operator's own products (similarities, merges, cell means). It is the "
            "cost in comparisons."
        )
    return Sheet(
        "Analytic sequence and compute",
        ("Quantity", "Dense", "Reduced", "Reduction"),
        rows,
        notes,
        added_rows=len(costs),
        number=3,
    )


def _amounts(row: CostRow) -> list[str]:
    """A ratio has three decimals, as in the paper; everything else is a count."""
    form = ".3f" if row.quantity == ARITHMETIC else ".0f"
    return [format(row.dense, form), format(row.reduced, form)]
