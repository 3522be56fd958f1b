"""Progressive reducers of other papers, written from their descriptions.

None needs training to run. EViT was published with fine-tuning; here it runs on the frozen model. The tests compare
each with a loop written from the equations of its paper.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from redi.reduction.progressive import Inside, Progressive, merge_pairs
from redi.reduction.result import Reduction, fuse_rest
from redi.reduction.schedule import constant, ratio, thrice


def tome(inside: Inside, count: int) -> Reduction:
    """Token merging (Bolya et al., ICLR 2023): bipartite soft matching.

    Tokens go alternately into two sets, A and B. Every token of A proposes an edge to its most similar token of B
    (cosine of mean keys). The most similar edges are merged, size-weighted. The alternation starts with CLS, which
    is in A and never merges, so A holds the second, fourth, ... patch. The output is the rest of A, then B, in
    order; the next block alternates over this output.
    """
    return merge_pairs(inside, *match_halves(inside, count))


def match_halves(
    inside: Inside, count: int, metric: Float[Tensor, "batch patches axes"] | None = None
) -> tuple[
    Int[Tensor, "batch rest"], Int[Tensor, "batch targets"], Int[Tensor, "batch merged"], Int[Tensor, "batch merged"]
]:
    """ToMe's matching: the rest of A, all of B, the tokens of A that merge, and where in B each of those goes.

    ``metric`` holds the vectors whose cosines are compared; None means the mean keys.
    """
    n = inside.patches.shape[1]
    remove = n - count
    keys = normalize(inside.keys if metric is None else metric, dim=-1)
    first, second = keys[:, 1::2], keys[:, 0::2]  # A and B
    closest, destination = (first @ second.transpose(1, 2)).max(dim=2)
    order = closest.argsort(dim=1, descending=True, stable=True)
    merged, rest = order[:, :remove], order[:, remove:].sort(dim=1).values
    targets = torch.arange(0, n, 2, device=keys.device).expand(len(keys), -1)
    return 2 * rest + 1, targets, 2 * merged + 1, destination.gather(1, merged)


#: PiToMe's margin m in the first block; it falls to zero over the depth.
PITOME_MARGIN = 0.9
#: PiToMe's alpha, for similarities below the margin.
PITOME_ALPHA = 1.0


def pitome(inside: Inside, count: int) -> Reduction:
    """PiToMe (Tran et al., NeurIPS 2024): merge within large groups of similar tokens, protect the rest.

    The energy of a token is the mean over all tokens of f(cos(k_i, k_j)), with f(x) = x if x >= m and
    alpha (exp(x - m) - 1) otherwise, m = 0.9 - 0.9 l / L. The 2r tokens of highest energy, highest first, go
    alternately into A and B. Each token of A merges into its most similar token of B, size-weighted.
    """
    remove = inside.patches.shape[1] - count
    similarity = key_similarity(inside)
    margin = PITOME_MARGIN * (1 - inside.block / inside.depth)
    far = PITOME_ALPHA * ((similarity - margin).exp() - 1)
    energy = torch.where(similarity >= margin, similarity, far).mean(dim=2)
    order = energy.argsort(dim=1, descending=True, stable=True)
    return merge_first(inside, similarity, order, remove)


def key_similarity(inside: Inside) -> Float[Tensor, "batch patches patches"]:
    """The cosine of the mean keys of all pairs of tokens."""
    keys = normalize(inside.keys, dim=-1)
    similarity = keys @ keys.transpose(1, 2)
    similarity.diagonal(dim1=1, dim2=2).fill_(1)  # equal for all tokens in spite of rounding
    return similarity


def merge_first(
    inside: Inside, similarity: Float[Tensor, "batch patches patches"], order: Int[Tensor, "batch patches"], remove: int
) -> Reduction:
    """The first 2 x ``remove`` tokens of ``order`` go alternately into A and B, and all of A merge into B."""
    merging, rest = order[:, : 2 * remove], order[:, 2 * remove :].sort(dim=1).values
    merged, targets = merging[:, 0::2], merging[:, 1::2]
    return merge_pairs(inside, rest, targets, merged, between(similarity, merged, targets).argmax(dim=2))


def between(
    matrix: Float[Tensor, "batch patches patches"],
    rows: Int[Tensor, "batch rows"],
    columns: Int[Tensor, "batch columns"],
) -> Float[Tensor, "batch rows columns"]:
    """The given rows and columns of a matrix of pairs."""
    chosen = matrix.gather(1, rows[..., None].expand(-1, -1, matrix.shape[2]))
    return chosen.gather(2, columns[:, None].expand(-1, rows.shape[1], -1))


def evit(inside: Inside, count: int) -> Reduction:
    """EViT (Liang et al., ICLR 2022): keep the tokens that CLS attends to most, fuse the rest into one token.

    The fused token is the sum of the rest, weighted by CLS attention. As in the paper, the weights do not add up to
    one. The fused token comes last, and later blocks treat it like any other token.
    """
    relevance = inside.relevance
    return fuse_rest(inside.patches, relevance, inside.weights(relevance), count, mean=False)


#: The peers' reducers by name. ToMe matches two halves; merging is a product with the assignment matrix.
PEERS: dict[str, Progressive] = {
    "tome": Progressive(
        tome,
        constant,
        strongest=2.0,
        halving=True,
        products=lambda before, after, width, head_dim: (
            before * before * head_dim // 4 + (before - after) * ((before + 1) // 2) * width
        ),
    ),
    "pitome": Progressive(
        pitome,
        ratio,
        halving=True,
        products=lambda before, after, width, head_dim: before * before * head_dim + (before - after) ** 2 * width,
    ),
    "evit": Progressive(
        evit,
        thrice,
        scored=True,
        proportional=False,
        products=lambda before, after, width, head_dim: (before + before - after) * width,
    ),
}
