"""Peers that rank tokens by the attention of the block: PPT, and Zero-TPrune with its page rank.

Both run on a frozen model. The tests compare each with a loop written from its paper's rules.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from redi.reduction.peers import PEERS, tome
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.reducer import Schedule
from redi.reduction.result import Reduction, places, take

#: PPT's threshold of the variance of the scores, as released for DeiT-S off the shelf.
PPT_THRESHOLD = 7e-5
#: Zero-TPrune: number of votes, the paper's for the blocks in the middle. It takes 30 to 50 in the first three.
VOTES = 10
#: Zero-TPrune: largest share of its tokens that a step prunes for their similarity.
SIMILAR = 0.05
#: Zero-TPrune: variance of a head's scores, whose mean is one, outside which the head does not count.
VARIANCES = (0.01, 0.7)
#: Zero-TPrune: blocks that prune, of 12, counted from 1, and how the shares pruned by importance compare.
BLOCKS = {1: 0, 3: 1, 6: 2, 9: 3, 11: 0}


def ppt(inside: Inside, count: int, threshold: float = PPT_THRESHOLD) -> Reduction:
    """PPT (Wu et al., arXiv 2310.01812): prune if the scores of an image differ much, else merge as in ToMe.

    The score of a token is its CLS attention times the length of its value, both over all heads, scaled to a sum of
    one over the patches (ATS). If the variance of the scores is at least the threshold, the tokens of lowest score
    are dropped; else ToMe merges. Each image decides for itself: both results are computed, and one is chosen.
    """
    n = inside.patches.shape[1]
    value = inside.value[:, :, inside.prefix :].transpose(1, 2).flatten(2).float()
    scores = inside.attention * value.norm(dim=2)
    scores = scores / scores.sum(dim=1, keepdim=True)
    keep = scores.argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
    merged = tome(inside, count)
    prune = (scores.var(dim=1) >= threshold)[:, None]
    return Reduction(
        torch.where(prune[..., None], take(inside.patches, keep), merged.tokens),
        torch.where(prune, keep, merged.positions),
        torch.where(prune, places(keep, n), merged.source),
    )


def thrice_equal(patches: int, depth: int, strength: float) -> Schedule:
    """PPT: blocks 4, 7 and 10 of 12, scaled to other depths, remove the same number r, but at most half each.

    The released setting is r = 50 of 196 patches. If r is not an integer, some blocks remove one token more than
    others. At strength 1 each block removes half.
    """
    removing = [depth * block // 12 for block in (3, 6, 9)]
    counts, left = [], patches
    for block in range(depth):
        if block in removing:
            wanted = patches - round(strength * patches / 2 * (removing.index(block) + 1))
            left = min(left, max(wanted, -(-left // 2)))
        counts.append(left)
    return tuple(counts)


def zero_tprune(inside: Inside, count: int) -> Reduction:
    """Zero-TPrune (Wang, Dedhia, Jha, CVPR 2024): drop tokens that resemble others, then those of low page rank.

    Attention is a graph in which each token votes for those it attends to: s becomes A^T s, per head. A first vote
    (I') orders the patches. Each patch of the less important half finds its most similar one in the other half
    (cosine of the keys of all heads), and the most similar of them are dropped, a twentieth of all at most (S). The
    rest votes ten times, and the least important are dropped (I). At the start CLS has sqrt(N) times the
    score of a patch. The importance is the root of the mean over heads of s^2, over the heads whose scores vary
    neither too little nor too much; if there is none, over all.

    The map is that of the block, which is not charged a second time. The fused kernel of the block does not give it,
    and here it is computed again: T^2 D more multiply-adds (docs/PEERS.md).
    """
    n, prefix = inside.patches.shape[1], inside.prefix
    similar = min(round(SIMILAR * n), n - count)
    logits = (inside.query @ inside.key.transpose(2, 3)).float() * inside.scale
    votes = logits.softmax(dim=-1).transpose(2, 3)
    everyone = torch.ones_like(inside.sizes, dtype=torch.bool)
    order = _importance(votes, everyone, inside, rounds=1).argsort(dim=1, stable=True)
    less, more = order[:, : n // 2], order[:, n // 2 :]
    keys = normalize(inside.key[:, :, prefix:].transpose(1, 2).flatten(2).float(), dim=-1)
    closest = (take(keys, less) @ take(keys, more).transpose(1, 2)).amax(dim=2)
    alike = less.gather(1, closest.argsort(dim=1, descending=True, stable=True)[:, :similar])
    left = everyone.scatter(1, alike, False)
    importance = _importance(votes, left, inside, rounds=VOTES)
    ranking = importance.masked_fill(~left, -1).argsort(dim=1, descending=True, stable=True)
    keep = ranking[:, :count].sort(dim=1).values
    return Reduction(take(inside.patches, keep), keep, places(keep, n))


def _importance(
    votes: Float[Tensor, "batch heads tokens tokens"], left: Bool[Tensor, "batch patches"], inside: Inside, rounds: int
) -> Float[Tensor, "batch patches"]:
    """Page rank of the patches that are left, over the heads that count."""
    batch, heads, tokens = votes.shape[:3]
    prefix = inside.prefix
    taking_part = torch.cat([left.new_ones(batch, prefix), left], dim=1)[:, None, :, None].float()
    scores = taking_part.expand(-1, heads, -1, -1).clone()
    if inside.attending == "cls":
        scores[:, :, 0] = tokens**0.5
    for _ in range(rounds):
        scores = (votes @ scores) * taking_part
        scores = scores / scores.sum(dim=2, keepdim=True)
    patches = scores[:, :, prefix:, 0]
    members = left.sum(dim=1)[:, None, None]
    patches = patches / (patches.sum(dim=2, keepdim=True) / members)
    variance = ((patches - 1).square() * left[:, None]).sum(dim=2, keepdim=True) / members
    counts = (variance >= VARIANCES[0]) & (variance <= VARIANCES[1])
    counts = counts | ~counts.any(dim=1, keepdim=True)
    return ((patches.square() * counts).sum(dim=1) / counts.sum(dim=1)).sqrt()


def retained(patches: int, depth: int, strength: float) -> Schedule:
    """Zero-TPrune: blocks 1, 3, 6, 9 and 11 of 12, scaled to other depths, prune by similarity and by importance.

    The paper searches a setting for each budget. Here there is one family: each of these blocks prunes up to a
    twentieth of its tokens by similarity, and blocks 3, 6 and 9 also the shares 1/3, 2/3 and 1 of ``strength`` by
    importance.
    """
    shares = {max(round(depth * block / 12), 1): share for block, share in BLOCKS.items()}
    counts, left = [], float(patches)
    for block in range(1, depth + 1):
        if block in shares:
            left *= (1 - SIMILAR * min(1.0, 3 * strength)) * (1 - strength * shares[block] / 3)
        counts.append(min(max(round(left), 1), patches))
    return tuple(counts)


#: The reducers of this file by name. Zero-TPrune reads the attention map of the block, which is not charged again.
RANKING: dict[str, Progressive] = {
    "ppt": Progressive(
        ppt,
        thrice_equal,
        halving=True,
        products=lambda before, after, width, head_dim: (
            before * width + PEERS["tome"].products(before, after, width, head_dim)
        ),
    ),
    "zero-tprune": Progressive(
        zero_tprune,
        retained,
        proportional=False,
        products=lambda before, after, width, head_dim: (
            before * before * (width // 4 + (VOTES + 1) * (width // head_dim))
        ),
    ),
}
