"""``redi learn``: train a learned reducer on a frozen backbone, with the dense model as the teacher.

Only the parameters of the method learn. The labels of the images are never read. Every batch draws one of the costs.
Held-out images see the reducer as it will be used, at every cost; the best of the states that they saw is kept, and the
first is that of the untrained parameters. All randomness comes from the seed and the number of the step, so a training
that was stopped continues as if it had not been.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import ceil, cos, pi
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from redi.backbone import Backbone
from redi.errors import ConfigError, CorpusError
from redi.images import LabelledImages, open_pictures
from redi.images.labelled import Unlabelled, describe_left_out
from redi.images.loader import ViewDataset
from redi.learning.files import LearnedFile, is_learned, load_learned, save_learned
from redi.learning.teacher import Teacher
from redi.records import artifacts
from redi.records.drafts import alone
from redi.records.learning import COSTS, FEWEST, Check, LearnConfig, Training
from redi.records.outputs import require_replaceable
from redi.records.reading import build
from redi.reduction import Adaptive, Progressive
from redi.reduction.adaptive import Curve, curve_of
from redi.reduction.learned import LEARNED, Learned, Lesson
from redi.runs.distributed import choose_device
from redi.runs.environment import threads
from redi.runs.identity import identify
from redi.runs.pictures import decode
from redi.runs.progress import say, track

#: Strengths at which the cost of an adaptive method is measured for a check, and the images it is measured on.
STRENGTHS = tuple(step / 8 for step in range(9))
CURVE_IMAGES = 32
#: Largest norm of a gradient.
CLIP = 1.0

Pixels = UInt8[Tensor, "images channels height width"]
HeldPixels = UInt8[Tensor, "held channels height width"]


@torch.random.fork_rng(devices=[])  # loading and new modules draw random numbers
def learn(config: LearnConfig, backbone: Backbone, out: Path, images: LabelledImages | None = None) -> LearnedFile:
    """Train and write ``out``; a finished file of the same training is read.

    ``backbone`` is frozen: the caller passes a copy of its own. ``images`` replace those of the configuration.
    """
    config = config.checked()
    backbone = backbone.at_size(config.size) if config.size else backbone
    backbone = backbone.to(choose_device(config.device)).requires_grad_(False)
    config = replace(config, costs=_reachable_costs(config, backbone))
    images = images or open_pictures(config.images)
    if left_out := describe_left_out(images):
        say(f"  warning: {left_out}")
    chosen, held = _choose(images, config.limit, config.held)
    with threads(config.threads):
        dataset = ViewDataset(Unlabelled(images), backbone.preprocessing, four_views=False, seed=0)
        pixels, held_pixels = (decode(dataset, part, config.workers)[0] for part in (chosen, held))
        if config.mirror:
            pixels = torch.cat([pixels, pixels.flip(-1)])
        key = _key(config, backbone, pixels, held_pixels)
        with alone(out):
            if _is_finished(out, key):
                say(f"  {out} is finished")
                return load_learned(out, backbone)
            method, training = _Student(config, backbone, pixels, held_pixels, key, _partial(out)).train()
            learned = save_learned(out, method, training, key)
            with suppress(OSError):
                _partial(out).unlink(missing_ok=True)
    return learned


def _is_finished(out: Path, key: Mapping[str, Any]) -> bool:
    """Whether a file is there and of this training. Any other file is refused."""
    if not os.path.lexists(out):
        return False
    require_replaceable(out, ours=is_learned)
    manifest = artifacts.read_manifest(out)
    assert manifest is not None
    earlier, wanted = (_facts(each) for each in (manifest["key"], json.loads(json.dumps(key))))
    if differing := [name for name, value in wanted.items() if earlier.get(name) != value]:
        raise ConfigError(
            f"{out} holds the result of another training, which differs in: {', '.join(differing)}. Nothing was "
            "written; choose another --out."
        )
    return True


def _facts(key: Mapping[str, Any]) -> dict[str, Any]:
    """What a training is made from, by names for people."""
    settings = {name: value for name, value in key.get("settings", {}).items() if name != "method"}
    others = {name: value for name, value in key.items() if name not in ("learned", "settings")}
    return {"method": key.get("learned"), **settings, **others}


def _reachable_costs(config: LearnConfig, backbone: Backbone) -> tuple[float, ...]:
    """The costs to learn for. One that was asked for and cannot be reached raises before the work."""
    reducer = LEARNED[config.method](backbone.geometry).reducer()
    if not isinstance(reducer, Progressive):
        return config.costs or COSTS
    reached, refused = [], None
    for cost in config.costs or COSTS:
        try:
            reducer.extent_within_cost(cost, backbone.geometry, Teacher(backbone).prefix_only)
            reached.append(cost)
        except ConfigError as error:
            refused = error
    if refused is not None:
        if config.costs or not reached:
            raise refused
        say(f"  learning for costs of {' and '.join(f'{cost:g}' for cost in reached)}: {refused}")
    return tuple(reached)


def _partial(out: Path) -> Path:
    """Where an unfinished training is kept."""
    return out.with_name(f".{out.stem}.partial{out.suffix}")


def _choose(images: LabelledImages, limit: int, held: int) -> tuple[list[int], list[int]]:
    """Images to learn from and images that are held out, drawn from the whole data set."""
    total = len(images.labels)
    held = min(held, total // 4)
    count = min(limit, total - held)
    if min(held, count) < FEWEST:
        raise CorpusError(f"{images.name} has {total} images, too few to learn from: give {4 * FEWEST} or more.")
    places = torch.randperm(total, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(places[held : held + count]), sorted(places[:held])


def _key(config: LearnConfig, backbone: Backbone, pixels: Pixels, held: HeldPixels) -> dict[str, Any]:
    """All that the parameters depend on: the pixels themselves, but neither labels nor names nor the machine."""
    settings = asdict(config)
    for name in ("backbone", "images", "device", "workers", "threads"):
        settings.pop(name)
    method = LEARNED[config.method](backbone.geometry)
    settings["rate"] = config.rate or method.rate
    parameters = method.state_dict()
    return {
        "learned": config.method,
        "parameters": {name: list(value.shape) for name, value in parameters.items()},
        "model": asdict(identify(backbone)),
        "grid": backbone.geometry.grid,
        "input": repr(backbone.preprocessing),
        "images": artifacts.tensor_digest({"pixels": pixels, "held": held}),
        "settings": settings,
    }


@dataclass
class _Student:
    """A training with its state."""

    config: LearnConfig
    backbone: Backbone
    pixels: Pixels
    held: HeldPixels
    key: dict[str, Any]
    partial: Path
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0
    step: int = 0

    def __post_init__(self) -> None:
        self.teacher = Teacher(self.backbone)
        torch.manual_seed(self.config.seed)
        self.method: Learned = LEARNED[self.config.method](self.backbone.geometry)
        self.method.to(self.backbone.device)
        self.best = self._state()
        self.parameters = [value for value in self.method.parameters() if value.requires_grad]
        self.rate = self.config.rate or self.method.rate
        self.optimiser = torch.optim.AdamW(self.parameters, lr=self.rate) if self.parameters else None
        steps = self.config.steps
        if self.method.epochs:
            steps = min(steps, self.method.epochs * ceil(len(self.pixels) / self.config.batch))
        self.steps = min(steps, self.method.lessons or steps)

    def train(self) -> tuple[Learned, Training]:
        """The method in its best state, and the record of the training."""
        self._resume()
        self.dense = self.teacher.dense(self.pixels, self.config.batch)
        self.held_dense = self.teacher.dense(self.held, self.config.batch)
        begin, before = monotonic(), self.seconds
        if not self.checks:
            self._check(None)
        looks = {round(self.steps * look / self.config.checks) for look in range(1, self.config.checks + 1)}
        losses: list[float] = []
        batch = self.config.batch
        with track(f"learning {self.method.name}", self.steps * batch, self.step * batch) as advance:
            while self.step < self.steps:
                if (loss := self._learn_batch()) is not None:
                    losses.append(loss)
                self.step += 1
                advance(batch)
                if self.step in looks:
                    self.seconds = before + monotonic() - begin
                    self._check(sum(losses) / len(losses) if losses else None)
                    losses = []
                    self._keep()
        self.method.load_state_dict(self.best)
        self.method.requires_grad_(False).eval()
        return self.method, self._record()

    def _record(self) -> Training:
        return Training(
            method=self.method.name,
            model=identify(self.backbone),
            grid=self.backbone.geometry.grid,
            images=len(self.pixels),
            held=len(self.held),
            parameters=sum(value.numel() for value in self.method.state_dict().values()),
            steps=self.steps,
            seconds=round(self.seconds, 1),
            measure=self.teacher.measure,
            checks=self.checks,
            config=self.config,
        )

    def _learn_batch(self) -> float | None:
        config, generator = self.config, _generator(self.config.seed, self.step)
        rows = self._rows(self.step)
        dense = self.dense[rows].to(self.backbone.device)
        cost = config.costs[int(torch.randint(len(config.costs), (), generator=generator))]
        lesson = Lesson(
            encoder=self.backbone,
            tokens=self._embed(self.pixels[rows]),
            cost=cost,
            distance=lambda short: self.teacher.distance(dense, self.teacher.read(short)),
            prefix_only=self.teacher.prefix_only,
            generator=generator,
        )
        loss = self.method.learn(lesson)
        if loss is None or self.optimiser is None or not loss.requires_grad:  # the last: no token had to go
            return None
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * (1 + cos(pi * self.step / self.steps)) / 2
        self.optimiser.zero_grad()
        loss.backward()
        clip_grad_norm_(self.parameters, CLIP)
        self.optimiser.step()
        return loss.item()

    def _rows(self, step: int) -> Tensor:
        """The images of a step: each epoch walks all of them in an order of its own."""
        count, batch = len(self.pixels), min(self.config.batch, len(self.pixels))
        per_epoch = ceil(count / batch) if self.method.epochs else count // batch
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(count, generator=_generator(self.config.seed, -1 - epoch))
        return order[place * batch : (place + 1) * batch]

    def _embed(self, pixels: Pixels) -> Any:
        with torch.no_grad():
            return self.backbone.embed(self.backbone.preprocessing.normalise(pixels.to(self.backbone.device)))

    @torch.no_grad()
    def _check(self, loss: float | None) -> None:
        """Look at the held-out images at every cost, with the reducer as it will be used."""
        reducer = self.method.reducer()
        if isinstance(reducer, Adaptive):
            reducer = reducer.measured_by(self._curve)
        distances = {f"{cost:g}": self._distance(reducer, cost) for cost in self.config.costs}
        self.checks.append(Check(self.step, loss, distances))
        if self._record().best is self.checks[-1]:
            self.best = self._state()
        values = ", ".join(f"{value:.4f} at {cost}" for cost, value in distances.items())
        say(f"  step {self.step}: {self.teacher.measure} on {len(self.held)} held-out images {values}")

    def _distance(self, reducer: Progressive | Adaptive, cost: float) -> float:
        on, prefix_only, distances = self.backbone.geometry, self.teacher.prefix_only, []
        if isinstance(reducer, Adaptive):
            extent = reducer.extent_for_cost(cost, on)
        else:
            extent = reducer.extent_within_cost(cost, on, prefix_only)
        for pixels, dense in zip(*(x.split(self.config.batch) for x in (self.held, self.held_dense)), strict=True):
            tokens = self._embed(pixels)
            short: Any
            if isinstance(reducer, Adaptive):
                strength = extent.strength or 0.0
                short = self.backbone.encode_adaptively(tokens, reducer, strength, prefix_only=prefix_only)
            else:
                schedule = extent.schedule
                short = self.backbone.encode_progressively(tokens, reducer, schedule, prefix_only=prefix_only)
            distances.append(self.teacher.distance(dense.to(self.backbone.device), self.teacher.read(short)))
        return torch.cat(distances).mean().item()

    def _curve(self, reducer: Adaptive) -> Curve:
        tokens = self._embed(self.held[:CURVE_IMAGES])
        passes = [self.backbone.encode_adaptively(tokens, reducer, strength) for strength in STRENGTHS]
        lengths = torch.stack([varied.lengths for varied in passes], dim=1)
        return curve_of(reducer, lengths.cpu(), self.backbone.geometry, STRENGTHS)

    def _state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.method.state_dict().items()}

    def _keep(self) -> None:
        """Write what a training needs to continue from this step."""
        tensors = {f"now/{name}": value for name, value in self._state().items()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        if self.optimiser is not None:
            for number, state in self.optimiser.state_dict()["state"].items():
                tensors |= {f"optimiser/{number}/{name}": value for name, value in state.items()}
        checks = [asdict(check) for check in self.checks]
        artifacts.save(self.partial, tensors, self.key, step=self.step, seconds=self.seconds, checks=checks)

    def _resume(self) -> None:
        if not artifacts.is_current(self.partial, self.key):
            return
        tensors, manifest = artifacts.load(self.partial)
        parts: dict[str, dict[str, Tensor]] = {"now": {}, "best": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        self.method.load_state_dict(parts["now"])
        self.best = {name: value.to(self.backbone.device) for name, value in parts["best"].items()}
        if self.optimiser is not None:
            state = self.optimiser.state_dict()
            for name, value in parts["optimiser"].items():
                number, _, entry = name.partition("/")
                state["state"].setdefault(int(number), {})[entry] = value
            self.optimiser.load_state_dict(state)
        notes = manifest["notes"]
        self.step, self.seconds = notes["step"], notes["seconds"]
        self.checks = [build(Check, check) for check in notes["checks"]]
        say(f"  continuing after step {self.step} of {self.steps}")


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)
