"""What a dense task loses when tokens are merged.

A linear classifier of patches is trained on dense tokens. It then reads tokens that were merged on the
way and restored to the full grid, by residual unmerge or as copies of their token.

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
from redi.demo.generator import CLASSES, sample
from redi.errors import ConfigError
from redi.images.masks import object_share
from redi.probe import LinearProbe
from redi.reduction import PROGRESSIVE, Progressive, Schedule
from redi.reduction.titles import title

ROWS = ("protected-dense", "protected", "tome", "pitome-released", "algm", "cubist")
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


def dense_tokens(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Normed patch tokens of the dense model."""
    pieces = [backbone.final_norm(backbone.encode(backbone.embed(some))) for some in pixels.split(BATCH)]
    return torch.cat(pieces)[:, backbone.prefix :]


def restored_tokens(backbone: Backbone, pixels: Tensor, reducer: Progressive, schedule: Schedule) -> dict[str, Tensor]:
    """Normed patch tokens on the full grid, by the way they were restored."""
    pieces: dict[str, list[Tensor]] = {"residual": [], "copy": []}
    for some in pixels.split(BATCH):
        short = backbone.encode_progressively(backbone.embed(some), reducer, schedule, residual=True)
        for name, one in (("residual", short), ("copy", short._replace(unmerge=None))):
            pieces[name].append(backbone.final_norm(one.full(backbone.prefix))[:, backbone.prefix :])
    return {name: torch.cat(some) for name, some in pieces.items()}


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
    probe.fit(dense_tokens(backbone, pixels).flatten(0, 1), labels.flatten())
    pixels, labels = pictures(backbone, TEST_SEED, asked.test)
    dense = dense_tokens(backbone, pixels)
    right, union = scores(probe, dense, labels)
    print(f"{asked.test} pictures, {100 * (labels > 0).float().mean():.0f} % of patches on objects")
    print("| row | restore | cost | patches right | mean IoU | agree | cosine |\n" + "|---" * 7 + "|")
    print(f"| dense |  | 1.000 | {right:.1f} | {union:.1f} | 100 | 1 |")
    for cost in COSTS:
        for name in ROWS:
            reducer = PROGRESSIVE[name]
            try:
                extent = reducer.extent_for_cost(cost, on)
            except ConfigError as error:
                print(f"| {title(name)} at {cost:g} | {error} | | | | | |", flush=True)
                continue
            for restore, tokens in restored_tokens(backbone, pixels, reducer, extent.schedule).items():
                right, union = scores(probe, tokens, labels)
                same = probe.logits(tokens).argmax(dim=-1) == probe.logits(dense).argmax(dim=-1)
                agree, cosine = 100 * same.float().mean(), torch.cosine_similarity(tokens, dense, dim=-1).mean()
                spent = f"{reducer.cost(extent, on):.3f}"
                cells = f"{spent} | {right:.1f} | {union:.1f} | {agree:.2f} | {cosine:.4f}"
                print(f"| {title(name)} | {restore} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
