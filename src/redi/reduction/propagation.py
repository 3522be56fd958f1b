"""Graph-based token propagation (GTP-ViT): tokens that leave are added to their neighbours in the image."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from redi.errors import InvalidInput
from redi.reduction.peers import between
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import DROPPED, Reduction, places, take
from redi.reduction.schedule import constant

#: GTP's alpha, the weight of what is propagated.
ALPHA = 0.1


def gtp(inside: Inside, count: int) -> Reduction:
    """GTP-ViT (Xu et al., WACV 2024): keep what is hard to regenerate and widely read, propagate the rest.

    With A[h] the attention of head h in the block, a token's regeneration difficulty is max_h A[h, i, i], its
    broadcasting ability max_h sum_q A[h, q, i], over all queries q, and its score the product of the two. The tokens of
    highest score are kept. The others, X_p, are added to their neighbours among the kept ones, X_k + alpha W X_p,
    where W = D^-1/2 G D^-1/2 and G connects each patch of the image with the eight around it. A token without a kept
    neighbour is lost.

    The authors' code computes the attention explicitly, so reading its map is not charged. The fused kernel of the
    block does not give the map, and here it is computed again: T^2 D more multiply-adds (docs/PEERS.md).
    """
    n, prefix = inside.patches.shape[1], inside.prefix
    logits = (inside.query @ inside.key.transpose(2, 3)) * inside.scale
    if inside.bias is not None:
        logits = logits + inside.bias
    attention = logits.float().softmax(dim=-1)[..., prefix:]
    difficulty = attention[:, :, prefix:].diagonal(dim1=2, dim2=3).amax(dim=1)
    score = difficulty * attention.sum(dim=2).amax(dim=1)
    order = score.argsort(dim=1, descending=True, stable=True)
    kept, gone = order[:, :count].sort(dim=1).values, order[:, count:].sort(dim=1).values
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    weights = between(neighbour_weights(inside).to(exact), kept, gone)
    stays, leaves = (take(inside.patches, index).to(exact) for index in (kept, gone))
    spread = torch.baddbmm(stays, weights, leaves, alpha=ALPHA)
    strongest, nearest = weights.max(dim=1)
    source = places(kept, n).scatter(1, gone, torch.where(strongest > 0, nearest, DROPPED))
    return Reduction(spread.to(inside.patches.dtype), kept, source)


def neighbour_weights(inside: Inside) -> Float[Tensor, "batch patches patches"]:
    """D^-1/2 G D^-1/2 between the tokens that are left; D counts the neighbours in the full grid."""
    if inside.origins is None or inside.grid is None:
        raise InvalidInput("Propagation needs the place of each token in the grid: give Inside origins and a grid.")
    rows, columns = inside.grid
    row, column = inside.origins // columns, inside.origins % columns
    near = _within_one(row) & _within_one(column)
    near.diagonal(dim1=1, dim2=2).fill_(False)
    degree = _reach(row, rows) * _reach(column, columns) - 1
    scale = degree.clamp(min=1).rsqrt()
    return near * scale[..., None] * scale[:, None]


def _within_one(place: Tensor) -> Bool[Tensor, "batch patches patches"]:
    return (place[:, None] - place[..., None]).abs() <= 1


def _reach(place: Tensor, length: int) -> Float[Tensor, "batch patches"]:
    """The number of rows, or columns, at most one away."""
    return 1 + (place > 0).float() + (place < length - 1).float()


#: The reducer of this file by name.
PROPAGATION: dict[str, Progressive] = {
    "gtp": Progressive(
        gtp,
        constant,
        strongest=2.0,
        proportional=False,
        placed=True,
        products=lambda before, after, width, head_dim: (before - after) * after * width,
    )
}
