"""The result of every reducer, and the functions that make and undo it."""

from collections.abc import Callable
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
    #: Index of the input patch whose position each output token has; read only if positions are rotary.
    positions: Int[Tensor, "batch reduced"]
    #: Index of the output token that each patch went into; DROPPED if it went into none.
    source: Int[Tensor, "batch patches"]
    #: Size of each output token in proportional attention; None for the sum of the sizes that went into it.
    sizes: Float[Tensor, "batch reduced"] | None = None
    #: One value per output token that the next step of the same reducer finds in ``Inside.memory``.
    memory: Float[Tensor, "batch reduced"] | None = None


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
    return spread_tokens(tokens, source)


def spread_tokens(
    tokens: Float[Tensor, "batch reduced dim"], source: Int[Tensor, "batch patches"]
) -> Float[Tensor, "batch patches dim"]:
    """:func:`unreduce` without the checks."""
    return torch.where(source[..., None] == DROPPED, 0, take(tokens, source.clamp(min=0)))


def take(
    patches: Float[Tensor, "batch patches dim"], index: Int[Tensor, "batch taken"]
) -> Float[Tensor, "batch taken dim"]:
    """The patches at the indices ``index`` of each image. Whole rows are copied, which is faster than ``gather``."""
    if len(index) == 1:
        return patches.index_select(1, index[0])
    rows = patches.flatten(0, 1).index_select(0, _rows(index, patches.shape[1]))
    return rows.view(*index.shape, patches.shape[2])


def put_(
    patches: Float[Tensor, "batch patches dim"],
    index: Int[Tensor, "batch taken"],
    values: Float[Tensor, "batch taken dim"],
) -> Float[Tensor, "batch patches dim"]:
    """Write ``values`` over the patches at the indices ``index``; values for the same index must be equal."""
    if len(index) == 1:
        return patches.index_copy_(1, index[0], values)
    patches.view(-1, patches.shape[2]).index_copy_(0, _rows(index, patches.shape[1]), values.flatten(0, 1))
    return patches


def _rows(index: Int[Tensor, "batch taken"], patches: int) -> Int[Tensor, " rows"]:
    """Indices of patches within each image as indices into the patches of all images."""
    first = torch.arange(0, len(index) * patches, patches, device=index.device)
    return (index + first[:, None]).flatten()


def places(index: Int[Tensor, "batch taken"], patches: int) -> Int[Tensor, "batch patches"]:
    """A ``source`` in which patch ``index[k]`` went into token k and all other patches are dropped."""
    source = torch.full((len(index), patches), DROPPED, dtype=torch.int64, device=index.device)
    return source.scatter(1, index, torch.arange(index.shape[1], device=index.device).expand_as(index))


def fuse_rest(
    patches: Float[Tensor, "batch patches dim"],
    scores: Float[Tensor, "batch patches"],
    weights: Float[Tensor, "batch patches"],
    count: int,
    mean: bool = True,
) -> Reduction:
    """Keep the ``count`` - 1 tokens of highest score, in order. The rest becomes one token, which comes last.

    It is the mean of the rest with the given weights, or their sum, and has the position of the best of them.
    """
    ranking = scores.argsort(dim=1, descending=True, stable=True)
    kept, rest = ranking[:, : count - 1].sort(dim=1).values, ranking[:, count - 1 :]
    exact = torch.promote_types(patches.dtype, torch.float32)
    shares = weights.gather(1, rest).to(exact)
    shares = shares / shares.sum(dim=1, keepdim=True) if mean else shares
    fused = (shares[:, None] @ take(patches, rest).to(exact)).to(patches.dtype)
    source = places(kept, patches.shape[1])
    return Reduction(
        torch.cat([take(patches, kept), fused], dim=1),
        torch.cat([kept, rest[:, :1]], dim=1),
        torch.where(source < 0, count - 1, source),
    )


def dropped_last(
    full: Float[Tensor, "batch positions dim"], source: Int[Tensor, "batch patches"], prefix: int
) -> tuple[Float[Tensor, "batch positions dim"], Int[Tensor, " batch"] | None]:
    """The restored full grid with the patches that were dropped at its end.

    The second value is the number of patches of each image that were not dropped; None if none was.
    """
    dropped = source < 0
    if not dropped.any():
        return full, None
    order = dropped.long().argsort(dim=1, stable=True)
    return torch.cat([full[:, :prefix], take(full[:, prefix:], order)], dim=1), (~dropped).sum(dim=1)


def read_counted(
    readout: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "batch positions dim"],
    prefix: int,
    count: Int[Tensor, " batch"] | None,
) -> Tensor:
    """Apply a readout, e.g. a head that averages patches, to the prefix and the first ``count`` patches of each image.

    Images with equal counts are read at once.
    """
    if count is None:
        return readout(hidden)
    groups = {int(value): (count == value).nonzero()[:, 0] for value in count.unique()}
    outputs = [readout(hidden[rows, : prefix + value]) for value, rows in groups.items()]
    return torch.cat(outputs)[torch.cat([*groups.values()]).argsort()]
