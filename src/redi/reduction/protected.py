"""Relevance-protected merging: our own progressive reducer, which needs no label and no dense pass.

The relevance of a token does not choose what stays. It only makes a token dearer to merge: among
tokens that are alike, those that CLS looks at are merged last.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive, merge_pairs
from redi.reduction.result import Reduction
from redi.reduction.schedule import early

#: What the most relevant token has to gain in cosine to be merged as early as the least relevant.
PROTECTION = 0.3


def protected(inside: Inside, count: int, protection: float = PROTECTION) -> Reduction:
    """Bipartite matching as in ToMe, of hidden states, with a price on relevance.

    Tokens go alternately into A and B. Each of A proposes to its most similar one of B (cosine of the
    hidden states after attention, which are what is merged); the edges of the highest

        cos(x_a, x_b) - protection * rank(a)

    are merged, size-weighted. rank is the place of a by relevance among all tokens, 0 to 1; relevance
    is the CLS attention of the same block, or the score given from outside.
    """
    n = inside.patches.shape[1]
    remove = n - count
    states = normalize(inside.patches.float(), dim=-1)
    relevance = inside.relevance
    first, second = states[:, 1::2], states[:, 0::2]  # A and B
    closest, destination = (first @ second.transpose(1, 2)).max(dim=2)
    price = protection * rank01(relevance)[:, 1::2]
    order = (closest - price).argsort(dim=1, descending=True, stable=True)
    merged, rest = order[:, :remove], order[:, remove:].sort(dim=1).values
    targets = torch.arange(0, n, 2, device=states.device).expand(len(states), -1)
    destination = destination.gather(1, merged)
    return merge_pairs(inside, 2 * rest + 1, targets, 2 * merged + 1, destination, relevance)


def rank01(scores: Float[Tensor, "batch patches"]) -> Float[Tensor, "batch patches"]:
    """Places by score, from 0 for the least to 1; of equal ones the earlier place is lower."""
    places = scores.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return places / max(scores.shape[1] - 1, 1)


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Cosines of full width between the halves, the CLS row of attention, the assignment matrix."""
    half = (before + 1) // 2
    return (before // 2) * half * width + before * width + (before - after) * half * width


OURS: dict[str, Progressive] = {
    "protected": Progressive(protected, early, halving=True, scored=True, products=_products),
    # The peer on our schedule, to tell what the matching brings from what the schedule brings.
    "tome-early": Progressive(
        PEERS["tome"].step, early, halving=True, products=PEERS["tome"].products
    ),
}
