"""Does learning pay, and from how many images on?

    python experiments/learning.py --backbone vit-tiny-patch16-224 --images imagenet-5k --out learned/vit-tiny
    python experiments/learning.py ... --methods dynamicvit,protected-learned --limit 250 --out learned/vit-tiny-250

It trains learned reducers as `redi learn` does, on images of the even classes alone, and without their labels. It
writes one file per method and prints what the held-out images say. `benchmarks/equal_cost.py --learned FILE --classes
odd` then measures them on the other classes.
"""

import argparse
from pathlib import Path

import torch

from common import PARITY
from redi.backbone import load_backbone
from redi.images import open_images
from redi.images.labelled import Subset
from redi.learning.train import learn
from redi.records.learning import LearnConfig
from redi.reduction.learned import LEARNED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backbone", required=True, help="checkpoint")
    parser.add_argument("--images", required=True, help="folder with one subfolder per class")
    parser.add_argument("--classes", choices=(*PARITY, "all"), default="even")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(LEARNED))
    parser.add_argument("--limit", type=int, default=2000, help="images to learn from")
    parser.add_argument("--held", type=int, default=256, help="further images, which choose the state that is kept")
    parser.add_argument("--mirror", action="store_true", help="learn from the mirror image of each image too")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--checks", type=int, default=6, help="looks at the held-out images")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    asked = parser.parse_args()
    images = open_images(asked.images)
    parity = PARITY.get(asked.classes)
    chosen = Subset(images, [k for k, label in enumerate(images.labels) if parity in (None, label % 2)])
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for method in asked.methods:
        config = LearnConfig(
            backbone=asked.backbone,
            images=asked.images,
            method=method,
            limit=asked.limit,
            held=asked.held,
            mirror=asked.mirror,
            steps=asked.steps,
            checks=asked.checks,
            batch=asked.batch_size,
            workers=0,
            threads=torch.get_num_threads(),
        )
        result = learn(config, load_backbone(asked.backbone), asked.out / f"{method}.safetensors", chosen)
        rows.append((method, result.training))
    print("| method | parameters | images | seconds | untrained | learned | at step |")
    print("|---|---|---|---|---|---|---|")
    for method, training in rows:
        before, after = (
            " / ".join(f"{value:.3f}" for value in check.distances.values())
            for check in (training.untrained, training.best)
        )
        print(
            f"| {method} | {training.parameters:,} | {training.images} | {training.seconds:.0f} | {before} | {after} | "
            f"{training.best.step} |"
        )


if __name__ == "__main__":
    main()
