"""The other one-shot reducers: by hand, against naive loops, and what every one-shot promises."""

from math import fsum

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from redi.backbone import Backbone
from redi.grid import Grid
from redi.reduction import DROPPED, ONE_SHOT, Budget, OneShot, Reduction, unreduce
from redi.reduction.oneshot import fuse, pool, pooled_grid, prune

CASES: list[tuple[Grid, Budget]] = [
    ((14, 14), Budget()),
    ((14, 14), Budget(keep=0.25, merge=0.5, cells=3)),
    ((13, 13), Budget(keep=0.3, merge=0.2, cells=1)),
    ((7, 11), Budget()),
    ((7, 11), Budget(keep=0.7, merge=0.0)),
    ((12, 5), Budget(keep=0.6, merge=0.4)),
    ((12, 5), Budget(keep=0.0, merge=0.0, cells=4)),
    ((5, 4), Budget(keep=0.0, merge=0.0, cells=1)),
    ((1, 9), Budget(keep=0.5, merge=0.2, cells=1)),
    ((3, 3), Budget(keep=1.0, merge=0.0)),
]
cases = pytest.mark.parametrize(("grid", "budget"), CASES, ids=str)
NAMES = ["keep-merge-compress", "prune", "fuse", "pool"]
one_shots = pytest.mark.parametrize("reducer", [ONE_SHOT[name] for name in NAMES], ids=NAMES)


def random_case(grid: Grid, seed: int = 0, batch: int = 3) -> tuple[Tensor, Tensor]:
    """Scores of few different values, some of them negative: every rank is decided by a tie."""
    generator = torch.Generator().manual_seed(seed)
    n = grid[0] * grid[1]
    patches = torch.randn(batch, n, 6, generator=generator)
    return patches, torch.randint(-1, 4, (batch, n), generator=generator) / 3


def best_first(scores: Tensor) -> list[int]:
    """The patches of one image: the highest score first, raster order among equal scores."""
    return sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))


def weighted_mean(patches: Tensor, members: list[int], weights: list[float]) -> list[float]:
    return [
        fsum(w * float(patches[i, axis]) for i, w in zip(members, weights, strict=True)) / fsum(weights)
        for axis in range(patches.shape[1])
    ]


def naive_prune(patches: Tensor, scores: Tensor, count: int) -> Reduction:
    kept = set(best_first(scores)[:count])
    tokens: list[list[float]] = []
    positions, source = [], [DROPPED] * len(patches)
    for i in range(len(patches)):
        if i in kept:
            source[i] = len(tokens)
            tokens.append(patches[i].tolist())
            positions.append(i)
    return Reduction(torch.tensor(tokens), torch.tensor(positions), torch.tensor(source))


def naive_fuse(patches: Tensor, scores: Tensor, count: int) -> Reduction:
    """One token fewer than the budget is kept, so that the fused one fits into it."""
    if count == len(patches):
        return naive_prune(patches, scores, count)
    rest = best_first(scores)[count - 1 :]
    omega = [max(float(scores[i]), 0.0) + 1e-4 for i in rest]
    tokens: list[list[float]] = []
    positions, source = [], [count - 1] * len(patches)
    for i in range(len(patches)):
        if i not in rest:
            source[i] = len(tokens)
            tokens.append(patches[i].tolist())
            positions.append(i)
    tokens.append(weighted_mean(patches, rest, omega))
    positions.append(rest[0])
    return Reduction(torch.tensor(tokens), torch.tensor(positions), torch.tensor(source))


def naive_pool(patches: Tensor, grid: Grid, cells: Grid) -> Reduction:
    rows, columns = grid
    tokens: list[list[float]] = []
    positions, source = [], [DROPPED] * len(patches)
    for cell_row in range(cells[0]):
        for cell_column in range(cells[1]):
            down = [r for r in range(rows) if r * cells[0] // rows == cell_row]
            across = [c for c in range(columns) if c * cells[1] // columns == cell_column]
            members = [r * columns + c for r in down for c in across]
            for i in members:
                source[i] = len(tokens)
            tokens.append(weighted_mean(patches, members, [1.0] * len(members)))
            middle = down[(len(down) - 1) // 2], across[(len(across) - 1) // 2]
            positions.append(middle[0] * columns + middle[1])
    return Reduction(torch.tensor(tokens), torch.tensor(positions), torch.tensor(source))


def assert_same(result: Reduction, image: int, expected: Reduction) -> None:
    assert result.positions[image].tolist() == expected.positions.tolist()
    assert result.source[image].tolist() == expected.source.tolist()
    torch.testing.assert_close(result.tokens[image], expected.tokens, atol=1e-5, rtol=1e-5)


def test_prune_by_hand() -> None:
    patches = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    result = prune(patches, torch.tensor([[0.1, 0.9, 0.2, 0.5]]), Budget(0.5, 0.5), (2, 2))
    assert result.tokens.tolist() == [[[2.0], [4.0]]]
    assert result.positions.tolist() == [[1, 3]]
    assert result.source.tolist() == [[DROPPED, 0, DROPPED, 1]]


def test_fuse_by_hand() -> None:
    # Two tokens: patch 1 is kept; of the rest patch 3 scores best and lends its position.
    patches = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    result = fuse(patches, torch.tensor([[0.1, 0.9, -0.2, 0.5]]), Budget(0.5, 0.5), (2, 2))
    a, b, c = 0.1 + 1e-4, 1e-4, 0.5 + 1e-4
    expected = torch.tensor([[[2.0], [(a + 3 * b + 4 * c) / (a + b + c)]]])
    torch.testing.assert_close(result.tokens, expected)
    assert result.positions.tolist() == [[1, 3]]
    assert result.source.tolist() == [[1, 0, 1, 1]]


def test_pool_by_hand() -> None:
    # Four cells of a 4x4 grid; of two middle rows or columns the upper or left one counts.
    patches = torch.arange(16.0).reshape(1, 16, 1)
    budget = Budget(keep=0.0, merge=0.0, cells=2)
    result = pool(patches, torch.zeros(1, 16), budget, (4, 4))
    assert result.tokens.flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert result.positions.tolist() == [[0, 2, 8, 10]]
    assert result.source.reshape(4, 4).tolist() == [[0, 0, 1, 1]] * 2 + [[2, 2, 3, 3]] * 2


@cases
def test_prune_equals_the_naive_loop(grid: Grid, budget: Budget) -> None:
    patches, scores = random_case(grid)
    result = prune(patches, scores, budget, grid)
    for image in range(3):
        count = budget.tokens(grid[0] * grid[1])
        assert_same(result, image, naive_prune(patches[image], scores[image], count))


@cases
def test_fuse_equals_the_naive_loop(grid: Grid, budget: Budget) -> None:
    patches, scores = random_case(grid)
    result = fuse(patches, scores, budget, grid)
    for image in range(3):
        count = budget.tokens(grid[0] * grid[1])
        assert_same(result, image, naive_fuse(patches[image], scores[image], count))


@cases
def test_pool_equals_the_naive_loop(grid: Grid, budget: Budget) -> None:
    patches, scores = random_case(grid)
    result = pool(patches, scores, budget, grid)
    for image in range(3):
        assert_same(result, image, naive_pool(patches[image], grid, pooled_grid(budget, grid)))


def test_pooled_grids_by_hand() -> None:
    assert pooled_grid(Budget(), (14, 14)) == (10, 10)  # 102 tokens: 101 is prime, 102 = 6 x 17
    # 43 tokens: of 6x7 and 7x6 the cells of 7/6 x 11/7 patches are squarer than those of 1 x 11/6.
    assert pooled_grid(Budget(), (7, 11)) == (6, 7)
    assert pooled_grid(Budget(keep=1.0, merge=0.0), (5, 9)) == (5, 9)
    assert pooled_grid(Budget(keep=0.0, merge=0.0, cells=1), (5, 9)) == (1, 1)


@cases
def test_no_other_pooled_grid_is_larger_or_squarer(grid: Grid, budget: Budget) -> None:
    rows, columns = pooled_grid(budget, grid)
    limit = budget.tokens(grid[0] * grid[1])
    assert rows * columns <= limit
    assert 1 <= rows <= grid[0]
    assert 1 <= columns <= grid[1]

    def stretch(r: int, c: int) -> float:
        return abs(grid[0] / r - grid[1] / c) * r * c  # difference of a cell's two sides

    for r in range(1, grid[0] + 1):
        for c in range(1, grid[1] + 1):
            if r * c <= limit:
                assert r * c <= rows * columns
                if r * c == rows * columns:
                    assert stretch(r, c) >= stretch(rows, columns) - 1e-9


@one_shots
@cases
def test_promised_tokens_come_out_and_every_patch_is_accounted_for(
    reducer: OneShot, grid: Grid, budget: Budget
) -> None:
    patches, scores = random_case(grid)
    n = grid[0] * grid[1]
    result = reducer.reduce(patches, scores, budget, grid)
    count = reducer.tokens(budget, grid)
    assert count <= budget.tokens(n)
    assert result.tokens.shape == (3, count, 6)
    assert result.positions.shape == (3, count)
    assert result.source.shape == (3, n)
    assert result.positions.dtype == result.source.dtype == torch.int64
    assert result.source.min() >= DROPPED
    assert result.source.max() < count
    for image in range(3):
        sizes = torch.bincount(result.source[image] + 1, minlength=count + 1)
        dropped = int(sizes[0])
        assert dropped == (n - count if reducer is ONE_SHOT["prune"] else 0)
        assert int(sizes[1:].sum()) == n - dropped
        # Who lends a token its position went into that token, except into that of an empty cell.
        owners = result.source[image, result.positions[image]]
        own = owners == torch.arange(count)
        assert bool((own | (sizes[1:] == 0)).all())


@one_shots
def test_only_scored_reducers_look_at_the_scores(reducer: OneShot) -> None:
    patches, scores = random_case((7, 11))
    result = reducer.reduce(patches, scores, Budget(), (7, 11))
    other = reducer.reduce(patches, scores.flip(1), Budget(), (7, 11))
    assert torch.equal(result.tokens, other.tokens) is not reducer.scored


def test_higher_scores_stay() -> None:
    patches, scores = random_case((7, 11))
    for reduce in (prune, fuse):
        result = reduce(patches, scores, Budget(), (7, 11))
        for image in range(3):
            explicit = result.positions[image, : 43 if reduce is prune else 42]
            assert explicit.tolist() == sorted(explicit.tolist()), "raster order"
            others = torch.ones(77, dtype=torch.bool).index_fill(0, explicit, False)
            assert scores[image, explicit].min() >= scores[image, others].max()


def test_among_equal_scores_the_first_in_raster_order_stay() -> None:
    patches = torch.randn(1, 16, 4)
    budget = Budget(keep=0.25, merge=0.75)
    assert prune(patches, torch.zeros(1, 16), budget, (4, 4)).positions.tolist() == [[0, 1, 2, 3]]
    assert fuse(patches, torch.zeros(1, 16), budget, (4, 4)).positions.tolist() == [[0, 1, 2, 3]]
    assert fuse(patches, torch.zeros(1, 16), budget, (4, 4)).source.tolist() == [[0, 1, 2] + [3] * 13]


def test_pooling_equal_cells_keeps_the_mean() -> None:
    patches, scores = random_case((8, 6))
    result = pool(patches, scores, Budget(keep=0.25, merge=0.75), (8, 6))
    assert result.tokens.shape[1] == 12
    assert set(torch.bincount(result.source[0]).tolist()) == {4}
    torch.testing.assert_close(result.tokens.mean(dim=1), patches.mean(dim=1))


@pytest.mark.parametrize("name", ["fuse", "pool"])
def test_half_precision_is_computed_in_fp32(name: str) -> None:
    patches, scores = random_case((9, 9))
    rough, budget = patches.bfloat16(), Budget(keep=0.0, merge=0.0, cells=3)
    rounded = ONE_SHOT[name].reduce(rough, scores, budget, (9, 9))
    expected = ONE_SHOT[name].reduce(rough.float(), scores, budget, (9, 9))
    assert rounded.tokens.dtype == torch.bfloat16
    assert torch.equal(rounded.tokens, expected.tokens.bfloat16())
    assert torch.equal(rounded.source, expected.source)


@one_shots
def test_permuting_the_batch_permutes_the_result(reducer: OneShot) -> None:
    patches, scores = random_case((7, 11), batch=5)
    order = torch.tensor([3, 0, 4, 2, 1])
    result = reducer.reduce(patches, scores, Budget(), (7, 11))
    permuted = reducer.reduce(patches[order], scores[order], Budget(), (7, 11))
    torch.testing.assert_close(permuted.tokens, result.tokens[order])
    assert torch.equal(permuted.positions, result.positions[order])
    assert torch.equal(permuted.source, result.source[order])


@one_shots
def test_keeping_everything_is_the_dense_encoding_to_the_last_bit(
    reducer: OneShot, backbone: Backbone, pixels: Tensor
) -> None:
    tokens = backbone.embed(pixels)
    reduction = reducer.reduce(tokens.patches, torch.rand(3, 36), Budget(1.0, 0.0), (6, 6))
    assert torch.equal(reduction.source, torch.arange(36).expand(3, -1))
    assert torch.equal(reduction.positions, reduction.source)
    assert torch.equal(backbone.encode(tokens.reduced(reduction)), backbone.encode(tokens))


@one_shots
def test_each_token_carries_the_rotary_position_that_it_names(
    reducer: OneShot, dinov3: Backbone, pixels: Tensor
) -> None:
    tokens = dinov3.embed(pixels)
    assert tokens.rope is not None
    reduction = reducer.reduce(tokens.patches, torch.rand(3, 36), Budget(0.3, 0.3), (6, 6))
    rope = tokens.reduced(reduction).rope
    assert rope is not None
    assert len(torch.cat(tokens.rope, dim=1).unique(dim=0)) == 36, "a wrong position is another one"
    for full, reduced in zip(tokens.rope, rope, strict=True):
        for image in range(3):
            for place, position in enumerate(reduction.positions[image].tolist()):
                assert torch.equal(reduced[image, 0, place], full[position])


def test_unreduce_gives_zero_where_a_patch_was_dropped() -> None:
    patches, scores = random_case((7, 11))
    result = prune(patches, scores, Budget(), (7, 11))
    spread = unreduce(result.tokens, result.source)
    assert spread.shape == patches.shape
    for image in range(3):
        kept = set(result.positions[image].tolist())
        assert len(kept) == 43
        for i in range(77):
            expected = patches[image, i] if i in kept else torch.zeros(6)
            assert torch.equal(spread[image, i], expected)


def test_unreduce_of_dropped_patches_ignores_what_the_first_token_holds() -> None:
    tokens = torch.full((1, 1, 2), torch.nan)
    assert unreduce(tokens, torch.tensor([[DROPPED, DROPPED]])).tolist() == [[[0.0, 0.0]] * 2]


@pytest.mark.compiles
@one_shots
def test_it_is_traced_whole_and_once_for_all_batch_sizes(reducer: OneShot) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(reducer.reduce, fullgraph=True, backend=counter)
    compilations: list[int] = []
    for batch in (3, 3, 2, 5, 4):
        patches, scores = random_case((6, 6), seed=len(compilations), batch=batch)
        result = compiled(patches, scores, Budget(), (6, 6))
        expected = reducer.reduce(patches, scores, Budget(), (6, 6))
        torch.testing.assert_close(result.tokens, expected.tokens)
        assert torch.equal(result.positions, expected.positions)
        assert torch.equal(result.source, expected.source)
        compilations.append(counter.frame_count)
    assert compilations[:2] == [1, 1], "a second batch of the same shape"
    assert compilations[-1] <= 2, "all other batch sizes"


@pytest.mark.parametrize("name", ["prune", "fuse", "pool"])
def test_no_more_tokens_come_out_than_go_in(name: str) -> None:
    """On a 2x2 grid the paper's operator gives 2 + 4 tokens; on 14x14 a keep rate of 0.99 194 + 4."""
    for grid, budget in (((2, 2), Budget()), ((14, 14), Budget(keep=0.99, merge=0.0))):
        n = grid[0] * grid[1]
        assert budget.tokens(n) > n
        patches, scores = torch.randn(2, n, 3), torch.rand(2, n)
        result = ONE_SHOT[name].reduce(patches, scores, budget, grid)
        assert result.tokens.shape[1] == ONE_SHOT[name].tokens(budget, grid) == n
        assert torch.equal(result.tokens, patches)
