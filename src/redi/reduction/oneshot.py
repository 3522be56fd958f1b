"""One-shot reducers other than the paper's: the same signature, the same promise.

Each takes ``(patches, scores, budget, grid)`` and shortens the sequence at one place. It promises
``budget.tokens(n)`` tokens, as many as the paper's operator would give, so that rows compare at
equal tokens; grid pooling gives the largest grid that is no longer. None looks at the values of
tensors in Python, so all of them compile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from redi.errors import InvalidInput
from redi.grid import Grid
from redi.reduction.budget import Budget
from redi.reduction.operator import OFFSET, keep_merge_compress
from redi.reduction.result import Reduction, places, take

#: The paper's own.
OPERATOR = "keep-merge-compress"
#: The one reducer that the package cannot make alone: its words come from a corpus.
WORD_MERGING = "word-merging"
#: Words that its cost is reckoned with: the paper's vocabulary.
WORDS = 512

Patches = Float[Tensor, "batch patches dim"]
Scores = Float[Tensor, "batch patches"]


@dataclass(frozen=True)
class OneShot:
    """A reducer that shortens the sequence once, before block 1 or after any block."""

    reduce: Callable[[Patches, Scores, Budget, Grid], Reduction]
    #: Patch tokens that come out.
    tokens: Callable[[Budget, Grid], int] = lambda budget, grid: tokens_of(
        budget, grid[0] * grid[1]
    )
    #: Multiply-adds of its own matrix products: (budget, grid, width).
    products: Callable[[Budget, Grid, int], int] = lambda budget, grid, width: 0
    scored: bool = True  # whether it looks at the scores


def tokens_of(budget: Budget, patches: int) -> int:
    """As many as the paper's operator gives, but never more than there are: on a tiny grid its summary
    tokens can outnumber what they stand for."""
    return min(budget.tokens(patches), patches)


def prune(patches: Patches, scores: Scores, budget: Budget, _grid: Grid) -> Reduction:
    """Top-K: the highest scores stay, in raster order, and the rest is dropped."""
    count = tokens_of(budget, patches.shape[1])
    keep = _ranking(scores)[:, :count].sort(dim=1).values
    return Reduction(take(patches, keep), keep, places(keep, patches.shape[1]))


def fuse(patches: Patches, scores: Scores, budget: Budget, grid: Grid) -> Reduction:
    """Top-K and one token for the rest: its mean weighted by the scores, at the best one's position.

    EViT's idea (Liang et al., ICLR 2022) in one step. The weights are the paper's omega.
    """
    n, count = patches.shape[1], tokens_of(budget, patches.shape[1])
    if count == n:
        return prune(patches, scores, budget, grid)
    ranking = _ranking(scores)
    keep, rest = ranking[:, : count - 1].sort(dim=1).values, ranking[:, count - 1 :]
    exact = torch.promote_types(patches.dtype, torch.float32)
    weights = scores.to(exact).clamp(min=0).gather(1, rest) + OFFSET
    fused = (weights[:, None] @ take(patches, rest).to(exact)) / weights.sum(dim=1)[:, None, None]
    source = places(keep, n)
    return Reduction(
        torch.cat([take(patches, keep), fused.to(patches.dtype)], dim=1),
        torch.cat([keep, rest[:, :1]], dim=1),
        torch.where(source < 0, count - 1, source),
    )


def pool(patches: Patches, _scores: Scores, budget: Budget, grid: Grid) -> Reduction:
    """Mean over the cells of a coarser grid, blind to the scores; a token sits at its cell's middle.

    Patch row r lies in cell row ``r * cell_rows // rows``, as in the paper's operator.
    """
    rows, columns = grid
    cell_rows, cell_columns = pooled_grid(budget, grid)
    down = torch.arange(rows, device=patches.device) * cell_rows // rows
    across = torch.arange(columns, device=patches.device) * cell_columns // columns
    cell = (down[:, None] * cell_columns + across).flatten()
    member = torch.nn.functional.one_hot(cell, cell_rows * cell_columns).T
    exact = torch.promote_types(patches.dtype, torch.float32)
    share = member.to(exact) / member.sum(dim=1, keepdim=True)
    # Cells are blocks of consecutive rows and columns, so their middle is the mean of their ends.
    middle = _middle(down, cell_rows)[:, None] * columns + _middle(across, cell_columns)
    batch = len(patches)
    return Reduction(
        (share @ patches.to(exact)).to(patches.dtype),
        middle.flatten().expand(batch, -1),
        cell.expand(batch, -1),
    )


def pooled_grid(budget: Budget, grid: Grid) -> Grid:
    """The largest coarser grid with at most ``budget.tokens`` cells, as square as can be."""
    rows, columns = grid
    limit = budget.tokens(rows * columns)
    candidates = [
        (r, c) for r in range(1, rows + 1) for c in range(1, columns + 1) if r * c <= limit
    ]
    return max(candidates, key=lambda rc: (rc[0] * rc[1], -abs(rc[0] * columns - rc[1] * rows)))


def _middle(cell: Tensor, cells: int) -> Tensor:
    """The middle member of each cell, the upper or left one of two, along one axis."""
    last = (cell[None] <= torch.arange(cells, device=cell.device)[:, None]).sum(dim=1) - 1
    first = (cell[None] < torch.arange(cells, device=cell.device)[:, None]).sum(dim=1)
    return (first + last) // 2


def _ranking(scores: Scores) -> Tensor:
    """Best first; among equal scores raster order wins."""
    return scores.argsort(dim=1, descending=True, stable=True)


def _operator_products(budget: Budget, grid: Grid, width: int) -> int:
    """Similarities, weighted merges and cell means."""
    keep, merge, compress = budget.counts(grid[0] * grid[1])
    return (2 * keep * merge + budget.cells**2 * compress) * width


def _needs_words(*_: object) -> Reduction:
    raise InvalidInput(
        "word-merging needs a vocabulary: use redi.reduction.WordMerging(centroids)."
    )


ONE_SHOT: dict[str, OneShot] = {
    OPERATOR: OneShot(
        keep_merge_compress,
        tokens=lambda budget, grid: budget.tokens(grid[0] * grid[1]),
        products=_operator_products,
    ),
    "prune": OneShot(prune),
    "fuse": OneShot(
        fuse,
        products=lambda budget, grid, width: (
            (grid[0] * grid[1] + 1 - tokens_of(budget, grid[0] * grid[1])) * width
        ),
    ),
    "pool": OneShot(
        pool,
        tokens=lambda budget, grid: prod(pooled_grid(budget, grid)),
        products=lambda budget, grid, width: prod(pooled_grid(budget, grid)) * prod(grid) * width,
        scored=False,
    ),
    WORD_MERGING: OneShot(
        _needs_words,
        products=lambda budget, grid, width: (
            (
                grid[0]
                * grid[1]
                * (2 * grid[0] * grid[1] + tokens_of(budget, grid[0] * grid[1]) + WORDS)
            )
            * width
        ),
        scored=False,
    ),
}
