"""Merging that looks at where tokens are, for dense prediction: windows (ALGM), rows and columns (CubistMerge).

ALGM was published with training; here it runs on the frozen model. Both follow what the released code does. The
tests compare each with a loop over the patches of an image.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, pad

from redi.errors import InvalidInput
from redi.grid import Grid, resolve_grid
from redi.reduction.peers import match_halves
from redi.reduction.progressive import Inside, Progressive, merge_pairs
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import ByGrid, local_then_global, one_block, shrinking_grids

#: Tokens that a 2x2 window loses when it becomes one token.
LOST = 3


def algm(inside: Inside, count: int) -> Reduction:
    """ALGM (Norouzi et al., CVPR 2024), frozen: merge windows in the first block, pairs of the whole image later.

    Conditional local average pooling (CLAP), in block 1: see :func:`merge_windows`. Global bipartite matching (GBM),
    in any other block, is ToMe's, but by the cosine of hidden states. Means are weighted by size.
    """
    if inside.block == 0:
        return merge_windows(inside, count)
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    return merge_pairs(inside, *match_halves(inside, count, inside.patches.to(exact)))


def merge_windows(inside: Inside, count: int) -> Reduction:
    """CLAP: a 2x2 window of similar tokens becomes one token, their mean.

    A window w of four tokens merges if the mean cosine of its pairs is at least tau,

        1 / 12 sum_{i != j in w} cos(x_i, x_j) >= tau,

    where the sum is |sum_w u_i|^2 - 4 with u_i = x_i / |x_i|. The paper's tau is given, and the number of tokens
    follows. Here the number is given, so the windows merge in the order of their similarity, and the tau of an image
    is that of the last of them. If the number is no multiple of three, this last window merges only its first tokens.
    Tokens outside a full window, at the border of a grid of odd length, stay. The merged tokens come first, the most
    similar window before the others, then the rest in raster order, as released. A merged token has the position of
    the upper left patch.
    """
    batch, n, width = inside.patches.shape
    device = inside.patches.device
    window = _windows(resolve_grid(n, _grid(inside)), device)
    remove = n - count
    if remove > LOST * len(window):
        raise InvalidInput(f"{len(window)} windows of 2x2 can lose {LOST * len(window)} tokens, but not {remove}.")
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    together = normalize(inside.patches.to(exact), dim=-1)[:, window].sum(dim=2).square().sum(dim=2)
    merging = -(-remove // LOST)
    members = window[together.argsort(dim=1, descending=True, stable=True)[:, :merging]]
    leaving = torch.arange(remove, device=device)
    target = leaving // LOST
    targets, gone = members[..., 0], members.flatten(1)[:, 4 * target + leaving % LOST + 1]

    place = torch.arange(4 * merging, device=device)
    joins = LOST * (place // 4) + place % 4 <= remove  # all, but for the last window
    weights = (inside.sizes.gather(1, members.flatten(1)) * joins).to(exact).view(batch, merging, 4, 1)
    states = take(inside.patches, members.flatten(1)).to(exact).view(batch, merging, 4, width)
    means = (weights * states).sum(dim=2) / weights.sum(dim=2)

    merged = torch.zeros(batch, n, device=device).scatter(1, targets, 1).scatter(1, gone, 1)
    rest = merged.argsort(dim=1, stable=True)[:, : count - merging]
    positions = torch.cat([targets, rest], dim=1)
    return Reduction(
        torch.cat([means.to(inside.patches.dtype), take(inside.patches, rest)], dim=1),
        positions,
        places(positions, n).scatter(1, gone, target.expand(batch, -1)),
    )


def _windows(grid: Grid, device: torch.device) -> Int[Tensor, "windows four"]:
    """The patches of each full 2x2 window, in raster order."""
    rows, columns = grid
    patch = torch.arange(rows * columns, device=device).view(rows, columns)
    down, across = rows // 2, columns // 2
    full = patch[: 2 * down, : 2 * across].reshape(down, 2, across, 2)
    return full.transpose(1, 2).reshape(down * across, 4)


def _grid(inside: Inside) -> Grid:
    if inside.grid is None:
        raise InvalidInput("Merging neighbours needs the patch grid: give Inside a grid.")
    return inside.grid


def cubist(inside: Inside, count: int) -> Reduction:
    """CubistMerge (Gong and Lis, 2025): every row loses the same number of tokens, then every column does.

    The tokens form a grid before and after the step: first each of the rows merges along itself
    (:func:`merge_lines`), then each of the columns that result. With the image's grid, the number of tokens says how
    many rows and columns there are (:func:`redi.reduction.schedule.shrinking_grids`), so ``count`` must be one of
    these numbers. The output is in raster order. A merged token has the position of the token that others joined.
    """
    n = inside.patches.shape[1]
    (rows, columns), (fewer_rows, fewer_columns) = (_grid_of(tokens, _grid(inside)) for tokens in (n, count))
    if 2 * fewer_rows < rows or 2 * fewer_columns < columns:
        raise InvalidInput(
            f"A step from {rows}x{columns} to {fewer_rows}x{fewer_columns} removes more than half a line."
        )
    states = inside.patches.unflatten(1, (rows, columns))
    states, from_column, to_column = merge_lines(states, columns - fewer_columns)
    states, from_row, to_row = merge_lines(states.transpose(1, 2), rows - fewer_rows)
    # The token at (row, column) of the new grid was at from_row before the columns merged, and at from_column before.
    row = from_row.transpose(1, 2)
    positions = row * columns + from_column.gather(1, row)
    new_row = to_row.transpose(1, 2).gather(2, to_column)
    return Reduction(
        states.transpose(1, 2).flatten(1, 2), positions.flatten(1), (new_row * fewer_columns + to_column).flatten(1)
    )


def merge_lines(
    states: Float[Tensor, "batch lines tokens dim"], remove: int
) -> tuple[
    Float[Tensor, "batch lines reduced dim"], Int[Tensor, "batch lines reduced"], Int[Tensor, "batch lines tokens"]
]:
    """Each line loses ``remove`` of its tokens, by matching with neighbours.

    The second, fourth, ... token of a line proposes to merge into the more similar of its two neighbours, by the
    cosine of states. The most similar proposals are carried out. In each dimension, a merged token has the value
    of greatest magnitude of its members, with its sign:

        y_d = x_md,    m = argmax_i |x_id|.

    The values are the new lines, the token whose place each new token has, and the new place of each token.
    """
    tokens = states.shape[2]
    unit = normalize(states.to(torch.promote_types(states.dtype, torch.float32)), dim=-1)
    near = (unit[:, :, :-1] * unit[:, :, 1:]).sum(dim=3)  # of each token to the next
    before, after = near[..., 0::2], near[..., 1::2]
    after = pad(after, (0, before.shape[2] - after.shape[2]), value=-torch.inf)  # the last one may have no next
    forward = after > before
    order = torch.maximum(before, after).argsort(dim=2, descending=True, stable=True)[..., :remove]
    merged = 2 * order + 1
    target = merged - 1 + 2 * forward.gather(2, order)

    leaves = torch.zeros_like(forward).scatter(2, order, True)[..., None]
    second = states[:, :, 1::2]
    backward = torch.where(leaves & ~forward[..., None], second, 0)
    onward = torch.where(leaves & forward[..., None], second, 0)
    first = states[:, :, 0::2]
    missing = first.shape[2] - second.shape[2]
    first = _greater(first, pad(backward, (0, 0, 0, missing)))
    first = _greater(first, pad(onward, (0, 0, 1, missing - 1)))
    grown = states.clone()
    grown[:, :, 0::2] = first

    stays = torch.ones_like(states[..., 0], dtype=torch.int64).scatter(2, merged, 0)
    kept = stays.argsort(dim=2, descending=True, stable=True)[..., : tokens - remove]
    place = stays.cumsum(dim=2) - 1
    place = place.scatter(2, merged, place.gather(2, target))
    return grown.gather(2, kept[..., None].expand(-1, -1, -1, states.shape[3])), kept, place


def _greater(value: Tensor, other: Tensor) -> Tensor:
    """In each place the value of greater magnitude; the first of equals."""
    return torch.where(other.abs() > value.abs(), other, value)


def _grid_of(tokens: int, grid: Grid) -> Grid:
    """The rows and columns of a number of tokens of an image."""
    for rows, columns in shrinking_grids(grid):
        if rows * columns <= tokens:
            break
    if rows * columns != tokens:
        raise InvalidInput(
            f"A {grid[0]}x{grid[1]} grid without some rows and columns cannot have {tokens} tokens; the next lower "
            f"number is {rows * columns}."
        )
    return rows, columns


#: The reducers of this file by name. ALGM's dearer step is the global one. The cosines of neighbours are counted as if
#: all tokens had one along both axes.
LOCAL: dict[str, Progressive] = {
    "algm": Progressive(
        algm,
        ByGrid(local_then_global),
        halving=True,
        proportional=False,
        placed=True,
        products=lambda before, after, width, head_dim: (
            (before * before // 4 + (before - after) * ((before + 1) // 2)) * width
        ),
    ),
    "cubist": Progressive(
        cubist,
        ByGrid(one_block),
        proportional=False,
        placed=True,
        products=lambda before, after, width, head_dim: 2 * before * width,
    ),
}
