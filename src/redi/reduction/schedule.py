"""How many patch tokens leave each block: the shapes that the peers' papers use, and the search for
the strength that meets a number of tokens or a cost.

A shape is a function of (patches, depth, strength): strength 0 removes nothing, 1 as much as the
shape allows. ``constant`` and ``ratio`` never remove more than half of a block's patch tokens, which is
all that bipartite matching can do.
"""

from collections.abc import Callable
from itertools import pairwise

from redi.errors import InvalidInput
from redi.reduction.progressive import Progressive, Schedule

#: Strengths that are tried in a search.
STEPS = 4000
#: How far from what was asked for a search may end: of relative cost, and of patch tokens.
COST_TOLERANCE = 0.02
TOKEN_TOLERANCE = 2


def constant(patches: int, depth: int, strength: float) -> Schedule:
    """ToMe: the same number r in every block. r = strength x patches / depth; where r is not whole,
    some blocks remove one more than others. Strength 1 would leave nothing."""
    return _halved(patches, [patches * (1 - strength * (k + 1) / depth) for k in range(depth)])


def ratio(patches: int, depth: int, strength: float) -> Schedule:
    """PiToMe: the same share in every block, up to a half."""
    return _halved(patches, [patches * (1 - strength / 2) ** (k + 1) for k in range(depth)])


def thrice(patches: int, depth: int, strength: float) -> Schedule:
    """EViT, ATC: the same share at blocks 4, 7 and 10 of 12 and nowhere else, at the same places of
    other depths."""
    places = {round(depth * place / 12) for place in (3, 6, 9)}
    counts, left = [], float(patches)
    for block in range(depth):
        left *= 1 - strength if block in places else 1
        counts.append(left)
    return _rounded(patches, counts)


def _halved(patches: int, wanted: list[float]) -> Schedule:
    counts: list[int] = []
    for count in _rounded(patches, wanted):
        before = counts[-1] if counts else patches
        counts.append(max(count, -(-before // 2)))
    return tuple(counts)


def _rounded(patches: int, wanted: list[float]) -> Schedule:
    return tuple(min(max(round(count), 1), patches) for count in wanted)


def check_schedule(schedule: Schedule, patches: int, depth: int, halving: bool = False) -> None:
    """Counts must not grow from block to block, and there must be one a block."""
    if len(schedule) != depth:
        raise InvalidInput(f"A schedule names the tokens after each of {depth} blocks: {schedule}.")
    if any(not 1 <= after <= before for before, after in pairwise((patches, *schedule))):
        raise InvalidInput(f"Token counts must fall from {patches} to at least 1: {schedule}.")
    if halving and any(2 * after < before for before, after in pairwise((patches, *schedule))):
        raise InvalidInput(f"This reducer can at most halve the tokens in a block: {schedule}.")


def relative_cost(
    reducer: Progressive,
    schedule: Schedule,
    *,
    patches: int,
    prefix: int,
    width: int,
    head_dim: int,
) -> float:
    """Multiply-adds of the blocks and of the reducer's own products, relative to the dense blocks.

    A block that removes nothing does not call the reducer.
    """
    # Here and not above: redi.cost needs this package for its budgets.
    from redi.cost import block_cost, progressive_cost

    check_schedule(schedule, patches, len(schedule))
    before = (patches, *schedule[:-1])
    blocks = progressive_cost(
        [prefix + count for count in before], [prefix + count for count in schedule], width
    )
    own = sum(
        reducer.products(here, after, width, head_dim)
        for here, after in zip(before, schedule, strict=True)
        if after < here
    )
    return (blocks + own) / (len(schedule) * block_cost(prefix + patches, width))


def schedule_for_cost(
    reducer: Progressive,
    cost: float,
    *,
    patches: int,
    prefix: int,
    width: int,
    head_dim: int,
    depth: int,
) -> Schedule:
    """The schedule of the reducer's shape whose :func:`relative_cost` is closest to ``cost``."""

    def cost_of(schedule: Schedule) -> float:
        return relative_cost(
            reducer, schedule, patches=patches, prefix=prefix, width=width, head_dim=head_dim
        )

    best, found = _closest(reducer, cost_of, cost, patches, depth)
    if not abs(found[best] - cost) <= COST_TOLERANCE:
        raise InvalidInput(
            f"No schedule of this reducer has the relative cost {cost:.3f}: of {patches} patches in "
            f"{depth} blocks it can make {min(found.values()):.3f} to {max(found.values()):.3f}, "
            f"{found[best]:.3f} is the closest."
        )
    return best


def schedule_for_tokens(reducer: Progressive, tokens: int, *, patches: int, depth: int) -> Schedule:
    """The schedule of the reducer's shape whose last count is ``tokens`` patch tokens or closest."""
    best, found = _closest(reducer, lambda schedule: schedule[-1], tokens, patches, depth)
    if not abs(found[best] - tokens) <= TOKEN_TOLERANCE:
        raise InvalidInput(
            f"No schedule of this reducer ends with {tokens} patch tokens: of {patches} patches in "
            f"{depth} blocks it can leave {min(found.values())} to {max(found.values())}, "
            f"{found[best]} is the closest."
        )
    return best


def _closest(
    reducer: Progressive,
    value: Callable[[Schedule], float],
    wanted: float,
    patches: int,
    depth: int,
) -> tuple[Schedule, dict[Schedule, float]]:
    """The schedule that comes closest and the values of all; of two equally close ones that of the
    smaller strength."""
    tried = (reducer.schedule(patches, depth, step / STEPS) for step in range(STEPS + 1))
    found = {schedule: value(schedule) for schedule in dict.fromkeys(tried)}
    return min(found, key=lambda schedule: abs(found[schedule] - wanted)), found
