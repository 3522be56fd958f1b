"""Progressive reducers, which are called in every block, after attention and before the MLP.

A step takes the state of the block (:class:`Inside`) and the number of patch tokens to keep, and returns a
:class:`Reduction` of the patch tokens; prefix tokens always stay. The caller chooses a schedule, which is the
number of patch tokens after each block (see :mod:`redi.reduction.schedule`).

The cost of a row counts the products of the blocks and those that a method's own operations add. The attention of the
block is not one of them: the code of GTP and Zero-TPrune reads the map that the block has computed, so it is not
charged a second time, although a fused kernel, which does not give the map, makes this package compute it again. Only
one row of it, the relevance of ours and of the peers that rank by it, is charged in every block that removes tokens
(0.00003 of a dense ViT-Ti/16). docs/PEERS.md says what the maps would cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.grid import Grid
from redi.reduction.operator import OFFSET
from redi.reduction.reducer import Encoder, Extent, Reducer, Schedule
from redi.reduction.relevance import RELEVANCES, relevance_products
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import ByGrid

#: Number of strengths of a schedule that a search tries.
STEPS = 4000

#: Multiply-adds of one step's matrix products, the dearest if blocks differ: (before, after, width, head_dim).
Products = Callable[[int, int, int, int], int]


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
    rotary: bool = True  # whether later blocks use the positions of the tokens; learned ones are already added
    attending: str = "cls"  # whose attention is relevance: a name in RELEVANCES
    #: The image patch whose place each token has, and the image's grid; for reducers that are ``placed``.
    origins: Int[Tensor, "batch patches"] | None = None
    grid: Grid | None = None
    memory: Float[Tensor, "batch patches"] | None = None  # what the previous step left for this one

    @property
    def keys(self) -> Float[Tensor, "batch patches head_dim"]:
        """The keys of the patch tokens, mean over the heads."""
        return self.key[:, :, self.prefix :].mean(dim=1)

    @property
    def head_attention(self) -> Float[Tensor, "batch heads patches"]:
        """The attention to each patch token in this block, per head, as :attr:`attending` says."""
        return RELEVANCES[self.attending](self.query, self.key, self.scale, self.bias, self.sizes, self.prefix)

    @property
    def attention(self) -> Float[Tensor, "batch patches"]:
        """The same, mean over the heads."""
        return self.head_attention.mean(dim=1)

    @property
    def relevance(self) -> Float[Tensor, "batch patches"]:
        """The given scores, or the attention of the block if there are none."""
        return self.attention if self.scores is None else self.scores

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
    #: (patches, depth, strength from 0 on) -> number of patch tokens after each block; a ``ByGrid`` reads the grid.
    schedule: Callable[[int, int, float], Schedule]
    strongest: float = 1.0  # the largest strength of the schedule
    halving: bool = False  # whether a step can remove at most half of the tokens
    scored: bool = False
    slow: bool = False
    loops: bool = False
    proportional: bool = True  # whether attention to a token grows with the log of its size
    placed: bool = False  # whether a step needs to know where in the image each token is
    relevance: str = ""  # a name in RELEVANCES; empty means the rule of ``default_relevance``
    products: Products = lambda before, after, width, head_dim: 0

    def tokens_left(self, extent: Extent, on: Geometry) -> int:  # noqa: ARG002
        return extent.schedule[-1]

    def scheduled(self, on: Geometry, strength: float) -> Schedule:
        """Number of patch tokens after each block of a backbone."""
        if isinstance(self.schedule, ByGrid):
            return self.schedule.on_grid(on.grid, on.depth, strength)
        return self.schedule(on.patches, on.depth, strength)

    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:
        """Relative cost: in each block attention sees the tokens before the reduction, the MLP those after it.

        With ``prefix_only`` the last block works for the prefix alone (see ``encode_progressively``).
        """
        schedule = extent.schedule
        active = [after < before for before, after in pairwise((on.patches, *schedule))]

        def products(before: int, after: int, width: int, head_dim: int) -> int:
            rows = relevance_products(self.relevance, on.prefix + before, before, width)
            return self.products(before, after, width, head_dim) + rows

        return blocks_cost(schedule, active, products, on, prefix_only)

    def costs(self, on: Geometry, like: Extent, prefix_only: bool = False) -> list[tuple[float, Extent]]:  # noqa: ARG002
        return _choices(self, on, prefix_only)

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

    def extent_leaving(self, tokens: int, on: Geometry) -> Extent:
        """The extent that removes least of those that leave exactly ``tokens`` patch tokens.

        A schedule that would go on to fewer stops there.
        """
        schedules = [extent.schedule for _, extent in _choices(self, on, prefix_only=False)]
        least = min(schedule[-1] for schedule in schedules)
        if not least <= tokens <= on.patches:
            raise ConfigError(
                f"{tokens} tokens cannot be left: an image has {on.patches} patches here, of which these blocks can "
                f"leave {least} at the least."
            )
        first = next(schedule for schedule in schedules if schedule[-1] <= tokens)
        return Extent(schedule=tuple(max(count, tokens) for count in first))

    def apply(
        self,
        encoder: Encoder,
        tokens: Any,
        extent: Extent,
        scores: Float[Tensor, "batch patches"] | None,
        prefix_only: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        shortened = encoder.encode_progressively(tokens, self, extent.schedule, scores, prefix_only)
        hidden: Tensor = shortened.hidden
        return hidden


def blocks_cost(
    schedule: Schedule, active: Sequence[bool], products: Products, on: Geometry, prefix_only: bool = False
) -> float:
    """Relative cost of the blocks and of the steps, which run in the active blocks; see :meth:`Progressive.cost`."""
    before = (on.patches, *schedule[:-1])
    block, cost = on.block, 0
    for n, m, runs in zip(before, schedule[: on.depth - prefix_only], active, strict=False):
        cost += block.cost(on.prefix + n, on.prefix + m)
        cost += products(n, m, on.width, on.head_dim) if runs else 0
    if prefix_only:
        cost += on.prefix_block(on.prefix + before[-1])
    return cost / on.dense


@lru_cache(maxsize=128)
def _choices(reducer: Progressive, on: Geometry, prefix_only: bool) -> list[tuple[float, Extent]]:
    """(cost, extent) of every schedule of a reducer, weakest first."""
    steps = range(round(STEPS * reducer.strongest) + 1)
    schedules = dict.fromkeys(reducer.scheduled(on, step / STEPS) for step in steps)
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
    weights = inside.sizes.to(torch.promote_types(inside.patches.dtype, torch.float32)).gather(1, merged)
    assignment = weights.new_zeros(*targets.shape, merged.shape[1])
    assignment.scatter_(1, destination[:, None], weights[:, None])
    return merge_weighted(inside, rest, targets, merged, destination, assignment)


def merge_weighted(
    inside: Inside,
    rest: Int[Tensor, "batch rest"],
    targets: Int[Tensor, "batch targets"],
    merged: Int[Tensor, "batch merged"],
    destination: Int[Tensor, "batch merged"],
    assignment: Float[Tensor, "batch targets merged"],
) -> Reduction:
    """As :func:`merge_pairs`, but with the weight of every merged token in every target.

    ``destination`` says which target a token counts for in ``Reduction.source``.
    """
    exact = assignment.dtype
    own = inside.sizes.to(exact).gather(1, targets)[..., None]
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
