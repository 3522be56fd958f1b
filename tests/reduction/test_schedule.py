"""Schedules: the peers' shapes against loops from their papers, and what every schedule promises."""

from collections.abc import Callable
from itertools import pairwise
from math import ceil, floor

import pytest
from hypothesis import given, strategies as st

from redi.errors import InvalidInput
from redi.reduction import PROGRESSIVE, Schedule
from redi.reduction.schedule import check_schedule, constant, ratio, thrice

Shape = Callable[[int, int, float], Schedule]
SHAPES: list[Shape] = [constant, ratio, thrice]

geometry = {"patches": st.integers(1, 300), "depth": st.integers(1, 40), "strength": st.floats(0, 1)}


def removed(patches: int, schedule: Schedule) -> list[int]:
    return [before - after for before, after in pairwise((patches, *schedule))]


def test_constant_by_hand() -> None:
    # ToMe's r = 8 on a ViT of 12 blocks and 196 patches: 12 x 8 of 196 are removed in the end.
    expected = (188, 180, 172, 164, 156, 148, 140, 132, 124, 116, 108, 100)
    assert constant(196, 12, 96 / 196) == expected


def test_ratio_by_hand() -> None:
    assert ratio(64, 6, 1.0) == (32, 16, 8, 4, 2, 1)
    assert ratio(100, 3, 0.2) == (90, 81, 73)  # 72.9
    assert ratio(9, 5, 1.0) == (5, 3, 2, 1, 1), "of an odd number the larger half stays"


def test_thrice_by_hand() -> None:
    # EViT's keep rate of 0.7 at blocks 4, 7 and 10: 137.2, 96.04 and 67.2 of 196 patches.
    assert thrice(196, 12, 0.3) == (196,) * 3 + (137,) * 3 + (96,) * 3 + (67,) * 3


@pytest.mark.parametrize("patches", [1, 2, 36, 37, 196, 256])
@pytest.mark.parametrize("depth", [1, 2, 3, 12, 24])
def test_a_whole_r_is_the_loop_of_ToMe(patches: int, depth: int) -> None:
    """r tokens go in every block, or half of them where there are fewer than 2r."""
    for r in range(patches // depth + 1):
        left, expected = patches, []
        for _ in range(depth):
            left -= min(r, left // 2)
            expected.append(left)
        assert constant(patches, depth, r * depth / patches) == tuple(expected)


@given(**geometry)
def test_constant_steps_differ_by_at_most_one(patches: int, depth: int, strength: float) -> None:
    schedule = constant(patches, depth, strength)
    r = strength * patches / depth
    steps = removed(patches, schedule)
    free = [
        step
        for step, before in zip(steps, (patches, *schedule), strict=False)
        if step < before // 2  # not held back by the half
    ]
    assert all(floor(r - 1e-9) <= step <= ceil(r + 1e-9) for step in free)
    assert max(steps) <= ceil(r + 1e-9), "what the half held back is not made up for later"
    if len(free) == depth:
        assert abs(schedule[-1] - patches * (1 - strength)) <= 0.5 + 1e-9


@given(**geometry)
def test_ratio_leaves_the_same_share_of_every_block(patches: int, depth: int, strength: float) -> None:
    schedule = ratio(patches, depth, strength)
    share = 1 - strength / 2
    for before, after in pairwise((patches, *schedule)):
        # Both counts are rounded: the one before by a half at most, the one after by as much.
        assert abs(after - share * before) <= 1 + 1e-9
    unlimited = all(2 * after > before + 1 for before, after in pairwise((patches, *schedule)))
    if unlimited:
        assert abs(schedule[-1] - patches * share**depth) <= 0.5 + 1e-9


@given(**geometry)
def test_no_matching_schedule_removes_more_than_half_of_a_blocks_tokens(
    patches: int, depth: int, strength: float
) -> None:
    for shape in (constant, ratio):
        schedule = shape(patches, depth, strength)
        assert all(2 * after >= before for before, after in pairwise((patches, *schedule)))


@given(**geometry)
def test_every_schedule_passes_the_check(patches: int, depth: int, strength: float) -> None:
    for shape in SHAPES:
        schedule = shape(patches, depth, strength)
        assert all(isinstance(count, int) for count in schedule)
        check_schedule(schedule, patches, depth)


@given(patches=st.integers(1, 300), depth=st.integers(1, 40))
def test_strength_zero_removes_nothing(patches: int, depth: int) -> None:
    for shape in SHAPES:
        assert shape(patches, depth, 0.0) == (patches,) * depth


@given(**geometry, more=st.floats(0, 1))
def test_more_strength_never_leaves_more(patches: int, depth: int, strength: float, more: float) -> None:
    weak, strong = sorted((strength, more))
    for shape in SHAPES:
        pairs = zip(shape(patches, depth, strong), shape(patches, depth, weak), strict=True)
        assert all(left <= right for left, right in pairs)


@pytest.mark.parametrize("depth", [4, 6, 8, 12, 24, 32, 40])
def test_thrice_removes_at_three_quarters_of_the_depth(depth: int) -> None:
    steps = removed(1000, thrice(1000, depth, 0.5))
    at = [block for block, step in enumerate(steps) if step]
    assert len(at) == 3
    for block, place in zip(at, (1 / 4, 2 / 4, 3 / 4), strict=True):
        assert abs(block - place * depth) <= 0.5


def test_thrice_removes_at_blocks_4_7_and_10_of_12() -> None:
    for strength in (0.01, 0.3, 0.5, 0.8):
        steps = removed(1000, thrice(1000, 12, strength))
        assert [block + 1 for block, step in enumerate(steps) if step] == [4, 7, 10]


def test_each_reducer_comes_with_the_schedule_of_its_paper() -> None:
    assert PROGRESSIVE["tome"].schedule is constant
    assert PROGRESSIVE["pitome"].schedule is ratio
    assert PROGRESSIVE["evit"].schedule is thrice


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ((30, 20), "for each of 3 blocks"),
        ((30, 20, 10, 5), "for each of 3 blocks"),
        ((), "for each of 3 blocks"),
        ((37, 20, 10), "must never grow from 36"),
        ((30, 31, 10), "must never grow from 36"),
        ((30, 20, 0), "below 1"),
        ((30, -1, -1), "below 1"),
    ],
)
def test_bad_schedules_are_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_schedule(schedule, 36, 3)


@pytest.mark.parametrize("schedule", [(36, 36, 36), (36, 20, 20), (18, 9, 5), (1, 1, 1)])
def test_good_schedules_are_not_refused(schedule: Schedule) -> None:
    check_schedule(schedule, 36, 3)


def test_matching_can_halve_a_block_at_most() -> None:
    check_schedule((18, 9, 5), 36, 3, halving=True)
    check_schedule((10, 9, 5), 36, 3)
    with pytest.raises(InvalidInput, match="at most halve the tokens"):
        check_schedule((17, 9, 5), 36, 3, halving=True)
