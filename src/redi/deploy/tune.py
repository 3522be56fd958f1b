"""``redi tune``: the cheapest setting whose loss is shown to be within what the user allows.

The schedule is calibrated on one part of the images, without labels. The other part gives the reported numbers and
decides the cost, by an upper bound of the loss. Speed is measured on this machine, with dense and accelerated calls in
turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.backbone import Backbone
from redi.backbone.own_input import load_with_own_input
from redi.deploy.calibrate import CALIBRATION_COST, calibrate
from redi.deploy.identity import identify
from redi.deploy.model import Accelerated, shared_copy
from redi.deploy.readout import Logits, Readout
from redi.deploy.sample import load_sample
from redi.errors import ConfigError
from redi.images import open_pictures
from redi.records.setting import Setting
from redi.records.timing import Spread
from redi.records.tuning import COSTS, Point, TuneConfig, Tuned
from redi.runs.distributed import choose_device
from redi.runs.environment import environment, threads
from redi.runs.progress import say
from redi.speed.measure import Call, affordable, interleave, once, spread, wait_for
from redi.statistics import agreement, divergence, images_needed, paired_bound

#: The share of decisions that are assumed to change in the estimate of how many images are needed.
FLIPS = 0.02

Labels = Int[Tensor, " images"]


def tune(config: TuneConfig, backbone: Backbone | None = None) -> Tuned:
    """Calibrate, check, measure speed and choose. ``backbone`` replaces the one in the configuration."""
    config = config.checked()
    device = choose_device(config.device)
    backbone = shared_copy(backbone) if backbone else load_with_own_input(config.backbone)
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
    check, labelled = sample.check, sample.check.labels is not None
    allowed = config.allowed(labelled)
    _announce(config, labelled, len(check.pixels))
    costs = [model.setting.cost for model in _models(backbone, Setting(), config.costs or COSTS)]
    if not costs:
        raise ConfigError(f"This backbone is too small to accelerate: it reaches none of the costs {COSTS}.")
    dense = Accelerated(backbone, Setting(cost=1.0))
    readout = Readout(dense, sample.bank.pixels, sample.bank.labels, config.batch)
    nearest = min(costs, key=lambda cost: abs(cost - CALIBRATION_COST))
    # The images of the check decide nothing before the check: they could not be trusted to measure it afterwards.
    searched, others = sample.calibration.pixels.tensor_split([2 * len(sample.calibration.pixels) // 3])
    calibration = calibrate(dense, readout, searched, others, nearest)
    setting = Setting(shares=calibration.shape.shares(backbone.depth), model=identify(backbone))
    models = list(_models(backbone, setting, costs))
    dense_logits = readout.logits(dense, check.pixels, "checking dense")
    outputs = [readout.logits(model, check.pixels, f"checking cost {model.setting.cost:.2f}") for model in models]
    positions = torch.arange(config.batch) % len(dense_logits)
    pixels = backbone.preprocessing.normalise(check.pixels[positions].to(backbone.device))
    speeds = measure_speed(backbone, models, pixels, config.repeats, config.limit)
    points = [
        _point(model, readout, logits, dense_logits, check.labels, speed, allowed)
        for model, logits, speed in zip(models, outputs, speeds, strict=True)
    ]
    chosen, bound = choose(points, allowed)
    what = f"{'accuracy' if labelled else 'agreement'} ({len(dense_logits)} images)"
    if chosen is None:
        setting = replace(setting, cost=1.0)
    else:
        outside = describe_outside(points[chosen].drop_bound, bound, allowed, what)
        setting = replace(setting, cost=models[chosen].setting.cost, outside=outside)
    return Tuned(
        points,
        chosen,
        setting,
        calibration,
        None if check.labels is None else agreement(readout.decide(dense_logits), check.labels),
        len(dense_logits),
        allowed,
        config,
        environment(backbone.device),
    )


def _announce(config: TuneConfig, labelled: bool, images: int) -> None:
    """Say which tolerance holds and how many images it needs; warn if there are fewer."""
    allowed = config.allowed(labelled)
    if labelled:
        option, unused, flips = f"--max-drop {allowed:g}", "--min-agreement", (FLIPS / 2, FLIPS / 2)
        is_unused, reason = config.min_agreement is not None, "the labels can be used, so accuracy decides"
    else:
        option, unused, flips = f"--min-agreement {100 - allowed:g}", "--max-drop", (FLIPS, 0.0)
        is_unused, reason = config.max_drop is not None, "without labels that fit, agreement with dense decides"
    if is_unused:
        say(f"  warning: {unused} is not used: {reason}")
    fewest, some = images_needed(0, 0, allowed), images_needed(*flips, allowed)
    if fewest is None:
        say(f"  warning: {option} cannot be shown with any number of images if no decision changes")
        return
    likely = f", some {some} if {100 * FLIPS:g} % change" if some else ""
    warning = "warning: " if images < (some or fewest) else ""
    say(f"  {warning}{option} needs {fewest} images to check on if no decision changes{likely}; there are {images}")


def _models(backbone: Backbone, setting: Setting, costs: Sequence[float]) -> Iterator[Accelerated]:
    for cost in costs:
        try:
            yield Accelerated(backbone, replace(setting, cost=cost))
        except ConfigError as error:
            say(f"  left out: {error}")


def choose(points: Sequence[Point], allowed: float) -> tuple[int | None, float]:
    """The position of the point to use, and the most that may be lost there or before with 95 % confidence.

    It is the cheapest point that is faster than dense and whose loss is within the tolerance. The points are tested in
    a fixed sequence, from the highest cost down, until the bound of one exceeds the tolerance. The first one that is
    truly outside passes with a chance of at most 5 %, and no cheaper one is reached otherwise. So the chance of a
    wrong recommendation is at most 5 %, for any number of points on the same images, without a correction.

    If no point passes, it is the faster one with the lowest bound of its own, and the cheapest of equal ones; the
    returned bound then exceeds the tolerance. If no point is faster, the position is None, which means dense.
    """
    order = sorted(range(len(points)), key=lambda k: points[k].cost, reverse=True)
    # A point is as good as the worst of those that are tested before it.
    bounds = dict(zip(order, accumulate((points[k].drop_bound for k in order), max), strict=True))
    faster = [k for k in order if points[k].faster]
    if not faster:
        return None, 0.0
    inside = [k for k in faster if bounds[k] <= allowed]
    chosen = inside[-1] if inside else min(faster, key=lambda k: (points[k].drop_bound, points[k].cost))
    return chosen, bounds[chosen]


def describe_outside(own: float, bound: float, allowed: float, what: str) -> str:
    """By how much a chosen point misses the tolerance; empty if it does not.

    ``own`` is the bound of the point itself, ``bound`` the one from :func:`choose`, and ``what`` is lost.
    """
    if bound <= allowed:
        return ""
    subject = f"up to {own:.1f}" if own > allowed else f"at a higher cost up to {bound:.1f}"
    return f"{subject} points of {what} may be lost, {allowed:g} allowed"


def _point(
    model: Accelerated,
    readout: Readout,
    logits: Logits,
    dense_logits: Logits,
    labels: Labels | None,
    speed: Spread,
    allowed: float,
) -> Point:
    reduced, dense = readout.decide(logits), readout.decide(dense_logits)
    images = len(reduced)
    accuracy, lost, gained = None, int((reduced != dense).sum()), 0
    if labels is not None:
        accuracy = agreement(reduced, labels)
        before, after = dense == labels, reduced == labels
        lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    return Point(
        cost=model.cost(),
        schedule=model.schedule(model.grid),
        speedup=speed,
        accuracy=accuracy,
        agreement=agreement(reduced, dense),
        divergence=divergence(dense_logits, logits).mean().item(),
        drop=100 * (lost - gained) / images,
        drop_bound=paired_bound(lost, gained, images),
        needed=images_needed(lost / images, gained / images, allowed),
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
    count = affordable(repeats, limit, warm)
    fewer = f" instead of {repeats}, which would take too long" if count < repeats else ""
    say(f"  timing {len(models)} settings, batch {len(pixels)}: {count} repeats{fewer}, some {count * sum(warm):.0f} s")
    seconds = interleave(calls, count, synchronise=synchronise)
    return [
        spread([reference / own for reference, own in zip(seconds[-1], seconds[k], strict=True)])
        for k in range(len(models))
    ]
