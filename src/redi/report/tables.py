"""The paper's Tables 1, 2 and 3 for a run."""

from rich.console import Console

from redi.cost import CostRow
from redi.records import Results, Row
from redi.report.sheets import Sheet, print_sheet
from redi.run import MAIN_ROW

TITLES = {
    "dense": "Dense baseline",
    "random": "Random",
    "tfidf": "TF-IDF",
    "mass": "Incoming mass",
    "rollout": "Rollout",
    "cls_max": "CLS max",
    "cls_mean": "CLS mean",
    "redi_mass": "REDI, mass",
    "redi_rollout": "REDI, rollout",
    "redi_cls_max": "REDI, CLS max",
    "redi_cls_mean": "REDI, CLS mean",
}
ORACLE = "[gt] rows look up the true class of each image: an oracle, not a method to deploy."


def print_tables(results: Results, console: Console | None = None) -> None:
    console = console or Console()
    for sheet in paper_tables(results).values():
        print_sheet(sheet, console)


def paper_tables(results: Results) -> dict[str, Sheet]:
    """Tables 1 and 2 for each classifier, and Table 3."""
    found = {}
    for classifier in results.classifiers:
        found[f"table1-{classifier}"] = table1(results, classifier)
        found[f"table2-{classifier}"] = table2(results, classifier)
    return {**found, "table3": table3(results.costs)}


def table1(results: Results, classifier: str) -> Sheet:
    rows = [row for row in results.rows if row.classifier == classifier and row.name in TITLES]
    dense = results.row("dense", classifier)
    low, high = dense.top1_interval
    return Sheet(
        f"Table 1. Accuracy of the {classifier} classifier, %",
        ("Configuration", "Tokens", "Top-1", "Δ dense", "95 % of Δ", "p", "Top-5"),
        [_cells(row) for row in rows],
        [f"{dense.images} images; dense Top-1 within {low:.1f} to {high:.1f} (95 %).", ORACLE],
        strong=[row.name for row in rows].index(MAIN_ROW),
    )


def _cells(row: Row) -> list[str]:
    title = TITLES[row.name] + (f" [{row.labels}]" if row.labels else "")
    cells = [title, str(row.tokens), f"{row.top1:.2f}"]
    if row.name == "dense":
        return [*cells, "", "", "", f"{row.top5:.2f}"]
    low, high = row.delta_interval
    cells += [f"{row.delta_dense:+.2f}", f"{low:+.1f} {high:+.1f}", f"{row.p_value:.1g}"]
    return [*cells, f"{row.top5:.2f}"]


def table2(results: Results, classifier: str) -> Sheet:
    """Gain: Top-1 of the REDI product minus that of its attention score alone."""
    rows = []
    for name in results.notes["attention_scores"]:
        alone = results.row(name, classifier)
        product = results.row(f"redi_{name}", classifier)
        numbers = [alone.top1, product.top1, product.top1 - alone.top1, product.top5]
        forms = [".2f", ".2f", "+.2f", ".2f"]
        rows.append([TITLES[name], *map(format, numbers, forms)])
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
        [
            [row.quantity, f"{row.dense:g}", f"{row.reduced:.5g}", f"{row.reduction:.1f} %"]
            for row in costs
        ],
        ["Excludes score construction, reduction overhead and hardware effects."],
    )
