"""Beyond attentive tokens (BAT): attentive and inattentive tokens are reduced apart.

The paper trains with the method. Here it runs on the frozen model, as EViT does.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from redi.reduction.clustering import merge_clusters
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, take
from redi.reduction.schedule import thrice

#: Share of the remaining tokens that are clusters of inattentive tokens.
CLUSTERS = 0.25
#: Number of nearest tokens, itself included, that the density of a token is taken from.
NEIGHBOURS = 5


def bat(inside: Inside, count: int) -> Reduction:
    """BAT (Long et al., CVPR 2023), frozen: keep what CLS attends to, but let the rest stay diverse.

    The tokens with the highest CLS attention a_i are attentive. The others are clustered by density peaks (see
    :func:`density_peaks`). To make room for the clusters, attentive tokens are matched: in the order of attention
    they go alternately into B and A, and the pairs with the highest cosine of hidden states merge. Every merged token
    is the mean of its members, weighted by a_i, at the position of the first of them.
    """
    n = inside.patches.shape[1]
    clusters = max(round(CLUSTERS * count), 1)
    pairs = min(clusters, n - count, count - clusters)
    relevance = inside.relevance
    ranking = relevance.argsort(dim=1, descending=True, stable=True)
    attentive = ranking[:, : count - clusters + pairs]
    inattentive = ranking[:, count - clusters + pairs :].sort(dim=1).values
    states = inside.patches.float()
    # The attentive tokens that stay come first, then the clusters.
    label = torch.zeros_like(ranking).scatter(1, attentive, _matched(take(states, attentive), pairs))
    cluster = density_peaks(take(states, inattentive), clusters)
    label = label.scatter(1, inattentive, count - clusters + cluster)
    return merge_clusters(inside.patches, inside.weights(relevance).clamp(min=1e-8), label, count)


def _matched(states: Float[Tensor, "batch attentive dim"], pairs: int) -> Int[Tensor, "batch attentive"]:
    """The new place of each attentive token, after the most similar tokens of A, the odd ones, joined B."""
    if pairs == 0:
        return torch.arange(states.shape[1], device=states.device).expand(len(states), -1)
    unit = normalize(states, dim=-1)
    closest, destination = (unit[:, 1::2] @ unit[:, 0::2].transpose(1, 2)).max(dim=2)
    order = closest.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1, stable=True)
    second = (states.shape[1] + 1) // 2  # the size of B
    places = torch.arange(second, device=states.device).repeat_interleave(2)[: states.shape[1]].repeat(len(states), 1)
    places[:, 1::2] = torch.where(rank < pairs, destination, second + rank - pairs)
    return places


def density_peaks(states: Float[Tensor, "batch points dim"], clusters: int) -> Int[Tensor, "batch points"]:
    """The cluster of each point, by density peaks (Rodriguez and Laio, Science 2014).

    The density of a point is exp(-mean of d^2 to its nearest points), with d = |x_i - x_j| / sqrt(dim); its distance
    is that to the nearest denser point, or the largest of all for the densest. The points with the highest product
    of the two are the centres. Every other point joins the nearest centre.
    """
    centred = states - states.mean(dim=1, keepdim=True)
    product = centred @ centred.transpose(1, 2)
    lengths = product.diagonal(dim1=1, dim2=2)
    squares = (lengths[..., None] + lengths[:, None] - 2 * product).clamp(min=0) / states.shape[2]
    n = states.shape[1]
    density = (-squares.sort(dim=2).values[:, :, : min(NEIGHBOURS, n)].mean(dim=2)).exp()
    earlier = torch.ones(n, n, dtype=torch.bool, device=states.device).tril(-1)  # of equals, the first is denser
    denser = (density[:, None] > density[..., None]) | ((density[:, None] == density[..., None]) & earlier)
    apart = squares.sqrt()
    distance = apart.masked_fill(~denser, torch.inf).amin(dim=2)
    distance = torch.where(denser.any(dim=2), distance, apart.amax(dim=(1, 2))[:, None])
    centres = (density * distance).argsort(dim=1, descending=True, stable=True)[:, :clusters].sort(dim=1).values
    nearest = apart.gather(2, centres[:, None].expand(-1, n, -1)).argmin(dim=2)
    # A centre stays in its own cluster, even if another centre is equal to it.
    return nearest.scatter(1, centres, torch.arange(clusters, device=states.device).expand_as(centres))


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Multiply-adds of the CLS row of attention, the matching, the distances and the weighted sums."""
    clusters = max(round(CLUSTERS * after), 1)
    attentive = after - clusters + min(clusters, before - after, after - clusters)
    apart = before - attentive
    return (before + attentive * attentive // 4 + apart * apart + before * after) * width


#: The reducer of this file by name.
DECOUPLING: dict[str, Progressive] = {
    "bat": Progressive(bat, thrice, scored=True, proportional=False, products=_products)
}
