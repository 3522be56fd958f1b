"""The files of `equal_cost.py` together: the table, our rows against the best peers, and the figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from redi.errors import ArtifactError
from redi.records import artifacts
from redi.records.deployed import OWN
from redi.reduction import OPERATOR
from redi.reduction.titles import title
from redi.report.lines import LETTERS, Line, draw_lines, panels_for
from redi.report.saving import save_figure
from redi.statistics import holm, mcnemar_test, paired_bootstrap, paired_mean_test

Row = tuple[float, str]  # (wanted cost, name)
Records = Mapping[Row, Mapping[str, Tensor]]  # per row and column, one value per image

#: What is stored per row and image: Top-1, the decision of dense, KL from dense, and the cost relative to dense.
COLUMNS = ("right", "agrees", "divergence", "cost")
#: What a user gets: our own row.
SHIPPED = "accelerate"
#: The same with second looks, at the same mean cost.
ADAPTIVE = "accelerate-adaptive"
DENSE: Row = (1.0, "dense")
OWN_DENSE = "protected-dense"
#: Our own rows, which the peers are compared with.
OURS = {
    SHIPPED: title(OWN),
    ADAPTIVE: f"{title(OWN)}, adaptive",
    OWN: f"{title(OWN)} (nearest schedule)",
    OWN_DENSE: title(OWN_DENSE),
}
#: Rows that are applied once, after a third of the blocks.
ONE_SHOT = {"prune": "Top-K prune", OPERATOR: "the paper's operator"}
#: (column, title, format, whether more is better)
MEASURES = (("right", "Top-1", ".2f", True), ("agrees", "agree", ".2f", True), ("divergence", "KL", ".4f", False))


def merge(files: Sequence[Path]) -> Records:
    """The rows of several files. They are of the same images and weights; each row must cover all images."""
    pieces: dict[Row, dict[str, list[Tensor]]] = {}
    subjects = {}
    for file in files:
        if not file.exists():
            raise ArtifactError(f"There is no file {file}: measure it first, with --out {file}.")
        tensors, manifest = artifacts.load(file)
        subjects[file] = manifest["notes"]["subject"]
        if subjects[file] != subjects[files[0]]:
            raise ArtifactError(f"{file} is of other images, classes or weights than {files[0]}.")
        for row in dict.fromkeys(_row(name) for name in tensors if name != "images"):
            record = pieces.setdefault(row, {"images": [], **{column: [] for column in COLUMNS}})
            record["images"].append(tensors["images"])
            for column in COLUMNS:
                record[column].append(tensors[f"{row[0]:g}/{row[1]}/{column}"])
    records = {row: _in_order({name: torch.cat(parts) for name, parts in pieces[row].items()}) for row in pieces}
    expected = records[DENSE]["images"]
    for (cost, name), measured in records.items():
        if not torch.equal(measured["images"], expected):
            raise ArtifactError(
                f"The row {name} at {cost:g} has {len(measured['images'])} of {len(expected)} images: give the files "
                "of all shards, or finish them."
            )
    return records


def _row(name: str) -> Row:
    cost, reducer, _ = name.split("/")
    return float(cost), reducer


def _in_order(record: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sorted by image, and each image once: dense is in every file."""
    order = record["images"].argsort(stable=True)
    images = record["images"][order]
    first = torch.ones_like(images, dtype=torch.bool)
    first[1:] = images[1:] != images[:-1]
    return {name: values[order[first]] for name, values in record.items()}


def costs_of(records: Records) -> list[float]:
    return sorted({cost for cost, _ in records} - {DENSE[0]})


def names_at(records: Records, cost: float) -> list[str]:
    """The rows of a cost: our own first, then the peers from the least to the largest KL."""
    names = [name for at, name in records if at == cost]
    ours = [name for name in OURS if name in names]
    peers = [name for name in names if name not in OURS]
    return ours + sorted(peers, key=lambda name: _mean(records[cost, name], "divergence"))


def row_title(name: str) -> str:
    return OURS.get(name) or ONE_SHOT.get(name) or title(name)


def _mean(record: Mapping[str, Tensor], column: str) -> float:
    """In percent, but for KL and cost."""
    mean = record[column].double().mean().item()
    return 100 * mean if record[column].dtype == torch.bool else mean


def tests(records: Records, cost: float, own: str) -> dict[str, dict[str, float]]:
    """p-values of every peer against one of our rows, by measure, corrected over the peers of the cost.

    They are from an exact McNemar test of Top-1, the same test of the agreement with dense, and a paired t-test of the
    divergence.
    """
    peers = [name for name in names_at(records, cost) if name not in OURS]
    corrected = {}
    for column, *_ in MEASURES:
        test = paired_mean_test if column == "divergence" else mcnemar_test
        values = [test(records[cost, name][column], records[cost, own][column]) for name in peers]
        corrected[column] = dict(zip(peers, holm(values), strict=True))
    return corrected


def table(records: Records) -> str:
    """The results as Markdown. p-values compare with our own row."""
    dense = records[DENSE]["right"]
    lines = [
        f"dense {_mean(records[DENSE], 'right'):.2f} % of {len(dense)} images",
        "",
        "| row | cost | Top-1 | Δ dense (95 %) | p | agree | p | KL | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in costs_of(records):
        names = names_at(records, cost)
        own = next((name for name in (SHIPPED, OWN) if name in names), None)
        corrected = tests(records, cost, own) if own else {}
        for name in names:
            record = records[cost, name]
            low, high = paired_bootstrap(record["right"], dense).interval
            drop = _mean(record, "right") - _mean(records[DENSE], "right")
            cells = [row_title(name), f"{_mean(record, 'cost'):.3f}"]
            for column, _, form, _ in MEASURES:
                cells.append(format(_mean(record, column), form))
                cells += [f"{drop:+.2f} ({low:+.2f} to {high:+.2f})"] * (column == "right")
                p = corrected.get(column, {}).get(name)
                cells.append("" if p is None else f"{p:.1g}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_left_out(records), ""])


def _left_out(records: Records) -> list[str]:
    """A line per cost that some rows do not have."""
    names = dict.fromkeys(name for row, name in records if (row, name) != DENSE)
    missing = {cost: [row_title(name) for name in names if (cost, name) not in records] for cost in costs_of(records)}
    return [
        f"No row at {cost:g}, because they cannot be that cheap or are slow: {', '.join(sorted(titles))}."
        for cost, titles in missing.items()
        if titles
    ]


def best_peers(records: Records) -> str:
    """Each of our rows beside the peer that is best in a measure, with the corrected p-value of their difference."""
    lines = ["| our row | cost | measure | ours | best peer | its value | p |", "|---|---|---|---|---|---|---|"]
    for cost in costs_of(records):
        names = names_at(records, cost)
        peers = [name for name in names if name not in OURS]
        for own in [name for name in names if name in OURS and peers]:
            corrected = tests(records, cost, own)
            for column, measure, form, more in MEASURES:
                choose = max if more else min
                best = choose(peers, key=lambda name: _mean(records[cost, name], column))
                ours, its = (format(_mean(records[cost, name], column), form) for name in (own, best))
                p = corrected[column][best]
                lines.append(f"| {OURS[own]} | {cost:g} | {measure} | {ours} | {row_title(best)} | {its} | {p:.1g} |")
    return "\n".join([*lines, ""])


def draw(records: Records, path: Path) -> None:
    """Top-1 and KL (logarithmic) against cost, one line per row; a row at a single cost is a point."""
    names = list(dict.fromkeys(name for cost in costs_of(records) for name in names_at(records, cost)))
    figure, panels = panels_for([row_title(name) for name in names], 2, stacked=True)
    shown = (("right", "Top-1, %"), ("divergence", "KL from dense, nats (logarithmic)"))
    for axes, (column, label) in zip(panels, shown, strict=True):
        axes.set(xlabel="cost relative to dense", ylabel=label, yscale="log" if column == "divergence" else "linear")
        axes.grid(alpha=0.25)
        axes.set_xticks(costs_of(records))
        if column == "right":
            top1 = _mean(records[DENSE], column)
            axes.axhline(top1, color="0.4", linewidth=1)
            axes.annotate(
                f"dense {top1:.1f}", (0.01, top1), (0, 3), axes.get_yaxis_transform(), "offset points", fontsize=LETTERS
            )
        lines = []
        for name in names:
            points = [records[cost, name] for cost in costs_of(records) if (cost, name) in records]
            x, y = [_mean(record, "cost") for record in points], [_mean(record, column) for record in points]
            lines.append(Line(row_title(name), x, y, own=name == SHIPPED))
        draw_lines(axes, lines)
    save_figure(figure, path, dpi=150)
