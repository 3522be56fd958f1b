"""What every reducer gives back, and what can be done with it."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.checks import require_axes, require_integers
from redi.errors import InvalidInput

#: In ``Reduction.source``: the patch was dropped and went into no token.
DROPPED = -1


class Reduction(NamedTuple):
    """A shortened sequence and where everything went (prefix tokens are not counted)."""

    tokens: Float[Tensor, "batch reduced dim"]
    #: Index of the given patch whose position each output token carries.
    positions: Int[Tensor, "batch reduced"]
    #: Output token that each patch went into; DROPPED where a reducer throws it away.
    source: Int[Tensor, "batch patches"]


def unreduce(
    tokens: Float[Tensor, "batch reduced dim"], source: Int[Tensor, "batch patches"]
) -> Float[Tensor, "batch patches dim"]:
    """Spread reduced tokens back onto the full grid: every patch gets the token it went into, and
    zero where it was dropped."""
    require_axes(tokens, "batch reduced dim", "Tokens")
    require_axes(source, "batch patches", "Source")
    if len(tokens) != len(source):
        raise InvalidInput(f"There are tokens of {len(tokens)} images, sources of {len(source)}.")
    require_integers(source, "Sources")
    source = source.long()
    if int(source.min()) < DROPPED or int(source.max()) >= tokens.shape[1]:
        raise InvalidInput(
            f"Sources lie in {DROPPED} to {tokens.shape[1] - 1} and do not count prefix tokens, but "
            f"reach from {int(source.min())} to {int(source.max())}."
        )
    spread = take(tokens, source.clamp(min=0))
    return torch.where(source[..., None] == DROPPED, 0, spread)


def take(
    patches: Float[Tensor, "batch patches dim"], index: Int[Tensor, "batch taken"]
) -> Float[Tensor, "batch taken dim"]:
    """The patches that each image's row of ``index`` names, in its order."""
    return patches.gather(1, index[..., None].expand(-1, -1, patches.shape[-1]))


def places(index: Int[Tensor, "batch taken"], patches: int) -> Int[Tensor, "batch patches"]:
    """A ``source`` where each taken patch is the token of its own place and the rest is dropped."""
    source = torch.full((len(index), patches), DROPPED, dtype=torch.int64, device=index.device)
    return source.scatter(
        1, index, torch.arange(index.shape[1], device=index.device).expand_as(index)
    )
