"""Reducers that cluster or sample tokens, written from the descriptions in their papers.

The progressive ones run in three blocks, because clustering costs more than matching. Agglomeration is a loop with
one step per merged pair, for all images at once.
"""

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from redi.budget import Budget
from redi.errors import InvalidInput
from redi.grid import Grid
from redi.reduction.oneshot import OneShot, tokens_of
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import thrice
from redi.vocabulary import N_WORDS

#: Name of the reducer that merges by visual word.
WORD_MERGING = "word-merging"
#: Number of k-means rounds in token pooling.
ROUNDS = 5
#: Weight of the similarity of two patches, relative to that of their words.
TIE_BREAK = 1e-3


def atc(inside: Inside, count: int) -> Reduction:
    """Agglomerative token clustering (Haurum et al., ECCV 2024), average linkage, cosine of mean keys.

    The two most similar clusters are joined until ``count`` are left; the similarity of two clusters is the mean
    over their pairs of tokens. A cluster becomes its size-weighted mean at the position of its first token.
    """
    keys = normalize(inside.keys.float(), dim=-1)
    label = agglomerate(keys @ keys.transpose(1, 2), count)
    return merge_clusters(inside.patches, inside.sizes, label, count)


def agglomerate(similarity: Float[Tensor, "batch tokens tokens"], clusters: int) -> Int[Tensor, "batch tokens"]:
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
        joined = (weight * closeness[images, first] + other * closeness[images, second]) / (weight + other)
        # The diagonal and the clusters that are gone stay at -inf.
        closeness[images, first] = joined
        closeness[images, :, first] = joined
        closeness[images, second] = -torch.inf
        closeness[images, :, second] = -torch.inf
        members[images, first] += other[:, 0]
        label = torch.where(label == second[:, None], first[:, None], label)
    # A label is the index of a first token so far; make the labels consecutive.
    leading = label == torch.arange(n, device=label.device)
    return (leading.cumsum(dim=1) - 1).gather(1, label)


def token_pooling(inside: Inside, count: int) -> Reduction:
    """Token pooling (Marin et al., WACV 2023): weighted k-means of the hidden states.

    Clusters start from the ``count`` most relevant tokens; five rounds follow. A token's weight is its relevance,
    here the CLS attention, not the attention of all tokens. A cluster becomes its weighted mean, at its nearest
    member.
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
    squares = patches.square().sum(dim=2, keepdim=True)  # _distances leaves them out
    nearest = (distances + squares).masked_fill(outside, torch.inf).argmin(dim=1)
    positions = torch.where(outside.all(dim=1), seeds, nearest)
    return Reduction(centres.to(inside.patches.dtype), positions, source)


def ats(inside: Inside, count: int) -> Reduction:
    """Adaptive token sampling (Fayyaz et al., ECCV 2022): inverse transform sampling of significance.

    The significance of a token is its CLS attention times the length of its value, summed over heads. Its
    cumulative distribution, in the order of the tokens, is read at (2k - 1) / (2 K), k = 1 .. K. The paper drops
    repeated samples, so its length varies; here the most significant of the other tokens take their places.
    """
    lengths: Tensor = torch.linalg.vector_norm(inside.value[:, :, inside.prefix :].float(), dim=-1)
    significance = (inside.head_attention * lengths).sum(dim=1)
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

    Patches of the same word of a corpus vocabulary become one token. The paper merges all of them, so its length
    varies. Here clusters are joined until the budget is met, by average linkage on the similarity of their words'
    centroids: patches of the same word first, then patches of similar words. Among equal words the similarity of
    the patches decides. ``centroids`` are words of input embeddings.
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
        unit = normalize(patches.float(), dim=-1)
        words = self.centroids.to(unit.device)[(unit @ self.centroids.to(unit.device).T).argmax(dim=2)]
        similarity = words @ words.transpose(1, 2) + TIE_BREAK * unit @ unit.transpose(1, 2)
        label = agglomerate(similarity, count)
        return merge_clusters(patches, torch.ones_like(patches[..., 0]), label, count)


def merge_clusters(
    patches: Float[Tensor, "batch patches dim"],
    sizes: Float[Tensor, "batch patches"],
    label: Int[Tensor, "batch patches"],
    count: int,
) -> Reduction:
    """The size-weighted mean of each cluster at its first member's position; a cluster of one is unchanged."""
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
    """Squared Euclidean distances minus the points' squared lengths, which are the same for every centre."""
    return centres.square().sum(dim=2)[:, None] - 2 * points @ centres.transpose(1, 2)


#: The progressive reducers of this file by name.
CLUSTERING: dict[str, Progressive] = {
    "atc": Progressive(
        atc,
        thrice,
        products=lambda before, after, width, head_dim: before * (before * head_dim + after * width),
        slow=True,
        loops=True,
    ),
    "token-pooling": Progressive(
        token_pooling,
        thrice,
        scored=True,
        proportional=False,
        products=lambda before, after, width, head_dim: (2 * ROUNDS + 1) * before * after * width,
        slow=True,
    ),
    "ats": Progressive(
        ats, thrice, proportional=False, products=lambda before, after, width, head_dim: before * width, slow=True
    ),
}


def _needs_words(*_: object) -> Reduction:
    raise InvalidInput("word-merging needs a vocabulary: use redi.reduction.WordMerging(centroids).")


#: The reducer whose words come from a corpus. Its cost counts the paper's number of words.
BY_WORD: dict[str, OneShot] = {
    WORD_MERGING: OneShot(
        _needs_words,
        products=lambda budget, grid, width: (
            prod(grid) * (2 * prod(grid) + tokens_of(budget, prod(grid)) + N_WORDS) * width
        ),
        scored=False,
        slow=True,
        loops=True,
        from_words=WordMerging,
    )
}
