"""The paper's fixed keep, merge and compress operator (Sec. "Fixed keep, merge, and compress operator").

It uses batched tensor operations only, with no loop over images or patches.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from redi.budget import Budget
from redi.checks import require_axes, require_finite, require_float
from redi.errors import InvalidInput
from redi.grid import Grid, cell_of, proximity, resolve_grid
from redi.reduction.result import Reduction, places, take

#: Added to every aggregation weight, so that a patch of score zero has some weight (the paper's 1e-4).
OFFSET = 1e-4


def reduce(
    patches: Float[Tensor, "batch patches dim"],
    scores: Float[Tensor, "batch patches"],
    budget: Budget = Budget(),
    grid: Grid | None = None,
) -> Reduction:
    """Shorten ``patches`` by ``scores``: the checked form of :func:`keep_merge_compress`.

    ``patches`` are the embeddings just before a block (before block 1 in the paper). The output holds the kept
    tokens in raster order, then one summary token per cell in raster order. The grid is square if ``grid`` is None.
    """
    require_axes(patches, "batch patches dim", "Patches")
    require_axes(scores, "batch patches", "Scores")
    if scores.shape != patches.shape[:2]:
        raise InvalidInput(
            f"There are scores for {list(scores.shape)} [batch, patches], but embeddings for {list(patches.shape[:2])}."
        )
    require_float(patches, "Patches")
    require_float(scores, "Scores")
    require_finite(scores, "Scores")
    grid = resolve_grid(patches.shape[1], grid)
    return keep_merge_compress(patches, scores.to(patches.device), budget, grid)


def keep_merge_compress(
    patches: Float[Tensor, "batch patches dim"], scores: Float[Tensor, "batch patches"], budget: Budget, grid: Grid
) -> Reduction:
    """The operator itself. It checks no values, so it can be compiled and exported.

    Weights, similarities and sums are at least FP32, whatever the precision of the patches. Symbols: R, M, U are
    ``keep``, ``merge``, ``compress``; s is ``scores``; omega = max(s, 0) + 1e-4 is ``weights``; m(i) is
    ``destination``; the cells c are ``cells x cells``.
    """
    n_keep, n_merge, n_compress = budget.counts(patches.shape[1])

    # Roles follow the rank. The sort is stable, so raster order wins a tie.
    ranking = scores.argsort(dim=1, descending=True, stable=True)
    keep = ranking[:, :n_keep].sort(dim=1).values
    merge = ranking[:, n_keep : n_keep + n_merge]
    compress = ranking[:, n_keep + n_merge :]

    exact = torch.promote_types(patches.dtype, torch.float32)
    dtype, patches = patches.dtype, patches.to(exact)
    weights = scores.to(exact).clamp(min=0) + OFFSET
    source = places(keep, patches.shape[1])

    kept = take(patches, keep)
    if n_merge:
        merged = take(patches, merge)
        destination = merge_destination(merged, kept, merge, keep, budget.spatial, grid)
        kept = merge_update(kept, merged, weights.gather(1, merge), destination)
        source.scatter_(1, merge, destination)

    if not n_compress:
        return Reduction(kept.to(dtype), keep, source)
    cell = cell_of(compress, grid, budget.cells)
    summaries, leader = compress_update(take(patches, compress), weights.gather(1, compress), cell, budget.cells**2)
    source.scatter_(1, compress, n_keep + cell)
    return Reduction(
        torch.cat([kept, summaries], dim=1).to(dtype), torch.cat([keep, compress.gather(1, leader)], dim=1), source
    )


def merge_destination(
    merged: Float[Tensor, "batch merge dim"],
    kept: Float[Tensor, "batch keep dim"],
    merge: Int[Tensor, "batch merge"],
    keep: Int[Tensor, "batch keep"],
    spatial: float,
    grid: Grid,
) -> Int[Tensor, "batch merge"]:
    """Eq. mergeassignment: m(i) = argmax_{r in R} cos(x_i, x_r) + 0.30 rho_ir.

    Returns indices into ``keep``, which is in raster order, so the lowest patch index wins a tie.
    """
    similarity = normalize(merged, dim=-1) @ normalize(kept, dim=-1).transpose(1, 2)
    near = proximity(merge, keep, grid).to(merged.dtype)
    return (similarity + spatial * near).argmax(dim=2)


def merge_update(
    kept: Float[Tensor, "batch keep dim"],
    merged: Float[Tensor, "batch merge dim"],
    weights: Float[Tensor, "batch merge"],
    destination: Int[Tensor, "batch merge"],
) -> Float[Tensor, "batch keep dim"]:
    """Eq. mergeupdate: (x_r + sum omega_i x_i) / (1 + sum omega_i) over the i that go to r.

    The sums are a product with the weighted assignment matrix, which is deterministic on every device; scatter-add
    is not. A kept token that receives nothing is unchanged.
    """
    assignment = kept.new_zeros(*kept.shape[:2], merged.shape[1])
    assignment.scatter_(1, destination[:, None], weights[:, None])
    return torch.baddbmm(kept, assignment, merged) / (1 + assignment.sum(dim=2, keepdim=True))


def compress_update(
    compressed: Float[Tensor, "batch compress dim"],
    weights: Float[Tensor, "batch compress"],
    cell: Int[Tensor, "batch compress"],
    n_cells: int,
) -> tuple[Float[Tensor, "batch cells dim"], Int[Tensor, "batch cells"]]:
    """Eq. compressupdate: the score-weighted mean of each cell, and the patch whose position it takes.

    An empty cell takes the mean over the whole compress set. The patches are ranked, so argmax finds the first
    member of a cell, which is its highest scoring one. For an empty cell argmax returns 0, the highest scoring
    patch of the whole set, as the paper requires.
    """
    member = one_hot(cell, n_cells).transpose(1, 2)
    leader = member.argmax(dim=2)
    occupied = member.any(dim=2, keepdim=True)
    share = torch.where(occupied, member, 1).to(weights.dtype) * weights[:, None]
    return (share @ compressed) / share.sum(dim=2, keepdim=True), leader
