"""Relevance-protected merging: our own progressive reducer, which needs no label and no dense pass.

Relevance does not choose the tokens that stay. It raises the cost of merging a token and its weight in the mean. So
among similar tokens, those that CLS attends to (without a CLS token, the mean query) are merged last and dominate the
merged token.
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, put_, take
from redi.reduction.schedule import early, from_the_start

#: Exponent of relevance in the damage of a merge; with 0 the damage is the distance alone.
PROTECTION = 0.5
#: Lower bound of relevance, so that every token has some weight.
LEAST = 1e-8
#: Tokens of B that a token of A is compared with at most. Up to 256 patch tokens, these are all of B.
WINDOW = 128


def protected(
    inside: Inside,
    count: int,
    protection: float | Float[Tensor, ""] = PROTECTION,
    sizes: float = 0.0,
    by_keys: bool = False,
    window: int = WINDOW,
) -> Reduction:
    """Bipartite matching as in ToMe that makes the merges of least damage.

    Tokens go alternately into A and B. A token a of A can merge into the nearest token b of B, measured on the
    hidden states after attention, which are also the states that are merged. The damage is

        relevance(a) ^ protection * (s_a s_b / (s_a + s_b)) ^ sizes * |x_a - x_b|^2

    with s the number of patches in a token. With ``sizes`` 1, the last two factors are what a merge adds to the sum of
    squares within the groups (Ward's criterion): right if every patch is read, as in a dense task. With ``by_keys``,
    b is the token with the nearest mean key instead of the nearest state. Rotary positions turn keys, so such a b is
    also near in the image; and keys are shorter. A merged token is the mean of its members with the weights

        relevance ^ (1 - sizes / 2) * s ^ (sizes / 2),

    scaled to the same mean of their lengths, because the mean of different vectors is shorter than they are. It has
    the position of the member with the largest weight and takes the place of b in the sequence, so that the next block
    alternates over neighbours again. Relevance is the attention of the same block (:mod:`redi.reduction.relevance`), or
    the given score.

    The sequence is in raster order. If there are more than ``window`` tokens in B, the sequence is cut into equal
    windows, and b is the nearest token in the window of a: neighbours are similar, and the work grows with the number
    of tokens instead of its square.
    """
    remove = inside.patches.shape[1] - count
    dtype = inside.patches.dtype
    states = inside.patches if dtype.itemsize >= 4 else inside.patches.float()
    relevance = inside.weights(inside.relevance).to(states.dtype).clamp(min=LEAST)
    closest, nearest = _nearest(inside.keys.to(states.dtype) if by_keys else states, window)
    if by_keys:
        closest = (states[:, 1::2] - take(states, 2 * nearest)).square().sum(dim=2)
    damage, weights = relevance[:, 1::2] ** protection * closest, relevance
    if sizes:
        patches = inside.sizes.to(states.dtype)
        first, second = patches[:, 1::2], patches[:, 0::2].gather(1, nearest)
        damage = damage * (first * second / (first + second)) ** sizes
        weights = relevance ** (1 - sizes / 2) * patches ** (sizes / 2)
    order = damage.argsort(dim=1, stable=True)[:, :remove]
    merged, target = 2 * order + 1, 2 * nearest.gather(1, order)
    grown, leader = _groups(states, weights, merged, target, inside.rotary)

    stays = torch.ones_like(relevance, dtype=torch.int64).scatter_(1, merged, 0)
    kept = stays.argsort(dim=1, descending=True, stable=True)[:, :count]
    place = stays.cumsum(dim=1).sub_(1)
    target_place = place.gather(1, target)
    source = place.scatter_(1, merged, target_place)
    return Reduction(
        put_(take(inside.patches, kept), target_place, grown.to(dtype)),
        kept.scatter(1, target_place, leader) if inside.rotary else kept,
        source,
        # No token is dropped, so the sums need no place for such tokens.
        inside.sizes.new_zeros(len(source), count).scatter_add_(1, source, inside.sizes),
    )


def _groups(
    states: Float[Tensor, "batch tokens dim"],
    relevance: Float[Tensor, "batch tokens"],
    merged: Int[Tensor, "batch merged"],
    target: Int[Tensor, "batch merged"],
    with_leader: bool,
) -> tuple[Float[Tensor, "batch merged dim"], Int[Tensor, "batch merged"]]:
    """For each merged token, the token that its group becomes, and the most relevant member of the group.

    A group is a target with all tokens that merge into it. It is computed once per member: the tokens that merge are
    few, so this is less work than one row per possible target, and only the rows that change are touched.
    """
    own, joining = relevance.gather(1, target)[..., None], relevance.gather(1, merged)[:, None]
    weights = joining * (target[..., None] == target[:, None])
    leader = target
    if with_leader:
        best, member = weights.max(dim=2)
        leader = torch.where(best > own[..., 0], merged.gather(1, member), target)
    total = own + weights.sum(dim=2, keepdim=True)
    own, weights = own / total, weights / total
    targets, others = take(states, target), take(states, merged)
    mean = torch.baddbmm(targets * own, weights, others)
    length = torch.baddbmm(_length(targets) * own, weights, _length(others))
    return mean * (length / _length(mean).clamp(min=LEAST)), leader


def _length(states: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens one"]:
    length: Tensor = torch.linalg.vector_norm(states, dim=2, keepdim=True)
    return length


def _nearest(
    states: Float[Tensor, "batch tokens dim"], window: int
) -> tuple[Float[Tensor, "batch odd"], Int[Tensor, "batch odd"]]:
    """The squared distance of each token of A to the nearest token of B in its window, and that token's index in B.

    The states are centred, because a large common part would make |a|^2 + |b|^2 - 2ab inexact.
    """
    centred = states - states.mean(dim=1, keepdim=True)
    first, second = centred[:, 1::2], centred[:, 0::2]
    squares = centred.square().sum(dim=2)
    count, width = _windows(second.shape[1], window)
    beside = squares[:, None, 0::2]
    if count > 1:
        first, second, beside = (_cut(values, count, width) for values in (first, second, squares[:, 0::2]))
        beside = beside[:, None]
    distance, nearest = torch.baddbmm(beside, first, second.transpose(1, 2), alpha=-2).min(dim=2)
    if count > 1:
        start = torch.arange(0, count * width, width, device=states.device)[:, None]
        nearest = (nearest.view(-1, count, width) + start).flatten(1)[:, : states.shape[1] // 2]
        distance = distance.view(-1, count * width)[:, : states.shape[1] // 2]
    return distance.add_(squares[:, 1::2]).clamp_(min=0), nearest


def _windows(tokens: int, window: int) -> tuple[int, int]:
    """The number of windows over the tokens of B, and the width of each."""
    count = -(-tokens // window)
    return count, -(-tokens // count)


def _cut(values: Tensor, count: int, width: int) -> Tensor:
    """Windows as more images. The last one is filled up with zeros; their squares are infinite, so none is nearest."""
    room = (0, count * width - values.shape[1])
    filled = pad(values, room, value=torch.inf) if values.ndim == 2 else pad(values, (0, 0, *room))
    return filled.reshape(-1, width, *values.shape[2:])


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Multiply-adds of the distances within the windows, the CLS row of attention and the weighted sums."""
    removed = before - after
    _, compared = _windows((before + 1) // 2, WINDOW)
    return (before // 2) * compared * width + before * width + removed * removed * (width + 1)


def products_by_keys(before: int, after: int, width: int, head_dim: int, window: int = WINDOW) -> int:
    """The same with distances of keys, and the distance of each token of A to its partner."""
    removed = before - after
    _, compared = _windows((before + 1) // 2, window)
    pairs = (before // 2) * (compared * head_dim + width)
    return pairs + before * width + removed * removed * (width + 1)


#: The reducers of this file by name.
OURS: dict[str, Progressive] = {
    "protected": Progressive(protected, early, halving=True, scored=True, products=_products),
    # For outputs that read every patch.
    "protected-dense": Progressive(
        partial(protected, sizes=1.0, by_keys=True),
        from_the_start,
        halving=True,
        scored=True,
        products=products_by_keys,
    ),
    # ToMe on our schedule separates the gain of the matching from the gain of the schedule.
    "tome-early": Progressive(PEERS["tome"].step, early, halving=True, products=PEERS["tome"].products),
}
