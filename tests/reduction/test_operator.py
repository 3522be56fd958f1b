"""The keep / merge / compress operator: by hand, against a naive loop, and its invariances."""

from math import hypot, sqrt

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from redi.errors import InvalidInput
from redi.reduction import Budget, Reduction, reduce, unreduce

GRIDS = [(14, 14), (16, 16), (13, 13), (7, 11), (12, 5), (1, 9), (3, 3)]
BUDGETS = [
    Budget(),
    Budget(keep=0.25, merge=0.5, cells=3),
    Budget(keep=0.7, merge=0.0),
    Budget(keep=0.6, merge=0.4),
    Budget(keep=0.0, merge=0.0, cells=4),
    Budget(keep=0.3, merge=0.2, cells=1, spatial=2.0),
]


def random_case(grid: tuple[int, int], seed: int = 0, batch: int = 3) -> tuple[Tensor, Tensor]:
    """Scores with many exact zeros, as TF-IDF maps have."""
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(batch, grid[0] * grid[1], 6, generator=generator)
    scores = (torch.rand(batch, grid[0] * grid[1], generator=generator) - 0.4).clamp(min=0)
    return patches, scores


def naive_reduce(x: Tensor, s: Tensor, budget: Budget, grid: tuple[int, int]) -> Reduction:
    """One image, patch by patch, from the paper's text."""
    rows, columns = grid
    n = rows * columns
    n_keep = int(budget.keep * n + 0.5)
    n_merge = min(int(budget.merge * n + 0.5), n - n_keep)
    ranking = sorted(range(n), key=lambda i: (-float(s[i]), i))
    keep, merge = sorted(ranking[:n_keep]), ranking[n_keep : n_keep + n_merge]
    compress = ranking[n_keep + n_merge :]
    omega = [max(float(s[i]), 0) + 1e-4 for i in range(n)]
    source = [-1] * n
    numerator = {r: x[r].double() for r in keep}
    denominator = dict.fromkeys(keep, 1.0)
    for place, r in enumerate(keep):
        source[r] = place
    for i in merge:
        best, best_value = -1, -float("inf")
        for r in keep:
            distance = hypot(i // columns - r // columns, i % columns - r % columns)
            rho = 1 - distance / (hypot(rows - 1, columns - 1) or 1)
            cosine = float(torch.cosine_similarity(x[i].double(), x[r].double(), dim=0))
            if cosine + budget.spatial * rho > best_value + 1e-9:
                best, best_value = r, cosine + budget.spatial * rho
        numerator[best] = numerator[best] + omega[i] * x[i].double()
        denominator[best] += omega[i]
        source[i] = keep.index(best)
    tokens = [numerator[r] / denominator[r] for r in keep]
    positions = list(keep)
    if compress:
        cell = {
            i: (i // columns * budget.cells // rows) * budget.cells + (i % columns * budget.cells // columns)
            for i in compress
        }
        for c in range(budget.cells**2):
            members = [i for i in compress if cell[i] == c] or compress
            weight = sum(omega[i] for i in members)
            tokens.append(sum((omega[i] * x[i].double() for i in members), 0 * x[0]) / weight)
            positions.append(members[0])  # compress is ranked: its first is its highest scoring
        for i in compress:
            source[i] = n_keep + cell[i]
    return Reduction(torch.stack(tokens).float(), torch.tensor(positions), torch.tensor(source))


def test_by_hand_on_a_2x2_grid() -> None:
    # Keep patch 3, merge patch 0 into it, compress 1 and 2 into one cell.
    patches = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [4.0, 0.0], [0.0, 1.0]]])
    scores = torch.tensor([[0.5, 0.1, 0.2, 1.0]])
    result = reduce(patches, scores, Budget(keep=0.25, merge=0.25, cells=1))
    omega = 0.5 + 1e-4
    kept = torch.tensor([omega, 1.0]) / (1 + omega)
    a, b = 0.1 + 1e-4, 0.2 + 1e-4
    summary = torch.tensor([4 * b, 2 * a]) / (a + b)
    torch.testing.assert_close(result.tokens, torch.stack([kept, summary])[None])
    assert result.positions.tolist() == [[3, 2]]
    assert result.source.tolist() == [[0, 1, 1, 0]]


def test_destination_weighs_similarity_against_distance() -> None:
    # On a 1x5 grid patch 1 merges into patch 0 (near, cosine 0) or patch 4 (far, cosine c). rho is
    # 3/4 for the one and 1/4 for the other, so the near one has a lead of 0.30 x 0.5 = 0.15.
    scores = torch.tensor([[1.0, 0.5, 0.1, 0.1, 1.0]])
    for cosine, expected in ((0.14, 0), (0.16, 4)):
        far = [cosine, sqrt(1 - cosine**2)]
        patches = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], far]])
        result = reduce(patches, scores, Budget(keep=0.4, merge=0.2), grid=(1, 5))
        assert result.positions[0, result.source[0, 1]] == expected


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_equals_the_naive_loop(grid: tuple[int, int], budget: Budget) -> None:
    patches, scores = random_case(grid)
    result = reduce(patches, scores, budget, grid)
    for image in range(len(patches)):
        expected = naive_reduce(patches[image], scores[image], budget, grid)
        torch.testing.assert_close(result.tokens[image], expected.tokens, atol=1e-5, rtol=1e-5)
        assert torch.equal(result.positions[image], expected.positions)
        assert torch.equal(result.source[image], expected.source)


def test_the_papers_budget_gives_98_49_49_and_102_tokens() -> None:
    patches, scores = random_case((14, 14))
    assert Budget().counts(196) == (98, 49, 49)
    result = reduce(patches, scores)
    assert result.tokens.shape == (3, 102, 6)
    assert result.positions.dtype == result.source.dtype == torch.int64
    for image in range(3):
        kept = result.positions[image, :98]
        roles = torch.zeros(196, dtype=torch.int64)  # 0 merged
        roles[kept] = 1
        roles[result.source[image] >= 98] = 2
        assert torch.bincount(roles).tolist() == [49, 98, 49]
        assert torch.equal(result.source[image, kept], torch.arange(98)), "a kept patch is its own"


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    keep=st.floats(0, 1),
    share=st.floats(0, 1),
    cells=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_properties(rows: int, columns: int, keep: float, share: float, cells: int, seed: int) -> None:
    merge = share * (1 - keep) * 0.999
    n = rows * columns
    try:
        budget = Budget(keep, merge, cells)
        n_keep, n_merge, n_compress = budget.counts(n)
    except InvalidInput as error:
        assert "merge into" in str(error)  # noqa: PT017 - only this refusal is expected
        return
    assert n_keep + n_merge + n_compress == n
    patches, scores = random_case((rows, columns), seed)
    result = reduce(patches, scores, budget, (rows, columns))
    tokens = budget.tokens(n)
    assert result.tokens.shape[1] == result.positions.shape[1] == tokens
    assert tokens == n_keep + (cells**2 if n_compress else 0)
    kept = result.positions[:, :n_keep]
    assert torch.equal(kept, kept.sort(dim=1).values), "kept tokens are in raster order"
    assert result.source.min() >= 0
    assert result.source.max() < tokens
    for image in range(len(patches)):
        lowest_kept = scores[image, kept[image]].min() if n_keep else torch.tensor(torch.inf)
        others = torch.ones(n, dtype=torch.bool)
        others[kept[image]] = False
        assert (scores[image, others] <= lowest_kept).all()
        # A kept patch is its own source, a merged one some kept patch's, a compressed one its cell's.
        assert torch.equal(result.source[image, kept[image]], torch.arange(n_keep))
        compressed = (result.source[image] >= n_keep).nonzero().flatten()
        assert len(compressed) == n_compress
        cells_of = (compressed // columns * cells // rows) * cells + compressed % columns * cells // columns
        assert torch.equal(result.source[image, compressed], n_keep + cells_of)
    # Every output token is a convex combination of patches.
    assert result.tokens.amax() <= patches.amax() + 1e-5
    assert result.tokens.amin() >= patches.amin() - 1e-5


def test_ties_keep_raster_order() -> None:
    result = reduce(torch.randn(1, 16, 4), torch.zeros(1, 16))
    assert result.positions[0, :8].tolist() == list(range(8))
    assert (result.source[0, 8:12] < 8).all(), "the next in raster order merge"
    assert (result.source[0, 12:] >= 8).all(), "the last are compressed"


def test_equal_destinations_give_the_lowest_patch_index() -> None:
    # Patch 4 in the middle of a 3x3 grid, four equal corners kept.
    patches = torch.ones(1, 9, 2)
    scores = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.0]])
    result = reduce(patches, scores, Budget(keep=4 / 9, merge=1 / 9))
    assert result.positions[0, result.source[0, 4]] == 0


def test_empty_cell_summarises_the_whole_compress_set() -> None:
    # The lowest scores all lie in the top left cell of a 4x4 grid.
    scores = torch.ones(1, 16)
    members = [0, 1, 4, 5]
    scores[0, members] = torch.tensor([0.1, 0.3, 0.2, 0.0])
    patches = torch.randn(1, 16, 3)
    result = reduce(patches, scores, Budget(keep=0.75, merge=0.0))
    summaries = result.tokens[0, 12:]
    for summary in summaries[1:]:
        torch.testing.assert_close(summary, summaries[0])
    assert result.positions[0, 12:].tolist() == [1, 1, 1, 1]
    assert set(result.source[0, members].tolist()) == {12}, "an empty cell is nobody's source"


def test_keeping_everything_is_the_identity() -> None:
    patches, scores = random_case((7, 11))
    result = reduce(patches, scores, Budget(keep=1.0, merge=0.0), (7, 11))
    assert torch.equal(result.tokens, patches)
    assert torch.equal(result.positions, torch.arange(77).expand(3, -1))
    assert torch.equal(result.source, result.positions)


def test_a_batch_equals_its_images_one_at_a_time() -> None:
    patches, scores = random_case((14, 14), batch=5)
    together = reduce(patches, scores)
    for image in range(5):
        alone = reduce(patches[image : image + 1], scores[image : image + 1])
        torch.testing.assert_close(together.tokens[image], alone.tokens[0])
        assert torch.equal(together.positions[image], alone.positions[0])
        assert torch.equal(together.source[image], alone.source[0])


def test_budgets_round_half_up_and_merge_yields() -> None:
    assert Budget(0.5, 0.5).counts(13 * 13) == (85, 84, 0)  # 84.5 and 84.5
    assert Budget(0.5, 0.25).counts(13 * 13) == (85, 42, 42)
    assert Budget(0.29, 0.0).counts(50)[0] == 15  # 14.5, which binary floats make 14.4999
    assert Budget(0.7, 0.3).counts(10) == (7, 3, 0)


def test_unreduce_gives_every_patch_the_token_it_went_into() -> None:
    patches, scores = random_case((7, 11))
    result = reduce(patches, scores, grid=(7, 11))
    spread = unreduce(result.tokens, result.source)
    assert spread.shape == patches.shape
    for image in range(3):
        for patch in range(77):
            token = result.tokens[image, result.source[image, patch]]
            assert torch.equal(spread[image, patch], token)
    whole = reduce(patches, scores, Budget(1.0, 0.0), (7, 11))
    assert torch.equal(unreduce(whole.tokens, whole.source), patches)


def test_negative_scores_weigh_as_little_as_zero() -> None:
    patches, scores = random_case((4, 4))
    negative = torch.where(scores == 0, -scores - 0.7, scores)
    order = negative.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(order, scores.argsort(dim=1, descending=True, stable=True))
    torch.testing.assert_close(reduce(patches, negative).tokens, reduce(patches, scores).tokens)


def test_half_precision_scores_and_patches_are_computed_in_fp32() -> None:
    patches, scores = random_case((14, 14))
    exact = reduce(patches, scores.half().float())
    assert torch.equal(reduce(patches, scores.half()).tokens, exact.tokens)
    rounded = reduce(patches.bfloat16(), scores)
    assert rounded.tokens.dtype == torch.bfloat16
    expected = reduce(patches.bfloat16().float(), scores)
    assert torch.equal(rounded.source, expected.source)
    assert torch.equal(rounded.tokens, expected.tokens.bfloat16())


@pytest.mark.compiles
def test_it_compiles_without_a_graph_break() -> None:
    from redi.reduction import keep_merge_compress

    patches, scores = random_case((6, 6))
    compiled = torch.compile(keep_merge_compress, fullgraph=True, backend="aot_eager")
    expected = reduce(patches, scores)
    result = compiled(patches, scores, Budget(), (6, 6))
    torch.testing.assert_close(result.tokens, expected.tokens)
    assert torch.equal(result.source, expected.source)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("keep", "merge", "cells", "message"),
    [
        (0.8, 0.3, 2, "at most 1"),
        (0.0, 0.5, 2, "no patch to merge into"),
        (-0.1, 0.5, 2, "fractions"),
        (float("nan"), 0.0, 2, "fractions"),
        (0.5, 0.25, 0, "must lie in 1 to 1,024"),
        (0.5, 0.25, 2.0, "type int"),
    ],
)
def test_impossible_budgets_are_refused(keep: float, merge: float, cells: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Budget(keep, merge, cells)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    patches, scores = random_case((4, 4))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="Scores must be finite"):
            reduce(patches, scores.index_fill(1, torch.tensor([3]), bad))
    with pytest.raises(InvalidInput, match="do not form a square grid"):
        reduce(patches[:, :15], scores[:, :15])
    with pytest.raises(InvalidInput, match="grid 3x5 has 15 patches, but there are 16"):
        reduce(patches, scores, grid=(3, 5))
    with pytest.raises(InvalidInput, match="scores for"):
        reduce(patches, scores[:, :9])
    with pytest.raises(InvalidInput, match="Patches must be"):
        reduce(patches[0], scores)
    with pytest.raises(InvalidInput, match="floating point"):
        reduce(patches, scores.long())
    with pytest.raises(InvalidInput, match="rounds to none"):
        reduce(patches, scores, Budget(0.01, 0.5))
    with pytest.raises(InvalidInput, match="Patches must be floating point"):
        reduce(patches.long(), scores)
    for grid in (4, (4, 2, 2), (4.0, 4.0)):
        with pytest.raises(InvalidInput, match=r"must be \(rows, columns\)"):
            reduce(patches, scores, grid=grid)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="do not count prefix tokens"):
        unreduce(patches[:, :3], torch.full((3, 16), 5))
    with pytest.raises(InvalidInput, match="do not count prefix tokens"):
        unreduce(patches, torch.full((3, 16), -2))
    with pytest.raises(InvalidInput, match="must be integers"):
        unreduce(patches, torch.zeros(3, 16))
    with pytest.raises(InvalidInput, match="tokens of 3 images, but sources of 1"):
        unreduce(patches, torch.zeros(1, 16, dtype=torch.int64))
