"""Relevance-protected merging against a loop from its docstring, and the schedules that go with it."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, dist, fsum, hypot
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn.functional import one_hot, pad

from insides import make_inside
from loops import mean_over_heads
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.reduction import PROGRESSIVE, Extent, Inside, Progressive
from redi.reduction.operator import OFFSET
from redi.reduction.progressive import STEPS
from redi.reduction.protected import WINDOW, products_by_keys, protected
from redi.reduction.schedule import Fewer, Shape, check_schedule, early, early_shape

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


def naive_protected(
    patches: list[Vector],
    relevance: Vector,
    count: int,
    protection: float,
    patch_counts: Vector,
    sizes: float = 0.0,
    window: int = WINDOW,
    keys: list[Vector] | None = None,
) -> Expected:
    """The docstring of ``protected``, token by token; sorts are stable, so ties fall to the first."""
    places = keys or patches
    n = len(patches)
    a_set, b_set = range(1, n, 2), range(0, n, 2)
    windows = ceil(len(b_set) / window)
    width = ceil(len(b_set) / windows)

    def candidates(a: int) -> list[int]:
        return [b for b in b_set if b // 2 // width == a // 2 // width]

    def ward(a: int, b: int) -> float:
        return float((patch_counts[a] * patch_counts[b] / (patch_counts[a] + patch_counts[b])) ** sizes)

    nearest = {a: min(candidates(a), key=lambda b: dist(places[a], places[b])) for a in a_set}
    damage = {
        a: relevance[a] ** protection * ward(a, b) * dist(patches[a], patches[b]) ** 2 for a, b in nearest.items()
    }
    relevance = [r ** (1 - sizes / 2) * s ** (sizes / 2) for r, s in zip(relevance, patch_counts, strict=True)]
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


def assert_as_the_loop(
    inside: Inside,
    count: int,
    protection: float,
    relevance: Tensor,
    sizes: float = 0.0,
    by_keys: bool = False,
    window: int = WINDOW,
) -> None:
    result = protected(inside, count, protection, sizes, by_keys, window)
    assert result.tokens.shape == (3, count, inside.patches.shape[2])
    for image in range(3):
        patches, weights = inside.patches[image].tolist(), relevance[image].tolist()
        counts = inside.sizes[image].tolist()
        keys = mean_over_heads(inside.key[image].tolist(), inside.prefix) if by_keys else None
        expected = naive_protected(patches, weights, count, protection, counts, sizes, window, keys)
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
@pytest.mark.parametrize("sizes", [0.5, 1.0])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("by_keys", [False, True])
def test_sizes_keys_and_windows_are_those_of_the_loop(
    n: int, count: int, sizes: float, by_keys: bool, window: int
) -> None:
    scored = scored_inside(n, 1)
    assert scored.scores is not None
    assert_as_the_loop(scored, count, 0.5, shares_of(scored.scores), sizes, by_keys, window)


def test_with_sizes_the_damage_is_what_a_merge_adds_to_the_squares_within_groups() -> None:
    """Two tokens of 3 and 1 patches and a pair of 1 and 1: the second pair merges, although it is further apart."""
    states = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0], [9.0, 1.1]])[None].expand(3, -1, -1)
    patch_counts = torch.tensor([3.0, 3.0, 1.0, 1.0]).expand(3, -1)
    inside = replace(make_inside(4, 1), patches=states, sizes=patch_counts, scores=torch.ones(3, 4))
    assert protected(inside, 3).source[0].tolist() == [0, 0, 1, 2], "the nearest pair"
    assert protected(inside, 3, sizes=1.0).source[0].tolist() == [0, 1, 2, 2], "1.5 x 1 is more than 0.5 x 1.21"


def test_a_window_as_wide_as_all_tokens_changes_no_bit() -> None:
    inside = make_inside(25, 1)
    results = protected(inside, 17, window=13), protected(inside, 17, window=500)
    for result, whole in zip(*(reduction[:4] for reduction in results), strict=True):  # it leaves no memory
        assert result is not None
        assert whole is not None
        assert torch.equal(result, whole)


def test_the_work_of_matching_grows_with_the_tokens_once_they_fill_the_windows() -> None:
    for name in ("protected", "protected-dense"):
        work = {n: PROGRESSIVE[name].products(n, n, 384, 64) / n for n in (256, 1024, 4096)}
        assert work[1024] == pytest.approx(work[256], rel=0.02)
        assert work[4096] == pytest.approx(work[256], rel=0.02)


def test_the_products_of_matching_by_keys_follow_the_window() -> None:
    """850 tokens: 425 of A, each compared with a window of 425, 213, 107, 61 or 31 of B."""
    for window, compared in ((500, 425), (256, 213), (128, 107), (64, 61), (32, 31)):
        assert products_by_keys(850, 850, 384, 64, window) == 425 * (compared * 64 + 384) + 850 * 384
    assert products_by_keys(850, 850, 384, 64) == products_by_keys(850, 850, 384, 64, WINDOW)


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


@pytest.mark.parametrize("depth", range(1, 41))
def test_the_early_shape_removes_between_the_first_blocks_and_the_last(depth: int) -> None:
    first, last = round(depth / 6), max(depth - max(round(depth / 12), 1), 1)
    schedule = early(10_000, depth, 0.3)
    assert set(schedule[:first]) <= {10_000}
    assert len(set(schedule[last - 1 :])) == 1, "the last blocks hold"
    removed = [before - after for before, after in pairwise((10_000, *schedule))]
    assert min(removed) == 0 or depth < 3
    assert max(removed) < 10_000 * 0.3 or depth < 4, "more than one block removes"


def test_a_shape_by_hand() -> None:
    assert (early_shape(12).first, early_shape(12).last) == (2, 11), "blocks 3 to 11"
    assert Shape(1, 5, start=0, hold=0)(100, 6, 0.4) == (100, 90, 80, 70, 60, 60), "equal steps"
    assert Shape(0, 2, start=2, hold=0)(100, 2, 0.5) == (88, 50), "0.5^2 of 50 are gone after half of the blocks"
    assert Shape(0, 2, start=0, hold=0.5)(1000, 2, 0.5) == (698, 500), "500 (1 - 0.5^(4/3)) = 301.6 are gone"
    assert Shape(1, 2, hold=0)(9, 3, 1.0) == (9, 5, 5), "half of a block at most"
    assert early(100, 12, 0.0) == (100,) * 12
    for wrong in ((-1, 3), (2, 2), (0, 3, -0.1), (0, 3, 1.0, 1.0), (0, 3, 1.0, -0.1)):
        with pytest.raises(InvalidInput, match="is no shape"):
            Shape(*wrong)
    with pytest.raises(InvalidInput, match="does not fit 6 blocks"):
        Shape(0, 7)(100, 6, 0.5)


def test_the_stronger_a_shape_removes_the_earlier_and_the_more_it_holds() -> None:
    def gone(strength: float) -> list[float]:
        schedule = early(10_000, 12, strength)
        return [(10_000 - count) / (10_000 - schedule[-1]) for count in schedule]

    for weak, strong in pairwise([gone(0.2), gone(0.4), gone(0.6)]):
        assert all(less < more for less, more in zip(weak[2:10], strong[2:10], strict=True))


@given(
    patches=st.integers(1, 300),
    first=st.integers(0, 11),
    blocks=st.integers(1, 12),
    start=st.floats(0, 5),
    hold=st.floats(0, 0.95),
    strength=st.floats(0, 1),
)
def test_no_shape_removes_more_than_half_of_a_block(
    patches: int, first: int, blocks: int, start: float, hold: float, strength: float
) -> None:
    schedule = Shape(first, first + blocks, start, hold)(patches, 24, strength)
    check_schedule(schedule, patches, 24, halving=True)
    assert schedule[-1] >= patches * (1 - strength) - 0.5


def test_fewer_steps_by_hand() -> None:
    def given(_patches: int, _depth: int, _strength: float) -> tuple[int, ...]:
        return (100, 90, 80, 70, 60, 60)

    assert Fewer(given, 4)(100, 6, 1.0) == given(100, 6, 1.0)
    assert Fewer(given, 2)(100, 6, 1.0) == (100, 80, 80, 60, 60, 60)
    assert Fewer(given, 3)(100, 6, 1.0) == (100, 90, 80, 60, 60, 60)
    assert Fewer(given, 1)(110, 6, 1.0) == (60,) * 6
    assert Fewer(given, 1)(130, 6, 1.0) == (65,) * 6, "half of a block at most"


@given(patches=st.integers(1, 300), depth=st.integers(1, 24), strength=st.floats(0, 1), steps=st.integers(1, 12))
def test_fewer_steps_are_a_schedule_with_so_many_steps(patches: int, depth: int, strength: float, steps: int) -> None:
    schedule, all_steps = Fewer(early, steps)(patches, depth, strength), early(patches, depth, strength)
    check_schedule(schedule, patches, depth, halving=True)
    counts = [len({patches, *each}) - 1 for each in (schedule, all_steps)]
    assert counts[0] == min(counts[1], steps)
    assert schedule[-1] >= all_steps[-1]


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


@pytest.mark.parametrize("name", ["protected", "protected-dense"])
@pytest.mark.parametrize("on", [replace(TINY, depth=11), replace(TINY, grid=(5, 7), depth=3)])
def test_every_number_of_tokens_within_reach_is_left_exactly(name: str, on: Geometry) -> None:
    """Also by a schedule with few steps, whose numbers have gaps."""
    for ours in (PROGRESSIVE[name], replace(PROGRESSIVE[name], schedule=Fewer(PROGRESSIVE[name].schedule, 2))):
        shapes = dict.fromkeys(ours.scheduled(on, step / STEPS) for step in range(STEPS + 1))
        least = min(shape[-1] for shape in shapes)
        for tokens in range(least, on.patches + 1):
            schedule = ours.extent_leaving(tokens, on).schedule
            check_schedule(schedule, on.patches, on.depth, halving=True)
            assert schedule[-1] == tokens
            if alike := [shape for shape in shapes if shape[-1] == tokens]:
                assert schedule == alike[0], "the gentlest is the first"
        for tokens in (least - 1, on.patches + 1):
            with pytest.raises(ConfigError, match=rf"^{tokens} tokens cannot be left: .* leave {least} at the least.$"):
                ours.extent_leaving(tokens, on)


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
    # With the query of CLS alone: one row of attention, and keys and values of 3 tokens.
    narrow = 2 * 3 * 64 + 2 * 1 * 64 + 2 * 3 * 8 + 8 * 1 * 64
    cost = reducer.cost(Extent(schedule=(2, 2)), replace(on, prefix_queries=True), prefix_only=True)
    assert cost == (first + narrow) / dense


def test_without_rotary_positions_only_the_positions_differ() -> None:
    inside = make_inside(25, 1)
    rotary, learned = (protected(replace(inside, rotary=rotary), 13) for rotary in (True, False))
    assert torch.equal(rotary.tokens, learned.tokens)
    assert torch.equal(rotary.source, learned.source)
    assert (learned.source.gather(1, learned.positions) == torch.arange(13)).all()
