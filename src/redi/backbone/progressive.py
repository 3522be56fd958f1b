"""The forward pass of a progressive reducer: a step between the attention and the MLP of each block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from redi.backbone.families import Family
from redi.backbone.tokens import Tokens
from redi.errors import InvalidInput
from redi.reduction import Inside, Progressive, Reduction, Schedule
from redi.reduction.schedule import check_schedule


class Shortened(NamedTuple):
    """The sequence after a progressive forward pass, before the final norm, and where the patches went."""

    hidden: Float[Tensor, "batch tokens dim"]
    sizes: Float[Tensor, "batch reduced"]
    source: Int[Tensor, "batch patches"]


@runtime_checkable
class Blocks(Protocol):
    """The parts of a backbone that the loop needs."""

    blocks: Sequence[nn.Module]
    family: Family
    prefix: int
    depth: int


@dataclass(frozen=True)
class _State:
    """The sequence between two blocks: its tokens, and the image patches that each token stands for."""

    tokens: Tokens
    sizes: Float[Tensor, "batch reduced"]  # image patches per token
    source: Int[Tensor, "batch patches"]  # the token each image patch went into; negative if dropped
    scores: Float[Tensor, "batch reduced"] | None
    bias: Float[Tensor, "batch one one tokens"] | None = None  # on the attention logits

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for a block."""
        options: dict[str, Any] = {} if self.bias is None else {"attention_mask": self.bias}
        if self.tokens.rope is not None:
            options["position_embeddings"] = self.tokens.rope
        return options


def encode_progressively(
    backbone: Blocks,
    tokens: Tokens,
    reducer: Progressive,
    schedule: Schedule,
    scores: Float[Tensor, "batch patches"] | None,
    prefix_only: bool,
) -> Shortened:
    """See :meth:`redi.backbone.Backbone.encode_progressively`."""
    batch, n = tokens.patches.shape[:2]
    check_schedule(schedule, n, backbone.depth, reducer.halving)
    if scores is not None and scores.shape != (batch, n):
        raise InvalidInput(f"Scores have the shape {list(scores.shape)}, but must have {[batch, n]}.")
    sizes = torch.ones(batch, n, device=tokens.patches.device)
    source = torch.arange(n, device=sizes.device).expand(batch, -1)
    state = _State(tokens, sizes, source, scores)
    for block, count in enumerate(schedule):
        if prefix_only and block == backbone.depth - 1:
            hidden = _finish_prefix(backbone, state.tokens, state.options)
            return Shortened(hidden, state.sizes, state.source)
        if count == state.tokens.patches.shape[1]:
            hidden = backbone.blocks[block](state.tokens.sequence, **state.options)
            state = replace(state, tokens=state.tokens.advanced(hidden))
        else:
            state = _reduce_in_block(backbone, state, reducer, block, count)
    return Shortened(state.tokens.sequence, state.sizes, state.source)


def _reduce_in_block(backbone: Blocks, state: _State, reducer: Progressive, block: int, count: int) -> _State:
    halves, module = backbone.family.halves, backbone.blocks[block]
    capture: dict[str, Any] = {}
    hidden = halves.attend(module, state.tokens.sequence, **state.options, redi_capture=capture)
    tokens = state.tokens.advanced(hidden)
    inside = Inside(
        patches=tokens.patches,
        sizes=state.sizes,
        scores=state.scores,
        bias=state.bias,
        prefix=backbone.prefix,
        block=block,
        depth=backbone.depth,
        **capture,
    )
    reduction = reducer.step(inside, count)
    if reduction.tokens.shape[1] != count:
        raise InvalidInput(
            f"In block {block + 1} the reducer left {reduction.tokens.shape[1]} tokens, not the scheduled {count}."
        )
    tokens = tokens.reduced(reduction)
    tokens = tokens.advanced(halves.transform(module, tokens.sequence))
    sizes, scores = _carry(reduction, state.sizes, state.scores)
    dropped = state.source < 0
    moved = reduction.source.gather(1, state.source.clamp(min=0))
    return _State(
        tokens,
        sizes,
        torch.where(dropped, state.source, moved),
        scores,
        _size_bias(sizes, backbone.prefix, hidden.dtype) if reducer.proportional else state.bias,
    )


def _finish_prefix(backbone: Blocks, tokens: Tokens, options: Mapping[str, Any]) -> Float[Tensor, "batch prefix dim"]:
    """Run the last block for a head that reads only the prefix: the patches skip the MLP."""
    halves, last = backbone.family.halves, backbone.blocks[-1]
    attended = halves.attend(last, tokens.sequence, **options)
    return halves.transform(last, attended[:, : backbone.prefix])


def _size_bias(
    sizes: Float[Tensor, "batch patches"], prefix: int, dtype: torch.dtype
) -> Float[Tensor, "batch one one tokens"]:
    """Proportional attention (ToMe, Sec. 3): log(size) is added to the logits of a key, 0 for the prefix."""
    return pad(sizes.log(), (prefix, 0)).to(dtype)[:, None, None]


def _carry(
    reduction: Reduction, sizes: Float[Tensor, "batch patches"], scores: Float[Tensor, "batch patches"] | None
) -> tuple[Float[Tensor, "batch reduced"], Float[Tensor, "batch reduced"] | None]:
    """Sizes (sums) and scores (maxima) of the reduced tokens; dropped tokens go to an extra place at the end."""
    count = reduction.tokens.shape[1]
    place = torch.where(reduction.source < 0, count, reduction.source)
    new_sizes = sizes.new_zeros(len(sizes), count + 1).scatter_add(1, place, sizes)[:, :count]
    if scores is None:
        return new_sizes, None
    best = scores.new_zeros(len(scores), count + 1)
    return new_sizes, best.scatter_reduce(1, place, scores, "amax", include_self=False)[:, :count]
