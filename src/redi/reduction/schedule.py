"""Schedules, the number of patch tokens after each block: those of the peers' papers, and our own.

Each is a function of (patches, depth, strength): strength 0 removes nothing, strength 1 as much as the function
allows; ``constant`` goes on beyond 1. Except for ``thrice`` and ``one_block``, no block removes more than half of its
patch tokens, the limit of bipartite matching. A schedule that depends on the patch grid is a :class:`ByGrid`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from redi.errors import InvalidInput
from redi.grid import Grid
from redi.reduction.reducer import Schedule

#: Defaults of our own schedule's shape, found on several backbones at once (docs/LOG.md).
START = 2.5
HOLD = 0.75


def constant(patches: int, depth: int, strength: float) -> Schedule:
    """ToMe: every block removes the same number of tokens, r = strength x patches / depth.

    If r is not an integer, some blocks remove one token more than others. Strength 1 would remove all tokens. Beyond
    it the last blocks halve the few that are left, as in the authors' code.
    """
    return _halved(patches, [patches * (1 - strength * (k + 1) / depth) for k in range(depth)])


def ratio(patches: int, depth: int, strength: float) -> Schedule:
    """PiToMe: every block removes the same share of its tokens, up to a half."""
    return _halved(patches, [patches * (1 - strength / 2) ** (k + 1) for k in range(depth)])


@dataclass(frozen=True)
class Shape:
    """How our own schedule distributes the removed tokens over the blocks ``first`` .. ``last`` - 1 (from 0).

    After a share x of these blocks, a share 1 - (1 - x^a)^b of the tokens to remove is gone, with

        a = 1 + start (1 - strength),    b = 1 / (1 - hold strength).

    A schedule that removes little starts slowly. One that removes much does it early and then holds what is left.
    """

    first: int
    last: int
    start: float = START
    hold: float = HOLD

    def __post_init__(self) -> None:
        if not (0 <= self.first < self.last and self.start >= 0 and 0 <= self.hold < 1):
            raise InvalidInput(f"{self} is no shape: 0 <= first < last, start >= 0 and 0 <= hold < 1 must hold.")

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        """No block removes more than half of its tokens; strength 1 would otherwise remove all."""
        if self.last > depth:
            raise InvalidInput(f"{self} does not fit {depth} blocks: last must be at most {depth}.")
        slowness, power = 1 + self.start * (1 - strength), 1 / (1 - self.hold * strength)
        steps = [(block + 1 - self.first) / (self.last - self.first) for block in range(depth)]
        shares = [1 - (1 - min(max(step, 0.0), 1.0) ** slowness) ** power for step in steps]
        gone = [round(strength * patches * share) for share in shares]
        counts = [patches]
        for removed in (after - before for before, after in pairwise((0, *gone))):
            counts.append(max(counts[-1] - removed, -(-counts[-1] // 2)))
        return tuple(counts[1:])


def early_shape(depth: int) -> Shape:
    """Blocks 3 to 11 of 12, scaled to other depths."""
    return Shape(round(depth / 6), max(depth - max(round(depth / 12), 1), 1))


def dense_shape(depth: int) -> Shape:
    """All blocks, the early ones more: for outputs that read every patch (docs/DENSE.md)."""
    return Shape(0, depth, start=0.0, hold=0.5)


def from_the_start(patches: int, depth: int, strength: float) -> Schedule:
    """The schedule with the shape of :func:`dense_shape`."""
    return dense_shape(depth)(patches, depth, strength)


def early(patches: int, depth: int, strength: float) -> Schedule:
    """The schedule with the shape of :func:`early_shape`."""
    return early_shape(depth)(patches, depth, strength)


def three_blocks(depth: int) -> tuple[int, ...]:
    """Blocks 4, 7 and 10 of 12, scaled to other depths, counted from 0."""
    return tuple(sorted({round(depth * block / 12) for block in (3, 6, 9)}))


def thrice(patches: int, depth: int, strength: float) -> Schedule:
    """EViT, ATC: three blocks remove the same share of their tokens."""
    removing = three_blocks(depth)
    counts, left = [], float(patches)
    for block in range(depth):
        left *= 1 - strength if block in removing else 1
        counts.append(left)
    return _rounded(patches, counts)


@dataclass(frozen=True)
class Once:
    """One block removes everything: the one after a share of the depth."""

    place: float

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        first = min(round(self.place * depth), depth - 1)
        return _rounded(patches, [float(patches)] * first + [patches * (1 - strength)] * (depth - first))


@dataclass(frozen=True)
class ByGrid:
    """A schedule that depends on the rows and columns of patches: a function of (grid, depth, strength).

    Called with a number of patches, it assumes the grid of that number that is nearest to a square.
    """

    on_grid: Callable[[Grid, int, float], Schedule]

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        rows = next(rows for rows in range(isqrt(patches), 0, -1) if patches % rows == 0)
        return self.on_grid((rows, patches // rows), depth, strength)


def local_then_global(grid: Grid, depth: int, strength: float) -> Schedule:
    """ALGM: block 1 and a later block remove the same share of their tokens, up to a half.

    The other block is 5 of 12 or 7 of 24, as released; in general min(L / 3, 2 + L / 6), counted from 0. Block 1
    removes at most three tokens of each 2x2 window.
    """
    rows, columns = grid
    patches, share = rows * columns, 1 - strength / 2
    windows = (rows // 2) * (columns // 2)
    first = max(round(patches * share), -(-patches // 2), patches - 3 * windows)
    last = min(max(round(patches * share**2), -(-first // 2)), first)
    second = max(round(min(depth / 3, 2 + depth / 6)), 1)
    return (first,) * min(second, depth) + (last,) * (depth - second)


def shrinking_grids(grid: Grid) -> list[Grid]:
    """CubistMerge: the grid, and what is left after each line of tokens that goes, down to one token.

    A column goes if the share of the columns that are left is at least that of the rows, otherwise a row. So a grid
    keeps its shape, and its number of tokens says which one it is.
    """
    rows, columns = left = grid
    path = [left]
    while left != (1, 1):
        fewer_columns = left[0] == 1 or (left[1] > 1 and left[1] * rows >= left[0] * columns)
        left = (left[0], left[1] - 1) if fewer_columns else (left[0] - 1, left[1])
        path.append(left)
    return path


def one_block(grid: Grid, depth: int, strength: float) -> Schedule:
    """CubistMerge: rows and columns go in block 2 of 12, scaled to other depths, up to half of each.

    Whole rows and columns give few costs. Between two of them, one more line goes in a later block, the earlier the
    higher the strength.
    """
    halved = [-(-length // 2) for length in grid]
    path = [left for left in shrinking_grids(grid) if left[0] >= halved[0] and left[1] >= halved[1]]
    counts = [rows * columns for rows, columns in path]
    first = min(round(depth / 12), depth - 1)
    choices = depth - first  # no further line, or one in a block after the first
    lines, later = divmod(int(strength * (len(path) - 1) * choices), choices)
    before = (counts[0],) * first + (counts[lines],) * (choices - later)
    return before + tuple(counts[lines + 1 :][:1] * later)


@dataclass(frozen=True)
class Fewer:
    """Another schedule with at most ``steps`` removing blocks, for models whose blocks are cheap beside a step.

    Consecutive removing blocks form groups of nearly equal size, and the first block of a group removes the tokens of
    the whole group, but at most half of its own.
    """

    schedule: Callable[[int, int, float], Schedule]
    steps: int

    def __call__(self, patches: int, depth: int, strength: float) -> Schedule:
        counts = self.schedule(patches, depth, strength)
        removing = [block for block, (before, after) in enumerate(pairwise((patches, *counts))) if after < before]
        if len(removing) <= self.steps:
            return counts
        bounds = [group * len(removing) // self.steps for group in range(self.steps + 1)]
        goals = {removing[first]: counts[removing[last - 1]] for first, last in pairwise(bounds)}
        left = [patches]
        for block in range(depth):
            left.append(max(goals.get(block, left[-1]), -(-left[-1] // 2)))
        return tuple(left[1:])


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
