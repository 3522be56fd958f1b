"""The number of removing blocks: what fewer and larger steps cost in accuracy and bring in speed.

    python experiments/steps.py --backbone CHECKPOINT --images FOLDER [--costs 0.55 0.65] [--steps 0 6 5 4 3]

All rows of a cost have that cost; 0 steps means all blocks of the default shape. Speed is the median over interleaved
pairs of the time of dense over the time of the row, from pixels to logits.
"""

from functools import partial
from statistics import median

import torch

from common import arguments, development, mean_and_error
from redi.deploy import Accelerated, Setting
from redi.speed.measure import interleave


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.55, 0.65])
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 6, 5, 4, 3])
    parser.add_argument("--batch", type=int, default=1, help="images per timed call")
    parser.add_argument("--pairs", type=int, default=40, help="timed calls per row")
    options = parser.parse_args()
    known = development(options.backbone, options.images, options.limit, options.classes)
    pixels = known.backbone.preprocessing.normalise(known.pixels[: options.batch])
    print(
        "| cost | steps | KL (standard error) | root KL minus all steps | agree | speed-up |\n|---|---|---|---|---|---|"
    )
    for cost in options.costs:
        models = {steps: Accelerated(known.backbone, Setting(cost, steps=steps)) for steps in options.steps}
        rows = {steps: known.row(str(steps), model) for steps, model in models.items()}
        dense = Accelerated(known.backbone, Setting(1.0))
        dense.prefix_only = False
        with torch.inference_mode():
            seconds = interleave(
                {-1: partial(dense, pixels), **{k: partial(m, pixels) for k, m in models.items()}}, options.pairs
            )
        for steps, row in rows.items():
            more, error = mean_and_error(row.divergence.sqrt() - rows[options.steps[0]].divergence.sqrt())
            speed = median(before / after for before, after in zip(seconds[-1], seconds[steps], strict=True))
            kl = f"{row.kl[0]:.4f} ({row.kl[1]:.4f}) | {more:+.4f} ({error:.4f})"
            print(f"| {row.cost:.3f} | {steps or 'all'} | {kl} | {row.agreement:.1f} | {speed:.2f} |", flush=True)


if __name__ == "__main__":
    main()
