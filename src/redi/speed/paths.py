"""The paths through a backbone that are timed, from pixels to the final hidden states that are read.

A row that works block by block is read as in an evaluation: the prefix alone if the head reads nothing else, otherwise
the full grid, restored by residual unmerge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from transformers import DINOv3ViTConfig, DINOv3ViTModel, ViTConfig, ViTForImageClassification

from redi.attention import head_mean
from redi.backbone import Backbone, Tokens, Watch
from redi.backbone.families import FAMILIES
from redi.budget import Budget
from redi.errors import ConfigError
from redi.images.preprocessing import DEFAULT_MEAN, DEFAULT_STD, Preprocessing
from redi.learning.files import SUFFIX, load_learned
from redi.records.setting import Setting
from redi.reduction import OPERATOR, REDUCERS, Extent, OneShot, Progressive, Reducer, Schedule
from redi.rows import DENSE
from redi.score import norm01
from redi.vocabulary import N_WORDS

#: The rows of what :func:`redi.accelerate` ships for each task: with the shortcut of the last block if the head allows
#: it, or with the full grid restored.
ACCELERATE, ACCELERATE_DENSE = "accelerate", "accelerate-dense"
#: (width, heads) of random ViTs.
SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}

Pixels = Float[Tensor, "batch channels height width"]
Scores = Float[Tensor, "batch patches"]
Forward = Callable[[Pixels, Scores], Tensor]


@dataclass(frozen=True)
class TimedPath:
    """A path through a backbone, its analytic cost and the tokens it leaves."""

    row: str
    scoring: bool
    forward: Forward | None  # None if it cannot be made; the note says why
    cost: float | None = None  # multiply-adds relative to the dense blocks
    tokens: int | None = None  # after the last block, prefix included
    schedule: Schedule = ()
    loops: bool = False  # whether it has a loop that a compiler would unroll
    note: str = ""

    def __str__(self) -> str:
        return f"{self.row} with scoring" if self.scoring else self.row


def random_backbone(size: str, head: bool = False) -> Backbone:
    """A ViT with random weights, the same in every call: depth 12, patch 16, 224 px.

    It has DINOv3's layout with 4 registers or, with a head, the layout of the first ViT.
    """
    width, heads = SIZES[size]
    settings: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 12,
        "num_attention_heads": heads,
        "patch_size": 16,
        "image_size": 224,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any
        if head:
            settings["num_labels"] = 1000
            family, model = FAMILIES["vit"], ViTForImageClassification(ViTConfig(**settings))
        else:
            family, model = FAMILIES["dinov3_vit"], DINOv3ViTModel(DINOv3ViTConfig(**settings, num_register_tokens=4))
    own_head = family.heads[type(model).__name__] if head else None
    return Backbone(model, family, own_head, Preprocessing(256, 224, DEFAULT_MEAN, DEFAULT_STD))


def timed_paths(
    backbone: Backbone, reducers: Sequence[str], scoring: bool = True, budget: Budget = Budget(), cost: float = 0.0
) -> list[TimedPath]:
    """The dense path, then each reducer. Reducers that need scores also appear with the pass that makes them.

    A reducer is a name or a file of ``redi learn``. ``cost`` is the cost of progressive reducers relative to dense; 0
    means the cost of the paper's operator.
    """
    on, own = backbone.geometry, Extent(budget)
    cost = cost or REDUCERS[OPERATOR].cost(own, on)
    paths = [dense_path(backbone)]
    for name in reducers:
        if name in (ACCELERATE, ACCELERATE_DENSE):
            paths.append(accelerated_path(backbone, cost, dense_task=name == ACCELERATE_DENSE))
            continue
        name, reducer = _named(name, backbone)
        try:
            extent = own if reducer.follows_budget else reducer.extent_for_cost(cost, on)
        except ConfigError as error:
            paths.append(TimedPath(name, False, None, note=str(error)))
            continue
        for scored in (False, True) if scoring and reducer.needs_score else (False,):
            paths.append(reduced_path(backbone, name, reducer, extent, scored))
    return paths


def dense_path(backbone: Backbone) -> TimedPath:
    def forward(pixels: Pixels, _scores: Scores) -> Tensor:
        return backbone.encode(backbone.embed(pixels))

    return TimedPath(DENSE, False, forward, 1.0, backbone.geometry.prefix + backbone.geometry.patches)


def reduced_path(backbone: Backbone, row: str, reducer: Reducer, extent: Extent, scoring: bool = False) -> TimedPath:
    """The path of a reducer. With ``scoring`` it includes the dense pass that makes the scores."""
    on = backbone.geometry
    return TimedPath(
        row,
        scoring,
        _reduced(backbone, reducer, extent, scoring),
        reducer.cost(extent, on) + scoring,
        on.prefix + reducer.tokens_left(extent, on),
        extent.schedule,
        reducer.loops,
    )


def accelerated_path(backbone: Backbone, cost: float, dense_task: bool = False) -> TimedPath:
    """The path of an accelerated model at its default setting, with the shortcut of the last block if that is exact."""
    on, row = backbone.geometry, ACCELERATE_DENSE if dense_task else ACCELERATE
    prefix_only = not dense_task and backbone.reads_prefix
    try:
        setting = Setting(cost, task="dense" if dense_task else "classify")
        extent, reducer = setting.extent(on, prefix_only), setting.reducer
    except ConfigError as error:
        return TimedPath(row, False, None, note=str(error))

    def forward(pixels: Pixels, _scores: Scores) -> Tensor:
        tokens = backbone.embed(pixels)
        if prefix_only:
            return reducer.apply(backbone, tokens, extent, None, prefix_only)
        return _full(backbone, tokens, reducer, extent)

    left = on.prefix + reducer.tokens_left(extent, on)
    return TimedPath(row, False, forward, reducer.cost(extent, on, prefix_only), left, extent.schedule)


def _named(name: str, backbone: Backbone) -> tuple[str, Reducer]:
    """The row name and the reducer of a name in the tables or of a file."""
    if name.endswith(SUFFIX):
        learned = load_learned(Path(name), backbone)
        return learned.training.method, learned.method.reducer()
    return name, _with_random_words(REDUCERS[name], backbone)


def _with_random_words(reducer: Reducer, backbone: Backbone) -> Reducer:
    """Give random words to a reducer that uses words; time does not depend on them."""
    if not isinstance(reducer, OneShot) or reducer.from_words is None:
        return reducer
    generator = torch.Generator().manual_seed(0)
    words = normalize(torch.randn(N_WORDS, backbone.width, generator=generator), dim=1)
    return reducer.with_words(words.to(backbone.device))


def _reduced(backbone: Backbone, reducer: Reducer, extent: Extent, scoring: bool) -> Forward:
    """A reduced path. With ``scoring``, a dense pass comes first and gives the incoming mass of its last block."""
    last = backbone.depth - 1

    def forward(pixels: Pixels, scores: Scores) -> Tensor:
        tokens = backbone.embed(pixels)
        if scoring:
            watch = Watch(head_mean, blocks=(last,))
            backbone.encode(tokens, watch=(watch,))
            scores = norm01(watch.value(last).mean(dim=1)[:, backbone.prefix :])
        if isinstance(reducer, Progressive) and not backbone.reads_prefix:
            return _full(backbone, tokens, reducer, extent)
        return reducer.apply(backbone, tokens, extent, scores if reducer.needs_score else None)

    return forward


def _full(backbone: Backbone, tokens: Tokens, reducer: Progressive, extent: Extent) -> Tensor:
    """The prefix and the restored grid."""
    return backbone.encode_progressively(tokens, reducer, extent.schedule, residual=True).full(backbone.prefix)


def compiled(forward: Forward, backend: Any = "inductor") -> Forward:
    """Compile a path into one graph with fixed shapes.

    Rows share a Python function. They do not share compiled code, because every call would then try the guards of all
    rows, one after the other.
    """
    return torch.compile(  # type: ignore[call-overload, no-any-return]  # not in its overloads
        forward, fullgraph=True, dynamic=False, backend=backend, isolate_recompiles=True
    )
