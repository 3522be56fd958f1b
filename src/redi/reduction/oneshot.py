"""One-shot reducers: the interface, the reducers other than the paper's operator, and their table.

Each takes ``(patches, scores, budget, grid)`` and shortens the sequence once. It returns ``budget.tokens(n)``
tokens, the same number as the paper's operator, so that rows compare at equal tokens; grid pooling returns the
largest grid with at most this number. No reducer reads tensor values in Python, so all can be compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from redi.budget import Budget
from redi.cost import Geometry
from redi.grid import Grid
from redi.reduction.operator import OFFSET, keep_merge_compress
from redi.reduction.reducer import Encoder, Extent, Reducer
from redi.reduction.result import Reduction, places, take

#: Name of the paper's operator.
OPERATOR = "keep-merge-compress"

Patches = Float[Tensor, "batch patches dim"]
Scores = Float[Tensor, "batch patches"]


@dataclass(frozen=True)
class OneShot(Reducer):
    """A reducer that shortens the sequence once, before block 1 or after any block."""

    follows_budget: ClassVar[bool] = True

    reduce: Callable[[Patches, Scores, Budget, Grid], Reduction]
    #: Number of patch tokens after the reduction.
    tokens: Callable[[Budget, Grid], int] = lambda budget, grid: tokens_of(budget, prod(grid))
    #: Multiply-adds of the reducer's own matrix products: (budget, grid, width).
    products: Callable[[Budget, Grid, int], int] = lambda budget, grid, width: 0
    scored: bool = True
    slow: bool = False
    loops: bool = False
    #: Makes ``reduce`` from the centroids of a vocabulary of input embeddings, if it needs one.
    from_words: Callable[[Tensor], Callable[[Patches, Scores, Budget, Grid], Reduction]] | None = None

    def with_words(self, centroids: Float[Tensor, "words dim"]) -> "OneShot":
        """The same reducer with the vocabulary that it needs."""
        assert self.from_words is not None
        return replace(self, reduce=self.from_words(centroids))

    def tokens_left(self, extent: Extent, on: Geometry) -> int:
        return self.tokens(extent.budget, on.grid)

    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:
        """Relative cost: ``after`` blocks on all tokens, the reducer, the other blocks on the reduced tokens."""
        all_tokens, left = on.prefix + on.patches, on.prefix + self.tokens(extent.budget, on.grid)
        blocks = extent.after * on.block.cost(all_tokens, all_tokens)
        blocks += (on.depth - extent.after) * on.block.cost(left, left)
        if prefix_only and extent.after < on.depth:
            blocks += on.prefix_block(left) - on.block.cost(left, left)
        return (blocks + self.products(extent.budget, on.grid, on.width)) / on.dense

    def costs(self, on: Geometry, like: Extent, prefix_only: bool = False) -> list[tuple[float, Extent]]:
        extents = [like.at_keep(kept / on.patches) for kept in range(1, on.patches + 1)]
        return [
            (self.cost(extent, on, prefix_only), extent)
            for extent in extents
            if extent.budget.fits(on.patches, on.grid)
        ]

    def apply(
        self, encoder: Encoder, tokens: Any, extent: Extent, scores: Scores | None, prefix_only: bool = False
    ) -> Float[Tensor, "batch tokens dim"]:
        if scores is None:
            scores = tokens.patches.new_zeros(tokens.patches.shape[:2])
        reduction = self.reduce(tokens.patches, scores, extent.budget, tokens.grid)
        return encoder.encode(tokens.reduced(reduction), start=extent.after, prefix_only=prefix_only)


def tokens_of(budget: Budget, patches: int) -> int:
    """The number of tokens that the paper's operator gives, but at most ``patches``.

    On a tiny grid its summary tokens can outnumber the compressed patches.
    """
    return min(budget.tokens(patches), patches)


def prune(patches: Patches, scores: Scores, budget: Budget, _grid: Grid) -> Reduction:
    """Top-K: keep the patches with the highest scores, in raster order, and drop the others."""
    count = tokens_of(budget, patches.shape[1])
    keep = _ranking(scores)[:, :count].sort(dim=1).values
    return Reduction(take(patches, keep), keep, places(keep, patches.shape[1]))


def fuse(patches: Patches, scores: Scores, budget: Budget, grid: Grid) -> Reduction:
    """Top-K plus one token for the rest: their score-weighted mean, at the position of the best of them.

    This is the idea of EViT (Liang et al., ICLR 2022) in one step. The weights are the paper's omega.
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
    """The mean of each cell of a coarser grid, at the middle of the cell. Scores are not read.

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
    # A cell holds consecutive rows and columns, so its middle is the mean of its ends.
    middle = _middle(down, cell_rows)[:, None] * columns + _middle(across, cell_columns)
    batch = len(patches)
    return Reduction(
        (share @ patches.to(exact)).to(patches.dtype), middle.flatten().expand(batch, -1), cell.expand(batch, -1)
    )


def pooled_grid(budget: Budget, grid: Grid) -> Grid:
    """The coarser grid with the most cells up to ``budget.tokens``; the aspect nearest to the grid's wins a tie."""
    rows, columns = grid
    limit = budget.tokens(rows * columns)
    candidates = [(r, c) for r in range(1, rows + 1) for c in range(1, columns + 1) if r * c <= limit]
    return max(candidates, key=lambda rc: (rc[0] * rc[1], -abs(rc[0] * columns - rc[1] * rows)))


def _middle(cell: Tensor, cells: int) -> Tensor:
    """The middle member of each cell along one axis; the upper or left one of two."""
    last = (cell[None] <= torch.arange(cells, device=cell.device)[:, None]).sum(dim=1) - 1
    first = (cell[None] < torch.arange(cells, device=cell.device)[:, None]).sum(dim=1)
    return (first + last) // 2


def _ranking(scores: Scores) -> Tensor:
    """Patch indices, best score first; raster order wins a tie."""
    return scores.argsort(dim=1, descending=True, stable=True)


def _operator_products(budget: Budget, grid: Grid, width: int) -> int:
    """Multiply-adds of the similarities, the weighted merges and the cell means."""
    keep, merge, compress = budget.counts(grid[0] * grid[1])
    return (2 * keep * merge + budget.cells**2 * compress) * width


#: The one-shot reducers of this file by name.
BY_SCORE: dict[str, OneShot] = {
    OPERATOR: OneShot(
        keep_merge_compress, tokens=lambda budget, grid: budget.tokens(prod(grid)), products=_operator_products
    ),
    "prune": OneShot(prune),
    "fuse": OneShot(
        fuse, products=lambda budget, grid, width: (prod(grid) + 1 - tokens_of(budget, prod(grid))) * width, slow=True
    ),
    "pool": OneShot(
        pool,
        tokens=lambda budget, grid: prod(pooled_grid(budget, grid)),
        products=lambda budget, grid, width: prod(pooled_grid(budget, grid)) * prod(grid) * width,
        scored=False,
    ),
}
