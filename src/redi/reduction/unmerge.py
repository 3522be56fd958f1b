"""Residual unmerge: the full patch grid from a shortened sequence.

The stream of a transformer is a sum of updates: every block adds to a token what it computes. A patch that was merged
is not its representative. It is its own value when it was merged, plus the updates that its representative has
received since:

    x_i = v_i + (t_r(i) - s_r(i)),

with v_i the value of patch i at the last step, r(i) the token it went into, s the tokens just after that step and t
the tokens now. The difference between a patch and its representative stays what it was at the merge. A merge after
which nothing is added gives every patch back to the last bit.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.reduction.result import Reduction, spread_tokens


@dataclass(frozen=True)
class Unmerge:
    """The patches of the image as they were after the last step, and the tokens that they went into."""

    values: Float[Tensor, "batch patches dim"]  # v
    tokens: Float[Tensor, "batch reduced dim"]  # s
    source: Int[Tensor, "batch patches"]  # r; DROPPED if a patch went into no token

    @classmethod
    def first(cls, before: Float[Tensor, "batch patches dim"], reduction: Reduction) -> "Unmerge":
        """After the first step, which reduced the patches ``before``."""
        return cls(before, reduction.tokens, reduction.source)

    def then(self, before: Float[Tensor, "batch tokens dim"], reduction: Reduction) -> "Unmerge":
        """After one more step, which reduced the tokens ``before``."""
        return Unmerge(self.patches(before), reduction.tokens, compose(self.source, reduction.source))

    def patches(self, tokens: Float[Tensor, "batch reduced dim"]) -> Float[Tensor, "batch patches dim"]:
        """Every patch of the image, from the tokens that the last step has become. A dropped patch gets no update."""
        return self.values + spread_tokens(tokens - self.tokens, self.source)


def compose(first: Int[Tensor, "batch patches"], second: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch patches"]:
    """Where each patch is after two steps."""
    return torch.where(first < 0, first, second.gather(1, first.clamp(min=0)))
