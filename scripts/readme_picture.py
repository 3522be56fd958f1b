"""Draw the README's picture from the records of a finished run: no model is run.

    python scripts/readme_picture.py runs/demo docs/overview.jpg --images 3

Columns: reference crop, TF-IDF of the true class, incoming attention mass, their product (the REDI
score), and the roles it assigns (kept patches clear, merged ones tinted, compressed ones dark).
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from redi import artifacts
from redi.images import load_image

TITLES = (
    "reference crop",
    "TF-IDF (true class)",
    "attention mass",
    "REDI score",
    "keep / merge / compress",
)
SIDE, GAP, HEADER = 224, 8, 26


def heat(values: Tensor, picture: Image.Image) -> Image.Image:
    """A 14x14 map over the greyed picture: dark where low, warm where high."""
    side = int(len(values) ** 0.5)
    level = values.float().view(side, side)
    colour = torch.stack([255 * level.sqrt(), 215 * level**1.4, 60 + 60 * level], dim=-1)
    small = Image.fromarray(colour.clamp(0, 255).to(torch.uint8).numpy())
    large = small.resize(picture.size, Image.Resampling.NEAREST)
    return Image.blend(picture.convert("L").convert("RGB"), large, 0.72)


def roles(source: Tensor, kept: int, positions: Tensor, picture: Image.Image) -> Image.Image:
    """Kept patches as they are, merged ones tinted blue, compressed ones nearly black."""
    side = int(len(source) ** 0.5)
    size = picture.width // side
    result = picture.copy()
    keep = set(positions[:kept].tolist())
    for patch, token in enumerate(source.tolist()):
        if patch in keep:
            continue
        box = (patch % side * size, patch // side * size)
        area = (*box, box[0] + size, box[1] + size)
        tint = (66, 133, 244) if token < kept else (8, 8, 12)
        part = result.crop(area)
        result.paste(
            Image.blend(part, Image.new("RGB", part.size, tint), 0.62 if token < kept else 0.88),
            area,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--score", default="redi_mass")
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()

    explorer = artifacts.load(options.run / "analysis" / "explorer.safetensors")[0]
    maps = {
        name: artifacts.load(options.run / "scores" / f"{name}.safetensors")[0]
        for name in ("tfidf", "mass", options.score)
    }
    place = {index: row for row, index in enumerate(maps["mass"]["indices"].tolist())}
    total = len(explorer["indices"])
    chosen = [
        options.first + k * (total - options.first) // options.images for k in range(options.images)
    ]
    sheet = Image.new(
        "RGB", (5 * SIDE + 4 * GAP, HEADER + options.images * (SIDE + GAP) - GAP), "white"
    )
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(15)
    for column, title in enumerate(TITLES):
        pen.text((column * (SIDE + GAP) + 2, 4), title, fill=(40, 40, 40), font=font)
    for row, sample in enumerate(chosen):
        begin, end = explorer["offsets"][4 * sample : 4 * sample + 2].tolist()
        picture = load_image(bytes(explorer["jpegs"][begin:end].tolist())).resize((SIDE, SIDE))
        at = place[int(explorer["indices"][sample])]
        source = explorer[f"source/{options.score}"][sample].long()
        positions = explorer[f"positions/{options.score}"][sample].long()
        kept = len(positions) - 4
        panels = [picture]
        panels += [
            heat(maps[name]["scores"][at], picture) for name in ("tfidf", "mass", options.score)
        ]
        panels.append(roles(source, kept, positions, picture))
        for column, panel in enumerate(panels):
            sheet.paste(panel, (column * (SIDE + GAP), HEADER + row * (SIDE + GAP)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(options.out, quality=82)


if __name__ == "__main__":
    main()
