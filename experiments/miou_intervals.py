"""How often does the 95 % interval of a difference in mIoU hold the true difference, by the number of scenes?

    python experiments/miou_intervals.py [--samples 1000] [--scenes 4 8 20 30 60]

It takes no images. A population of 2,000 scenes is drawn: classes are rare or common, a scene lacks some of them, and
two rows are right with a probability that depends on class and scene. The true difference is that of the population;
samples of it get the paired bootstrap of `redi dense`. The classes and scenes of a real data set differ, so the table
says how the interval errs and not by how much for yours.
"""

import argparse
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.segmentation.measures import mean_iou, paired_resamples

POPULATION, CLASSES, PIXELS = 2000, 11, 8000
#: Resamples of each interval; `redi dense` takes 10,000, which changes the ends of an interval little.
RESAMPLES = 400
#: How much more often the second row is wrong.
LOSS = 0.03


def population() -> list[Int[Tensor, "scenes three classes"]]:
    """The counts of both rows, per scene and class: intersection, pixels of the decision, pixels of the label."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Float[Tensor, "*shape"]:
        return torch.rand(shape, generator=generator)

    def normal(*shape: int) -> Float[Tensor, "*shape"]:
        return torch.randn(shape, generator=generator)

    labels = (draw(POPULATION, CLASSES) ** 4 * draw(CLASSES) ** 2 * PIXELS * (draw(POPULATION, CLASSES) < 0.7)).long()
    shared = 0.55 + 0.4 * draw(CLASSES) + 0.12 * normal(POPULATION, 1)
    mistaken_for = torch.randperm(CLASSES, generator=generator)
    rows = []
    for loss in (0.0, LOSS):
        right = (shared + 0.1 * normal(POPULATION, CLASSES) - loss).clamp(0.02, 0.99)
        hits = (labels * right).long()
        rows.append(torch.stack([hits, hits + (labels - hits)[:, mistaken_for], labels], dim=1))
    return rows


def coverage(rows: Sequence[Tensor], scenes: int, samples: int) -> float:
    """The share of samples whose interval holds the difference of the population."""
    first, second = rows
    true = float(mean_iou(second.sum(dim=0)) - mean_iou(first.sum(dim=0)))
    generator, held = torch.Generator().manual_seed(scenes), 0
    for seed in range(samples):
        drawn = torch.randperm(POPULATION, generator=generator)[:scenes]
        resamples = paired_resamples([first[drawn], second[drawn]], resamples=RESAMPLES, seed=seed)
        low, high = resamples.miou_difference(1, 0).interval
        held += low <= true <= high
    return held / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--scenes", type=int, nargs="+", default=(4, 8, 20, 30, 60))
    options = parser.parse_args()
    rows = population()
    print("| scenes | intervals that hold the true difference |\n|---|---|")
    for scenes in options.scenes:
        print(f"| {scenes} | {100 * coverage(rows, scenes, options.samples):.0f} % |", flush=True)


if __name__ == "__main__":
    main()
