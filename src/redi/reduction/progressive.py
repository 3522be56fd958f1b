"""Progressive reducers: called in every block, after attention and before the MLP.

A step takes what it sees of the block (:class:`Inside`) and the number of patch tokens that shall
come out, and returns a :class:`Reduction` of the patch tokens; prefix tokens always stay. How many
come out of which block is a schedule: a tuple of counts, one a block, that the caller chooses (see
:mod:`redi.reduction.schedule`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.reduction.operator import OFFSET
from redi.reduction.result import Reduction, places, take

Schedule = tuple[int, ...]


@dataclass(frozen=True)
class Inside:
    """What a progressive reducer sees of a block; of its patch tokens unless it says otherwise."""

    patches: Float[Tensor, "batch patches dim"]  # hidden states after attention
    sizes: Float[Tensor, "batch patches"]  # how many image patches each token stands for
    scores: (
        Float[Tensor, "batch patches"] | None
    )  # given from outside, the best of a token's members
    query: Float[Tensor, "batch heads tokens head_dim"]  # of the block's attention, prefix included
    key: Float[Tensor, "batch heads tokens head_dim"]
    value: Float[Tensor, "batch heads tokens head_dim"]
    bias: Float[Tensor, "batch one one tokens"] | None  # what was added to the attention logits
    scale: float
    prefix: int
    block: int  # from 0
    depth: int

    @property
    def keys(self) -> Float[Tensor, "batch patches head_dim"]:
        """Mean over the heads."""
        return self.key[:, :, self.prefix :].mean(dim=1)

    @property
    def cls_attention(self) -> Float[Tensor, "batch patches"]:
        """What the CLS token attends to in this block, mean over the heads."""
        logits = (self.query[:, :, :1] @ self.key.transpose(2, 3)) * self.scale
        if self.bias is not None:
            logits = logits + self.bias
        return logits.float().softmax(dim=-1).mean(dim=1)[:, 0, self.prefix :]

    @property
    def relevance(self) -> Float[Tensor, "batch patches"]:
        """The given scores, or else the CLS attention of the block."""
        return self.cls_attention if self.scores is None else self.scores

    def weights(self, relevance: Float[Tensor, "batch patches"]) -> Float[Tensor, "batch patches"]:
        """Relevance as positive weights: attention as it is, scores scaled to add up to one."""
        if self.scores is None:
            return relevance
        positive = relevance.float().clamp(min=0) + OFFSET
        return positive / positive.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Progressive:
    """A reducer that shortens the sequence block by block."""

    step: Callable[[Inside, int], Reduction]  # the count is less than the tokens it is given
    #: (patches, depth, strength of 0 to 1) -> patch tokens that leave each block.
    schedule: Callable[[int, int, float], Schedule]
    halving: bool = False  # whether a step can remove half of the tokens at most
    scored: bool = False  # whether it looks at scores given from outside
    proportional: bool = True  # whether attention to a token grows with the log of its size
    #: Multiply-adds of one step's matrix products: (before, after, width, head_dim).
    products: Callable[[int, int, int, int], int] = lambda before, after, width, head_dim: 0


def merge_pairs(
    inside: Inside,
    rest: Int[Tensor, "batch rest"],
    targets: Int[Tensor, "batch targets"],
    merged: Int[Tensor, "batch merged"],
    destination: Int[Tensor, "batch merged"],
) -> Reduction:
    """Size-weighted means of each target and what merges into it; the rest comes first, unchanged.

    ``destination`` are places within ``targets``. The sums are a product with the assignment matrix,
    which is deterministic on every device.
    """
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    sizes = inside.sizes.to(exact)
    weights = sizes.gather(1, merged)
    assignment = weights.new_zeros(*targets.shape, merged.shape[1])
    assignment.scatter_(1, destination[:, None], weights[:, None])
    own = sizes.gather(1, targets)[..., None]
    summed = torch.baddbmm(
        take(inside.patches, targets).to(exact) * own,
        assignment,
        take(inside.patches, merged).to(exact),
    )
    grown = summed / (own + assignment.sum(dim=2, keepdim=True))
    # A target that nobody joined keeps its value to the last bit: x * s / s may not.
    joined = assignment.any(dim=2, keepdim=True)
    grown = torch.where(joined, grown.to(inside.patches.dtype), take(inside.patches, targets))
    positions = torch.cat([rest, targets], dim=1)
    source = places(positions, inside.patches.shape[1])
    return Reduction(
        torch.cat([take(inside.patches, rest), grown], dim=1),
        positions,
        source.scatter(1, merged, rest.shape[1] + destination),
    )
