"""ALGM and CubistMerge: by hand, against loops over the image's rows and columns, and inside the backbones."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from math import fsum
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from insides import make_inside
from loops import Expected, Vector, cosine, image_of, merged, most_similar
from redi.backbone import Backbone
from redi.cost import Geometry
from redi.errors import InvalidInput
from redi.grid import Grid
from redi.reduction import PROGRESSIVE, Inside, Progressive, Reduction
from redi.reduction.local import LOCAL, algm, cubist, merge_lines, merge_windows
from redi.reduction.schedule import ByGrid, check_schedule, local_then_global, one_block, shrinking_grids

#: Square and not, of even and of odd lengths, with a single window and with none.
GRIDS: list[Grid] = [(6, 6), (4, 7), (5, 5), (7, 4), (3, 3), (2, 2), (5, 2)]

grids = pytest.mark.parametrize("grid", GRIDS)
prefixes = pytest.mark.parametrize("prefix", [1, 5])
steps = pytest.mark.parametrize("reducer", LOCAL.values(), ids=LOCAL)


def on_grid(grid: Grid, prefix: int = 1, block: int = 0, batch: int = 3) -> Inside:
    return replace(make_inside(grid[0] * grid[1], prefix, block, batch), grid=grid)


def assert_as_expected(result: Reduction, expected: list[Expected]) -> None:
    for image, one in enumerate(expected):
        assert result.positions[image].tolist() == one.positions
        assert result.source[image].tolist() == one.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(one.tokens), atol=1e-5, rtol=1e-5)


# ALGM ---------------------------------------------------------------------------------------------


def naive_windows(patches: list[Vector], sizes: Vector, grid: Grid, count: int) -> Expected:
    """The windows of highest mean similarity of their pairs merge; the last one as far as the count allows."""
    rows, columns = grid
    windows = []
    for row, column in product(range(0, rows - 1, 2), range(0, columns - 1, 2)):
        windows.append([(row + a) * columns + column + b for a in (0, 1) for b in (0, 1)])

    def mean_similarity(window: list[int]) -> float:
        return fsum(cosine(patches[i], patches[j]) for i in window for j in window if i != j) / 12

    windows.sort(key=lambda window: -mean_similarity(window))
    groups, left = [], len(patches)
    for window in windows:
        if left > count:
            groups.append(window[: left - count + 1])
            left -= len(groups[-1]) - 1
    inside = [i for group in groups for i in group]
    return merged(patches, sizes, groups + [[i] for i in range(len(patches)) if i not in inside])


def naive_global(patches: list[Vector], sizes: Vector, count: int) -> Expected:
    """ToMe's matching over the states themselves."""
    a_set, b_set = list(range(1, len(patches), 2)), list(range(0, len(patches), 2))
    edges = sorted(((*most_similar(a, b_set, patches), a) for a in a_set), key=lambda edge: -edge[0])
    joins = {a: b for _, b, a in edges[: len(patches) - count]}
    groups = [[a] for a in a_set if a not in joins]
    return merged(patches, sizes, groups + [[b] + [a for a in a_set if joins.get(a) == b] for b in b_set])


@prefixes
@grids
def test_the_first_block_of_algm_equals_the_loop_for_every_count(grid: Grid, prefix: int) -> None:
    inside, patches = on_grid(grid, prefix), grid[0] * grid[1]
    images = [image_of(inside, image) for image in range(3)]
    for count in range(patches - 3 * (grid[0] // 2) * (grid[1] // 2), patches):
        assert_as_expected(algm(inside, count), [naive_windows(x.patches, x.sizes, grid, count) for x in images])


@prefixes
@pytest.mark.parametrize(("n", "count"), [(2, 1), (3, 2), (9, 5), (16, 11), (25, 13)])
def test_a_later_block_of_algm_equals_the_loop(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix, block=1)
    images = [image_of(inside, image) for image in range(3)]
    assert_as_expected(algm(inside, count), [naive_global(x.patches, x.sizes, count) for x in images])


def test_windows_by_hand() -> None:
    # A grid of 2 x 5: the pairs of the left window are at right angles or equal (four of twelve equal), those of the
    # right one are equal. The fifth column is in no window.
    left, right = [[1.0, 0], [0, 2]], [[3.0, 3], [1, 1]]
    patches = torch.tensor([[*left, *right, [7.0, 0], [0, 1], [1, 0], [2, 2], [4, 4], [8, 0]]])
    inside = replace(on_grid((2, 5), batch=1), patches=patches, sizes=torch.tensor([[1.0, 1, 5, 1, 1, 1, 1, 1, 1, 1]]))
    one = merge_windows(inside, 7)
    mean = (5 * 3 + 1 + 2 + 4) / 8
    assert one.tokens[0].tolist() == [[mean, mean], [1, 0], [0, 2], [7, 0], [0, 1], [1, 0], [8, 0]]
    assert one.positions.tolist() == [[2, 0, 1, 4, 5, 6, 9]]
    assert one.source.tolist() == [[1, 2, 0, 0, 3, 4, 5, 0, 0, 6]]
    more = merge_windows(inside, 6)  # the first two tokens of the other window too
    assert more.tokens[0].tolist() == [[mean, mean], [0.5, 1], [7, 0], [0, 1], [1, 0], [8, 0]]
    assert more.source.tolist() == [[1, 1, 0, 0, 2, 3, 4, 0, 0, 5]]


def test_the_order_of_the_tokens_within_windows_does_not_matter() -> None:
    inside = on_grid((4, 4))
    swapped = torch.arange(16).view(2, 2, 2, 2).flip(1).flip(3).flatten()  # the two rows and columns of each window
    other = replace(inside, patches=inside.patches[:, swapped], sizes=inside.sizes[:, swapped])
    for count in (13, 10, 7, 4):
        merging = (16 - count) // 3
        tokens, others = (merge_windows(one, count).tokens[:, :merging] for one in (inside, other))
        torch.testing.assert_close(tokens, others)


def test_the_schedule_of_algm_by_hand() -> None:
    # Shares of 1 - 0.3 / 2: 166.6 and 141.61 of 196. Blocks 1 and 5 of 12, 1 and 7 of 24.
    assert local_then_global((14, 14), 12, 0.3) == (167,) * 4 + (142,) * 8
    assert local_then_global((14, 14), 24, 0.3) == (167,) * 6 + (142,) * 18
    assert local_then_global((14, 14), 12, 1.0) == (98,) * 4 + (49,) * 8
    assert local_then_global((3, 3), 2, 1.0) == (6, 3), "one window"
    assert local_then_global((1, 9), 2, 1.0) == (9, 5), "no window"
    assert local_then_global((4, 4), 1, 1.0) == (8,)


# CubistMerge --------------------------------------------------------------------------------------


class Cell:
    """A token of the grid: its value, the patch whose place it has, and its patches."""

    def __init__(self, value: Vector, place: int) -> None:
        self.value, self.place, self.patches = value, place, [place]

    def take(self, other: "Cell") -> None:
        self.value = [b if abs(b) > abs(a) else a for a, b in zip(self.value, other.value, strict=True)]
        self.patches += other.patches


def naive_line(line: list[Cell], remove: int) -> list[Cell]:
    """The best edges of the second, fourth, ... token to one of its neighbours."""
    edges = []
    for i in range(1, len(line), 2):
        neighbours = [j for j in (i - 1, i + 1) if j < len(line)]
        similarity, best = most_similar(i, neighbours, [cell.value for cell in line])
        edges.append((similarity, i, best))
    edges.sort(key=lambda edge: -edge[0])
    gone = [i for _, i, _ in edges[:remove]]
    for _, i, best in edges[:remove]:
        line[best].take(line[i])
    return [cell for i, cell in enumerate(line) if i not in gone]


def naive_cubist(patches: list[Vector], grid: Grid, target: Grid) -> Expected:
    rows, columns = grid
    cells = [[Cell(patches[row * columns + column], row * columns + column) for column in range(columns)]
             for row in range(rows)]  # fmt: skip
    cells = [naive_line(row, columns - target[1]) for row in cells]
    turned = [naive_line([*column], rows - target[0]) for column in zip(*cells, strict=True)]
    flat = [cell for row in zip(*turned, strict=True) for cell in row]
    source = [next(place for place, cell in enumerate(flat) if patch in cell.patches) for patch in range(len(patches))]
    return Expected([cell.value for cell in flat], [cell.place for cell in flat], source)


@prefixes
@grids
def test_cubist_equals_the_loop_for_every_grid_that_it_can_leave(grid: Grid, prefix: int) -> None:
    inside = on_grid(grid, prefix)
    images = [image_of(inside, image) for image in range(3)]
    for target in shrinking_grids(grid)[1:]:
        if 2 * target[0] >= grid[0] and 2 * target[1] >= grid[1]:
            result = cubist(inside, target[0] * target[1])
            assert_as_expected(result, [naive_cubist(x.patches, grid, target) for x in images])


def test_a_line_by_hand() -> None:
    # The second token is nearest to the third, the fourth to the third: all three merge. The fifth and the sixth are
    # at a right angle.
    line = torch.tensor([[1.0, -9], [2, 2], [3, 3], [-3.5, -1], [0, 1], [1, 0]])[None, None]
    line[0, 0, 3] *= -1
    one, kept, place = merge_lines(line, 1)
    assert one[0, 0].tolist() == [[1, -9], [3, 3], [3.5, 1], [0, 1], [1, 0]]
    assert kept.flatten().tolist() == [0, 2, 3, 4, 5]
    assert place.flatten().tolist() == [0, 1, 1, 2, 3, 4]
    two, kept, place = merge_lines(line, 2)
    assert two[0, 0].tolist() == [[1, -9], [3.5, 3], [0, 1], [1, 0]]
    assert kept.flatten().tolist() == [0, 2, 4, 5]
    assert place.flatten().tolist() == [0, 1, 1, 1, 2, 3]
    three, _, place = merge_lines(line, 3)
    assert three[0, 0].tolist() == [[1, -9], [3.5, 3], [1, 1]]
    assert place.flatten().tolist() == [0, 1, 1, 1, 2, 2], "the last token has one neighbour"


def test_the_value_of_greatest_magnitude_keeps_its_sign() -> None:
    inside = on_grid((6, 6))
    result = cubist(inside, 16)
    opposite = cubist(replace(inside, patches=-inside.patches), 16)
    assert torch.equal(opposite.tokens, -result.tokens)
    assert torch.equal(opposite.source, result.source)
    for image, place in product(range(3), range(16)):
        members = inside.patches[image][result.source[image] == place]
        assert torch.equal(result.tokens[image, place].abs(), members.abs().amax(dim=0))


def test_two_steps_keep_the_grid_that_the_schedule_says(dinov3: Backbone, pixels: Tensor) -> None:
    result = dinov3.encode_progressively(dinov3.embed(pixels), PROGRESSIVE["cubist"], (30, 30, 20))
    assert result.hidden.shape[1] == dinov3.prefix + 20
    assert torch.equal(result.sizes.sum(dim=1), torch.full((3,), 36.0))
    first = cubist(on_grid((6, 6)), 30)  # 6 x 5, then 5 x 4
    again = replace(make_inside(30, 1), patches=first.tokens, grid=(6, 6))
    images = [image_of(again, image) for image in range(3)]
    assert_as_expected(cubist(again, 20), [naive_cubist(x.patches, (6, 5), (5, 4)) for x in images])


def test_a_grid_keeps_its_shape_as_it_shrinks() -> None:
    assert shrinking_grids((3, 3)) == [(3, 3), (3, 2), (2, 2), (2, 1), (1, 1)]
    assert shrinking_grids((2, 5)) == [(2, 5), (2, 4), (1, 4), (1, 3), (1, 2), (1, 1)]
    assert shrinking_grids((4, 1)) == [(4, 1), (3, 1), (2, 1), (1, 1)]


def test_the_schedule_of_cubist_by_hand() -> None:
    # Block 2 of 12; 14 lines can go, each between two strengths in up to ten steps from the last block to the third.
    assert one_block((14, 14), 12, 3 / 14) == (196,) + (156,) * 11
    assert one_block((14, 14), 12, 3 / 14 + 1 / 154 + 1e-9) == (196,) + (156,) * 10 + (144,)
    assert one_block((14, 14), 12, 4 / 14 - 1e-9) == (196, 156) + (144,) * 10
    assert one_block((14, 14), 12, 1.0) == (196,) + (49,) * 11
    assert one_block((2, 5), 1, 1.0) == (3,)


def test_the_cosines_of_neighbours_are_the_products_of_cubist() -> None:
    """14 rows of 13 pairs, then 11 columns of 13 pairs; the reducer counts 196 pairs twice."""
    counted = (14 * 13 + 11 * 13) * 192
    assert counted <= PROGRESSIVE["cubist"].products(196, 121, 192, 64) == 2 * 196 * 192
    assert PROGRESSIVE["cubist"].products(196, 121, 192, 64) < 1e-4 * Geometry((14, 14), 1, 192, 64, 12).dense


# Both ---------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 20), columns=st.integers(1, 20), depth=st.integers(1, 30), strength=st.floats(0, 1))
def test_every_schedule_can_be_followed(rows: int, columns: int, depth: int, strength: float) -> None:
    grid = (rows, columns)
    for reducer in LOCAL.values():
        assert isinstance(reducer.schedule, ByGrid)
        schedule = reducer.schedule.on_grid(grid, depth, strength)
        check_schedule(schedule, rows * columns, depth, reducer.halving)
        assert reducer.schedule.on_grid(grid, depth, 0.0) == (rows * columns,) * depth
        for block, (before, after) in enumerate(pairwise((rows * columns, *schedule))):
            if after < before:
                inside = replace(make_inside(before, 1, block, batch=1), grid=grid)
                assert reducer.step(inside, after).tokens.shape[1] == after


@pytest.mark.parametrize("schedule", [local_then_global, one_block])
@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    depth=st.integers(1, 30),
    steps=st.tuples(*[st.floats(0, 1)] * 2),
)
def test_more_strength_never_leaves_more(
    schedule: Callable[[Grid, int, float], tuple[int, ...]],
    rows: int,
    columns: int,
    depth: int,
    steps: tuple[float, float],
) -> None:
    weak, strong = (schedule((rows, columns), depth, strength) for strength in sorted(steps))
    assert all(left <= right for left, right in zip(strong, weak, strict=True))


@steps
def test_a_number_of_patches_means_the_squarest_grid(reducer: Progressive) -> None:
    assert isinstance(reducer.schedule, ByGrid)
    assert reducer.schedule(196, 12, 0.4) == reducer.schedule.on_grid((14, 14), 12, 0.4)
    assert reducer.schedule(28, 12, 0.4) == reducer.schedule.on_grid((4, 7), 12, 0.4)
    wide = Geometry((2, 14), 1, 32, 8, 12)
    assert reducer.scheduled(wide, 0.4) == reducer.schedule.on_grid((2, 14), 12, 0.4)
    assert all(extent.schedule in {reducer.scheduled(wide, k / 4000) for k in range(4001)}
               for _, extent in reducer.costs(wide, reducer.extent_for_tokens(9, wide)))  # fmt: skip


@steps
@pytest.mark.parametrize("size", [(48, 48), (40, 56)])
def test_they_run_in_every_backbone_on_every_grid(
    reducer: Progressive, size: tuple[int, int], backbone: Backbone
) -> None:
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3))
    tokens = backbone.embed(pixels)
    rows, columns = size[0] // 8, size[1] // 8
    assert tokens.grid == (rows, columns)
    schedule = reducer.scheduled(replace(backbone.geometry, grid=(rows, columns)), 0.7)
    assert schedule[-1] < rows * columns
    result = backbone.encode_progressively(tokens, reducer, schedule)
    assert torch.equal(result.sizes.sum(dim=1), torch.full((2,), float(rows * columns)))
    alone = backbone.encode_progressively(backbone.embed(pixels[:1]), reducer, schedule)
    torch.testing.assert_close(result.hidden[:1], alone.hidden, atol=1e-5, rtol=1e-5)


@steps
@pytest.mark.parametrize("block", [0, 1])
def test_half_precision_is_compared_and_merged_in_fp32(reducer: Progressive, block: int) -> None:
    inside = on_grid((6, 6), block=block)
    rough = replace(inside, patches=inside.patches.bfloat16())
    expected = reducer.step(replace(rough, patches=rough.patches.float()), 20)
    result = reducer.step(rough, 20)
    assert torch.equal(result.tokens, expected.tokens.bfloat16())
    assert torch.equal(result.source, expected.source)


@steps
@pytest.mark.parametrize("block", [0, 1])
def test_who_lends_a_token_its_position_went_into_it_and_a_token_alone_is_unchanged(
    reducer: Progressive, block: int
) -> None:
    inside = on_grid((6, 6), prefix=5, block=block)
    result = reducer.step(inside, 25)
    assert torch.equal(result.source.gather(1, result.positions), torch.arange(25).expand(3, -1))
    for image, place in product(range(3), range(25)):
        if int((result.source[image] == place).sum()) == 1:
            assert torch.equal(result.tokens[image, place], inside.patches[image, result.positions[image, place]])


def test_what_cannot_be_done_is_refused() -> None:
    inside = on_grid((3, 4))
    with pytest.raises(InvalidInput, match="2 windows of 2x2 can lose 6 tokens, but not 7"):
        algm(inside, 5)
    with pytest.raises(InvalidInput, match=r"3x4 grid without some rows and columns cannot have 8 tokens.* is 6"):
        cubist(inside, 8)
    with pytest.raises(InvalidInput, match="from 3x4 to 1x2 removes more than half"):
        cubist(inside, 2)
    with pytest.raises(InvalidInput, match="12 patches, but there are 9"):
        algm(replace(make_inside(9, 1), grid=(3, 4)), 8)
    for step in (algm, cubist):
        with pytest.raises(InvalidInput, match="needs the patch grid"):
            step(make_inside(9, 1), 6)


@pytest.mark.compiles
@steps
def test_it_is_traced_whole_and_once_for_all_batch_sizes(reducer: Progressive, dinov3: Backbone) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    encode: Callable[..., Any] = torch.compile(dinov3.encode_progressively, fullgraph=True, backend=counter)
    for batch in (3, 2, 5):
        tokens = dinov3.embed(torch.randn(batch, 3, 48, 48))
        expected = dinov3.encode_progressively(tokens, reducer, (30, 30, 20))
        torch.testing.assert_close(encode(tokens, reducer, (30, 30, 20)).hidden, expected.hidden)
    assert counter.frame_count <= 2
