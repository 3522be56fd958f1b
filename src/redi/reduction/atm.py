"""ATM (Lee and Choi, Lossless Token Merging Even Without Fine-Tuning in Vision Transformers, ECAI 2025).

Written from its published formulas and from descriptions of it; no code was found. The paper adapts the number of
merged pairs to the batch. Here each image merges its own pairs, as in a batch of one, so the result of an image does
not depend on its neighbours in the batch.
"""

from math import exp

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, pad

from redi.reduction.adaptive import NEVER, Adaptive, Thresholds, compacted
from redi.reduction.progressive import Inside
from redi.reduction.result import DROPPED, Reduction, take

#: The lowest threshold, theta_min.
LOWEST = 0.8
#: The decay beta of a model of 12 blocks at strength 1.
DECAY = 0.06
#: By how much the first threshold, alpha, falls at strength 1.
FALL = 0.21
#: The share of the blocks before l_s, which split the tokens as ToMe does.
SPLIT = 0.5


def thresholds(depth: int, strength: float) -> Thresholds:
    """theta_l = max(alpha - (exp(beta (l - 1)) - 1), theta_min) for l = 1 .. depth.

    The paper sets alpha, beta, theta_min and l_s for each model. Here one strength moves alpha from 1 down and beta
    from 0 up, and at depths other than 12 beta is scaled so that the last thresholds are the same. The constants were
    chosen on a ViT-Ti.
    """
    if strength == 0:
        return (NEVER,) * depth
    alpha, beta = 1 - FALL * strength, DECAY * strength * 12 / depth
    return tuple(max(alpha - (exp(beta * block) - 1), LOWEST) for block in range(depth))


def atm(inside: Inside, threshold: float, split: float = SPLIT) -> Reduction:
    """Merge each token of A into its most similar token of B if their similarity reaches the threshold.

    The first blocks split the tokens as ToMe does. Merging tokens of sizes s and t loses s t / (s + t) times their
    distance (Theorem 1), so from the block l_s on A holds the smaller half of the tokens and B the larger half, and
    two large tokens never merge. Similarity is the cosine of mean keys, means are size-weighted. The tokens keep
    their order, and a merged token takes the place of its member in B.
    """
    n = inside.patches.shape[1]
    lengths = (inside.sizes > 0).sum(dim=1)
    by_size = inside.block >= split * inside.depth
    a, b = _halves(inside.sizes, lengths, by_size)  # indices; n where there is no token
    keys = pad(normalize(inside.keys, dim=-1), (0, 0, 0, 1))
    similarity = take(keys, a) @ take(keys, b).transpose(1, 2)
    closest, destination = similarity.masked_fill((b == n)[:, None], -torch.inf).max(dim=2)
    joins = (closest >= threshold) & (a < n)

    # Only the columns of A that some image merges are in the product.
    merging = joins.long().argsort(dim=1, descending=True, stable=True)[:, : int(joins.sum(dim=1).max())]
    joins, merged, destination = (values.gather(1, merging) for values in (joins, a, destination))
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    sizes = pad(inside.sizes.to(exact), (0, 1))
    states = pad(inside.patches, (0, 0, 0, 1))
    weights = sizes.gather(1, merged) * joins
    assignment = weights.new_zeros(*b.shape, merged.shape[1])
    assignment.scatter_(1, destination[:, None], weights[:, None])
    own, targets = sizes.gather(1, b)[..., None], take(states, b)
    summed = torch.baddbmm(targets.to(exact) * own, assignment, take(states, merged).to(exact))
    grown = (summed / (own + assignment.sum(dim=2, keepdim=True))).to(states.dtype)
    grown = torch.where(assignment.any(dim=2, keepdim=True), grown, targets)  # others keep their exact value

    gone = torch.zeros_like(sizes, dtype=torch.bool).scatter(1, torch.where(joins, merged, n), True)
    index, place = compacted((inside.sizes > 0) & ~gone[:, :n])
    into = torch.arange(n + 1, device=index.device).expand(len(index), -1)
    # The values of a token: its own, or behind them those of the place in B where it grew.
    value = into.scatter(1, b, n + 1 + torch.arange(b.shape[1], device=index.device).expand_as(b))
    into = into.scatter(1, torch.where(joins, merged, n), torch.where(joins, b.gather(1, destination), n))[:, :n]
    source = torch.where(inside.sizes > 0, place.gather(1, into), DROPPED)
    return Reduction(take(torch.cat([states, grown], dim=1), value.gather(1, index)), index, source)


def _halves(
    sizes: Float[Tensor, "batch patches"], lengths: Int[Tensor, " batch"], by_size: bool
) -> tuple[Int[Tensor, "batch a"], Int[Tensor, "batch b"]]:
    """The indices of A and B of each image: every other token, or the smaller and the larger half of the tokens."""
    n, small, lengths = sizes.shape[1], lengths[:, None] // 2, lengths[:, None]
    place = torch.arange((n + 1) // 2, device=sizes.device).expand(len(sizes), -1)
    a, b = (place, small + place) if by_size else (2 * place + 1, 2 * place)
    a, b = torch.where(place < small, a, n)[:, : n // 2], torch.where(place < lengths - small, b, n)
    if by_size:
        order = sizes.masked_fill(sizes == 0, torch.inf).argsort(dim=1, stable=True)
        order = pad(order, (0, 1), value=n)
        a, b = order.gather(1, a), order.gather(1, b)
    return a, b


def _products(before: int, after: int, width: int, head_dim: int) -> int:
    """Multiply-adds of the similarities between the halves and of the weighted sums."""
    half = (before + 1) // 2
    return (before // 2) * half * head_dim + (before - after) * half * width


#: The reducers whose length follows the image, by name.
ADAPTIVE: dict[str, Adaptive] = {"atm": Adaptive(atm, thresholds, products=_products)}
