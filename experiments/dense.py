"""Which schedule, which damage and which way to restore the grid keep the patch tokens nearest to dense?

    python experiments/dense.py --backbone dinov2-small --images camvid/train/images --cost 0.5

Pictures keep their shape: each is resized to the largest multiple of the patch within it. No label is used. *Cosine* is
that of the final normed patch tokens with dense's. *Agree* is the share of patches whose nearest neighbour in a bank of
dense tokens of other pictures is the same as dense's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from common import arguments, mean_and_error
from redi.backbone import Backbone, load_backbone
from redi.errors import ConfigError
from redi.images.labelled import spread_evenly
from redi.images.preprocessing import to_bytes
from redi.images.scenes import fitted
from redi.reduction import PROGRESSIVE, Progressive
from redi.reduction.protected import products_by_keys, protected
from redi.reduction.schedule import Shape, dense_shape, early_shape

#: Dense tokens in the bank.
BANK = 2000


@dataclass(frozen=True)
class Variant:
    name: str
    reducer: Progressive
    residual: bool = True
    dense_last: bool = False  # whether the last block runs on the restored grid


def variants(depth: int) -> Iterator[Variant]:
    """What ships first, then one thing changed at a time."""
    ours = PROGRESSIVE["protected-dense"]

    def step(**options: float) -> Progressive:
        return replace(ours, step=partial(protected, **{"sizes": 1.0, "by_keys": True, **options}))  # type: ignore[arg-type]

    yield Variant("dense task", ours)
    yield Variant("copies", ours, residual=False)
    yield Variant("classify task", PROGRESSIVE["protected"])
    yield Variant("classify task, copies", PROGRESSIVE["protected"], residual=False)
    yield Variant("no sizes", step(sizes=0.0))
    yield Variant("half of the sizes", step(sizes=0.5))
    yield Variant("no relevance in the damage", step(protection=0.0))
    yield Variant("protection 0.25", step(protection=0.25))
    yield Variant("protection 1", step(protection=1.0))
    yield Variant("received attention", replace(ours, relevance="received"))
    states = step(by_keys=False)
    yield Variant("partners by states", replace(states, products=PROGRESSIVE["protected"].products))
    for window in (32, 64, 256):
        windowed = replace(step(window=window), products=partial(products_by_keys, window=window))
        yield Variant(f"window {window}", windowed)
    shape = dense_shape(depth)
    shapes = {
        "early shape of classify": early_shape(depth),
        "one block later": replace(shape, first=1),
        "a slow start": replace(shape, start=1.0),
        "no hold": replace(shape, hold=0.0),
        "hold 0.75": replace(shape, hold=0.75),
        "the first two thirds": Shape(0, depth * 2 // 3, 1.0, 0.5),
        "the first half": Shape(0, depth // 2, 0.0, 0.0),
    }
    for name, other in shapes.items():
        yield Variant(name, replace(ours, schedule=other))
    yield Variant("last block on the full grid", ours, dense_last=True)
    for name in ("tome", "pitome-released", "algm", "cubist"):
        yield Variant(name, PROGRESSIVE[name])
        yield Variant(f"{name}, copies", PROGRESSIVE[name], residual=False)


def load(backbone: Backbone, folder: Path, limit: int) -> list[Tensor]:
    """Normalised pictures, spread evenly over the sorted files."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    pictures = []
    for file in spread_evenly(files, limit):
        picture = Image.open(file).convert("RGB")
        size = fitted(picture.size, backbone.patch_size)
        resized = picture.resize(size, backbone.preprocessing.resample)
        pictures.append(backbone.preprocessing.normalise(to_bytes(resized))[None])
    return pictures


def final(backbone: Backbone, variant: Variant, cost: float, pixels: Tensor) -> tuple[Tensor, float]:
    """The normed patch tokens of one picture on the full grid, and what they cost."""
    tokens = backbone.embed(pixels)
    assert tokens.grid is not None
    on = replace(backbone.geometry, grid=tokens.grid)
    prefix, last = backbone.prefix, backbone.depth - 1
    if not variant.dense_last:
        extent = variant.reducer.extent_within_cost(cost, on)
        short = backbone.encode_progressively(tokens, variant.reducer, extent.schedule, residual=variant.residual)
        return backbone.final_norm(short.full(prefix))[0, prefix:], variant.reducer.cost(extent, on)
    # The blocks before the last share what the last one leaves.
    before = replace(on, depth=last)
    extent = variant.reducer.extent_within_cost((cost * on.depth - 1) / last, before)
    schedule = (*extent.schedule, extent.schedule[-1])
    short = backbone.encode_progressively(tokens, variant.reducer, schedule, residual=True, levels=(last,))
    full = backbone.encode(tokens.advanced(short.levels[0]), start=last)
    spent = (variant.reducer.cost(extent, before) * last + 1) / on.depth
    return backbone.final_norm(full)[0, prefix:], spent


@torch.inference_mode()
def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(limit=24)
    parser.add_argument("--cost", type=float, default=0.5)
    options = parser.parse_args()
    backbone = load_backbone(options.backbone)
    pictures = load(backbone, Path(options.images), 2 * options.limit)
    dense = [backbone.final_norm(backbone.encode(backbone.embed(one)))[0, backbone.prefix :] for one in pictures]
    bank = torch.cat(dense[1::2])
    bank = normalize(bank[:: max(len(bank) // BANK, 1)], dim=1)
    shown, expected = pictures[0::2], dense[0::2]
    nearest = [(tokens @ bank.T).argmax(dim=1) for tokens in expected]
    print(f"{len(shown)} pictures, cost {options.cost:g}\n")
    print("| variant | cost | cosine | agree, % | cosine minus the first (standard error) |\n" + "|---" * 5 + "|")
    first: Tensor | None = None
    for variant in variants(backbone.depth):
        cosines, agrees, spent = [], [], 0.0
        try:
            for pixels, tokens, own in zip(shown, expected, nearest, strict=True):
                reduced, spent = final(backbone, variant, options.cost, pixels)
                cosines.append(torch.cosine_similarity(reduced, tokens, dim=1).mean())
                agrees.append(((reduced @ bank.T).argmax(dim=1) == own).float().mean())
        except ConfigError as error:
            print(f"| {variant.name} | {error} | | | |", flush=True)
            continue
        cosine, agree = torch.stack(cosines), 100 * torch.stack(agrees).mean()
        first = cosine if first is None else first
        more = "" if cosine is first else "{:+.4f} ({:.4f})".format(*mean_and_error(cosine - first))
        print(f"| {variant.name} | {spent:.3f} | {cosine.mean():.4f} | {agree:.1f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
