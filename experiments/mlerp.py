"""Our step with three lengths of a merged token: the mean's own, ours (the mean length), ToFu's MLERP (the longest).

    python experiments/mlerp.py --backbone CHECKPOINT --images FOLDER --classes even --limit 200

Matching, weights and schedule are those of `protected`, so only the length differs. The table shows the divergence
from the dense model (KL) and the standard error of its mean.
"""

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from redi.backbone import Backbone, load_backbone
from redi.images import open_images
from redi.images.labelled import spread_evenly
from redi.images.loader import ViewDataset
from redi.reduction import PROGRESSIVE, Inside, Reduction
from redi.reduction.merging import mlerp
from redi.reduction.protected import LEAST, protected
from redi.statistics import divergence

BATCH = 50


def longest(inside: Inside, count: int) -> Reduction:
    """The length of the longest member."""
    return mlerp(inside.patches, protected(inside, count))


def unrestored(inside: Inside, count: int) -> Reduction:
    """The length of the relevance-weighted mean itself."""
    reduction = protected(inside, count)
    weights = inside.weights(inside.relevance).clamp(min=LEAST)
    into = torch.nn.functional.one_hot(reduction.source, count).transpose(1, 2) * weights[:, None]
    mean = into @ inside.patches / into.sum(dim=2, keepdim=True)
    return reduction._replace(tokens=mean)


OURS = PROGRESSIVE["protected"]
ROWS = {
    "the mean's own": replace(OURS, step=unrestored),
    "mean length (ours)": OURS,
    "longest (MLERP)": replace(OURS, step=longest),
}


@torch.inference_mode()
def divergences(backbone: Backbone, pixels: Tensor, costs: list[float]) -> Tensor:
    """[rows, costs, images]; the extra work of the two variants is not counted in the cost."""
    tokens = backbone.embed(pixels)
    dense = backbone.classify(backbone.encode(tokens))
    schedules = [OURS.extent_within_cost(cost, backbone.geometry).schedule for cost in costs]
    outputs = [
        [backbone.classify(backbone.encode_progressively(tokens, row, schedule).hidden) for schedule in schedules]
        for row in ROWS.values()
    ]
    return torch.stack([torch.stack([divergence(dense, output) for output in row]) for row in outputs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--images", required=True, help="folder with one subfolder per class")
    parser.add_argument("--classes", choices=("all", "even", "odd"), default="even")
    parser.add_argument("--limit", type=int, default=200, help="largest number of images, spread over the classes")
    parser.add_argument("--costs", type=float, nargs="+", default=[0.55, 0.65, 0.75])
    asked = parser.parse_args()
    backbone, images = load_backbone(asked.backbone), open_images(asked.images)
    parity = {"all": None, "even": 0, "odd": 1}[asked.classes]
    chosen = [k for k, label in enumerate(images.labels) if parity in (None, label % 2)]
    chosen = spread_evenly(chosen, asked.limit)
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    dataset = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0)
    batches = (backbone.preprocessing.normalise(batch.pixels[:, 0]) for batch in dataset.batches(plan, workers=1))
    found = torch.cat([divergences(backbone, pixels, asked.costs) for pixels in batches], dim=2)
    print(f"KL from dense, {len(chosen)} images\n")
    print("| length of a merged token | " + " | ".join(f"{cost:g}" for cost in asked.costs) + " |")
    print("|---" * (1 + len(asked.costs)) + "|")
    for name, row in zip(ROWS, found, strict=True):
        errors = row.std(dim=1) / len(chosen) ** 0.5
        cells = [f"{mean:.4f} ± {error:.4f}" for mean, error in zip(row.mean(dim=1), errors, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
