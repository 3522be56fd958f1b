"""Relevance-protected merging: our own progressive reducer, which needs no label and no dense pass.

Relevance does not choose the tokens that stay. It raises the cost of merging a token and its weight in the mean. So
among similar tokens, those that CLS attends to are merged last and dominate the merged token.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, take
from redi.reduction.schedule import early

#: Exponent of relevance in the damage of a merge; with 0 the damage is the distance alone.
PROTECTION = 0.5
#: Lower bound of relevance, so that every token has some weight.
LEAST = 1e-8


def protected(inside: Inside, count: int, protection: float = PROTECTION) -> Reduction:
    """Bipartite matching as in ToMe that makes the merges of least damage.

    Tokens go alternately into A and B. A token a of A can merge into the nearest token b of B, measured on the
    hidden states after attention, which are also the states that are merged. The damage is

        relevance(a) ^ protection * |x_a - x_b|^2.

    A merged token is the relevance-weighted mean of its members, scaled to the relevance-weighted mean of their
    lengths, because the mean of different vectors is shorter than they are. It has the position of its most
    relevant member and takes the place of b in the sequence, so that the next block alternates over neighbours
    again. Relevance is the CLS attention of the same block, or the given score.
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

    merged_relevance = relevance[:, 1::2].gather(1, merged)
    weights = merged_relevance.new_zeros(*second.shape[:2], remove)
    weights.scatter_(1, destination[:, None], merged_relevance[:, None])
    target_relevance = relevance[:, 0::2]
    total = target_relevance + weights.sum(dim=2)
    lengths = states.norm(dim=2)
    mean = torch.baddbmm(second * target_relevance[..., None], weights, take(first, merged))
    mean = mean / total[..., None]
    length = lengths[:, 0::2] * target_relevance
    length = length + (weights @ lengths[:, 1::2].gather(1, merged)[..., None])[..., 0]
    scale = length / total / mean.norm(dim=2).clamp(min=LEAST)
    best, best_member = weights.max(dim=2)
    joined = best > 0
    # A token that no other token joins keeps its exact value.
    grown = torch.where(joined[..., None], (mean * scale[..., None]).to(dtype), inside.patches[:, 0::2])
    leader = torch.where(best > target_relevance, 2 * merged.gather(1, best_member) + 1, _even(grown))

    gone = torch.zeros_like(relevance, dtype=torch.bool).scatter(1, 2 * merged + 1, True)
    kept = gone.long().argsort(dim=1, stable=True)[:, :count]
    place = (~gone).long().cumsum(dim=1) - 1
    half = first.shape[1]
    index = torch.where(kept % 2 == 1, kept // 2, half + kept // 2)  # into A followed by B
    return Reduction(
        take(torch.cat([inside.patches[:, 1::2], grown], dim=1), index),
        torch.cat([_even(first) + 1, leader], dim=1).gather(1, index),
        place.scatter(1, 2 * merged + 1, place.gather(1, 2 * destination)),
    )


def _nearest(states: Float[Tensor, "batch tokens dim"]) -> tuple[Float[Tensor, "batch odd"], Int[Tensor, "batch odd"]]:
    """The squared distance of each token of A to the nearest token of B, and the index of that token in B.

    The states are centred, because a large common part would make |a|^2 + |b|^2 - 2ab inexact.
    """
    centred = states - states.mean(dim=1, keepdim=True)
    first, second = centred[:, 1::2], centred[:, 0::2]
    squares = centred.square().sum(dim=2)
    partial, nearest = torch.baddbmm(squares[:, None, 0::2], first, second.transpose(1, 2), alpha=-2).min(dim=2)
    return (partial + squares[:, 1::2]).clamp(min=0), nearest


def _even(tokens: Float[Tensor, "batch tokens dim"]) -> Tensor:
    """The indices 0, 2, 4, ... for each image, one per token."""
    return torch.arange(0, 2 * tokens.shape[1], 2, device=tokens.device).expand(len(tokens), -1)


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Multiply-adds of the distances between the halves, the CLS row of attention and the weighted sums."""
    half = (before + 1) // 2
    return (before // 2) * half * width + before * width + (before - after) * half * width


#: The reducers of this file by name.
OURS: dict[str, Progressive] = {
    "protected": Progressive(protected, early, halving=True, scored=True, products=_products),
    # ToMe on our schedule separates the gain of the matching from the gain of the schedule.
    "tome-early": Progressive(PEERS["tome"].step, early, halving=True, products=PEERS["tome"].products),
}
