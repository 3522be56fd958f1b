"""Equal tokens, equal cost: how far each reducer must go to meet a target, and what it then costs.

Cost is relative to dense: multiply-adds of the blocks' matrix products (Eq. blockcompute) plus those of
the reducer itself. Scores that are made before, by another pass, are not in it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from redi.backbone import Backbone
from redi.cost import block_cost, progressive_cost
from redi.errors import ConfigError
from redi.grid import Grid
from redi.reduction import Budget, OneShot, Progressive, Schedule

#: Strengths of a schedule's shape that are tried.
STEPS = 4000
#: How far from a wanted relative cost a row may lie and still bear its name.
TOLERANCE = 0.02


PAPER = Budget()


@dataclass(frozen=True)
class Geometry:
    """What the arithmetic of a backbone depends on."""

    grid: Grid
    prefix: int
    width: int
    head_dim: int
    depth: int

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def dense(self) -> int:
        return self.depth * block_cost(self.prefix + self.patches, self.width)

    @classmethod
    def of(cls, backbone: Backbone) -> "Geometry":
        side = backbone.preprocessing.size // backbone.patch_size
        heads: int = backbone.config.num_attention_heads
        return cls(
            (side, side), backbone.prefix, backbone.width, backbone.width // heads, backbone.depth
        )


def one_shot_cost(reducer: OneShot, budget: Budget, after: int, on: Geometry) -> float:
    """``after`` blocks on all tokens, the reducer, the remaining blocks on what it leaves."""
    tokens = on.prefix + reducer.tokens(budget, on.grid)
    blocks = after * block_cost(on.prefix + on.patches, on.width)
    blocks += (on.depth - after) * block_cost(tokens, on.width)
    return (blocks + reducer.products(budget, on.grid, on.width)) / on.dense


def schedule_cost(
    reducer: Progressive, schedule: Schedule, on: Geometry, prefix_only: bool = False
) -> float:
    """In each block attention sees the tokens that came in, the MLP those that are left.

    With ``prefix_only`` the last block's MLP sees the prefix alone (see ``encode_progressively``).
    """
    before = (on.patches, *schedule[:-1])
    removing = schedule[:-1] if prefix_only else schedule
    after = [on.prefix + n for n in removing] + [on.prefix] * prefix_only
    blocks = progressive_cost([on.prefix + n for n in before], after, on.width)
    own = sum(
        reducer.products(n, m, on.width, on.head_dim)
        for n, m in zip(before, removing, strict=False)
        if m < n
    )
    return (blocks + own) / on.dense


def budget_for(keep: float, like: Budget = PAPER) -> Budget:
    """The paper's proportions at another keep rate: what is not kept is half merged, half compressed."""
    return replace(like, keep=keep, merge=(1 - keep) / 2)


def budget_for_cost(
    reducer: OneShot, cost: float, after: int, on: Geometry, like: Budget = PAPER
) -> Budget:
    budgets = _budgets(on, like)
    costs = [one_shot_cost(reducer, budget, after, on) for budget in budgets]
    return budgets[_closest(costs, cost)]


def budget_for_tokens(reducer: OneShot, tokens: int, on: Geometry, like: Budget = PAPER) -> Budget:
    """The one that leaves so many patch tokens, or the nearest number."""
    return min(_budgets(on, like), key=lambda budget: abs(reducer.tokens(budget, on.grid) - tokens))


def _budgets(on: Geometry, like: Budget) -> list[Budget]:
    return [budget_for(kept / on.patches, like) for kept in range(1, on.patches + 1)]


@lru_cache(maxsize=128)
def _schedules(
    reducer: Progressive, on: Geometry, prefix_only: bool = False
) -> list[tuple[float, Schedule]]:
    """Every schedule of a reducer's shape, weakest first, with its cost."""
    shapes = dict.fromkeys(
        reducer.schedule(on.patches, on.depth, step / STEPS) for step in range(STEPS + 1)
    )
    return [(schedule_cost(reducer, schedule, on, prefix_only), schedule) for schedule in shapes]


def schedule_within_cost(
    reducer: Progressive, cost: float, on: Geometry, prefix_only: bool = False
) -> Schedule:
    """The gentlest one that costs no more."""
    known = _schedules(reducer, on, prefix_only)
    for found, schedule in known:
        if found <= cost:
            return schedule
    raise ConfigError(
        f"A relative cost of {cost:g} cannot be met: the least here is "
        f"{min(found for found, _ in known):.3f}."
    )


def schedule_for_cost(reducer: Progressive, cost: float, on: Geometry) -> Schedule:
    known = _schedules(reducer, on)
    return known[_closest([found for found, _ in known], cost)][1]


def schedule_for_tokens(reducer: Progressive, tokens: int, on: Geometry) -> Schedule:
    """The gentlest schedule that leaves so many patch tokens after the last block, or the nearest."""
    known = _schedules(reducer, on)
    return min(known, key=lambda found: abs(found[1][-1] - tokens))[1]


def _closest(costs: list[float], wanted: float) -> int:
    best = min(range(len(costs)), key=lambda k: abs(costs[k] - wanted))
    if not abs(costs[best] - wanted) <= TOLERANCE:
        raise ConfigError(
            f"A relative cost of {wanted:g} cannot be met: costs here reach from {min(costs):.3f} to "
            f"{max(costs):.3f}, in steps."
        )
    return best
