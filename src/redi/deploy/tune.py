"""``redi tune``: the cheapest setting whose loss is shown to be within what the user allows.

Timing on this machine decides how many steps the schedule has. The schedule is then calibrated on one part of the
images, without labels. The other part gives the reported numbers and decides the cost, by an upper bound of the loss.
Speed is measured with dense and accelerated calls in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path

import torch

from redi.backbone import Backbone
from redi.backbone.own_input import load_with_own_input
from redi.deploy.calibrate import CALIBRATION_COST, calibrate
from redi.deploy.model import Accelerated
from redi.deploy.parts import shared_copy
from redi.deploy.readout import ImageReadout, PatchReadout, Pixels, Readout
from redi.deploy.sample import Part, load_sample
from redi.deploy.speed import Normalised, measure_speed, time_steps
from redi.errors import ConfigError
from redi.images import open_pictures
from redi.records.setting import Setting
from redi.records.tuning import COSTS, Point, TuneConfig, Tuned
from redi.runs.distributed import choose_device
from redi.runs.environment import environment, threads
from redi.runs.identity import identify
from redi.runs.progress import say
from redi.statistics import images_needed

#: The share of decisions that are assumed to change in the estimate of how many images are needed.
FLIPS = 0.02
#: With fewer images, the mean of their losses may be far from normal, which the bound for patches assumes.
FEW_FOR_A_MEAN = 30


def tune(config: TuneConfig, backbone: Backbone | None = None) -> Tuned:
    """Calibrate, check, measure speed and choose. ``backbone`` replaces the one in the configuration."""
    config = config.checked()
    device = choose_device(config.device)
    backbone = shared_copy(backbone) if backbone else load_with_own_input(config.backbone)
    backbone = backbone.with_resize(config.resize) if config.resize else backbone
    backbone = (backbone.at_size(config.size) if config.size else backbone).to(device)
    if config.task == "dense" and backbone.head is not None:
        raise ConfigError(
            "--task dense needs a model whose output is the patch grid, but this one has a head, which gives logits: "
            "tune it for classify, or give its encoder without the head."
        )
    for cost in config.costs:  # raises before the work if a cost cannot be reached
        Accelerated(backbone, Setting(cost, task=config.task))
    with threads(config.threads):
        return _tune(config, backbone)


def _tune(config: TuneConfig, backbone: Backbone) -> Tuned:
    images = open_pictures(config.images)
    class_map = Path(config.class_map) if config.class_map else None
    use_labels = config.task == "classify"
    sample = load_sample(images, backbone, config.calibration, config.check, class_map, config.workers, use_labels)
    check, labelled = sample.check, sample.check.labels is not None
    allowed, count = config.allowed(labelled), len(check.pixels)
    _announce(config, backbone, labelled, count)
    setting = Setting(task=config.task, model=identify(backbone))
    costs = [model.setting.cost for model in _models(backbone, setting, config.costs or COSTS)]
    if not costs:
        raise ConfigError(f"This backbone is too small to accelerate: it reaches none of the costs {COSTS}.")
    nearest = min(costs, key=lambda cost: abs(cost - CALIBRATION_COST))
    # The images of the check decide nothing before the check: they could not be trusted to measure it afterwards.
    batch = _batch(backbone, sample.calibration.pixels, config.batch)
    steps = time_steps(backbone, replace(setting, cost=nearest), costs, batch, config.repeats, config.limit)
    if steps is not None:
        say(f"  {steps}")
        setting = replace(setting, steps=steps.chosen)
    dense = Accelerated(backbone, replace(setting, cost=1.0))
    readout = _readout(dense, sample.bank, config.batch)
    searched, others = sample.calibration.pixels.tensor_split([2 * len(sample.calibration.pixels) // 3])
    calibration = calibrate(dense, readout, searched, others, nearest)
    setting = replace(setting, shape=calibration.shape)
    models = list(_models(backbone, setting, costs))
    dense_outputs = readout.read(dense, check.pixels, "checking dense")
    losses = []
    for model in models:
        reduced = readout.read(model, check.pixels, f"checking cost {model.setting.cost:.2f}")
        losses.append(readout.loss(dense_outputs, reduced, check.labels, allowed))
    batch = _batch(backbone, check.pixels, config.batch)
    speeds = measure_speed(backbone, models, batch, config.repeats, config.limit)
    points = [
        Point(cost=model.cost(), schedule=model.schedule(model.grid), speedup=speed, **asdict(loss))
        for model, loss, speed in zip(models, losses, speeds, strict=True)
    ]
    chosen, bound = choose(points, allowed)
    tuned = Tuned(
        points=points,
        chosen=chosen,
        setting=replace(setting, cost=1.0 if chosen is None else models[chosen].setting.cost),
        calibration=calibration,
        dense_accuracy=readout.loss(dense_outputs, dense_outputs, check.labels, allowed).accuracy,
        images=count,
        allowed=allowed,
        config=config,
        environment=environment(backbone.device),
        steps=steps,
    )
    if chosen is None:
        return tuned
    outside = describe_outside(points[chosen].drop_bound, bound, allowed, f"{tuned.measure} ({count} images)")
    return replace(tuned, setting=replace(tuned.setting, outside=outside))


def _readout(dense: Accelerated, bank: Part, batch: int) -> Readout:
    """What the task reads: patches, or the image."""
    if dense.setting.task == "dense":
        return PatchReadout(dense, bank.pixels, batch)
    return ImageReadout(dense, bank.pixels, bank.labels, batch)


def _batch(backbone: Backbone, pixels: Pixels, size: int) -> Normalised:
    """Images to time a call on, repeated if there are fewer."""
    positions = torch.arange(size) % len(pixels)
    return backbone.preprocessing.normalise(pixels[positions].to(backbone.device))


def _announce(config: TuneConfig, backbone: Backbone, labelled: bool, images: int) -> None:
    """Say which tolerance holds and how many images it needs; warn if there are fewer."""
    allowed = config.allowed(labelled)
    if labelled:
        option, unused, flips = f"--max-drop {allowed:g}", "--min-agreement", (FLIPS / 2, FLIPS / 2)
        is_unused, reason = config.min_agreement is not None, "the labels can be used, so accuracy decides"
    else:
        option, unused, flips = f"--min-agreement {100 - allowed:g}", "--max-drop", (FLIPS, 0.0)
        is_unused, reason = config.max_drop is not None, f"accuracy needs labels that fit, so {option} decides"
    if config.task == "dense":
        reason = "in a dense task, the agreement of patches decides"
    if is_unused:
        say(f"  warning: {unused} is not used: {reason}")
    if config.task == "dense":
        few = f"; warning: the bound is rough with fewer than {FEW_FOR_A_MEAN}" if images < FEW_FOR_A_MEAN else ""
        say(f"  {option} is in percent of the patches, per image and on average over {images} images to check on{few}")
        return
    if backbone.head is None:
        say("  the setting is for decisions about whole images (task classify); for every patch, use --task dense")
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
