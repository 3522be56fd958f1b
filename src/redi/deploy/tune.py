"""``redi tune``: the cheapest setting whose measured loss stays inside what the user allows.

The schedule is calibrated on some images, without their labels. What is reported comes from others,
on which the cost is chosen too. Speed is measured on this machine, dense and accelerated calls in turn.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi import artifacts
from redi.backbone import Backbone, load_backbone
from redi.bench.measure import Call, Spread, affordable, interleave, once, spread, wait_for
from redi.deploy.calibrate import CALIBRATION_COST, Calibration, calibrate
from redi.deploy.model import Accelerated, shared_copy
from redi.deploy.readout import Logits, Readout
from redi.deploy.sample import FEWEST, Part, load_sample
from redi.deploy.setting import Setting
from redi.distributed import choose_device
from redi.environment import environment, threads
from redi.errors import ConfigError
from redi.images import open_pictures
from redi.progress import say
from redi.statistics import agreement, divergence, paired_bootstrap, wilson

COSTS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


@dataclass(frozen=True)
class TuneConfig:
    backbone: str
    images: str
    max_drop: float = 0.5  # points of accuracy, or of agreement with dense without labels
    costs: tuple[float, ...] = ()  # empty: those of COSTS that the backbone reaches
    size: int = 0  # side of the input in pixels; 0: the backbone's usual one
    calibration: int = 192  # images to calibrate the schedule on
    check: int = 1000  # images to check on, at most
    class_map: str = ""
    batch: int = 8  # images a call, timed or not
    repeats: int = 15
    limit: float = 10.0  # seconds of timing a setting
    device: str = "auto"
    workers: int = 2
    threads: int = 0

    def checked(self) -> "TuneConfig":
        if not self.max_drop >= 0:
            raise ConfigError(
                f"--max-drop is a number of points, 0 or more, not {self.max_drop:g}."
            )
        if any(not 0 < cost < 1 for cost in self.costs):
            raise ConfigError("A --cost lies between 0 and 1, which is dense.")
        if min(self.batch, self.repeats) < 1 or min(self.workers, self.threads) < 0:
            raise ConfigError("Batch and repeats are at least 1, workers and threads at least 0.")
        if min(self.calibration, self.check) < FEWEST:
            raise ConfigError(f"Calibrate and check on at least {FEWEST} images each.")
        return replace(self, costs=tuple(sorted(set(self.costs))))


@dataclass(frozen=True)
class Point:
    """One setting, checked on images that it was not calibrated on."""

    cost: float  # of the blocks and the reducer, relative to dense
    schedule: tuple[int, ...]
    speedup: Spread  # quartiles of dense / accelerated, repeat by repeat
    accuracy: float | None  # percent, where there are labels
    agreement: float  # percent of images with dense's decision
    agreement_interval: tuple[float, float]  # 95 %
    divergence: float  # mean KL divergence from dense, nats
    drop: float  # points lost: of accuracy with labels, else of agreement
    drop_interval: tuple[float, float]  # 95 %


@dataclass(frozen=True)
class Tuned:
    points: list[Point]
    chosen: int | None  # place in the points; None: stay with dense
    setting: Setting  # the calibrated schedule, at the chosen cost where there is one
    calibration: Calibration
    dense_accuracy: float | None
    images: int  # that were checked on
    environment: dict[str, Any]

    @property
    def measure(self) -> str:
        return "agreement" if self.dense_accuracy is None else "accuracy"

    def write(self, folder: Path) -> list[Path]:
        """The record, and the setting where one is recommended."""
        artifacts.write_text(folder / "tune.json", json.dumps(asdict(self), indent=1) + "\n")
        if self.chosen is None:
            (folder / "setting.json").unlink(missing_ok=True)  # of an earlier call
            return [folder / "tune.json"]
        self.setting.save(folder / "setting.json")
        return [folder / "tune.json", folder / "setting.json"]


def tune(config: TuneConfig, backbone: Backbone | None = None) -> Tuned:
    """Calibrate, check, measure speed, choose. ``backbone`` takes the place of the one named."""
    config = config.checked()
    device = choose_device(config.device)
    backbone = shared_copy(backbone) if backbone else load_backbone(config.backbone)
    backbone = (backbone.at_size(config.size) if config.size else backbone).to(device)
    for cost in config.costs:  # one that cannot be reached is refused before the work
        Accelerated(backbone, Setting(cost))
    with threads(config.threads):
        return _tune(config, backbone)


def _tune(config: TuneConfig, backbone: Backbone) -> Tuned:
    sample = load_sample(
        open_pictures(config.images),
        backbone,
        config.calibration,
        config.check,
        Path(config.class_map) if config.class_map else None,
        config.workers,
    )
    dense = Accelerated(backbone, Setting(cost=1.0))
    readout = Readout(dense, sample.bank.pixels, sample.bank.labels, config.batch)
    wanted = readout.logits(dense, sample.check.pixels)
    costs = [model.setting.cost for model in _models(backbone, Setting(), config.costs or COSTS)]
    if not costs:
        raise ConfigError(
            f"This backbone is too small to save anything: costs {COSTS} are too low."
        )
    at = min(costs, key=lambda cost: abs(cost - CALIBRATION_COST))
    found = calibrate(dense, readout, sample.calibration.pixels, sample.check.pixels, wanted, at)
    setting = Setting(shares=found.shape.shares(backbone.depth))
    models = list(_models(backbone, setting, costs))
    outputs = []
    for model in models:
        say(f"  checking cost {model.setting.cost:.2f} on {len(wanted)} images")
        outputs.append(readout.logits(model, sample.check.pixels))
    say(f"  timing {len(models)} settings, batch {config.batch}")
    repeated = torch.arange(config.batch) % len(wanted)
    timed = backbone.preprocessing.normalise(sample.check.pixels[repeated].to(backbone.device))
    speeds = measure_speed(backbone, models, timed, config.repeats, config.limit)
    points = [
        _point(model, readout, logits, wanted, sample.check, speed)
        for model, logits, speed in zip(models, outputs, speeds, strict=True)
    ]
    chosen = recommend(points, config.max_drop)
    if chosen is not None:
        setting = models[chosen].setting
    accuracy = None
    if sample.check.labels is not None:
        accuracy = agreement(readout.decide(wanted), sample.check.labels)
    surroundings = {**environment(backbone.device), "config": asdict(config)}
    return Tuned(points, chosen, setting, found, accuracy, len(wanted), surroundings)


def _models(backbone: Backbone, setting: Setting, costs: Sequence[float]) -> Iterator[Accelerated]:
    for cost in costs:
        try:
            yield Accelerated(backbone, replace(setting, cost=cost))
        except ConfigError as error:
            say(f"  left out: {error}")


def recommend(points: Sequence[Point], max_drop: float) -> int | None:
    """The cheapest whose measured loss is allowed and which was faster than dense in three of four
    repeats at least."""
    fit = [k for k, one in enumerate(points) if one.drop <= max_drop and one.speedup.low > 1]
    return min(fit, key=lambda k: points[k].cost, default=None)


def _point(
    model: Accelerated,
    readout: Readout,
    logits: Logits,
    wanted: Logits,
    check: Part,
    speed: Spread,
) -> Point:
    found, dense = readout.decide(logits), readout.decide(wanted)
    same = int((found == dense).sum())
    low, high = wilson(same, len(found))
    accuracy, drop, interval = None, 100 - 100 * same / len(found), (100 - high, 100 - low)
    if check.labels is not None:
        accuracy = agreement(found, check.labels)
        lost = paired_bootstrap(dense == check.labels, found == check.labels)
        drop, interval = lost.delta, lost.interval
    return Point(
        cost=model.cost(),
        schedule=model.schedule(model.grid),
        speedup=speed,
        accuracy=accuracy,
        agreement=100 * same / len(found),
        agreement_interval=(low, high),
        divergence=divergence(wanted, logits).mean().item(),
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
    """How many times faster than the backbone's own dense pass, calls taking turns."""

    def dense() -> Tensor:
        hidden = backbone.final_norm(backbone.encode(backbone.embed(pixels)))
        if backbone.head is None:
            return hidden
        return backbone.head.classify(backbone.model, hidden, backbone.prefix)

    calls: dict[int, Call] = {
        -1: dense,
        **{k: partial(model, pixels) for k, model in enumerate(models)},
    }
    synchronise = wait_for(pixels.device)
    for call in calls.values():
        once(call, synchronise=synchronise)
    warm = [once(call, synchronise=synchronise) for call in calls.values()]
    seconds = interleave(calls, affordable(repeats, limit, warm), synchronise=synchronise)
    return [
        spread([there / here for there, here in zip(seconds[-1], seconds[k], strict=True)])
        for k in range(len(models))
    ]
