"""Evo-ViT (Xu et al., AAAI 2022): a slow and a fast path through every block. It needs nothing learned.

No token is removed. The tokens that CLS attends to go through the block. The others are summed up in one representative
token, which goes through the block with them, and what the block adds to it is added to each of them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.reducer import PAPER, Extent
from redi.reduction.result import Reduction, fuse_rest
from redi.reduction.schedule import Once

#: Weight of the past in the evolved attention: the paper's alpha.
PAST = 0.5
#: The share of the blocks before the first that has two paths: the paper's first four of 12.
PLACE = 1 / 3


@dataclass(frozen=True)
class SlowFast(Progressive):
    """A reducer whose schedule counts the tokens that go through each block; all of them are there afterwards.

    Its step runs before the block, on all tokens, and is given the evolved attention as its scores.
    """

    keeps_all: ClassVar[bool] = True

    def tokens_left(self, extent: Extent, on: Geometry) -> int:  # noqa: ARG002
        return on.patches

    def extent_for_tokens(self, tokens: int, on: Geometry, like: Extent = PAPER) -> Extent:  # noqa: ARG002
        raise ConfigError("This reducer leaves all tokens in place, so no number of them can be met: give a cost.")

    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:
        """Relative cost: attention and MLP of a block both see the tokens of its slow path."""
        total = 0
        for block, count in enumerate(extent.schedule):
            tokens = on.prefix + count
            if prefix_only and block == on.depth - 1:
                total += on.prefix_block(tokens)
            else:
                total += on.block.cost(tokens, tokens)
            if count < on.patches:
                total += self.products(on.patches, count, on.width, on.head_dim)
        return total / on.dense


def evolve(
    past: Float[Tensor, "batch patches"] | None, attention: Float[Tensor, "batch reduced"], reduction: Reduction | None
) -> Float[Tensor, "batch patches"]:
    """The evolved attention after a block: alpha past + (1 - alpha) now for tokens of the slow path.

    A token of the fast path has none of its own in this block and keeps what it had.
    """
    if past is None:
        return attention
    if reduction is None:
        return PAST * past + (1 - PAST) * attention
    slow = reduction.positions[:, :-1]
    now = PAST * past.gather(1, slow) + (1 - PAST) * attention[:, :-1]
    return past.scatter(1, slow, now)


def evo_vit(inside: Inside, count: int) -> Reduction:
    """The ``count`` - 1 tokens of highest evolved attention, and the mean of the others, weighted by it."""
    weights = inside.relevance.clamp(min=0) + torch.finfo(torch.float32).tiny
    return fuse_rest(inside.patches, inside.relevance, weights, count)


#: The reducers of this file by name.
EVOLVING: dict[str, Progressive] = {
    "evo-vit": SlowFast(
        evo_vit,
        Once(PLACE),
        scored=False,
        proportional=False,
        # The representative token, and one row of attention for the evolved one.
        products=lambda before, after, width, head_dim: (before + 1) * width,
    )
}
