"""What a dense task loses when tokens are merged.

A linear classifier of patches is trained on dense tokens. It then reads tokens that were merged on the
way and spread back onto the full grid.

    python benchmarks/dense_outputs.py --backbone facebook/dinov2-small

The pictures are the demo's, which are drawn with the true owner of every pixel. A patch has the class of
the object that covers more than half of it; any other patch is background.
"""

import argparse
from importlib.resources import files

import torch
from PIL import Image
from torch import Tensor

from redi.backbone import Backbone, load_backbone
from redi.demo.coverage import object_share
from redi.demo.generator import CLASSES, sample
from redi.probe import LinearProbe
from redi.reduction import PROGRESSIVE, Progressive, Schedule
from redi.reduction.result import take

ROWS = ("protected", "tome-early", "tome", "pitome")
COSTS = (0.55, 0.65, 0.75)
TRAIN_SEED, TEST_SEED = 11, 12
BATCH = 32


def pictures(backbone: Backbone, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """The inputs, and the class of each patch; class 0 is background."""
    settings, grid = backbone.preprocessing, backbone.geometry.grid
    pixels, labels = [], []
    for index in range(count):
        drawn = sample(seed, index)
        mask = Image.fromarray(drawn.mask)
        share = object_share(mask, settings.shorter, settings.size, grid)
        pixels.append(settings(drawn.image))
        labels.append(torch.where(share > 0.5, drawn.label + 1, 0))
    return torch.stack(pixels), torch.stack(labels)


def patch_tokens(backbone: Backbone, pixels: Tensor, reducer: Progressive | None, schedule: Schedule) -> Tensor:
    """Normed patch tokens on the full grid."""
    pieces = []
    for some in pixels.split(BATCH):
        tokens = backbone.embed(some)
        if reducer is None:
            normed = backbone.final_norm(backbone.encode(tokens))[:, backbone.prefix :]
        else:
            short = backbone.encode_progressively(tokens, reducer, schedule)
            normed = backbone.final_norm(short.hidden)[:, backbone.prefix :]
            normed = take(normed, short.source)
        pieces.append(normed)
    return torch.cat(pieces)


def scores(probe: LinearProbe, tokens: Tensor, labels: Tensor) -> tuple[float, float]:
    """The percentage of patches that are right, and the mean intersection over union of the classes."""
    predicted = probe.logits(tokens).argmax(dim=-1)
    unions = []
    for kind in range(len(CLASSES) + 1):
        both = ((predicted == kind) & (labels == kind)).sum()
        either = ((predicted == kind) | (labels == kind)).sum()
        unions.append((both / either).item())
    return 100 * (predicted == labels).float().mean().item(), 100 * sum(unions) / len(unions)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", default=str(files("redi.demo") / "demo-vit"))
    parser.add_argument("--train", type=int, default=480, help="pictures to train on")
    parser.add_argument("--test", type=int, default=480, help="other pictures to test on")
    asked = parser.parse_args()
    backbone = load_backbone(asked.backbone)
    on = backbone.geometry
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
            extent = reducer.extent_for_cost(cost, on)
            tokens = patch_tokens(backbone, pixels, reducer, extent.schedule)
            right, union = scores(probe, tokens, labels)
            spent = reducer.cost(extent, on)
            print(f"| {name} | {spent:.3f} | {right:.1f} | {union:.1f} |", flush=True)


if __name__ == "__main__":
    main()
