"""The paper's Tables 1, 2 and 3 for a run."""

from rich.console import Console

from redi.cost import CostRow
from redi.records.results import Results, Row
from redi.report.sheets import Sheet, print_sheet
from redi.rows import DENSE, MAIN_ROW, SCORES, Score

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
    return {**sheets, "table3": table3(results.costs)}


def table1(results: Results, classifier: str) -> Sheet:
    rows = [results.row(name, classifier) for name in (DENSE, *SCORES)]
    dense = rows[0]
    low, high = dense.top1_interval
    return Sheet(
        f"Table 1. Accuracy of the {classifier} classifier, %",
        ("Configuration", "Tokens", "Top-1", "Δ dense", "95 % of Δ", "p", "Top-5"),
        [_cells(row) for row in rows],
        [f"{dense.images} images; dense Top-1 within {low:.1f} to {high:.1f} (95 %).", ORACLE],
        strong=[row.name for row in rows].index(MAIN_ROW),
    )


def _cells(row: Row) -> list[str]:
    cells = [row.title, str(row.tokens), f"{row.top1:.2f}"]
    if row.name == DENSE:
        return [*cells, "", "", "", f"{row.top5:.2f}"]
    low, high = row.delta_interval
    cells += [f"{row.delta_dense:+.2f}", f"{low:+.1f} {high:+.1f}", f"{row.p_value:.1g}"]
    return [*cells, f"{row.top5:.2f}"]


def table2(results: Results, classifier: str) -> Sheet:
    """Gain: Top-1 of the REDI product minus that of its attention score alone."""
    rows = []
    for name in results.notes.attention_scores:
        alone = results.row(name, classifier)
        product = results.row(Score("tfidf", name).name, classifier)
        numbers = [alone.top1, product.top1, product.top1 - alone.top1, product.top5]
        forms = [".2f", ".2f", "+.2f", ".2f"]
        rows.append([alone.title, *map(format, numbers, forms)])
    return Sheet(
        f"Table 2. Attention score alone and as a product, {classifier}, %",
        ("Attention score", "Attention Top-1", "REDI Top-1", "Gain", "REDI Top-5"),
        rows,
        [],
    )


def table3(costs: list[CostRow]) -> Sheet:
    return Sheet(
        "Table 3. Analytic sequence and compute",
        ("Quantity", "Dense", "Reduced", "Reduction"),
        [[row.quantity, f"{row.dense:g}", f"{row.reduced:.5g}", f"{row.reduction:.1f} %"] for row in costs],
        ["Excludes score construction, reduction overhead and hardware effects."],
    )
