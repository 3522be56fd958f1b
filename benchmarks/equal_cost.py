"""Reducers that need no label and no dense pass, at equal cost, on a model with its own head.

    python benchmarks/equal_cost.py --backbone CHECKPOINT --images FOLDER --classes even

The rows are those of `redi compare --study deployable`, without the run that a corpus needs: dense and
every reducer over the images of every other class, then paired statistics against our own row.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from redi.attention import cls_rows
from redi.backbone import Backbone, Watch, load_backbone
from redi.classes import head_classes
from redi.compare.studies import DEPLOYABLE, DEPLOYABLE_COSTS, OWN
from redi.deploy import Accelerated, Setting
from redi.equal import Geometry, budget_for_cost, one_shot_cost, schedule_cost, schedule_for_cost
from redi.images import open_images
from redi.loader import ViewDataset
from redi.reduction import ONE_SHOT, OPERATOR, PROGRESSIVE
from redi.statistics import divergence, holm, mcnemar_test, paired_bootstrap, paired_mean_test

BATCH = 50
#: What a user gets: our own row, with the last block's MLP on the prefix alone where the head allows it.
SHIPPED = "accelerate"


def rows(backbone: Backbone) -> dict[tuple[float, str], float]:
    """(wanted cost, name) of every row, with the cost it has."""
    on, after = Geometry.of(backbone), max(1, backbone.depth // 3)
    found = {}
    for cost in DEPLOYABLE_COSTS:
        found[cost, SHIPPED] = Accelerated(backbone, Setting(cost)).cost()
        for name in DEPLOYABLE:
            reducer = PROGRESSIVE[name]
            schedule = schedule_for_cost(reducer, cost, on)
            found[cost, name] = schedule_cost(reducer, schedule, on)
        for name in ("prune", OPERATOR):
            budget = budget_for_cost(ONE_SHOT[name], cost, after, on)
            found[cost, name] = one_shot_cost(ONE_SHOT[name], budget, after, on)
    return found


@torch.inference_mode()
def logits(
    backbone: Backbone, pixels: Tensor, shipped_only: bool
) -> Iterator[tuple[tuple[float, str], Tensor]]:
    """Dense first, then every row. One-shot rows rank by the CLS attention of a third of the depth."""
    on, after = Geometry.of(backbone), max(1, backbone.depth // 3)
    tokens = backbone.embed(pixels)
    assert tokens.grid is not None
    watch = Watch(cls_rows, blocks=(after - 1,))
    begun = tokens.advanced(backbone.encode(tokens, stop=after, watch=(watch,)))
    attention = watch.value(after - 1).mean(dim=1)[:, backbone.prefix :]
    yield (1.0, "dense"), backbone.classify(backbone.encode(begun, start=after))
    for cost in DEPLOYABLE_COSTS:
        yield (cost, SHIPPED), Accelerated(backbone, Setting(cost))(pixels).logits
        if shipped_only:
            continue
        for name in DEPLOYABLE:
            reducer = PROGRESSIVE[name]
            schedule = schedule_for_cost(reducer, cost, on)
            short = backbone.encode_progressively(tokens, reducer, schedule)
            yield (cost, name), backbone.classify(short.hidden)
        for name in ("prune", OPERATOR):
            budget = budget_for_cost(ONE_SHOT[name], cost, after, on)
            reduction = ONE_SHOT[name].reduce(begun.patches, attention, budget, tokens.grid)
            yield (
                (cost, name),
                backbone.classify(backbone.encode(begun.reduced(reduction), start=after)),
            )


def measure(
    backbone: Backbone,
    folder: str,
    class_map: Path | None,
    parity: int | None,
    limit: int,
    shipped_only: bool,
) -> dict[tuple[float, str], dict[str, Tensor]]:
    """Per image and row: whether it is right, whether it agrees with dense, the divergence."""
    images = open_images(folder)
    assert backbone.class_names is not None
    columns, _ = head_classes(images.class_names, backbone.class_names, class_map)
    chosen = [k for k, label in enumerate(images.labels) if parity in (None, label % 2)][:limit]
    dataset = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0)
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    found: dict[tuple[float, str], dict[str, list[Tensor]]] = {}
    for number, batch in enumerate(dataset.batches(plan, workers=1)):
        pixels = backbone.preprocessing.normalise(batch.pixels[:, 0])
        labels = torch.tensor(columns)[batch.labels]
        dense: Tensor | None = None
        for row, output in logits(backbone, pixels, shipped_only):
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


def table(
    found: dict[tuple[float, str], dict[str, Tensor]], costs: dict[tuple[float, str], float]
) -> str:
    """p-values: exact McNemar of Top-1 and of agreement, paired z of the divergence, all against our own
    row of the same cost and corrected by Holm's method over the rows of that cost."""
    dense = found[1.0, "dense"]
    lines = [
        f"dense {100 * dense['right'].float().mean():.2f} % of {len(dense['right'])} images",
        "| row | cost | Top-1 | Δ dense | 95 % | p | agree | p | KL | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in DEPLOYABLE_COSTS:
        first = OWN if (cost, OWN) in found else SHIPPED
        own = found[cost, first]
        others = [name for wanted, name in found if wanted == cost and name != first]
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
        for name in (first, *others):
            record = found[cost, name]
            top1 = 100 * record["right"].float().mean().item()
            low, high = paired_bootstrap(record["right"], dense["right"]).interval
            drop = top1 - 100 * dense["right"].float().mean().item()
            p = {
                key: f"{values[name]:.1g}" if name in values else ""
                for key, values in corrected.items()
            }
            lines.append(
                f"| {name} | {costs[cost, name]:.3f} | {top1:.2f} "
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
    found = measure(
        backbone, asked.images, asked.class_map, parity, asked.limit, asked.shipped_only
    )
    print(table(found, rows(backbone)))
    if asked.out:
        columns = {
            f"{cost:g}/{name}/{key}": value
            for (cost, name), one in found.items()
            for key, value in one.items()
        }
        save_file(columns, asked.out)


if __name__ == "__main__":
    main()
