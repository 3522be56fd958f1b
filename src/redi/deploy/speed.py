"""The speed of accelerated models on this machine: against dense, and of fewer steps against all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from redi.backbone import Backbone
from redi.deploy.model import Accelerated
from redi.errors import ConfigError
from redi.records.setting import Setting
from redi.records.timing import Spread
from redi.records.tuning import Steps
from redi.runs.progress import say
from redi.speed.measure import Call, Clock, Key, affordable, interleave, once, spread, wait_for

#: The number of steps that is tried instead of all.
FEWER = 5

Normalised = Float[Tensor, "batch channels height width"]


@torch.inference_mode()
def measure_speed(
    backbone: Backbone, models: Sequence[Accelerated], pixels: Normalised, repeats: int, limit: float
) -> list[Spread]:
    """The speed-up of each model over the backbone's own dense pass, with the calls in turn."""

    def dense() -> Tensor:
        hidden = backbone.encode(backbone.embed(pixels))
        return backbone.final_norm(hidden) if backbone.head is None else backbone.classify(hidden)

    calls: dict[int, Call] = {-1: dense, **{k: partial(model, pixels) for k, model in enumerate(models)}}
    seconds = _in_turn(calls, f"{len(models)} settings", pixels, repeats, limit)
    return [_ratios(seconds[-1], seconds[k]) for k in range(len(models))]


@torch.inference_mode()
def time_steps(
    backbone: Backbone,
    setting: Setting,
    costs: Sequence[float],
    pixels: Normalised,
    repeats: int,
    limit: float,
    clock: Clock = perf_counter,
) -> Steps | None:
    """Time the default schedule at the setting's cost with at most five steps against all of its steps.

    None if the schedule has no more steps, or if five cannot reach the lowest of the ``costs`` that are to be checked.
    """
    every, few = replace(setting, steps=0), replace(setting, steps=FEWER)
    model = Accelerated(backbone, every)
    steps = removing_blocks(model)
    if steps <= FEWER:
        return None
    try:
        Accelerated(backbone, replace(few, cost=min(costs)))
        fewer = Accelerated(backbone, few)
    except ConfigError:
        return None
    calls: dict[str, Call] = {"all": partial(model, pixels), "fewer": partial(fewer, pixels)}
    seconds = _in_turn(calls, f"{FEWER} steps against all {steps}", pixels, repeats, limit, clock)
    return Steps(FEWER, steps, setting.cost, len(pixels), _ratios(seconds["all"], seconds["fewer"]))


def removing_blocks(model: Accelerated) -> int:
    """The number of blocks that remove tokens, at the usual input."""
    rows, columns = model.grid
    return sum(after < before for before, after in pairwise((rows * columns, *model.schedule(model.grid))))


def _in_turn(
    calls: Mapping[Key, Call], what: str, pixels: Normalised, repeats: int, limit: float, clock: Clock = perf_counter
) -> dict[Key, list[float]]:
    """Warm up the calls and time them in turn, as often as the limit allows."""
    synchronise = wait_for(pixels.device)
    for call in calls.values():
        once(call, clock, synchronise)
    warm = [once(call, clock, synchronise) for call in calls.values()]
    count = affordable(repeats, limit, warm)
    fewer = f" instead of {repeats}, which would take too long" if count < repeats else ""
    say(f"  timing {what}, batch {len(pixels)}: {count} repeats{fewer}, some {count * sum(warm):.0f} s")
    return interleave(calls, count, clock, synchronise)


def _ratios(reference: Sequence[float], own: Sequence[float]) -> Spread:
    """The quartiles of reference / own, repeat by repeat."""
    return spread([before / after for before, after in zip(reference, own, strict=True)])
