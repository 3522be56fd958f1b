"""Schedules, the number of patch tokens after each block: those of the peers' papers, and our own.

Each is a function of (patches, depth, strength): strength 0 removes nothing, strength 1 as much as the function
allows. Except for ``thrice``, no block removes more than half of its patch tokens, the limit of bipartite matching.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from redi.errors import InvalidInput
from redi.reduction.reducer import Schedule

#: Power of our own schedule's shape.
EARLY = 1.2


def constant(patches: int, depth: int, strength: float) -> Schedule:
    """ToMe: every block removes the same number of tokens, r = strength x patches / depth.

    If r is not an integer, some blocks remove one token more than others. Strength 1 would remove all tokens.
    """
    return _halved(patches, [patches * (1 - strength * (k + 1) / depth) for k in range(depth)])


def ratio(patches: int, depth: int, strength: float) -> Schedule:
    """PiToMe: every block removes the same share of its tokens, up to a half."""
    return _halved(patches, [patches * (1 - strength / 2) ** (k + 1) for k in range(depth)])


@dataclass(frozen=True)
class Shape:
    """The blocks that remove tokens, and how the removed tokens are distributed over them.

    After a share x of the blocks ``first`` .. ``last`` - 1 (counted from 0), a share 1 - (1 - x)^power of the
    tokens to remove is gone. With power 1 the blocks remove equal numbers, with a higher power the early ones more.
    """

    first: int
    last: int
    power: float

    def shares(self, depth: int) -> tuple[float, ...]:
        """The share of the removed tokens per block."""
        if not 0 <= self.first < self.last <= depth or not self.power > 0:
            raise InvalidInput(f"{self} does not fit {depth} blocks: first < last <= {depth} and power > 0 must hold.")
        steps = [(block + 1 - self.first) / (self.last - self.first) for block in range(depth)]
        gone = [1 - (1 - min(max(step, 0.0), 1.0)) ** self.power for step in steps]
        return tuple(after - before for before, after in pairwise((0.0, *gone)))


def early_shape(depth: int) -> Shape:
    """Blocks 3 to 11 of 12, scaled to other depths; early blocks remove a little more."""
    return Shape(round(depth / 6), max(depth - max(round(depth / 12), 1), 1), EARLY)


@dataclass(frozen=True)
class ByShares:
    """Each block removes its share of ``strength`` times all patches, but at most half of its tokens."""

    shares: tuple[float, ...]

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        if len(self.shares) != depth:
            raise InvalidInput(f"There are shares of {len(self.shares)} blocks for {depth} blocks: give one per block.")
        gone = [round(strength * patches * share) for share in accumulate(self.shares)]
        counts = [patches]
        for removed in (after - before for before, after in pairwise((0, *gone))):
            counts.append(max(counts[-1] - removed, -(-counts[-1] // 2)))
        return tuple(counts[1:])


def early(patches: int, depth: int, strength: float) -> Schedule:
    """The schedule with the shape of :func:`early_shape`."""
    return ByShares(early_shape(depth).shares(depth))(patches, depth, strength)


def thrice(patches: int, depth: int, strength: float) -> Schedule:
    """EViT, ATC: blocks 4, 7 and 10 of 12, scaled to other depths, remove the same share of their tokens."""
    removing = {round(depth * block / 12) for block in (3, 6, 9)}
    counts, left = [], float(patches)
    for block in range(depth):
        left *= 1 - strength if block in removing else 1
        counts.append(left)
    return _rounded(patches, counts)


def _halved(patches: int, counts: list[float]) -> Schedule:
    """Rounded counts, raised if a block would remove more than half of its tokens."""
    schedule: list[int] = []
    for count in _rounded(patches, counts):
        before = schedule[-1] if schedule else patches
        schedule.append(max(count, -(-before // 2)))
    return tuple(schedule)


def _rounded(patches: int, counts: list[float]) -> Schedule:
    return tuple(min(max(round(count), 1), patches) for count in counts)


def check_schedule(schedule: Schedule, patches: int, depth: int, halving: bool = False) -> None:
    """Require one token count per block, and counts that never grow from block to block."""
    if len(schedule) != depth:
        raise InvalidInput(f"A schedule must have one token count for each of {depth} blocks, but is {schedule}.")
    if any(not 1 <= after <= before for before, after in pairwise((patches, *schedule))):
        raise InvalidInput(f"Token counts must never grow from {patches} on or fall below 1, but are {schedule}.")
    if halving and any(2 * after < before for before, after in pairwise((patches, *schedule))):
        raise InvalidInput(f"This reducer can at most halve the tokens in each block, but the schedule is {schedule}.")
