"""The paper's Tables 1, 2 and 3 for a run, in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from redi.cost import CostRow
from redi.records import Results, Row

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
    for classifier in results.classifiers:
        console.print(table1(results, classifier))
        console.print(table2(results, classifier))
    console.print(table3(results.costs))


def table1(results: Results, classifier: str) -> RenderableType:
    table = plain_table(
        f"Table 1. Accuracy of the {classifier} classifier, %",
        ("Configuration", "Tokens", "Top-1", "Δ dense", "95 % of Δ", "p", "Top-5"),
    )
    for row in results.rows:
        if row.classifier == classifier and row.name in TITLES:
            table.add_row(*_cells(row), style="bold" if row.name == "redi_mass" else "")
    dense = results.row("dense", classifier)
    low, high = dense.top1_interval
    return Group(
        table,
        f"{dense.images} images; dense Top-1 within {low:.1f} to {high:.1f} (95 %).",
        escape(f"{ORACLE}\n"),
    )


def _cells(row: Row) -> list[str]:
    title = TITLES.get(row.name, row.name) + (f" [{row.labels}]" if row.labels else "")
    cells = [title, str(row.tokens), f"{row.top1:.2f}"]
    if row.name == "dense":
        return [escape(cell) for cell in [*cells, "", "", "", f"{row.top5:.2f}"]]
    low, high = row.delta_interval
    cells += [f"{row.delta_dense:+.2f}", f"{low:+.1f} {high:+.1f}", f"{row.p_value:.1g}"]
    return [escape(cell) for cell in [*cells, f"{row.top5:.2f}"]]


def table2(results: Results, classifier: str) -> RenderableType:
    """Gain: Top-1 of the REDI product minus that of its attention score alone."""
    table = plain_table(
        f"Table 2. Attention score alone and as a product, {classifier}, %",
        ("Attention score", "Attention Top-1", "REDI Top-1", "Gain", "REDI Top-5"),
    )
    for name in results.notes["attention_scores"]:
        alone = results.row(name, classifier)
        product = results.row(f"redi_{name}", classifier)
        table.add_row(
            TITLES[name],
            f"{alone.top1:.2f}",
            f"{product.top1:.2f}",
            f"{product.top1 - alone.top1:+.2f}",
            f"{product.top5:.2f}",
        )
    return Group(table, "")


def table3(costs: list[CostRow]) -> RenderableType:
    table = plain_table(
        "Table 3. Analytic sequence and compute", ("Quantity", "Dense", "Reduced", "Reduction")
    )
    for row in costs:
        table.add_row(
            row.quantity, f"{row.dense:g}", f"{row.reduced:.5g}", f"{row.reduction:.1f} %"
        )
    return Group(table, "Excludes score construction, reduction overhead and hardware effects.\n")


def plain_table(title: str, columns: tuple[str, ...]) -> Table:
    """First column left, numbers right; narrow enough for 80 characters."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table
