"""The result of every reducer, and the functions that make and undo it."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.checks import require_axes, require_integers
from redi.errors import InvalidInput

#: Value in ``Reduction.source`` of a patch that went into no token.
DROPPED = -1


class Reduction(NamedTuple):
    """A shortened sequence and the token that each patch went into; prefix tokens are not counted."""

    tokens: Float[Tensor, "batch reduced dim"]
    #: Index of the input patch whose position each output token has.
    positions: Int[Tensor, "batch reduced"]
    #: Index of the output token that each patch went into; DROPPED if it went into none.
    source: Int[Tensor, "batch patches"]


def unreduce(
    tokens: Float[Tensor, "batch reduced dim"], source: Int[Tensor, "batch patches"]
) -> Float[Tensor, "batch patches dim"]:
    """Spread reduced tokens back onto the full grid: each patch gets the token it went into, or zero if dropped."""
    require_axes(tokens, "batch reduced dim", "Tokens")
    require_axes(source, "batch patches", "Source")
    if len(tokens) != len(source):
        raise InvalidInput(f"There are tokens of {len(tokens)} images, but sources of {len(source)}.")
    require_integers(source, "Sources")
    source = source.long()
    if int(source.min()) < DROPPED or int(source.max()) >= tokens.shape[1]:
        raise InvalidInput(
            f"Sources do not count prefix tokens and must lie in {DROPPED}..{tokens.shape[1] - 1}, but range from "
            f"{int(source.min())} to {int(source.max())}."
        )
    return torch.where(source[..., None] == DROPPED, 0, take(tokens, source.clamp(min=0)))


def take(
    patches: Float[Tensor, "batch patches dim"], index: Int[Tensor, "batch taken"]
) -> Float[Tensor, "batch taken dim"]:
    """The patches at the indices ``index`` of each image."""
    return patches.gather(1, index[..., None].expand(-1, -1, patches.shape[-1]))


def places(index: Int[Tensor, "batch taken"], patches: int) -> Int[Tensor, "batch patches"]:
    """A ``source`` in which patch ``index[k]`` went into token k and all other patches are dropped."""
    source = torch.full((len(index), patches), DROPPED, dtype=torch.int64, device=index.device)
    return source.scatter(1, index, torch.arange(index.shape[1], device=index.device).expand_as(index))
