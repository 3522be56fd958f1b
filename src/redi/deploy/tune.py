"""``redi tune``: the cheapest setting whose measured loss is within what the user allows.

The schedule is calibrated on one part of the images, without labels. The other part gives the reported numbers and
decides the cost. Speed is measured on this machine, with dense and accelerated calls in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from redi.backbone import Backbone, load_backbone
from redi.deploy.calibrate import CALIBRATION_COST, calibrate
from redi.deploy.model import Accelerated, shared_copy
from redi.deploy.readout import Logits, Readout
from redi.deploy.sample import Part, load_sample
from redi.errors import ConfigError
from redi.images import open_pictures
from redi.records.setting import Setting
from redi.records.timing import Spread
from redi.records.tuning import COSTS, Point, TuneConfig, Tuned
from redi.runs.distributed import choose_device
from redi.runs.environment import environment, threads
from redi.runs.progress import say
from redi.speed.measure import Call, affordable, interleave, once, spread, wait_for
from redi.statistics import agreement, divergence, paired_bootstrap, wilson


def tune(config: TuneConfig, backbone: Backbone | None = None) -> Tuned:
    """Calibrate, check, measure speed and choose. ``backbone`` replaces the one in the configuration."""
    config = config.checked()
    device = choose_device(config.device)
    backbone = shared_copy(backbone) if backbone else load_backbone(config.backbone)
    backbone = backbone.with_resize(config.resize) if config.resize else backbone
    backbone = (backbone.at_size(config.size) if config.size else backbone).to(device)
    for cost in config.costs:  # raises before the work if a cost cannot be reached
        Accelerated(backbone, Setting(cost))
    with threads(config.threads):
        return _tune(config, backbone)


def _tune(config: TuneConfig, backbone: Backbone) -> Tuned:
    images = open_pictures(config.images)
    class_map = Path(config.class_map) if config.class_map else None
    sample = load_sample(images, backbone, config.calibration, config.check, class_map, config.workers)
    dense = Accelerated(backbone, Setting(cost=1.0))
    readout = Readout(dense, sample.bank.pixels, sample.bank.labels, config.batch)
    dense_logits = readout.logits(dense, sample.check.pixels)
    costs = [model.setting.cost for model in _models(backbone, Setting(), config.costs or COSTS)]
    if not costs:
        raise ConfigError(f"This backbone is too small to accelerate: it reaches none of the costs {COSTS}.")
    nearest = min(costs, key=lambda cost: abs(cost - CALIBRATION_COST))
    calibration = calibrate(dense, readout, sample.calibration.pixels, sample.check.pixels, dense_logits, nearest)
    setting = Setting(shares=calibration.shape.shares(backbone.depth))
    models = list(_models(backbone, setting, costs))
    outputs = []
    for model in models:
        say(f"  checking cost {model.setting.cost:.2f} on {len(dense_logits)} images")
        outputs.append(readout.logits(model, sample.check.pixels))
    say(f"  timing {len(models)} settings, batch {config.batch}")
    positions = torch.arange(config.batch) % len(dense_logits)
    pixels = backbone.preprocessing.normalise(sample.check.pixels[positions].to(backbone.device))
    speeds = measure_speed(backbone, models, pixels, config.repeats, config.limit)
    points = [
        _point(model, readout, logits, dense_logits, sample.check, speed)
        for model, logits, speed in zip(models, outputs, speeds, strict=True)
    ]
    chosen = recommend(points, config.max_drop)
    if chosen is not None:
        setting = models[chosen].setting
    accuracy = None
    if sample.check.labels is not None:
        accuracy = agreement(readout.decide(dense_logits), sample.check.labels)
    return Tuned(
        points, chosen, setting, calibration, accuracy, len(dense_logits), config, environment(backbone.device)
    )


def _models(backbone: Backbone, setting: Setting, costs: Sequence[float]) -> Iterator[Accelerated]:
    for cost in costs:
        try:
            yield Accelerated(backbone, replace(setting, cost=cost))
        except ConfigError as error:
            say(f"  left out: {error}")


def recommend(points: Sequence[Point], max_drop: float) -> int | None:
    """The cheapest point with an allowed loss that beats dense in at least three of four repeats."""
    allowed = [k for k, point in enumerate(points) if point.drop <= max_drop and point.speedup.low > 1]
    return min(allowed, key=lambda k: points[k].cost, default=None)


def _point(
    model: Accelerated, readout: Readout, logits: Logits, dense_logits: Logits, check: Part, speed: Spread
) -> Point:
    reduced, dense = readout.decide(logits), readout.decide(dense_logits)
    same = int((reduced == dense).sum())
    low, high = wilson(same, len(reduced))
    accuracy, drop, interval = None, 100 - 100 * same / len(reduced), (100 - high, 100 - low)
    if check.labels is not None:
        accuracy = agreement(reduced, check.labels)
        lost = paired_bootstrap(dense == check.labels, reduced == check.labels)
        drop, interval = lost.delta, lost.interval
    return Point(
        cost=model.cost(),
        schedule=model.schedule(model.grid),
        speedup=speed,
        accuracy=accuracy,
        agreement=100 * same / len(reduced),
        agreement_interval=(low, high),
        divergence=divergence(dense_logits, logits).mean().item(),
        drop=drop,
        drop_interval=interval,
    )


@torch.inference_mode()
def measure_speed(
    backbone: Backbone,
    models: Sequence[Accelerated],
    pixels: Float[Tensor, "batch channels height width"],
    repeats: int,
    limit: float,
) -> list[Spread]:
    """The speed-up of each model over the backbone's own dense pass, with the calls in turn."""

    def dense() -> Tensor:
        hidden = backbone.encode(backbone.embed(pixels))
        return backbone.final_norm(hidden) if backbone.head is None else backbone.classify(hidden)

    calls: dict[int, Call] = {-1: dense, **{k: partial(model, pixels) for k, model in enumerate(models)}}
    synchronise = wait_for(pixels.device)
    for call in calls.values():
        once(call, synchronise=synchronise)
    warm = [once(call, synchronise=synchronise) for call in calls.values()]
    seconds = interleave(calls, affordable(repeats, limit, warm), synchronise=synchronise)
    return [
        spread([reference / own for reference, own in zip(seconds[-1], seconds[k], strict=True)])
        for k in range(len(models))
    ]
