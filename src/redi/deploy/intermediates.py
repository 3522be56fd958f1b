"""timm's ``forward_intermediates``: which blocks are meant, and the form of their outputs."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from redi.errors import InvalidInput
from redi.grid import Grid

FORMATS = ("NCHW", "NLC")


def taken_blocks(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """The blocks from 0 on, in their order: the last ``indices``, those at ``indices``, or all for None."""
    last = depth if indices is None else indices
    wanted = range(depth - last, depth) if isinstance(last, int) else [k + depth if k < 0 else k for k in last]
    if not wanted or not 0 <= min(wanted) <= max(wanted) < depth:
        raise InvalidInput(f"indices={indices} does not fit a model of {depth} blocks.")
    return sorted(set(wanted))


def as_intermediates(
    states: Sequence[Float[Tensor, "batch tokens dim"]], prefix: int, grid: Grid, output_fmt: str, with_prefix: bool
) -> list[Any]:
    """The patches of each block, as a map (NCHW) or as a sequence (NLC); with the prefix, pairs of both.

    A model that has no prefix gives the patches alone, as timm's ``VisionTransformer`` does.
    """
    patches = [state[:, prefix:] for state in states]
    if output_fmt == "NCHW":
        patches = [on_grid(each, grid) for each in patches]
    if not with_prefix or prefix == 0:
        return patches
    return [(each, state[:, :prefix]) for each, state in zip(patches, states, strict=True)]


def on_grid(patches: Float[Tensor, "batch patches dim"], grid: Grid) -> Float[Tensor, "batch dim rows columns"]:
    rows, columns = grid
    return patches.reshape(len(patches), rows, columns, -1).permute(0, 3, 1, 2).contiguous()
