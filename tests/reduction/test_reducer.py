"""Equal tokens and equal cost: costs against naive sums, and targets that are met or refused."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from redi.backbone import Backbone
from redi.cost import Geometry, cost_table, vit_block
from redi.errors import ConfigError
from redi.reduction import ONE_SHOT, PROGRESSIVE, Budget, Extent, Inside, OneShot, Progressive, Schedule, SlowFast
from redi.reduction.reducer import TOLERANCE

TINY = Geometry((14, 14), prefix=1, width=192, head_dim=64, depth=12)
BASE = Geometry((14, 14), prefix=1, width=768, head_dim=64, depth=12)
DINOV3 = Geometry((14, 14), prefix=5, width=768, head_dim=64, depth=12)
NARROW = Geometry((14, 14), prefix=1, width=192, head_dim=64, depth=12, own_block=vit_block(192, 384))
GATED = Geometry((14, 14), prefix=5, width=384, head_dim=64, depth=12, own_block=vit_block(384, 1536, gated=True))
GEOMETRIES = {"ViT-Ti": TINY, "ViT-B": BASE}
ALL_BLOCKS = {**GEOMETRIES, "MLP of 2 D": NARROW, "gated MLP": GATED}

geometries = pytest.mark.parametrize("on", GEOMETRIES.values(), ids=GEOMETRIES)
all_blocks = pytest.mark.parametrize("on", ALL_BLOCKS.values(), ids=ALL_BLOCKS)
one_shots = pytest.mark.parametrize("reducer", ONE_SHOT.values(), ids=ONE_SHOT)
#: Evo-ViT removes no token, so it has a cost of its own (test_evolving.py).
REMOVING = {name: reducer for name, reducer in PROGRESSIVE.items() if not isinstance(reducer, SlowFast)}
progressives = pytest.mark.parametrize("reducer", REMOVING.values(), ids=REMOVING)
#: Removes whole rows and columns, so it reaches fewer counts and costs, and has no matrix products.
LINES = PROGRESSIVE["cubist"]


def naive_block(attending: int, transformed: int, on: Geometry) -> int:
    """Multiply-adds of one block, product by product; the MLP may see fewer tokens."""
    heads = on.width // on.head_dim
    count = 0
    for _ in ("query", "key", "value", "output"):
        count += attending * on.width * on.width
    for _ in range(heads):
        count += attending * on.head_dim * attending  # queries times keys
        count += attending * attending * on.head_dim  # attention times values
    hidden = {NARROW: 2 * on.width}.get(on, 4 * on.width)
    for _ in ("in", "gate") if on == GATED else ("in",):
        count += transformed * on.width * hidden
    count += transformed * hidden * on.width
    return count


def naive_dense(on: Geometry) -> int:
    tokens = on.prefix + on.grid[0] * on.grid[1]
    return sum(naive_block(tokens, tokens, on) for _ in range(on.depth))


def naive_one_shot(reducer: OneShot, budget: Budget, after: int, on: Geometry) -> float:
    tokens = on.prefix + on.grid[0] * on.grid[1]
    count = 0
    for block in range(on.depth):
        if block == after:
            tokens = on.prefix + reducer.tokens(budget, on.grid)
        count += naive_block(tokens, tokens, on)
    return (count + reducer.products(budget, on.grid, on.width)) / naive_dense(on)


def naive_progressive(reducer: Progressive, schedule: Schedule, on: Geometry) -> float:
    left, count = on.grid[0] * on.grid[1], 0
    for after in schedule:
        count += naive_block(on.prefix + left, on.prefix + after, on)
        if after != left:
            count += reducer.products(left, after, on.width, on.head_dim)
        left = after
    return count / naive_dense(on)


def shapes_of(reducer: Progressive, on: Geometry) -> list[Schedule]:
    """Everything between removing nothing and all that the shape allows, in steps that are finer than
    a token, the gentlest first."""
    steps = range(round(4000 * reducer.strongest) + 1)
    schedules = [reducer.schedule(196, on.depth, step / 4000) for step in steps]
    return list(dict.fromkeys(schedules))


def paper_budget(keep: float) -> Budget:
    """The paper's proportions at another keep rate."""
    return Budget(keep, (1 - keep) / 2)


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# Costs --------------------------------------------------------------------------------------------


@all_blocks
@one_shots
@pytest.mark.parametrize("after", [0, 4, 11, 12])
def test_one_shot_cost_is_the_sum_over_the_blocks(reducer: OneShot, after: int, on: Geometry) -> None:
    for budget in (Budget(), Budget(keep=0.2, merge=0.3, cells=3), Budget(keep=1.0, merge=0.0)):
        expected = naive_one_shot(reducer, budget, after, on)
        assert reducer.cost(Extent(budget, after), on) == pytest.approx(expected, rel=1e-12)


@all_blocks
@progressives
def test_schedule_cost_is_the_sum_over_the_blocks(reducer: Progressive, on: Geometry) -> None:
    for strength in (0.0, 0.1, 0.4, 1.0):
        schedule = reducer.schedule(196, 12, strength)
        expected = naive_progressive(reducer, schedule, on)
        cost = reducer.cost(Extent(schedule=schedule), on)
        assert cost == pytest.approx(expected, rel=1e-12)


def test_a_schedule_by_hand() -> None:
    # The second of two blocks, width 8, takes 4 patches and a CLS token and leaves 2 patches.
    on = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=2)
    reducer = Progressive(
        PROGRESSIVE["tome"].step,
        PROGRESSIVE["tome"].schedule,
        products=lambda before, after, width, head_dim: 1000 * before + 100 * after + 10 * width + head_dim,
    )
    first = 12 * 5 * 64 + 2 * 25 * 8
    second = 4 * 5 * 64 + 2 * 25 * 8 + 8 * 3 * 64
    own = 4000 + 200 + 80 + 4
    assert reducer.cost(Extent(schedule=(4, 2)), on) == (first + second + own) / (2 * first)


@geometries
@one_shots
def test_after_the_last_block_nothing_is_saved(reducer: OneShot, on: Geometry) -> None:
    """What is left is the reducer's own work, which is small."""
    cost = reducer.cost(Extent(after=on.depth), on)
    own = reducer.products(Budget(), on.grid, on.width) / naive_dense(on)
    assert cost == pytest.approx(1 + own, rel=1e-12)
    assert cost == pytest.approx(1, abs=0.04)


@geometries
@progressives
def test_removing_nothing_costs_as_much_as_dense(reducer: Progressive, on: Geometry) -> None:
    assert reducer.cost(Extent(schedule=(196,) * 12), on) == 1


@one_shots
def test_a_later_reduction_costs_more(reducer: OneShot) -> None:
    costs = [reducer.cost(Extent(after=after), BASE) for after in range(13)]
    assert costs == sorted(costs)
    assert len(set(costs)) == 13


def test_the_papers_operator_on_dinov3_costs_what_table_3_says_and_its_own_products() -> None:
    operator = ONE_SHOT["keep-merge-compress"]
    similarities = merges = 98 * 49 * 768
    summaries = 4 * 49 * 768
    own = (similarities + merges + summaries) / naive_dense(DINOV3)
    cost = operator.cost(Extent(), DINOV3)
    assert cost == pytest.approx(cost_table()[-1].reduced + own, rel=1e-12)
    assert cost == pytest.approx(0.522, abs=0.001), "its own work is not seen in three digits"


def test_the_operators_own_products_are_those_that_are_counted_while_it_runs() -> None:
    operator, width = ONE_SHOT["keep-merge-compress"], 24
    for budget in (Budget(), Budget(keep=0.3, merge=0.2, cells=3), Budget(keep=0.7, merge=0.3)):
        with FlopCounterMode(display=False) as counter:
            operator.reduce(torch.randn(1, 77, width), torch.rand(1, 77), budget, (7, 11))
        assert operator.products(budget, (7, 11), width) == counter.get_total_flops() // 2


class Multiplying(Inside):
    """CLS attention as a matrix product, which the counter sees. The library's sum has the same multiply-adds."""

    @property
    def head_attention(self) -> Tensor:
        logits = self.query[:, :, :1] @ self.key.transpose(2, 3) * self.scale
        return logits.softmax(dim=-1)[:, :, 0, self.prefix :]


@progressives
def test_a_steps_own_products_are_those_that_are_counted_while_it_runs(reducer: Progressive) -> None:
    """But for the prefix and single tokens: within two percent of the dearest block."""
    if reducer is LINES:  # its products are sums over neighbours; tests/reduction/test_local.py counts them
        return
    query, key, value = torch.randn(3, 1, 3, 197, 64)
    inside = Multiplying(
        patches=torch.randn(1, 196, 192),
        sizes=torch.ones(1, 196),
        scores=None,
        query=query,
        key=key,
        value=value,
        bias=None,
        scale=64**-0.5,
        prefix=1,
        block=3,
        depth=12,
        origins=torch.arange(196)[None],
        grid=(14, 14),
    )
    for count in (180, 120):
        counted = 0.0
        for block in (3, 9):
            with FlopCounterMode(display=False) as counter:
                reducer.step(replace(inside, block=block), count)
            counted = max(counted, counter.get_total_flops() / 2)
        assert counted > 0
        if reducer is PROGRESSIVE["protected-dense"]:
            counted += 98 * 192  # the distance of each token of A to its partner is a sum, not a product
        if reducer in (PROGRESSIVE["gtp"], PROGRESSIVE["zero-tprune"]):
            counted -= 197 * 197 * 192  # the attention map of the block, which a fused kernel does not give
        assert reducer.products(196, count, 192, 64) == pytest.approx(counted, rel=0.02)


# Targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 1.0])
def test_a_budget_keeps_the_papers_proportions(keep: float) -> None:
    budget = Extent().at_keep(keep).budget
    assert budget.keep == keep
    assert budget.merge == pytest.approx((1 - keep) / 2)
    assert Extent().at_keep(0.5) == Extent()
    other = Extent(Budget(cells=3, spatial=0.1), after=4).at_keep(keep)
    assert other == Extent(Budget(keep, (1 - keep) / 2, cells=3, spatial=0.1), after=4)


@geometries
@one_shots
@pytest.mark.parametrize("cost", [0.1, 0.3, 0.5, 0.65])
@pytest.mark.parametrize("after", [0, 4])
def test_one_shot_reducers_meet_a_cost_as_closely_as_a_patch_allows(
    reducer: OneShot, cost: float, after: int, on: Geometry
) -> None:
    candidates = [naive_one_shot(reducer, paper_budget(kept / 196), after, on) for kept in range(1, 197)]
    closest = min(abs(candidate - cost) for candidate in candidates)
    if closest > TOLERANCE:
        assert after == 4, "before the first block every reducer reaches these"
        assert min(candidates) > cost
        with pytest.raises(ConfigError, match="cannot be met"):
            reducer.extent_for_cost(cost, on, Extent(after=after))
        return
    extent = reducer.extent_for_cost(cost, on, Extent(after=after))
    reached = naive_one_shot(reducer, extent.budget, after, on)
    assert abs(reached - cost) == pytest.approx(closest, abs=1e-12)
    assert abs(reached - cost) <= TOLERANCE
    assert extent == Extent(paper_budget(extent.budget.keep), after)


@geometries
@pytest.mark.parametrize("cost", [0.52, 0.65, 0.75, 0.9])
@progressives
def test_progressive_reducers_meet_a_cost(reducer: Progressive, cost: float, on: Geometry) -> None:
    schedule = reducer.extent_for_cost(cost, on).schedule
    assert len(schedule) == 12
    assert schedule in shapes_of(reducer, on)
    assert naive_progressive(reducer, schedule, on) == pytest.approx(cost, abs=0.004 if reducer is LINES else 0.002)


@geometries
@pytest.mark.parametrize("tokens", [150, 102, 49])
@progressives
def test_progressive_reducers_leave_a_number_of_tokens_in_the_gentlest_way(
    reducer: Progressive, tokens: int, on: Geometry
) -> None:
    extent = reducer.extent_for_tokens(tokens, on)
    schedule = extent.schedule
    if reducer is LINES:
        tokens = {150: 156, 102: 100, 49: 49}[tokens]  # 13 x 12, 10 x 10, 7 x 7
    assert schedule[-1] == reducer.tokens_left(extent, on) == tokens
    alike = [shape for shape in shapes_of(reducer, on) if shape[-1] == tokens]
    assert sum(schedule) == max(map(sum, alike))


@one_shots
@pytest.mark.parametrize("tokens", [1000, 150, 102, 49, 0])
def test_one_shot_reducers_leave_a_number_of_tokens_or_the_nearest(reducer: OneShot, tokens: int) -> None:
    like = Extent(Budget(cells=3), after=4)
    extent = reducer.extent_for_tokens(tokens, TINY, like)
    assert extent == like.at_keep(extent.budget.keep)
    numbers = [reducer.tokens(like.at_keep(kept / 196).budget, (14, 14)) for kept in range(1, 197)]
    nearest = min(abs(number - tokens) for number in numbers if number <= 196)  # a budget must not add tokens
    assert abs(reducer.tokens_left(extent, TINY) - tokens) == nearest


@progressives
def test_a_number_of_tokens_that_no_schedule_leaves_gives_the_nearest(reducer: Progressive) -> None:
    assert reducer.extent_for_tokens(500, TINY).schedule == (196,) * 12
    fewest = min(shape[-1] for shape in shapes_of(reducer, TINY))
    assert reducer.extent_for_tokens(0, TINY).schedule[-1] == fewest


def test_tome_reaches_the_cost_of_every_r_of_its_authors() -> None:
    """Their r = 18 removes 18 tokens per block until 34 are left, then half of them."""
    tome = PROGRESSIVE["tome"]
    authors = (178, 160, 142, 124, 106, 88, 70, 52, 34, 17, 9, 5)
    assert tome.schedule(196, 12, 18 * 12 / 196) == authors
    cost = naive_progressive(tome, authors, TINY)
    assert cost == pytest.approx(0.438, abs=0.001)
    assert tome.extent_for_cost(cost, TINY).schedule == authors
    for name in ("tome", "tofu", "gtp"):
        assert PROGRESSIVE[name].extent_for_cost(0.45, TINY)


def test_tome_cannot_halve_the_cost_again_and_says_what_it_can() -> None:
    tome = PROGRESSIVE["tome"]
    with pytest.raises(ConfigError) as caught:
        tome.extent_for_cost(0.2, TINY)
    costs = [naive_progressive(tome, shape, TINY) for shape in shapes_of(tome, TINY)]
    message = one_line(caught)
    assert "0.2 cannot be met" in message
    assert f"from {min(costs):.3f} to {max(costs):.3f}" in message


def test_a_late_one_shot_reducer_cannot_save_much_and_says_what_it_can() -> None:
    prune = ONE_SHOT["prune"]
    with pytest.raises(ConfigError) as caught:
        prune.extent_for_cost(0.5, BASE, Extent(after=9))
    reach = re.search(r"from (0\.\d{3}) to (\d\.\d{3})", one_line(caught))
    assert reach is not None
    least = naive_one_shot(prune, paper_budget(1 / 196), 9, BASE)
    assert float(reach[1]) == pytest.approx(least, abs=0.0006)
    assert float(reach[1]) > 9 / 12
    assert 1 <= float(reach[2]) < 1.01


def test_between_two_grids_pooling_meets_no_cost() -> None:
    pool = ONE_SHOT["pool"]
    costs = [naive_one_shot(pool, paper_budget(kept / 196), 0, BASE) for kept in range(1, 197)]
    low, high = max(pairwise(sorted(costs)), key=lambda pair: pair[1] - pair[0])
    assert high - low > 2 * TOLERANCE
    with pytest.raises(ConfigError, match="in steps"):
        pool.extent_for_cost((low + high) / 2, BASE)
    near = pool.extent_for_cost(high - TOLERANCE / 2, BASE)
    assert naive_one_shot(pool, near.budget, 0, BASE) == pytest.approx(high)


# Geometry -----------------------------------------------------------------------------------------


def test_the_geometry_is_that_of_the_backbone(dinov3: Backbone) -> None:
    on = dinov3.geometry
    tokens = dinov3.embed(torch.zeros(1, 3, *[dinov3.preprocessing.size] * 2))
    assert on.grid == tokens.grid
    assert on.patches == tokens.patches.shape[1]
    assert on.prefix == tokens.prefix.shape[1]
    assert on.width == tokens.patches.shape[2]
    assert on.depth == len(dinov3.blocks)
    capture: dict[int, dict[str, torch.Tensor]] = {0: {}}
    dinov3.encode(tokens, stop=1, capture=capture)
    assert on.head_dim == capture[0]["query"].shape[3]
    assert on.block == vit_block(32, 64)
    assert replace(on, own_block=None).dense == naive_dense(on)
