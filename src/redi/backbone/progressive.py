"""The forward pass of a progressive reducer: a step between the attention and the MLP of each block."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from redi.backbone.families import Family
from redi.backbone.tokens import Rope, Tokens
from redi.errors import InvalidInput
from redi.grid import Grid
from redi.reduction import Adaptive, Inside, Progressive, Reduction, Schedule, SlowFast
from redi.reduction.adaptive import NEVER
from redi.reduction.evolving import evolve
from redi.reduction.relevance import RELEVANCES, default_relevance
from redi.reduction.result import spread_tokens, take
from redi.reduction.schedule import check_schedule
from redi.reduction.unmerge import Unmerge, compose


class Shortened(NamedTuple):
    """The sequence after a progressive forward pass, before the final norm, and where the patches went."""

    hidden: Float[Tensor, "batch tokens dim"]
    sizes: Float[Tensor, "batch reduced"]
    steps: tuple[Tensor, ...]  # ``Reduction.source`` of each step
    unmerge: Unmerge | None = None  # what restores the patches, if it was kept and a step was taken
    levels: tuple[Tensor, ...] = ()  # the full grid after each of the asked numbers of blocks

    @property
    def source(self) -> Int[Tensor, "batch patches"]:
        """The token that each image patch went into; negative if it was dropped.

        It is computed on demand: a head that reads only the prefix does not need it.
        """
        return _composed(self.sizes, self.steps)

    def full(self, prefix: int) -> Float[Tensor, "batch positions dim"]:
        """Prefix and full patch grid: by residual unmerge if it was kept, else each patch has its token's copy."""
        return _full(self.hidden, prefix, self.unmerge, self.sizes, self.steps)


class Varied(NamedTuple):
    """The sequence of images that differ in length: shorter ones are padded at the end with tokens of size 0."""

    hidden: Float[Tensor, "batch tokens dim"]
    sizes: Float[Tensor, "batch reduced"]
    steps: tuple[Tensor, ...]
    lengths: Int[Tensor, "batch depth"]  # patch tokens of each image after each block

    @property
    def source(self) -> Int[Tensor, "batch patches"]:
        """As in :class:`Shortened`."""
        return _composed(self.sizes, self.steps)

    def full(self, prefix: int) -> Float[Tensor, "batch positions dim"]:
        """Prefix and full patch grid: each patch has a copy of its token."""
        return _full(self.hidden, prefix, None, self.sizes, self.steps)


def _composed(sizes: Float[Tensor, "batch reduced"], steps: Sequence[Tensor]) -> Int[Tensor, "batch patches"]:
    """Where the image patches are after all steps."""
    if not steps:
        return torch.arange(sizes.shape[1], device=sizes.device).expand(len(sizes), -1)
    return reduce(compose, steps)


def _full(
    hidden: Float[Tensor, "batch tokens dim"],
    prefix: int,
    unmerge: Unmerge | None,
    sizes: Float[Tensor, "batch reduced"],
    steps: Sequence[Tensor],
) -> Float[Tensor, "batch positions dim"]:
    tokens = hidden[:, prefix:]
    patches = spread_tokens(tokens, _composed(sizes, steps)) if unmerge is None else unmerge.patches(tokens)
    return torch.cat([hidden[:, :prefix], patches], dim=1)


@runtime_checkable
class Blocks(Protocol):
    """The parts of a backbone that the loop needs."""

    blocks: Sequence[nn.Module]
    family: Family
    prefix: int
    depth: int

    @property
    def has_cls(self) -> bool: ...


@dataclass(frozen=True)
class _State:
    """The sequence between two blocks, and the image patches that each token stands for."""

    hidden: Float[Tensor, "batch tokens dim"]
    rope: Rope | None
    sizes: Float[Tensor, "batch reduced"]  # image patches per token
    scores: Float[Tensor, "batch reduced"] | None
    steps: tuple[Tensor, ...] = ()  # where each step put its tokens
    bias: Float[Tensor, "batch one one tokens"] | None = None  # on the attention logits
    grid: Grid | None = None
    origins: Int[Tensor, "batch reduced"] | None = None  # the patch whose position each token has, if it is needed
    unmerge: Unmerge | None = None  # after the first step, if patches are restored by it
    memory: Float[Tensor, "batch reduced"] | None = None  # what the last step left for the next one

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for a block."""
        options: dict[str, Any] = {"attention_mask": self.bias}
        if self.rope is not None:
            options["position_embeddings"] = self.rope
        return options


def encode_progressively(
    backbone: Blocks,
    tokens: Tokens,
    reducer: Progressive,
    schedule: Schedule,
    scores: Float[Tensor, "batch patches"] | None,
    prefix_only: bool,
    start: int,
    residual: bool,
    levels: Sequence[int],
) -> Shortened:
    """See :meth:`redi.backbone.Backbone.encode_progressively`."""
    batch, n = tokens.patches.shape[:2]
    if prefix_only and (residual or levels):
        raise InvalidInput("A pass for the prefix only has no patches to restore.")
    # A pass for feature maps may end before the last block.
    check_schedule(schedule, n, min(len(schedule), backbone.depth) if levels else backbone.depth, reducer.halving)
    if not 0 <= start < backbone.depth or any(count != n for count in schedule[:start]):
        raise InvalidInput(f"The schedule {schedule} cannot start after block {start}: it removes tokens before.")
    if scores is not None and scores.shape != (batch, n):
        raise InvalidInput(f"Scores have the shape {list(scores.shape)}, but must have {[batch, n]}.")
    if isinstance(reducer, SlowFast):
        return _encode_slow_fast(backbone, tokens, reducer, schedule, prefix_only, start, levels)
    sizes = torch.ones(batch, n, device=tokens.patches.device)
    origins = torch.arange(n, device=sizes.device).expand(batch, -1) if reducer.placed else None
    state = _State(tokens.sequence, tokens.rope, sizes, scores, grid=tokens.grid, origins=origins)
    maps = {start: tokens.sequence} if start in levels else {}
    for block, count in enumerate(schedule[start:], start):
        if prefix_only and block == backbone.depth - 1:
            return Shortened(finish_prefix(backbone, state.hidden, state.options), state.sizes, state.steps)
        if count == state.sizes.shape[1]:
            state = replace(state, hidden=backbone.blocks[block](state.hidden, **state.options))
        else:
            state = _reduce_in_block(backbone, state, reducer, block, count, residual)
        if block + 1 in levels:
            maps[block + 1] = _full(state.hidden, backbone.prefix, state.unmerge, state.sizes, state.steps)
    return Shortened(state.hidden, state.sizes, state.steps, state.unmerge, tuple(maps[level] for level in levels))


def encode_adaptively(
    backbone: Blocks,
    tokens: Tokens,
    reducer: Adaptive,
    strength: float,
    scores: Float[Tensor, "batch patches"] | None,
    prefix_only: bool,
) -> Varied:
    """See :meth:`redi.backbone.Backbone.encode_adaptively`."""
    sizes = torch.ones(tokens.patches.shape[:2], device=tokens.patches.device)
    if scores is not None and scores.shape != sizes.shape:
        raise InvalidInput(f"Scores have the shape {list(scores.shape)}, but must have {list(sizes.shape)}.")
    state, lengths = _State(tokens.sequence, tokens.rope, sizes, scores), []
    last = backbone.depth - 1
    for block, threshold in enumerate(reducer.thresholds(backbone.depth, strength)):
        if threshold < NEVER and not (prefix_only and block == last):
            state = _reduce_in_block(backbone, state, reducer, block, threshold)
        elif block < last or not prefix_only:
            state = replace(state, hidden=backbone.blocks[block](state.hidden, **state.options))
        lengths.append((state.sizes > 0).sum(dim=1))
    hidden = finish_prefix(backbone, state.hidden, state.options) if prefix_only else state.hidden
    return Varied(hidden, state.sizes, state.steps, torch.stack(lengths, dim=1))


def _reduce_in_block(
    backbone: Blocks, state: _State, reducer: Progressive | Adaptive, block: int, amount: Any, residual: bool = False
) -> _State:
    """A block with a step in its middle; ``amount`` is the count of a progressive reducer, else the threshold."""
    # Query, key and value of the block are freed before its MLP, whose hidden layer is the largest tensor of all.
    state = _reduce_after_attention(backbone, state, reducer, block, amount, residual)
    return replace(state, hidden=backbone.family.halves.transform(backbone.blocks[block], state.hidden))


def _reduce_after_attention(
    backbone: Blocks, state: _State, reducer: Progressive | Adaptive, block: int, amount: Any, residual: bool
) -> _State:
    """The first half of a block and the step."""
    halves, module, prefix = backbone.family.halves, backbone.blocks[block], backbone.prefix
    capture: dict[str, Any] = {}
    hidden = halves.attend(module, state.hidden, **state.options, redi_capture=capture)
    tokens = Tokens(hidden[:, :prefix], hidden[:, prefix:], state.rope)
    inside = Inside(
        patches=tokens.patches,
        sizes=state.sizes,
        scores=state.scores,
        bias=state.bias,
        prefix=prefix,
        block=block,
        depth=backbone.depth,
        rotary=state.rope is not None,
        attending=(isinstance(reducer, Progressive) and reducer.relevance) or default_relevance(backbone.has_cls),
        origins=state.origins,
        grid=state.grid,
        memory=state.memory,
        **capture,
    )
    reduction = reducer.step(inside, amount)
    if isinstance(reducer, Progressive) and reduction.tokens.shape[1] != amount:
        raise InvalidInput(
            f"In block {block + 1} the reducer left {reduction.tokens.shape[1]} tokens, not the scheduled {amount}."
        )
    unmerge = None
    if residual:
        known = state.unmerge
        unmerge = Unmerge.first(tokens.patches, reduction) if known is None else known.then(tokens.patches, reduction)
    tokens = tokens.reduced(reduction)
    sizes, scores = _carry(reduction, state.sizes, state.scores)
    return _State(
        tokens.sequence,
        tokens.rope,
        sizes,
        scores,
        (*state.steps, reduction.source),
        _size_bias(sizes, prefix, hidden.dtype) if reducer.proportional else state.bias,
        state.grid,
        None if state.origins is None else state.origins.gather(1, reduction.positions),
        unmerge,
        reduction.memory,
    )


def _encode_slow_fast(
    backbone: Blocks,
    tokens: Tokens,
    reducer: SlowFast,
    schedule: Schedule,
    prefix_only: bool,
    start: int,
    levels: Sequence[int],
) -> Shortened:
    """All tokens are there after every block, but only some have gone through it (:mod:`redi.reduction.evolving`)."""
    halves, prefix = backbone.family.halves, backbone.prefix
    sizes = torch.ones(tokens.patches.shape[:2], device=tokens.patches.device)
    attending = reducer.relevance or default_relevance(backbone.has_cls)
    evolved: Tensor | None = None
    capture: dict[str, Any] = {}
    maps = {start: tokens.sequence} if start in levels else {}
    for block, count in enumerate(schedule[start:], start):
        slow, reduction = tokens, None
        if count < sizes.shape[1]:
            if evolved is None:
                raise InvalidInput(f"The schedule {schedule} leaves no block on all tokens before the first fast path.")
            inside = Inside(
                tokens.patches, sizes, evolved, bias=None, prefix=prefix, block=block, depth=backbone.depth, **capture
            )
            reduction = reducer.step(inside, count)
            slow = tokens.reduced(reduction)
        state = _State(slow.sequence, slow.rope, sizes[:, :count], None)
        if prefix_only and block == backbone.depth - 1:
            return Shortened(finish_prefix(backbone, state.hidden, state.options), sizes, ())
        capture = {}
        hidden = halves.attend(backbone.blocks[block], state.hidden, **state.options, redi_capture=capture)
        after = slow.advanced(halves.transform(backbone.blocks[block], hidden))
        rows = RELEVANCES[attending](capture["query"], capture["key"], capture["scale"], None, state.sizes, prefix)
        evolved = evolve(evolved, rows.mean(dim=1), reduction)
        if reduction is None:
            tokens = after
        else:
            moved = tokens.patches + take(after.patches - slow.patches, reduction.source)
            tokens = replace(tokens, prefix=after.prefix, patches=moved)
        if block + 1 in levels:
            maps[block + 1] = tokens.sequence
    return Shortened(tokens.sequence, sizes, (), None, tuple(maps[level] for level in levels))


def finish_prefix(
    backbone: Blocks, hidden: Float[Tensor, "batch tokens dim"], options: dict[str, Any]
) -> Float[Tensor, "batch prefix dim"]:
    """Run the last block for a head that reads only the prefix: the patches give only keys and values.

    Where the attention module cannot be taken apart, the patches have queries too, but skip the MLP.
    """
    halves, last, prefix = backbone.family.halves, backbone.blocks[-1], backbone.prefix
    if halves.attend_prefix is None:
        attended = halves.attend(last, hidden, **options)[:, :prefix]
    else:
        attended = halves.attend_prefix(last, hidden, prefix, **options)
    return halves.transform(last, attended)


def _size_bias(
    sizes: Float[Tensor, "batch patches"], prefix: int, dtype: torch.dtype
) -> Float[Tensor, "batch one one tokens"]:
    """Proportional attention (ToMe, Sec. 3): log(size) is added to the logits of a key, 0 for the prefix."""
    bias = sizes.new_zeros(len(sizes), 1, 1, prefix + sizes.shape[1], dtype=dtype)
    bias[..., prefix:] = sizes.log()[:, None, None]
    return bias


def _carry(
    reduction: Reduction, sizes: Float[Tensor, "batch patches"], scores: Float[Tensor, "batch patches"] | None
) -> tuple[Float[Tensor, "batch reduced"], Float[Tensor, "batch reduced"] | None]:
    """Sizes (the reducer's own, or sums) and scores (maxima) of the reduced tokens.

    Dropped tokens go to an extra place at the end.
    """
    new_sizes = reduction.sizes
    if new_sizes is not None and scores is None:
        return new_sizes, None
    count = reduction.tokens.shape[1]
    place = reduction.source.remainder(count + 1)  # -1 becomes count
    if new_sizes is None:
        new_sizes = sizes.new_zeros(len(sizes), count + 1).scatter_add(1, place, sizes)[:, :count]
    if scores is None:
        return new_sizes, None
    best = scores.new_zeros(len(scores), count + 1)
    return new_sizes, best.scatter_reduce(1, place, scores, "amax", include_self=False)[:, :count]
