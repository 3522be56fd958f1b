"""What a dense task loses: a linear classifier of patches, trained on dense tokens, reads tokens that
were merged on the way and spread back onto the full grid.

    python benchmarks/dense_outputs.py --backbone facebook/dinov2-small

The pictures are the demo's, drawn with the true owner of every pixel: a patch's class is that of the
object that covers more than half of it, else it is background.
"""

import argparse
from importlib.resources import files

import torch
from PIL import Image
from torch import Tensor

from redi.backbone import Backbone, load_backbone
from redi.demo.coverage import object_share
from redi.demo.generator import CLASSES, sample
from redi.equal import Geometry, schedule_cost, schedule_for_cost
from redi.probe import LinearProbe
from redi.reduction import PROGRESSIVE, Progressive, Schedule
from redi.reduction.result import take

ROWS = ("protected", "tome-early", "tome", "pitome")
COSTS = (0.55, 0.65, 0.75)
TRAIN_SEED, TEST_SEED = 11, 12
BATCH = 32


def pictures(backbone: Backbone, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """(inputs, class of each patch with 0 for background)."""
    settings, grid = backbone.preprocessing, Geometry.of(backbone).grid
    pixels, labels = [], []
    for index in range(count):
        drawn = sample(seed, index)
        mask = Image.fromarray(drawn.mask)
        share = object_share(mask, settings.shorter, settings.size, grid)
        pixels.append(settings(drawn.image))
        labels.append(torch.where(share > 0.5, drawn.label + 1, 0))
    return torch.stack(pixels), torch.stack(labels)


def patch_tokens(
    backbone: Backbone, pixels: Tensor, reducer: Progressive | None, schedule: Schedule
) -> Tensor:
    """Normed patch tokens on the full grid."""
    found = []
    for some in pixels.split(BATCH):
        tokens = backbone.embed(some)
        if reducer is None:
            normed = backbone.final_norm(backbone.encode(tokens))[:, backbone.prefix :]
        else:
            short = backbone.encode_progressively(tokens, reducer, schedule)
            normed = backbone.final_norm(short.hidden)[:, backbone.prefix :]
            normed = take(normed, short.source)
        found.append(normed)
    return torch.cat(found)


def scores(probe: LinearProbe, tokens: Tensor, labels: Tensor) -> tuple[float, float]:
    """(percent of patches right, mean over the classes of intersection over union)."""
    found = probe.logits(tokens).argmax(dim=-1)
    unions = []
    for kind in range(len(CLASSES) + 1):
        both = ((found == kind) & (labels == kind)).sum()
        either = ((found == kind) | (labels == kind)).sum()
        unions.append((both / either).item())
    return 100 * (found == labels).float().mean().item(), 100 * sum(unions) / len(unions)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", default=str(files("redi.demo") / "demo-vit"))
    parser.add_argument("--train", type=int, default=480, help="pictures to train on")
    parser.add_argument("--test", type=int, default=480, help="other pictures to test on")
    asked = parser.parse_args()
    backbone = load_backbone(asked.backbone)
    on = Geometry.of(backbone)
    pixels, labels = pictures(backbone, TRAIN_SEED, asked.train)
    probe = LinearProbe(len(CLASSES) + 1)
    probe.fit(patch_tokens(backbone, pixels, None, ()).flatten(0, 1), labels.flatten())
    pixels, labels = pictures(backbone, TEST_SEED, asked.test)
    dense = scores(probe, patch_tokens(backbone, pixels, None, ()), labels)
    print(f"{asked.test} pictures, {100 * (labels > 0).float().mean():.0f} % of patches on objects")
    print("| row | cost | patches right | mean IoU |\n|---|---|---|---|")
    print(f"| dense | 1.000 | {dense[0]:.1f} | {dense[1]:.1f} |")
    for cost in COSTS:
        for name in ROWS:
            reducer = PROGRESSIVE[name]
            schedule = schedule_for_cost(reducer, cost, on)
            right, union = scores(probe, patch_tokens(backbone, pixels, reducer, schedule), labels)
            spent = schedule_cost(reducer, schedule, on)
            print(f"| {name} | {spent:.3f} | {right:.1f} | {union:.1f} |", flush=True)


if __name__ == "__main__":
    main()
