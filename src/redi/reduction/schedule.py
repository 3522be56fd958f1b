"""How many patch tokens leave each block: the shapes that the peers' papers use, and our own.

A shape is a function of (patches, depth, strength): strength 0 removes nothing, 1 as much as the
shape allows. All but ``thrice`` never remove more than half of a block's patch tokens, which is all
that bipartite matching can do.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from redi.errors import InvalidInput
from redi.reduction.progressive import Schedule

#: Power of our own shape.
EARLY = 1.2


def constant(patches: int, depth: int, strength: float) -> Schedule:
    """ToMe: the same number r in every block. r = strength x patches / depth; where r is not whole,
    some blocks remove one more than others. Strength 1 would leave nothing."""
    return _halved(patches, [patches * (1 - strength * (k + 1) / depth) for k in range(depth)])


def ratio(patches: int, depth: int, strength: float) -> Schedule:
    """PiToMe: the same share in every block, up to a half."""
    return _halved(patches, [patches * (1 - strength / 2) ** (k + 1) for k in range(depth)])


@dataclass(frozen=True)
class Shape:
    """Which blocks remove, and how much of it the first of them do.

    After a share x of the blocks ``first`` .. ``last`` - 1 (from 0), 1 - (1 - x)^power of what shall go
    has gone: with power 1 they remove alike, with more of it the early ones remove more.
    """

    first: int
    last: int
    power: float

    def shares(self, depth: int) -> tuple[float, ...]:
        """Of the removed tokens, a block each."""
        if not 0 <= self.first < self.last <= depth or not self.power > 0:
            raise InvalidInput(f"{self} does not fit {depth} blocks.")
        steps = [(block + 1 - self.first) / (self.last - self.first) for block in range(depth)]
        gone = [1 - (1 - min(max(step, 0.0), 1.0)) ** self.power for step in steps]
        return tuple(after - before for before, after in pairwise((0.0, *gone)))


def early_shape(depth: int) -> Shape:
    """Blocks 3 to 11 of 12 and the same places of other depths, the early ones a little more."""
    return Shape(round(depth / 6), max(depth - max(round(depth / 12), 1), 1), EARLY)


@dataclass(frozen=True)
class ByShares:
    """The shape in which each block removes its share of ``strength`` times all patches, or half of
    what it is given where that is less."""

    shares: tuple[float, ...]

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        if len(self.shares) != depth:
            raise InvalidInput(f"There are shares of {len(self.shares)} blocks for {depth} blocks.")
        gone = [round(strength * patches * share) for share in accumulate(self.shares)]
        counts = [patches]
        for removed in (after - before for before, after in pairwise((0, *gone))):
            counts.append(max(counts[-1] - removed, -(-counts[-1] // 2)))
        return tuple(counts[1:])


def early(patches: int, depth: int, strength: float) -> Schedule:
    """The shape of :func:`early_shape`."""
    return ByShares(early_shape(depth).shares(depth))(patches, depth, strength)


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
