"""Reducers that cluster or sample tokens, from their papers' descriptions.

The progressive ones run in three blocks, because clustering costs more than matching. Agglomeration is
a loop of one step a merged pair, over all images at once.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from redi.grid import Grid
from redi.reduction.budget import Budget
from redi.reduction.oneshot import tokens_of
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import thrice

#: Rounds of k-means in token pooling.
ROUNDS = 5
#: How much the patches' own similarity counts beside that of their words.
TIE_BREAK = 1e-3


def atc(inside: Inside, count: int) -> Reduction:
    """Agglomerative token clustering (Haurum et al., ECCV 2024), average linkage, cosine of mean keys.

    The two most similar clusters are joined until ``count`` are left; the similarity of two clusters is
    the mean over their pairs of tokens. A cluster becomes its size-weighted mean and sits at its first
    token's position.
    """
    keys = normalize(inside.keys.float(), dim=-1)
    label = agglomerate(keys @ keys.transpose(1, 2), count)
    return merge_clusters(inside.patches, inside.sizes, label, count)


def agglomerate(
    similarity: Float[Tensor, "batch tokens tokens"], clusters: int
) -> Int[Tensor, "batch tokens"]:
    """The cluster of each token; clusters are numbered by their first token."""
    batch, n = similarity.shape[:2]
    images = torch.arange(batch, device=similarity.device)
    label = torch.arange(n, device=similarity.device).repeat(batch, 1)
    members = torch.ones(batch, n, device=similarity.device)
    closeness = similarity.clone()
    closeness.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    for _ in range(n - clusters):
        flat = closeness.flatten(1).argmax(dim=1)
        pair = torch.stack([flat // n, flat % n])
        first, second = pair.amin(dim=0), pair.amax(dim=0)
        weight, other = members[images, first, None], members[images, second, None]
        joined = (weight * closeness[images, first] + other * closeness[images, second]) / (
            weight + other
        )
        # What was -inf stays so: the diagonal and the clusters that are gone.
        closeness[images, first] = joined
        closeness[images, :, first] = joined
        closeness[images, second] = -torch.inf
        closeness[images, :, second] = -torch.inf
        members[images, first] += other[:, 0]
        label = torch.where(label == second[:, None], first[:, None], label)
    # Numbers of first tokens to consecutive ones.
    leading = label == torch.arange(n, device=label.device)
    return (leading.cumsum(dim=1) - 1).gather(1, label)


def token_pooling(inside: Inside, count: int) -> Reduction:
    """Token pooling (Marin et al., WACV 2023): weighted k-means of the hidden states.

    Clusters start from the ``count`` most relevant tokens, relevance (here the CLS attention, not the
    attention of all tokens) weighs a token, and five rounds
    follow. A token comes out as its cluster's weighted mean, at the position of its nearest member.
    """
    patches = inside.patches.float()
    relevance = inside.relevance
    weights = relevance.float().clamp(min=1e-8)
    seeds = relevance.argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
    centres = take(patches, seeds)
    for _ in range(ROUNDS):
        member = one_hot(_distances(patches, centres).argmin(dim=2), count).transpose(1, 2)
        share = member * weights[:, None]
        total = share.sum(dim=2, keepdim=True)
        centres = torch.where(total > 0, (share @ patches) / total.clamp(min=1e-20), centres)
    distances = _distances(patches, centres)
    source = distances.argmin(dim=2)
    outside = ~one_hot(source, count).bool()
    own = patches.square().sum(
        dim=2, keepdim=True
    )  # the same for every centre, not for every member
    nearest = (distances + own).masked_fill(outside, torch.inf).argmin(dim=1)
    positions = torch.where(outside.all(dim=1), seeds, nearest)
    return Reduction(centres.to(inside.patches.dtype), positions, source)


def ats(inside: Inside, count: int) -> Reduction:
    """Adaptive token sampling (Fayyaz et al., ECCV 2022): inverse transform sampling of significance.

    The significance of a token is the CLS attention it gets times the length of its value, summed over
    heads. Its cumulative distribution, in the order of the tokens, is read at (2k - 1) / (2 K), k = 1 ..
    K. The paper drops what is sampled twice, so its length varies; here the freed places go to the most
    significant tokens left.
    """
    logits = (inside.query[:, :, :1] @ inside.key.transpose(2, 3)) * inside.scale
    attention = logits.float().softmax(dim=-1)[:, :, 0, inside.prefix :]
    lengths: Tensor = torch.linalg.vector_norm(inside.value[:, :, inside.prefix :].float(), dim=-1)
    significance = (attention * lengths).sum(dim=1)
    significance = significance / significance.sum(dim=1, keepdim=True)
    points = (2 * torch.arange(1, count + 1, device=significance.device) - 1) / (2 * count)
    cumulative = significance.cumsum(dim=1)
    sampled = torch.searchsorted(cumulative, points.expand(len(cumulative), -1).contiguous())
    n = significance.shape[1]
    drawn = torch.zeros_like(significance).scatter(1, sampled.clamp(max=n - 1), 2.0)
    order = (drawn + significance).argsort(dim=1, descending=True, stable=True)
    keep = order[:, :count].sort(dim=1).values
    return Reduction(take(inside.patches, keep), keep, places(keep, n))


@dataclass(frozen=True, eq=False)
class WordMerging:
    """Merging by visual word, the inter-image idea of VWT (Gee et al., TMLR 2025): one-shot, no scores.

    Patches of the same word of a corpus vocabulary become one token. The paper merges all of them, so
    its length varies; here clusters are joined, average linkage on the similarity of their words'
    centroids, until the budget is met: patches of one word first, then those of similar words. Among
    equal words the patches' own similarity decides. ``centroids`` are words of input embeddings.
    """

    centroids: Float[Tensor, "words dim"]

    def __call__(
        self,
        patches: Float[Tensor, "batch patches dim"],
        _scores: Float[Tensor, "batch patches"],
        budget: Budget,
        _grid: Grid,
    ) -> Reduction:
        count = tokens_of(budget, patches.shape[1])
        own = normalize(patches.float(), dim=-1)
        words = self.centroids.to(own.device)[(own @ self.centroids.to(own.device).T).argmax(dim=2)]
        similarity = words @ words.transpose(1, 2) + TIE_BREAK * own @ own.transpose(1, 2)
        label = agglomerate(similarity, count)
        return merge_clusters(patches, torch.ones_like(patches[..., 0]), label, count)


def merge_clusters(
    patches: Float[Tensor, "batch patches dim"],
    sizes: Float[Tensor, "batch patches"],
    label: Int[Tensor, "batch patches"],
    count: int,
) -> Reduction:
    """Size-weighted mean of each cluster at its first member's position; a token alone is unchanged."""
    member = one_hot(label, count).transpose(1, 2)
    exact = torch.promote_types(patches.dtype, torch.float32)
    share = member * sizes.to(exact)[:, None]
    mean = (share @ patches.to(exact)) / share.sum(dim=2, keepdim=True)
    first = member.argmax(dim=2)
    alone = member.sum(dim=2, keepdim=True) == 1
    return Reduction(torch.where(alone, take(patches, first), mean.to(patches.dtype)), first, label)


def _distances(
    points: Float[Tensor, "batch points dim"], centres: Float[Tensor, "batch centres dim"]
) -> Float[Tensor, "batch points centres"]:
    """Squared Euclidean, up to the points' own lengths, which are the same for every centre."""
    return centres.square().sum(dim=2)[:, None] - 2 * points @ centres.transpose(1, 2)


CLUSTERING: dict[str, Progressive] = {
    "atc": Progressive(
        atc,
        thrice,
        products=lambda before, after, width, head_dim: (
            before * (before * head_dim + after * width)
        ),
    ),
    "token-pooling": Progressive(
        token_pooling,
        thrice,
        scored=True,
        proportional=False,
        products=lambda before, after, width, head_dim: (2 * ROUNDS + 1) * before * after * width,
    ),
    "ats": Progressive(
        ats,
        thrice,
        proportional=False,
        products=lambda before, after, width, head_dim: before * width,
    ),
}
