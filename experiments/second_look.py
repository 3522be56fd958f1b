"""Second looks beside one look at all images: what is lost at the same mean cost, and the time it takes.

    python experiments/second_look.py --backbone CHECKPOINT --images FOLDER [--costs 0.55 0.65] [--shares 0.1 0.2]

For each cost: one look, the adaptive setting of `accelerate`, and other shares of second looks at the same cost. The
confidence is set on as many other images. Costs are means over the measured images. The time is that of all images
together, because a median over images would hide the second looks; the models take turns.
"""

from dataclasses import replace
from functools import partial
from time import perf_counter, process_time

import torch
from torch import Tensor

from common import Development, arguments, development, mean_and_error
from redi.deploy import Accelerated, Setting
from redi.deploy.second_look import CHEAPEST, look_costs, with_second_look
from redi.errors import ConfigError
from redi.records.setting import SecondLook
from redi.speed.measure import Clock, interleave
from redi.statistics import divergence


def with_share(ground: Development, cost: float, share: float, other: Tensor) -> Accelerated:
    """As :func:`with_second_look`, with a share of second looks that is given."""
    if not share:
        return Accelerated(ground.backbone, Setting(cost))
    never = Setting(cost, second_look=SecondLook(0.0, share))
    logits = ground.readout.read(Accelerated(ground.backbone, never), other)
    confidence = logits.softmax(dim=1).amax(dim=1).quantile(share).item()
    return Accelerated(ground.backbone, replace(never, second_look=SecondLook(confidence, share)))


def row(ground: Development, name: str, model: Accelerated) -> str:
    """The cost, the share of second looks and what is lost, on the images that the confidence was not set on."""
    pixels, labels, dense = ground.pixels[1::2], ground.labels[1::2], ground.dense[1::2]
    logits = ground.readout.read(model, pixels)
    costs = look_costs(model, ground.backbone.preprocessing.normalise(pixels))
    (kl, error), agrees = mean_and_error(divergence(dense, logits)), logits.argmax(1) == dense.argmax(1)
    lost = ((dense.argmax(1) == labels).float() - (logits.argmax(1) == labels).float()).mean()
    looks = 100 * (costs > costs.min()).float().mean()
    cells = f"{costs.mean():.3f} | {costs.min():.3f} | {costs.max():.3f} | {looks:.1f} | {kl:.4f} ({error:.4f})"
    return f"| {name} | {cells} | {100 * agrees.float().mean():.1f} | {100 * lost:+.1f} |"


@torch.inference_mode()
def seconds(models: dict[str, Accelerated], pixels: Tensor, batch: int, clock: Clock) -> dict[str, float]:
    """The time that each model needs for all images, in batches."""
    total = dict.fromkeys(models, 0.0)
    normalise = models["dense"].backbone.preprocessing.normalise
    chunks = [normalise(chunk) for chunk in pixels.split(batch)]
    interleave({name: partial(model, chunks[0]) for name, model in models.items()}, 2)  # warm-up
    for chunk in chunks:
        times = interleave({name: partial(model, chunk) for name, model in models.items()}, 1, clock)
        total = {name: total[name] + time for name, (time,) in times.items()}
    return total


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.55, 0.65, 0.75])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.3])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="images per timed call")
    parser.add_argument("--busy", action="store_true", help="processor time, for one thread on a busy machine")
    options = parser.parse_args()
    ground = development(options.backbone, options.images, 2 * options.limit, options.classes)
    other, measured = ground.pixels[0::2], ground.pixels[1::2]
    dense = Accelerated(ground.backbone, Setting(1.0))
    dense.prefix_only = False
    for cost in options.costs:
        models = {"one look": Accelerated(ground.backbone, Setting(cost))}
        if cost > CHEAPEST:
            models["adaptive"] = with_second_look(models["one look"], ground.backbone.preprocessing.normalise(other))
        print(f"\nCost {cost:g}, {len(measured)} images\n")
        print("| setting | mean cost | first look | worst | second looks, % | KL (standard error) | agree | lost |")
        print("|---" * 8 + "|")
        for name, model in models.items():
            print(row(ground, name, model), flush=True)
        for share in options.shares:
            try:
                print(row(ground, f"share {share:g}", with_share(ground, cost, share, other)), flush=True)
            except ConfigError as error:
                print(f"| share {share:g} | {error} |")
        for batch in options.batches:
            times = seconds({"dense": dense, **models}, measured, batch, process_time if options.busy else perf_counter)
            speeds = (f"{name} {time:.1f} s ({times['dense'] / time:.2f})" for name, time in times.items())
            print(f"\nBatch {batch}, all images (times as fast as dense): {', '.join(speeds)}", flush=True)


if __name__ == "__main__":
    main()
