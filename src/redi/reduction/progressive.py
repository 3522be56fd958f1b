"""Progressive reducers, which are called in every block, after attention and before the MLP.

A step takes the state of the block (:class:`Inside`) and the number of patch tokens to keep, and returns a
:class:`Reduction` of the patch tokens; prefix tokens always stay. The caller chooses a schedule, which is the
number of patch tokens after each block (see :mod:`redi.reduction.schedule`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.reduction.operator import OFFSET
from redi.reduction.reducer import Encoder, Extent, Reducer, Schedule
from redi.reduction.result import Reduction, places, take

#: Number of strengths of a schedule that a search tries.
STEPS = 4000


@dataclass(frozen=True)
class Inside:
    """The state of a block that a progressive reducer sees."""

    patches: Float[Tensor, "batch patches dim"]  # hidden states of the patch tokens after attention
    sizes: Float[Tensor, "batch patches"]  # number of image patches in each token
    #: Scores given to the encoder, if any; a merged token has the best score of its members.
    scores: Float[Tensor, "batch patches"] | None
    query: Float[Tensor, "batch heads tokens head_dim"]  # of the block's attention; includes the prefix
    key: Float[Tensor, "batch heads tokens head_dim"]
    value: Float[Tensor, "batch heads tokens value_dim"]
    bias: Float[Tensor, "batch one one tokens"] | None  # added to the attention logits
    scale: float
    prefix: int
    block: int  # counted from 0
    depth: int

    @property
    def keys(self) -> Float[Tensor, "batch patches head_dim"]:
        """The keys of the patch tokens, mean over the heads."""
        return self.key[:, :, self.prefix :].mean(dim=1)

    @property
    def cls_attention(self) -> Float[Tensor, "batch patches"]:
        """Attention from the CLS token to each patch token in this block, mean over the heads."""
        logits = (self.query[:, :, :1] @ self.key.transpose(2, 3)) * self.scale
        if self.bias is not None:
            logits = logits + self.bias
        return logits.float().softmax(dim=-1).mean(dim=1)[:, 0, self.prefix :]

    @property
    def relevance(self) -> Float[Tensor, "batch patches"]:
        """The given scores, or the CLS attention of the block if there are none."""
        return self.cls_attention if self.scores is None else self.scores

    def weights(self, relevance: Float[Tensor, "batch patches"]) -> Float[Tensor, "batch patches"]:
        """Relevance as positive weights: attention unchanged, given scores scaled to a sum of one."""
        if self.scores is None:
            return relevance
        positive = relevance.float().clamp(min=0) + OFFSET
        return positive / positive.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Progressive(Reducer):
    """A reducer that shortens the sequence block by block."""

    follows_budget: ClassVar[bool] = False

    step: Callable[[Inside, int], Reduction]  # (state of the block, number of patch tokens to keep)
    #: (patches, depth, strength from 0 to 1) -> number of patch tokens after each block.
    schedule: Callable[[int, int, float], Schedule]
    halving: bool = False  # whether a step can remove at most half of the tokens
    scored: bool = False
    slow: bool = False
    loops: bool = False
    proportional: bool = True  # whether attention to a token grows with the log of its size
    #: Multiply-adds of one step's matrix products: (before, after, width, head_dim).
    products: Callable[[int, int, int, int], int] = lambda before, after, width, head_dim: 0

    def tokens_left(self, extent: Extent, on: Geometry) -> int:  # noqa: ARG002
        return extent.schedule[-1]

    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:
        """Relative cost: in each block attention sees the tokens before the reduction, the MLP those after it.

        With ``prefix_only`` the MLP of the last block sees only the prefix (see ``encode_progressively``).
        """
        schedule = extent.schedule
        before = (on.patches, *schedule[:-1])
        removing = schedule[:-1] if prefix_only else schedule
        after = [on.prefix + n for n in removing] + [on.prefix] * prefix_only
        blocks = sum(on.block.cost(on.prefix + n, m) for n, m in zip(before, after, strict=True))
        own = sum(self.products(n, m, on.width, on.head_dim) for n, m in zip(before, removing, strict=False) if m < n)
        return (blocks + own) / on.dense

    def costs(self, on: Geometry, like: Extent) -> list[tuple[float, Extent]]:  # noqa: ARG002
        return _choices(self, on, prefix_only=False)

    def extent_within_cost(self, cost: float, on: Geometry, prefix_only: bool = False) -> Extent:
        """The extent that removes least and costs at most ``cost``."""
        choices = _choices(self, on, prefix_only)
        for reached, extent in choices:
            if reached <= cost:
                return extent
        raise ConfigError(
            f"A relative cost of {cost:g} cannot be met: the lowest possible cost is "
            f"{min(reached for reached, _ in choices):.3f}."
        )

    def apply(
        self, encoder: Encoder, tokens: Any, extent: Extent, scores: Float[Tensor, "batch patches"] | None
    ) -> Float[Tensor, "batch tokens dim"]:
        shortened = encoder.encode_progressively(tokens, self, extent.schedule, scores)
        hidden: Tensor = shortened.hidden
        return hidden


@lru_cache(maxsize=128)
def _choices(reducer: Progressive, on: Geometry, prefix_only: bool) -> list[tuple[float, Extent]]:
    """(cost, extent) of every schedule of a reducer, weakest first."""
    schedules = dict.fromkeys(reducer.schedule(on.patches, on.depth, step / STEPS) for step in range(STEPS + 1))
    extents = [Extent(schedule=schedule) for schedule in schedules]
    return [(reducer.cost(extent, on, prefix_only), extent) for extent in extents]


def merge_pairs(
    inside: Inside,
    rest: Int[Tensor, "batch rest"],
    targets: Int[Tensor, "batch targets"],
    merged: Int[Tensor, "batch merged"],
    destination: Int[Tensor, "batch merged"],
) -> Reduction:
    """The tokens of ``rest``, then the size-weighted mean of each target and the tokens that merge into it.

    ``destination`` holds indices into ``targets``. A product with the assignment matrix is deterministic on every
    device.
    """
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    sizes = inside.sizes.to(exact)
    weights = sizes.gather(1, merged)
    assignment = weights.new_zeros(*targets.shape, merged.shape[1])
    assignment.scatter_(1, destination[:, None], weights[:, None])
    own = sizes.gather(1, targets)[..., None]
    summed = torch.baddbmm(
        take(inside.patches, targets).to(exact) * own, assignment, take(inside.patches, merged).to(exact)
    )
    grown = summed / (own + assignment.sum(dim=2, keepdim=True))
    # A target that no token joins keeps its exact value, which x * s / s may not give.
    joined = assignment.any(dim=2, keepdim=True)
    grown = torch.where(joined, grown.to(inside.patches.dtype), take(inside.patches, targets))
    positions = torch.cat([rest, targets], dim=1)
    source = places(positions, inside.patches.shape[1])
    return Reduction(
        torch.cat([take(inside.patches, rest), grown], dim=1),
        positions,
        source.scatter(1, merged, rest.shape[1] + destination),
    )
