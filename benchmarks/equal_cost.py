"""Reducers that need no label and no dense pass, at equal cost, on a model with its own head.

    python benchmarks/equal_cost.py --backbone CHECKPOINT --images FOLDER --classes even

The rows are those of `redi compare --study deployable`, without the run that a corpus needs: dense and
every reducer over the images of every other class, then paired statistics against our own row.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from redi.attention import cls_rows
from redi.backbone import Backbone, Watch, load_backbone
from redi.classes import head_classes
from redi.compare.studies import DEPLOYABLE_COSTS, OWN, Bench, deployable
from redi.config import VocabularyConfig
from redi.deploy import Accelerated, Setting
from redi.equal import Geometry
from redi.images import open_images
from redi.loader import ViewDataset
from redi.reduction import Budget
from redi.stages.evaluate import forward
from redi.stages.evaluate import measure as cost_of
from redi.statistics import divergence, holm, mcnemar_test, paired_bootstrap, paired_mean_test
from redi.variants import Variant, catalogue

Row = tuple[float, str]  # (wanted cost, name)

BATCH = 50
#: What a user gets: our own row, with the last block's MLP on the prefix alone where the head allows it.
SHIPPED = "accelerate"


def rows(backbone: Backbone) -> dict[Row, tuple[Variant | None, float]]:
    """Every row with its variant (none for what is shipped) and the cost it has."""
    on, known = Geometry.of(backbone), catalogue({}, {}, {})
    found: dict[Row, tuple[Variant | None, float]] = {}
    for wanted, study in zip(
        DEPLOYABLE_COSTS,
        deployable(Bench(on, Budget(), known, VocabularyConfig(), training_images=0)),
        strict=True,
    ):
        found[wanted, SHIPPED] = None, Accelerated(backbone, Setting(wanted)).cost()
        for variant in study.variants:
            found[wanted, variant.reducer] = variant, cost_of(on, known, variant)[1]
    return found


@torch.inference_mode()
def logits(
    backbone: Backbone, pixels: Tensor, asked: Mapping[Row, tuple[Variant | None, float]]
) -> Iterator[tuple[Row, Tensor]]:
    """Dense first, then every row. One-shot rows rank by the CLS attention of a third of the depth."""
    after, known = max(1, backbone.depth // 3), catalogue({}, {}, {})
    tokens = backbone.embed(pixels)
    watch = Watch(cls_rows, blocks=(after - 1,))
    begun = tokens.advanced(backbone.encode(tokens, stop=after, watch=(watch,)))
    attention = watch.value(after - 1).mean(dim=1)[:, backbone.prefix :]
    yield (1.0, "dense"), backbone.classify(backbone.encode(begun, start=after))
    for row, (variant, _) in asked.items():
        if variant is None:
            yield row, Accelerated(backbone, Setting(row[0]))(pixels).logits
        else:
            scores = attention if variant.scorer else None
            hidden = forward(backbone, known, variant, scores, {0: tokens, after: begun})
            yield row, backbone.classify(hidden)


def measure(
    backbone: Backbone,
    folder: str,
    class_map: Path | None,
    parity: int | None,
    limit: int,
    asked: Mapping[Row, tuple[Variant | None, float]],
) -> dict[Row, dict[str, Tensor]]:
    """Per image and row: whether it is right, whether it agrees with dense, the divergence."""
    images = open_images(folder)
    assert backbone.class_names is not None
    columns, _ = head_classes(images.class_names, backbone.class_names, class_map)
    chosen = [k for k, label in enumerate(images.labels) if parity in (None, label % 2)][:limit]
    dataset = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0)
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    found: dict[Row, dict[str, list[Tensor]]] = {}
    for number, batch in enumerate(dataset.batches(plan, workers=1)):
        pixels = backbone.preprocessing.normalise(batch.pixels[:, 0])
        labels = torch.tensor(columns)[batch.labels]
        dense: Tensor | None = None
        for row, output in logits(backbone, pixels, asked):
            dense = output if dense is None else dense
            record = found.setdefault(row, {"right": [], "agrees": [], "divergence": []})
            record["right"].append(output.argmax(dim=1) == labels)
            record["agrees"].append(output.argmax(dim=1) == dense.argmax(dim=1))
            record["divergence"].append(divergence(dense, output))
        print(f"{min((number + 1) * BATCH, len(chosen))} of {len(chosen)} images", flush=True)
    return {
        row: {name: torch.cat(pieces) for name, pieces in record.items()}
        for row, record in found.items()
    }


def table(found: dict[Row, dict[str, Tensor]], costs: Mapping[Row, tuple[object, float]]) -> str:
    """p-values: exact McNemar of Top-1 and of agreement, paired z of the divergence, all against our own
    row of the same cost and corrected by Holm's method over the rows of that cost."""
    dense = found[1.0, "dense"]
    lines = [
        f"dense {100 * dense['right'].float().mean():.2f} % of {len(dense['right'])} images",
        "| row | cost | Top-1 | Δ dense | 95 % | p | agree | p | KL | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in DEPLOYABLE_COSTS:
        names = [name for wanted, name in found if wanted == cost]
        others = [name for name in names if name not in (OWN, SHIPPED)]
        own = found[cost, OWN if OWN in names else SHIPPED]
        tests = {
            "right": [mcnemar_test(found[cost, name]["right"], own["right"]) for name in others],
            "agrees": [mcnemar_test(found[cost, name]["agrees"], own["agrees"]) for name in others],
            "divergence": [
                paired_mean_test(found[cost, name]["divergence"], own["divergence"])
                for name in others
            ],
        }
        corrected = {
            name: dict(zip(others, holm(values), strict=True)) for name, values in tests.items()
        }
        for name in names:
            record = found[cost, name]
            top1 = 100 * record["right"].float().mean().item()
            low, high = paired_bootstrap(record["right"], dense["right"]).interval
            drop = top1 - 100 * dense["right"].float().mean().item()
            p = {
                key: f"{values[name]:.1g}" if name in values else ""
                for key, values in corrected.items()
            }
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
    parser.add_argument("--images", required=True, help="a folder a class")
    parser.add_argument("--class-map", type=Path, help="folder<TAB>class of the head")
    parser.add_argument("--classes", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--limit", type=int, default=10**9, help="images at most")
    parser.add_argument("--shipped-only", action="store_true", help=f"dense and {SHIPPED} alone")
    parser.add_argument("--out", help="safetensors file for what was measured of every image")
    asked = parser.parse_args()
    backbone = load_backbone(asked.backbone)
    parity = {"all": None, "even": 0, "odd": 1}[asked.classes]
    wanted = rows(backbone)
    if asked.shipped_only:
        wanted = {row: entry for row, entry in wanted.items() if row[1] == SHIPPED}
    found = measure(backbone, asked.images, asked.class_map, parity, asked.limit, wanted)
    print(table(found, wanted))
    if asked.out:
        columns = {
            f"{cost:g}/{name}/{key}": value
            for (cost, name), one in found.items()
            for key, value in one.items()
        }
        save_file(columns, asked.out)


if __name__ == "__main__":
    main()
