"""Reducers that need no label and no dense pass, at equal cost, on a model with its own head.

    python benchmarks/equal_cost.py --backbone CHECKPOINT --images FOLDER --classes even

The rows are those of `redi compare --study deployable`, but no run and no corpus is needed. The dense
model and every reducer classify the same images. Paired statistics then compare each row with our own.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from redi.attention import cls_rows
from redi.backbone import Backbone, Watch, load_backbone
from redi.comparison.ground import Ground
from redi.comparison.studies import DEPLOYABLE_COSTS, deployable
from redi.deploy import Accelerated, Setting
from redi.images import open_images
from redi.images.classes import head_classes
from redi.images.loader import ViewDataset
from redi.records.deployed import OWN
from redi.reduction import Extent
from redi.rows import Catalogue, Variant
from redi.runs.config import VocabularyConfig
from redi.stages.evaluate import forward, tokens_and_cost
from redi.statistics import divergence, holm, mcnemar_test, paired_bootstrap, paired_mean_test

Row = tuple[float, str]  # (wanted cost, name)

BATCH = 50
#: What a user gets: our own row, with the last block's MLP on the prefix alone where the head allows it.
SHIPPED = "accelerate"


def rows(backbone: Backbone) -> dict[Row, tuple[Variant | None, float]]:
    """Every row with its variant and its actual cost. The row of what is shipped has no variant."""
    on, catalogue = backbone.geometry, Catalogue()
    ground = Ground(on, Extent(), catalogue, VocabularyConfig(), training_images=0)
    table: dict[Row, tuple[Variant | None, float]] = {}
    for wanted, study in zip(DEPLOYABLE_COSTS, deployable(ground), strict=True):
        table[wanted, SHIPPED] = None, Accelerated(backbone, Setting(wanted)).cost()
        for variant in study.variants:
            _, cost = tokens_and_cost(on, catalogue, variant)
            table[wanted, variant.reducer] = variant, cost
    return table


@torch.inference_mode()
def logits(
    backbone: Backbone, pixels: Tensor, asked: Mapping[Row, tuple[Variant | None, float]]
) -> Iterator[tuple[Row, Tensor]]:
    """Dense first, then every row. One-shot rows rank by the CLS attention at a third of the depth."""
    after, catalogue = max(1, backbone.depth // 3), Catalogue()
    tokens = backbone.embed(pixels)
    watch = Watch(cls_rows, blocks=(after - 1,))
    begun = tokens.advanced(backbone.encode(tokens, stop=after, watch=(watch,)))
    attention = watch.value(after - 1).mean(dim=1)[:, backbone.prefix :]
    yield (1.0, "dense"), backbone.classify(backbone.encode(begun, start=after))
    for row, (variant, _) in asked.items():
        if variant is None:
            yield row, Accelerated(backbone, Setting(row[0]))(pixels).logits
        else:
            scores = attention if variant.score.name else None
            hidden = forward(backbone, catalogue, variant, scores, {0: tokens, after: begun})
            yield row, backbone.classify(hidden)


def measure(
    backbone: Backbone,
    folder: str,
    class_map: Path | None,
    parity: int | None,
    limit: int,
    asked: Mapping[Row, tuple[Variant | None, float]],
) -> dict[Row, dict[str, Tensor]]:
    """Per row and image: whether it is right, whether it agrees with dense, and the divergence."""
    images = open_images(folder)
    assert backbone.class_names is not None
    columns, _ = head_classes(images.class_names, backbone.class_names, class_map)
    chosen = [k for k, label in enumerate(images.labels) if parity in (None, label % 2)][:limit]
    dataset = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0)
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    records: dict[Row, dict[str, list[Tensor]]] = {}
    for number, batch in enumerate(dataset.batches(plan, workers=1)):
        pixels = backbone.preprocessing.normalise(batch.pixels[:, 0])
        labels = torch.tensor(columns)[batch.labels]
        dense: Tensor | None = None
        for row, output in logits(backbone, pixels, asked):
            dense = output if dense is None else dense
            record = records.setdefault(row, {"right": [], "agrees": [], "divergence": []})
            record["right"].append(output.argmax(dim=1) == labels)
            record["agrees"].append(output.argmax(dim=1) == dense.argmax(dim=1))
            record["divergence"].append(divergence(dense, output))
        print(f"{min((number + 1) * BATCH, len(chosen))} of {len(chosen)} images", flush=True)
    return {row: {name: torch.cat(pieces) for name, pieces in record.items()} for row, record in records.items()}


def table(records: dict[Row, dict[str, Tensor]], costs: Mapping[Row, tuple[object, float]]) -> str:
    """The results as Markdown.

    The p-values are from an exact McNemar test of Top-1, the same test of the agreement with dense, and a
    paired z-test of the divergence. Each compares a row with our own row of the same cost, and Holm's
    method corrects them over the rows of that cost.
    """
    dense = records[1.0, "dense"]
    lines = [
        f"dense {100 * dense['right'].float().mean():.2f} % of {len(dense['right'])} images",
        "| row | cost | Top-1 | Δ dense | 95 % | p | agree | p | KL | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in DEPLOYABLE_COSTS:
        names = [name for wanted, name in records if wanted == cost]
        others = [name for name in names if name not in (OWN, SHIPPED)]
        own = records[cost, OWN if OWN in names else SHIPPED]
        tests = {
            "right": [mcnemar_test(records[cost, name]["right"], own["right"]) for name in others],
            "agrees": [mcnemar_test(records[cost, name]["agrees"], own["agrees"]) for name in others],
            "divergence": [paired_mean_test(records[cost, name]["divergence"], own["divergence"]) for name in others],
        }
        corrected = {name: dict(zip(others, holm(values), strict=True)) for name, values in tests.items()}
        for name in names:
            record = records[cost, name]
            top1 = 100 * record["right"].float().mean().item()
            low, high = paired_bootstrap(record["right"], dense["right"]).interval
            drop = top1 - 100 * dense["right"].float().mean().item()
            p = {key: f"{values[name]:.1g}" if name in values else "" for key, values in corrected.items()}
            lines.append(
                f"| {name} | {costs[cost, name][1]:.3f} | {top1:.2f} "
                f"| {drop:+.2f} | {low:+.2f} {high:+.2f} | {p['right']} "
                f"| {100 * record['agrees'].float().mean():.2f} | {p['agrees']} "
                f"| {record['divergence'].mean():.4f} | {p['divergence']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--images", required=True, help="folder with one subfolder per class")
    parser.add_argument("--class-map", type=Path, help="file of lines: subfolder, tab, class of the head")
    parser.add_argument("--classes", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--limit", type=int, default=10**9, help="largest number of images")
    parser.add_argument("--shipped-only", action="store_true", help=f"only the rows dense and {SHIPPED}")
    parser.add_argument("--out", help="safetensors file for the measurements of every image")
    asked = parser.parse_args()
    backbone = load_backbone(asked.backbone)
    parity = {"all": None, "even": 0, "odd": 1}[asked.classes]
    wanted = rows(backbone)
    if asked.shipped_only:
        wanted = {row: entry for row, entry in wanted.items() if row[1] == SHIPPED}
    records = measure(backbone, asked.images, asked.class_map, parity, asked.limit, wanted)
    print(table(records, wanted))
    if asked.out:
        columns = {
            f"{cost:g}/{name}/{key}": value for (cost, name), record in records.items() for key, value in record.items()
        }
        save_file(columns, asked.out)


if __name__ == "__main__":
    main()
