"""Relevance-protected merging against a loop from its docstring, and the schedules that go with it."""

from dataclasses import replace
from itertools import pairwise
from math import dist, fsum, hypot
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn.functional import one_hot, pad

from insides import make_inside
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.reduction import PROGRESSIVE, Extent, Inside, Progressive
from redi.reduction.operator import OFFSET
from redi.reduction.progressive import STEPS
from redi.reduction.protected import protected
from redi.reduction.schedule import ByShares, Shape, check_schedule, early, early_shape

Vector = list[float]

COUNTS = [(2, 1), (3, 2), (9, 8), (9, 5), (16, 11), (16, 8), (25, 13)]
TINY = Geometry((14, 14), prefix=1, width=192, head_dim=64, depth=12)

counts = pytest.mark.parametrize(("n", "count"), COUNTS)
protections = pytest.mark.parametrize("protection", [0.0, 0.5, 2.0])


def scored_inside(n: int, prefix: int) -> Inside:
    return replace(make_inside(n, prefix), scores=torch.rand(3, n))


class Expected(NamedTuple):
    """What the loop says comes out of one image."""

    tokens: list[Vector]
    positions: list[int]
    source: list[int]


def naive_protected(patches: list[Vector], relevance: Vector, count: int, protection: float) -> Expected:
    """The docstring of ``protected``, token by token; sorts are stable, so ties fall to the first."""
    n = len(patches)
    a_set, b_set = range(1, n, 2), range(0, n, 2)
    nearest = {a: min(b_set, key=lambda b: dist(patches[a], patches[b])) for a in a_set}
    damage = {a: relevance[a] ** protection * dist(patches[a], patches[b]) ** 2 for a, b in nearest.items()}
    joining = sorted(a_set, key=lambda a: damage[a])[: n - count]
    groups = [[i, *(a for a in joining if nearest[a] == i)] for i in range(n) if i not in joining]
    tokens = []
    for members in groups:
        weight = fsum(relevance[i] for i in members)
        columns = zip(*([relevance[i] * x for x in patches[i]] for i in members), strict=True)
        mean = [fsum(column) for column in columns]
        length = fsum(relevance[i] * hypot(*patches[i]) for i in members) / weight
        tokens.append([x * length / hypot(*mean) for x in mean])
    positions = [max(members, key=lambda i: relevance[i]) for members in groups]
    source = [next(k for k, members in enumerate(groups) if i in members) for i in range(n)]
    return Expected(tokens, positions, source)


def assert_as_the_loop(inside: Inside, count: int, protection: float, relevance: Tensor) -> None:
    result = protected(inside, count, protection)
    assert result.tokens.shape == (3, count, inside.patches.shape[2])
    for image in range(3):
        patches, weights = inside.patches[image].tolist(), relevance[image].tolist()
        expected = naive_protected(patches, weights, count, protection)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens))


def shares_of(scores: Tensor) -> Tensor:
    """Given scores as weights: none below zero, each with a little, one in sum."""
    positive = scores.clamp(min=0) + OFFSET
    return positive / positive.sum(dim=1, keepdim=True)


@counts
@protections
@pytest.mark.parametrize("prefix", [1, 5])
def test_the_step_is_the_loop_of_its_docstring(n: int, count: int, protection: float, prefix: int) -> None:
    attended, scored = make_inside(n, prefix), scored_inside(n, prefix)
    logits = attended.query[:, :, :1] @ attended.key.transpose(2, 3) * attended.scale
    weights = logits.exp() * pad(attended.sizes, (prefix, 0), value=1.0)[:, None, None]
    attention = (weights / weights.sum(dim=-1, keepdim=True)).mean(dim=1)[:, 0, prefix:]
    assert_as_the_loop(attended, count, protection, attention)
    assert scored.scores is not None
    assert_as_the_loop(scored, count, protection, shares_of(scored.scores))


@counts
@protections
def test_ties_fall_to_the_first_as_in_the_loop(n: int, count: int, protection: float) -> None:
    """States of three kinds, scores of two: two distances, all in whole numbers, which are exact."""
    states = n * one_hot(torch.randint(0, 3, (3, n)), 5).float()
    scores = torch.randint(0, 2, (3, n)).float()
    tied = replace(make_inside(n, 1), patches=states, scores=scores)
    assert_as_the_loop(tied, count, protection, shares_of(scores))


def test_relevance_decides_among_tokens_that_are_equally_near() -> None:
    # B is one vector five times; A are four that each lie one step from it, in other directions.
    states = torch.eye(5)[0].repeat(9, 1)
    states[1::2] += torch.eye(5)[1:]
    scores = torch.tensor([[0, 4, 0, 1, 0, 3, 0, 2, 0]]).float().expand(3, -1)
    inside = replace(make_inside(9, 1), patches=states.expand(3, -1, -1), scores=scores)
    for protection, joining in ((0.0, {1, 3}), (0.1, {3, 7}), (2.0, {3, 7})):
        result = protected(inside, 7, protection)
        into_the_first = (result.source == 0).nonzero()[:, 1].tolist()
        assert set(into_the_first) == {0, *joining}
        assert result.positions[:, 0].tolist() == [1 if protection == 0 else 7] * 3


@counts
def test_sizes_add_up_and_untouched_tokens_keep_every_bit(n: int, count: int) -> None:
    inside = make_inside(n, 1)
    result = protected(inside, count)
    assert torch.equal(result.source.gather(1, result.positions), torch.arange(count).expand(3, -1)), (
        "who lends a token its position went into it"
    )
    sizes = torch.zeros(3, count).scatter_add(1, result.source, inside.sizes)
    assert torch.equal(sizes.sum(dim=1), inside.sizes.sum(dim=1))
    members = torch.zeros(3, count).scatter_add(1, result.source, torch.ones(3, n))
    for image, place in (members == 1).nonzero().tolist():
        at = result.positions[image, place]
        assert torch.equal(result.tokens[image, place], inside.patches[image, at])


def test_half_precision_tokens_are_merged_in_fp32() -> None:
    inside = make_inside(25, 1)
    rough = replace(inside, patches=inside.patches.bfloat16())
    result, exact = (protected(each, 13) for each in (rough, replace(rough, patches=rough.patches.float())))
    assert result.tokens.dtype == torch.bfloat16
    assert torch.equal(result.tokens, exact.tokens.bfloat16())


# Schedules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(2, 41))
def test_the_early_shape_falls_between_the_first_blocks_and_the_last(depth: int) -> None:
    shares = early_shape(depth).shares(depth)
    assert len(shares) == depth
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    first, last = round(depth / 6), depth - max(round(depth / 12), 1)
    assert set(shares[:first]) <= {0.0}
    assert set(shares[last:]) == {0.0}
    assert all(a > b > 0 for a, b in pairwise(shares[first:last]))


def test_shares_by_hand() -> None:
    assert early_shape(1).shares(1) == (1.0,), "the only block is the last as well"
    assert (early_shape(12).first, early_shape(12).last) == (2, 11), "blocks 3 to 11"
    assert Shape(1, 5, 1.0).shares(6) == (0.0, 0.25, 0.25, 0.25, 0.25, 0.0)
    assert Shape(0, 2, 1.5).shares(2) == pytest.approx((1 - 0.5**1.5, 0.5**1.5))
    for wrong in (Shape(-1, 3, 1.0), Shape(2, 2, 1.0), Shape(0, 7, 1.0), Shape(0, 3, 0.0)):
        with pytest.raises(InvalidInput, match="does not fit 6 blocks"):
            wrong.shares(6)
    assert ByShares((0.5, 0.25, 0.25))(100, 3, 0.4) == (80, 70, 60)
    assert ByShares((0.0, 1.0, 0.0))(9, 3, 1.0)[:2] == (9, 5), "half of a block at most"
    assert early(100, 12, 0.0) == (100,) * 12


@given(
    patches=st.integers(1, 300),
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=24).filter(any),
    strength=st.floats(0, 1),
)
def test_no_shares_remove_more_than_half_of_a_block(patches: int, weights: list[int], strength: float) -> None:
    shape = ByShares(tuple(weight / sum(weights) for weight in weights))
    schedule = shape(patches, len(weights), strength)
    check_schedule(schedule, patches, len(weights), halving=True)
    assert schedule[-1] >= patches * (1 - strength) - 0.5
    with pytest.raises(InvalidInput, match=f"shares of {len(weights)} blocks for 50"):
        shape(patches, 50, strength)


@pytest.mark.parametrize("prefix_only", [False, True])
@pytest.mark.parametrize("cost", [0.52, 0.65, 0.9, 1.0])
def test_the_gentlest_schedule_within_a_cost(cost: float, prefix_only: bool) -> None:
    ours = PROGRESSIVE["protected"]
    gentlest = ours.extent_within_cost(cost, TINY, prefix_only)
    assert ours.cost(gentlest, TINY, prefix_only) <= cost
    shapes = [ours.schedule(196, 12, step / STEPS) for step in range(STEPS + 1)]
    for gentler in dict.fromkeys(shapes[: shapes.index(gentlest.schedule)]):
        assert ours.cost(Extent(schedule=gentler), TINY, prefix_only) > cost


def test_a_cost_out_of_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cost of 0\.1 cannot be met: the lowest possible cost is 0\.\d+"):
        PROGRESSIVE["protected"].extent_within_cost(0.1, TINY)


def test_the_cost_of_prefix_only_by_hand() -> None:
    # The first of two blocks, width 8, takes 4 patches and CLS and leaves 2 patches. In the last block
    # attention sees 3 tokens, the MLP one, and nothing is removed, whatever the schedule says.
    on = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=2)
    step = PROGRESSIVE["tome"].step
    reducer = Progressive(step, early, products=lambda n, m, *_: 1000 * n + m)
    dense = 2 * (12 * 5 * 64 + 2 * 25 * 8)
    first = 4 * 5 * 64 + 2 * 25 * 8 + 8 * 3 * 64 + 4002
    last = 4 * 3 * 64 + 2 * 9 * 8 + 8 * 1 * 64
    for schedule in ((2, 2), (2, 1)):
        cost = reducer.cost(Extent(schedule=schedule), on, prefix_only=True)
        assert cost == (first + last) / dense
