"""Later kin of ToMe: progressive reducers of other papers that match tokens in two sets and merge the most similar.

None needs training to run. The tests compare each with a loop written from the description of its paper or of its
released code.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import elu, normalize

from redi.reduction.peers import PEERS, between, key_similarity, match_halves, merge_first
from redi.reduction.progressive import Inside, Progressive, merge_pairs, merge_weighted
from redi.reduction.reducer import Schedule
from redi.reduction.result import Reduction, places, take
from redi.reduction.schedule import constant, ratio

#: The margin m of PiToMe's released code in the first block; it falls to zero over the depth.
RELEASED_MARGIN = 0.75
#: Lower bound of a length that is divided by.
LEAST = 1e-8


def pitome_released(inside: Inside, count: int, matching_first: bool = True) -> Reduction:
    """PiToMe as its authors release it, with the setting for DeiT; ``matching_first=False`` is that for MAE.

    The energy of a token is the mean over all tokens of ELU(cos(k_i, k_j) - m), m = 0.75 (1 - l / L): unlike the
    paper's f, it is continuous at the margin. In the first half of the blocks no token is protected: all tokens,
    highest energy first, go alternately into A and B, and the most similar of the edges from A to B are merged, as
    in ToMe. In the other half the step is the paper's.
    """
    remove = inside.patches.shape[1] - count
    similarity = key_similarity(inside)
    margin = RELEASED_MARGIN * (1 - inside.block / inside.depth)
    energy = elu(similarity - margin).mean(dim=2)
    order = energy.argsort(dim=1, descending=True, stable=True)
    if (2 * inside.block < inside.depth) != matching_first:
        return merge_first(inside, similarity, order, remove)
    first, second = order[:, 0::2], order[:, 1::2]  # A and B
    closest, destination = between(similarity, first, second).max(dim=2)
    ranking = closest.argsort(dim=1, descending=True, stable=True)
    merged, rest = ranking[:, :remove], first.gather(1, ranking[:, remove:]).sort(dim=1).values
    return merge_pairs(inside, rest, second, first.gather(1, merged), destination.gather(1, merged))


def tofu(inside: Inside, count: int) -> Reduction:
    """ToFu (Kim et al., WACV 2024): prune in early blocks, merge without loss of length in late ones.

    ToMe's matching chooses the tokens to remove. Up to block floor(L / 2), counted from 0, they are dropped, because
    early blocks are far from linear in their input. Later blocks merge them by :func:`mlerp`, with equal weights.
    """
    rest, targets, merged, destination = match_halves(inside, count)
    if inside.block <= inside.depth // 2:
        kept = torch.cat([rest, targets], dim=1)
        return Reduction(take(inside.patches, kept), kept, places(kept, inside.patches.shape[1]))
    equal = replace(inside, sizes=torch.ones_like(inside.sizes))
    return mlerp(inside.patches, merge_pairs(equal, rest, targets, merged, destination))


def mlerp(patches: Float[Tensor, "batch patches dim"], reduction: Reduction) -> Reduction:
    """ToFu's MLERP: each merged token of ``reduction`` scaled to the length of its longest member among ``patches``.

    A mean is shorter than its members if they differ. A token with a single member keeps its exact value.
    """
    count, dtype = reduction.tokens.shape[1], reduction.tokens.dtype
    exact = torch.promote_types(dtype, torch.float32)
    place = torch.where(reduction.source < 0, count, reduction.source)  # dropped tokens go to an extra place
    lengths = patches.to(exact).norm(dim=2)
    none = lengths.new_zeros(len(lengths), count + 1)
    longest = none.scatter_reduce(1, place, lengths, "amax")[:, :count]
    members = none.scatter_add(1, place, torch.ones_like(lengths))[:, :count]
    tokens = reduction.tokens.to(exact)
    scaled = tokens * (longest / tokens.norm(dim=2).clamp(min=LEAST))[..., None]
    return reduction._replace(tokens=torch.where((members > 1)[..., None], scaled.to(dtype), reduction.tokens))


def mame(inside: Inside, count: int) -> Reduction:
    """MaMe (Huo and Li, CVPR 2026 Findings), our reading: one token may merge into several others.

    Tokens go alternately into A and B. A token of A merges if a token of B is more similar to it than a threshold
    tau (cosine of mean keys). It is divided among all tokens of B above the threshold, in proportion to their
    similarity S: with W = relu(S) [S >= tau], rows scaled to a sum of one, B becomes (s_B B + W^T s_A A) / (s_B +
    W^T s_A). That is matrix products and elementwise operations only. The paper's tau is given, and the number of
    tokens follows. Here the number is given, and the tau of an image is the one that gives it, found by a sort.
    """
    n = inside.patches.shape[1]
    exact = torch.promote_types(inside.patches.dtype, torch.float32)
    keys = normalize(inside.keys.to(exact), dim=-1)
    similarity = keys[:, 1::2] @ keys[:, 0::2].transpose(1, 2)  # of A to B
    closest, destination = similarity.max(dim=2)
    order = closest.argsort(dim=1, descending=True, stable=True)
    merged, rest = order[:, : n - count], order[:, n - count :].sort(dim=1).values
    threshold = closest.gather(1, merged[:, -1:])[..., None]
    rows = take(similarity, merged)
    shares = torch.where(rows >= threshold, rows.clamp(min=LEAST), 0)
    weights = inside.sizes[:, 1::2].gather(1, merged)[..., None] / shares.sum(dim=2, keepdim=True)
    targets = torch.arange(0, n, 2, device=keys.device).expand(len(keys), -1)
    return merge_weighted(
        inside, 2 * rest + 1, targets, 2 * merged + 1, destination.gather(1, merged), (shares * weights).transpose(1, 2)
    )


def first_two_thirds(patches: int, depth: int, strength: float) -> Schedule:
    """MaMe: the first 8 of 12 blocks, scaled to other depths, remove the same number of tokens."""
    merging = max(round(depth * 2 / 3), 1)
    counts = constant(patches, merging, strength)
    return counts + counts[-1:] * (depth - merging)


#: The reducers of this file by name.
MERGING: dict[str, Progressive] = {
    "pitome-released": Progressive(
        pitome_released,
        ratio,
        halving=True,
        proportional=False,
        products=lambda before, after, width, head_dim: (
            before * before * head_dim + (before - after) * (before // 2) * width
        ),
    ),
    "tofu": Progressive(tofu, constant, strongest=2.0, halving=True, products=PEERS["tome"].products),
    "mame": Progressive(mame, first_two_thirds, halving=True, products=PEERS["tome"].products),
}
