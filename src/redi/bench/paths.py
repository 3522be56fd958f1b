"""The paths through a backbone that are compared: from pixels to final hidden states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from redi.attention import head_mean
from redi.backbone import Backbone, Preprocessing, Watch
from redi.backbone.families import FAMILIES
from redi.backbone.inputs import DEFAULT_MEAN, DEFAULT_STD
from redi.bench.records import DENSE
from redi.equal import Geometry, one_shot_cost, schedule_cost, schedule_for_cost
from redi.errors import ConfigError
from redi.reduction import (
    ONE_SHOT,
    OPERATOR,
    PROGRESSIVE,
    WORD_MERGING,
    OneShot,
    Progressive,
    Schedule,
    WordMerging,
)
from redi.reduction.budget import Budget
from redi.reduction.oneshot import WORDS
from redi.score import norm01

#: Reducers with a Python loop of one step a merged pair, which a compiler would unroll.
LOOPING = (WORD_MERGING, "atc")
UNROLLED = "not compiled: its loop of one step a merged pair would be unrolled"
#: (width, heads) of random ViTs in DINOv3's layout.
SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}

Pixels = Float[Tensor, "batch channels height width"]
Scores = Float[Tensor, "batch patches"]
Forward = Callable[[Pixels, Scores], Tensor]


@dataclass(frozen=True)
class TimedPath:
    """A path, its analytic cost and what it leaves."""

    row: str
    scoring: bool
    forward: Forward | None  # None where the note says why there is none
    cost: float | None = None  # multiply-adds relative to the dense blocks
    tokens: int | None = None  # after the last block, prefix included
    schedule: Schedule | None = None
    note: str = ""

    def __str__(self) -> str:
        return f"{self.row} with scoring" if self.scoring else self.row


def random_backbone(size: str) -> Backbone:
    """Random weights, always the same: depth 12, patch 16, 224 px, 4 registers."""
    width, heads = SIZES[size]
    config = DINOv3ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=12,
        num_attention_heads=heads,
        num_register_tokens=4,
        patch_size=16,
        image_size=224,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DINOv3ViTModel(config)
    preprocessing = Preprocessing(256, 224, DEFAULT_MEAN, DEFAULT_STD)
    return Backbone(model, FAMILIES["dinov3_vit"], None, preprocessing)


def timed_paths(
    backbone: Backbone,
    reducers: Sequence[str],
    scoring: bool = True,
    budget: Budget = Budget(),
    cost: float = 0.0,
) -> list[TimedPath]:
    """Dense, then each reducer; those that look at scores also with the pass that makes them.

    ``cost`` is that of progressive reducers, relative to dense; 0 means that of the paper's operator.
    """
    found = [
        TimedPath(
            DENSE, False, _dense(backbone), 1.0, backbone.prefix + Geometry.of(backbone).patches
        )
    ]
    for name in reducers:
        if name in ONE_SHOT:
            found += _one_shot_paths(backbone, name, scoring, budget)
        else:
            found.append(_progressive_path(backbone, name, budget, cost))
    return found


def _one_shot_paths(
    backbone: Backbone, name: str, scoring: bool, budget: Budget
) -> list[TimedPath]:
    reducer = ONE_SHOT[name]
    if name == WORD_MERGING:
        generator = torch.Generator().manual_seed(0)
        words = normalize(torch.randn(WORDS, backbone.width, generator=generator), dim=1)
        reducer = replace(reducer, reduce=WordMerging(words.to(backbone.device)))
    on = Geometry.of(backbone)
    cost = one_shot_cost(reducer, budget, 0, on)
    tokens = on.prefix + reducer.tokens(budget, on.grid)
    found = [TimedPath(name, False, _one_shot(backbone, reducer, budget), cost, tokens)]
    if scoring and reducer.scored:
        found.append(TimedPath(name, True, _scored(backbone, reducer, budget), cost + 1, tokens))
    return found


def _progressive_path(backbone: Backbone, name: str, budget: Budget, cost: float) -> TimedPath:
    reducer, on = PROGRESSIVE[name], Geometry.of(backbone)
    target = cost or one_shot_cost(ONE_SHOT[OPERATOR], budget, 0, on)
    try:
        schedule = schedule_for_cost(reducer, target, on)
    except ConfigError as error:
        return TimedPath(name, False, None, note=str(error))
    cost = schedule_cost(reducer, schedule, on)
    forward = _progressive(backbone, reducer, schedule)
    return TimedPath(name, False, forward, cost, backbone.prefix + schedule[-1], schedule)


def _dense(backbone: Backbone) -> Forward:
    def forward(pixels: Pixels, _scores: Scores) -> Tensor:
        return backbone.encode(backbone.embed(pixels))

    return forward


def _one_shot(backbone: Backbone, reducer: OneShot, budget: Budget) -> Forward:
    def forward(pixels: Pixels, scores: Scores) -> Tensor:
        tokens = backbone.embed(pixels)
        assert tokens.grid is not None
        reduction = reducer.reduce(tokens.patches, scores, budget, tokens.grid)
        return backbone.encode(tokens.reduced(reduction))

    return forward


def _scored(backbone: Backbone, reducer: OneShot, budget: Budget) -> Forward:
    """A dense pass first: incoming mass of its last block, through the unchecked ``norm01``."""
    last = backbone.depth - 1

    def forward(pixels: Pixels, _scores: Scores) -> Tensor:
        tokens = backbone.embed(pixels)
        assert tokens.grid is not None
        watch = Watch(head_mean, blocks=(last,))
        backbone.encode(tokens, watch=(watch,))
        mass = norm01(watch.value(last).mean(dim=1)[:, backbone.prefix :])
        reduction = reducer.reduce(tokens.patches, mass, budget, tokens.grid)
        return backbone.encode(tokens.reduced(reduction))

    return forward


def _progressive(backbone: Backbone, reducer: Progressive, schedule: Schedule) -> Forward:
    def forward(pixels: Pixels, _scores: Scores) -> Tensor:
        return backbone.encode_progressively(backbone.embed(pixels), reducer, schedule).hidden

    return forward


def compiled(forward: Forward, backend: Any = "inductor") -> Forward:
    """One graph of fixed shapes. Isolated: rows share a Python function, but no compiled code, whose
    guards would otherwise be tried one after the other in every call."""
    return torch.compile(  # type: ignore[call-overload, no-any-return]  # not in its overloads
        forward, fullgraph=True, dynamic=False, backend=backend, isolate_recompiles=True
    )
