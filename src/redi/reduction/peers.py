"""The peers' progressive reducers, from their papers' descriptions.

None needs training to run, but EViT was published with fine-tuning, so its row is what the frozen
model makes of it. Each is checked against a loop written from its paper's equations.
"""

import torch
from torch.nn.functional import normalize

from redi.reduction.progressive import Inside, Progressive, merge_pairs
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import constant, ratio, thrice


def tome(inside: Inside, count: int) -> Reduction:
    """Token merging (Bolya et al., ICLR 2023): bipartite soft matching.

    Tokens go alternately into two sets. Every token of A proposes an edge to its most similar token
    of B (cosine of mean keys); the most similar edges are merged, size-weighted. Counting from a CLS
    token that is in A and never merges, A holds the second, fourth, ... patch. The output is the rest
    of A, then B, in order, and the next block alternates over that.
    """
    n = inside.patches.shape[1]
    remove = n - count
    keys = normalize(inside.keys, dim=-1)
    first, second = keys[:, 1::2], keys[:, 0::2]  # A and B
    closest, destination = (first @ second.transpose(1, 2)).max(dim=2)
    order = closest.argsort(dim=1, descending=True, stable=True)
    merged, rest = order[:, :remove], order[:, remove:].sort(dim=1).values
    targets = torch.arange(0, n, 2, device=keys.device).expand(len(keys), -1)
    return merge_pairs(inside, 2 * rest + 1, targets, 2 * merged + 1, destination.gather(1, merged))


#: PiToMe's margin falls from here to zero over the depth, and its alpha below the margin.
PITOME_MARGIN = 0.9
PITOME_ALPHA = 1.0


def pitome(inside: Inside, count: int) -> Reduction:
    """PiToMe (Tran et al., NeurIPS 2024): merge within large groups of similar tokens, protect the rest.

    Energy of a token: the mean over all tokens of f(cos(k_i, k_j)), f(x) = x from the margin m on and
    alpha (exp(x - m) - 1) below it, m = 0.9 - 0.9 l / L. The 2r tokens of highest energy, best first,
    go alternately into A and B; each of A merges into its most similar one of B, size-weighted.
    """
    n = inside.patches.shape[1]
    remove = n - count
    keys = normalize(inside.keys, dim=-1)
    similarity = keys @ keys.transpose(1, 2)
    similarity.diagonal(dim1=1, dim2=2).fill_(1)  # the same for all, whatever rounding says
    margin = PITOME_MARGIN * (1 - inside.block / inside.depth)
    far = PITOME_ALPHA * ((similarity - margin).exp() - 1)
    energy = torch.where(similarity >= margin, similarity, far).mean(dim=2)
    order = energy.argsort(dim=1, descending=True, stable=True)
    merging, rest = order[:, : 2 * remove], order[:, 2 * remove :].sort(dim=1).values
    merged, targets = merging[:, 0::2], merging[:, 1::2]
    rows = similarity.gather(1, merged[..., None].expand(-1, -1, n))
    between = rows.gather(2, targets[:, None].expand(-1, remove, -1))
    return merge_pairs(inside, rest, targets, merged, between.argmax(dim=2))


def evit(inside: Inside, count: int) -> Reduction:
    """EViT (Liang et al., ICLR 2022): keep the tokens CLS attends to, fuse the rest into one.

    The fused token is the sum of the rest weighted by its CLS attention, as in the paper: the weights
    do not add up to one. It stands last and competes like any other token later on.
    """
    n = inside.patches.shape[1]
    relevance = inside.relevance
    ranking = relevance.argsort(dim=1, descending=True, stable=True)
    keep, rest = ranking[:, : count - 1].sort(dim=1).values, ranking[:, count - 1 :]
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    weights = inside.weights(relevance).gather(1, rest).to(exact)
    fused = (weights[:, None] @ take(inside.patches, rest).to(exact)).to(inside.patches.dtype)
    source = places(keep, n)
    return Reduction(
        torch.cat([take(inside.patches, keep), fused], dim=1),
        torch.cat([keep, rest[:, :1]], dim=1),
        torch.where(source < 0, count - 1, source),
    )


#: Matching is between two halves; merging is the product with the assignment matrix.
PEERS: dict[str, Progressive] = {
    "tome": Progressive(
        tome,
        constant,
        halving=True,
        products=lambda before, after, width, head_dim: (
            before * before * head_dim // 4 + (before - after) * ((before + 1) // 2) * width
        ),
    ),
    "pitome": Progressive(
        pitome,
        ratio,
        halving=True,
        products=lambda before, after, width, head_dim: (
            before * before * head_dim + (before - after) ** 2 * width
        ),
    ),
    "evit": Progressive(
        evit,
        thrice,
        scored=True,
        proportional=False,
        products=lambda before, after, width, head_dim: (before + before - after) * width,
    ),
}
