"""Relevance-protected merging: our own progressive reducer, which needs no label and no dense pass.

Relevance does not choose what stays. It makes a token dearer to merge and heavier in the mean: among
tokens that are alike, those that CLS looks at are merged last, and what they are merged with becomes
like them.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, take
from redi.reduction.schedule import early

#: Exponent of relevance in the damage of a merge; 0 would be distance alone.
PROTECTION = 0.5
#: Least relevance, so that every token has some weight.
LEAST = 1e-8


def protected(inside: Inside, count: int, protection: float = PROTECTION) -> Reduction:
    """Bipartite matching as in ToMe, where a merge costs the damage it does.

    Tokens go alternately into A and B. A token a of A would merge into the nearest b of B (hidden
    states after attention, which are what is merged), and that would do a damage of

        relevance(a) ^ protection * |x_a - x_b|^2.

    The merges of least damage are made. A merged token is the relevance-weighted mean of its members,
    at the relevance-weighted mean of their lengths: a plain mean of vectors that differ is shorter than
    they are. It carries the position of its most relevant member and stands where b stood, so that the
    next block alternates over neighbours again. Relevance is the CLS attention of the same block, or
    the score given from outside.
    """
    n = inside.patches.shape[1]
    remove = n - count
    dtype = inside.patches.dtype
    states = inside.patches.to(torch.promote_types(dtype, torch.float32))
    relevance = inside.weights(inside.relevance).to(states.dtype).clamp(min=LEAST)
    first, second = states[:, 1::2], states[:, 0::2]  # A and B
    closest, nearest = _nearest(states)
    damage = relevance[:, 1::2] ** protection * closest
    merged = damage.argsort(dim=1, stable=True)[:, :remove]
    destination = nearest.gather(1, merged)

    guests = relevance[:, 1::2].gather(1, merged)
    weights = guests.new_zeros(*second.shape[:2], remove)
    weights.scatter_(1, destination[:, None], guests[:, None])
    hosts = relevance[:, 0::2]
    total = hosts + weights.sum(dim=2)
    lengths = states.norm(dim=2)
    mean = torch.baddbmm(second * hosts[..., None], weights, take(first, merged))
    mean = mean / total[..., None]
    length = lengths[:, 0::2] * hosts
    length = length + (weights @ lengths[:, 1::2].gather(1, merged)[..., None])[..., 0]
    scale = length / total / mean.norm(dim=2).clamp(min=LEAST)
    best, guest = weights.max(dim=2)
    joined = best > 0
    # A token that nobody joined keeps its value to the last bit.
    grown = torch.where(
        joined[..., None], (mean * scale[..., None]).to(dtype), inside.patches[:, 0::2]
    )
    leader = torch.where(best > hosts, 2 * merged.gather(1, guest) + 1, _even(grown))

    gone = torch.zeros_like(relevance, dtype=torch.bool).scatter(1, 2 * merged + 1, True)
    kept = gone.long().argsort(dim=1, stable=True)[:, :count]
    place = (~gone).long().cumsum(dim=1) - 1
    half = first.shape[1]
    where = torch.where(kept % 2 == 1, kept // 2, half + kept // 2)  # in A, then B
    return Reduction(
        take(torch.cat([inside.patches[:, 1::2], grown], dim=1), where),
        torch.cat([_even(first) + 1, leader], dim=1).gather(1, where),
        place.scatter(1, 2 * merged + 1, place.gather(1, 2 * destination)),
    )


def _nearest(
    states: Float[Tensor, "batch tokens dim"],
) -> tuple[Float[Tensor, "batch odd"], Int[Tensor, "batch odd"]]:
    """For each token of A the squared distance to the nearest of B, and its place there.

    Of centred states: what all tokens have in common would cost |a|^2 + |b|^2 - 2ab its last digits.
    """
    centred = states - states.mean(dim=1, keepdim=True)
    first, second = centred[:, 1::2], centred[:, 0::2]
    squares = centred.square().sum(dim=2)
    less, nearest = torch.baddbmm(
        squares[:, None, 0::2], first, second.transpose(1, 2), alpha=-2
    ).min(dim=2)
    return (less + squares[:, 1::2]).clamp(min=0), nearest


def _even(tokens: Float[Tensor, "batch tokens dim"]) -> Tensor:
    """0, 2, 4, ... for each image."""
    return torch.arange(0, 2 * tokens.shape[1], 2, device=tokens.device).expand(len(tokens), -1)


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Distances of full width between the halves, the CLS row of attention, the weighted sums."""
    half = (before + 1) // 2
    return (before // 2) * half * width + before * width + (before - after) * half * width


OURS: dict[str, Progressive] = {
    "protected": Progressive(protected, early, halving=True, scored=True, products=_products),
    # The peer on our schedule, to tell what the matching brings from what the schedule brings.
    "tome-early": Progressive(
        PEERS["tome"].step, early, halving=True, products=PEERS["tome"].products
    ),
}
