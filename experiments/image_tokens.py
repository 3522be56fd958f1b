"""Which task leaves N merged tokens that are nearest to the patches they stand for, if they are read as they are?

    python experiments/image_tokens.py --backbone vit-tiny-patch16-224 --images imagenet-5k --size 224
    python experiments/image_tokens.py --backbone dinov2-small --images camvid/train/images --size 336 --limit 24

A language model reads the tokens so: nothing restores the grid. The blocks run up to the last but one, as in LLaVA.
*Cosine* is that of each dense patch with its token, both without the mean of all dense patches, which would hide the
differences. No label is used.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from common import arguments, mean_and_error
from redi.backbone import Backbone, load_backbone
from redi.errors import ConfigError
from redi.images import load_image
from redi.images.labelled import spread_evenly
from redi.reduction import PROGRESSIVE, Progressive
from redi.reduction.schedule import dense_shape, early_shape

#: Shares of the patches that are left.
SHARES = (0.25, 0.11, 0.05)
BATCH = 8


def variants(depth: int) -> dict[str, Progressive]:
    """The two tasks, and each with the other's schedule."""
    classify, dense = PROGRESSIVE["protected"], PROGRESSIVE["protected-dense"]
    return {
        "classify": classify,
        "dense": dense,
        "classify, dense's schedule": replace(classify, schedule=dense_shape(depth)),
        "dense, classify's schedule": replace(dense, schedule=early_shape(depth)),
    }


def load(backbone: Backbone, folder: Path, limit: int) -> Tensor:
    """Normalised pictures, spread evenly over the sorted files."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return torch.stack([backbone.preprocessing(load_image(file)) for file in spread_evenly(files, limit)])


def closeness(backbone: Backbone, reducer: Progressive, tokens: int, pictures: Tensor) -> tuple[Tensor, float]:
    """The mean cosine of each picture, and the cost of the blocks."""
    level, prefix = backbone.depth - 1, backbone.prefix
    on = replace(backbone.geometry, depth=level)
    extent = reducer.extent_leaving(tokens, on)
    cosines = []
    for pixels in pictures.split(BATCH):
        embedded = backbone.embed(pixels)
        dense = backbone.encode(embedded, stop=level)[:, prefix:]
        short = backbone.encode_progressively(embedded, reducer, extent.schedule, levels=[level])
        centre = dense.mean(dim=(0, 1))
        cosines.append(torch.cosine_similarity(short.levels[0][:, prefix:] - centre, dense - centre, dim=2).mean(dim=1))
    return torch.cat(cosines), reducer.cost(extent, on)


@torch.inference_mode()
def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(limit=64)
    parser.add_argument("--size", type=int, default=0, help="side of the input; 0 is the default grid of 14x14")
    options = parser.parse_args()
    backbone = load_backbone(options.backbone)
    backbone = backbone.at_size(options.size) if options.size else backbone
    pictures = load(backbone, Path(options.images), options.limit)
    patches = backbone.geometry.patches
    print(f"{len(pictures)} pictures, {patches} patches\n\n| tokens | variant | cost | cosine (standard error) |")
    print("|---" * 4 + "|")
    for share in SHARES:
        tokens = round(share * patches)
        for name, reducer in variants(backbone.depth - 1).items():
            try:
                cosine, cost = closeness(backbone, reducer, tokens, pictures)
            except ConfigError as error:
                print(f"| {tokens} | {name} | {error} | |", flush=True)
                continue
            print(
                "| {} | {} | {:.3f} | {:.3f} ({:.3f}) |".format(tokens, name, cost, *mean_and_error(cosine)), flush=True
            )


if __name__ == "__main__":
    main()
