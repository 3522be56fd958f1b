"""The page of ``redi dense``: tables, curves, and scenes side by side, from records alone.

A browser gets the picture of a scene as JPEG, its class maps as greyscale PNG, and the token of every patch as
numbers. It paints them itself.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi._version import __version__
from redi.images.jpeg import to_jpeg
from redi.images.scenes import to_png
from redi.records import artifacts
from redi.records.dense import DenseRecord, DenseRow, load_row, load_scenes, read_dense
from redi.records.outputs import require_no_link
from redi.report.assemble import assemble, base64_text, inline_json
from redi.report.dense import class_sheet, dense_sheets, dense_verdict, interval, row_title
from redi.report.headline import card, last
from redi.report.numbers import speed_of
from redi.report.sheets import to_html

SCRIPTS = ("data", "chart", "tables", "theme", "scenes", "dense")
#: Colours of the first classes: bright and far apart. More classes get hues by the golden angle.
COLOURS = (
    *("#6ec5ff", "#c94f4f", "#ffe066", "#8d6cab", "#f29ac4", "#4fae5b", "#ff8c1a", "#c8a27a", "#3a63d8", "#ff3d81"),
    *("#12b5a6", "#a3d939", "#b0b7c3", "#7a4a21", "#e26bff", "#0a7d3e", "#f4c7ab", "#5b2a86", "#00d0ff", "#d4b200"),
)
GOLDEN = 137.50776


def build_dense_report(folder: Path) -> Path:
    """Write FOLDER/report/index.html from the records of a finished ``redi dense``."""
    path = folder / "report" / "index.html"
    require_no_link(path.parent)
    record = read_dense(folder)
    data = page_data(folder, record)
    slots = {
        "title": escape(f"Dense prediction with {last(record.config.backbone)}"),
        "heading": escape(f"{last(record.config.backbone)}: {dense_verdict(record)}"),
        "cards": "".join(_card(record, cost) for cost in record.costs),
        "facts": _facts(record),
        "sample": escape(
            f"{len(record.shown)} of {record.images:,} scenes, spread evenly over the validation set. Choose a scene, "
            "a row and a cost. Drag the border in the large picture; point at any panel to see the same place in all."
        ),
        "tables": "".join(map(to_html, dense_sheets(record))),
        "classes": to_html(class_sheet(record)),
        "left_out": "".join(f'<p class="note">Left out: {escape(reason)}</p>' for reason in record.left_out),
        "definitions": "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in record.definitions.items()
        ),
        "data": inline_json(data),
    }
    artifacts.write_bytes(path, assemble("dense", ["style", "dense"], SCRIPTS, slots))
    return path


def page_data(folder: Path, record: DenseRecord) -> dict[str, Any]:
    """What the page's script draws."""
    scenes = load_scenes(folder)
    stored = {row.name: load_row(folder, row.name) for row in record.rows}
    reduced = [row for row in record.rows if not row.is_dense]
    entries = [_scene(number, name, record, scenes, stored) for number, name in enumerate(record.shown)]
    return {
        "grid": list(record.inputs[0].grid),
        "classes": [
            {"name": name, "colour": colour}
            for name, colour in zip(record.classes, class_colours(len(record.classes)), strict=True)
        ],
        "rows": [
            {"name": row.name, "row": row.row, "restore": row.restore, "cost": row.cost, "title": row_title(row)}
            for row in reduced
        ],
        "costs": record.costs,
        "references": record.references,
        "dense": {"miou": record.dense.miou},
        "curves": _curves(reduced, record.dense),
        "scenes": entries,
    }


def _scene(
    number: int,
    name: str,
    record: DenseRecord,
    scenes: Mapping[str, Tensor],
    stored: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, Any]:
    picture, labels = scenes[f"picture.{number}"], scenes[f"labels.{number}"]
    grids = {entry.input: entry.grid for entry in record.inputs}
    maps = {row: base64_text(to_png(tensors[f"map.{number}"])) for row, tensors in stored.items()}
    groups: dict[str, str] = {}
    for row in record.rows:
        if not row.is_dense:
            source = stored[row.name][f"groups.{number}"]
            groups.setdefault(f"{row.row}~{row.cost:g}", base64_text(_shorts(source)))
    return {
        "name": name,
        "grid": list(grids[(picture.shape[1], picture.shape[2])]),
        "size": list(labels.shape),
        "picture": base64_text(to_jpeg(picture)),
        "labels": base64_text(to_png(labels)),
        "maps": maps,
        "groups": groups,
    }


def _shorts(source: Tensor) -> bytes:
    """Token numbers as 16 bits, little-endian; dropped patches have the highest number."""
    return torch.where(source < 0, 0xFFFF, source).to(torch.uint16).numpy().astype("<u2").tobytes()


def class_colours(count: int) -> list[str]:
    """One colour per class, the same for the same number."""
    more = [f"hsl({k * GOLDEN % 360:.0f} 70% {(42, 58, 70)[k % 3]}%)" for k in range(len(COLOURS), count)]
    return [*COLOURS[:count], *more]


def _curves(rows: list[DenseRow], dense: DenseRow) -> list[dict[str, Any]]:
    """One line per row and restore, which ends at dense; a row has one colour."""
    kinds = list(dict.fromkeys((row.row, row.restore) for row in rows))
    hues = {name: hue for hue, name in enumerate(dict.fromkeys(name for name, _ in kinds))}
    curves = []
    for kind in kinds:
        points = [row for row in rows if (row.row, row.restore) == kind]
        curves.append(
            {
                "name": row_title(points[0]),
                "style": "dashed" if kind[1] == "copy" else "solid",
                "hue": hues[kind[0]],
                "points": [[row.analytic, row.miou, row.agreement] for row in (*points, dense)],
            }
        )
    return curves


def _card(record: DenseRecord, cost: float) -> str:
    """The row that ships at a cost, and the best restore of every other row."""
    first = record.reference(cost)
    assert first.to_dense is not None
    best: dict[str, DenseRow] = {}
    for row in record.at(cost):
        if row.row not in best or row.agreement > best[row.row].agreement:
            best[row.row] = row
    others = sorted((row for row in best.values() if row.row != first.row), key=lambda row: -row.agreement)
    speedup = speed_of(first.timing)
    speed = f"{speedup.median:.2f}× ({speedup.low:.2f} to {speedup.high:.2f}) · " if speedup else ""
    return card(
        f"{row_title(first)} at cost {cost:g}",
        f"{speed}{first.to_dense.miou:+.1f} mIoU · {first.agreement:.1f} % same",
        ("Row", "mIoU", "Δ dense", "95 % of Δ", "Same, %"),
        [
            [
                row_title(row),
                f"{row.miou:.1f}",
                f"{row.to_dense.miou:+.1f}" if row.to_dense else "",
                interval(row.to_dense.miou_interval) if row.to_dense else "",
                f"{row.agreement:.1f}",
            ]
            for row in (record.dense, first, *others)
        ],
        "Other rows with the better of their two ways to restore the grid, by agreement with dense.",
    )


def _facts(record: DenseRecord) -> str:
    environment, inputs, head = record.environment, record.inputs[0], record.head
    sizes = f"{inputs.picture[1]}x{inputs.picture[0]} as {inputs.input[1]}x{inputs.input[0]}"
    facts = {
        "Backbone": last(record.config.backbone),
        "Trained on": f"{last(record.config.train, 2)}: {head.images:,} scenes",
        "Evaluated on": f"{last(record.config.val, 2)}: {record.images:,} scenes",
        "Input": f"{sizes}, {inputs.grid[0]}x{inputs.grid[1]} patches",
        "More sizes": str(len(record.inputs) - 1),
        "Classes": f"{len(record.classes)}, void is {record.void}",
        "Head": f"linear, {head.steps:,} steps of {head.batch} scenes, labels on {head.cells}x the patch grid",
        "Head's loss": f"{head.loss:.3f}",
        "Seed": str(head.seed),
        "Made with": f"redi {__version__}, torch {environment.torch}, {environment.device}, {environment.threads} "
        f"thread{'s' * (environment.threads != 1)}",
    }
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
