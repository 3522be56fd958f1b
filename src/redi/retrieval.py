"""Retrieval: neighbours of unit vectors, the measures of a ranking, and late interaction between sets of vectors.

A gallery holds labelled images, a query is an image without a label. All vectors have unit length, so the similarity
of two of them is their cosine, the inner product. The lower index of the
gallery wins a tie, except in a search by faiss, which promises no order.
"""

from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from redi.checks import require_axes, require_same_shape
from redi.errors import ConfigError, InvalidInput
from redi.reduction.result import take

#: Neighbours that vote and the temperature of their votes, as in DINO (Caron et al., ICCV 2021).
NEIGHBOURS, TEMPERATURE = 20, 0.07
#: Gallery vectors from which faiss searches, if it is installed.
FAISS_FROM = 20_000
#: Queries that are ranked at once, and similarities that MaxSim holds at once.
QUERY_CHUNK, PAIRS = 256, 2**24
#: Rounds of k-means in one image.
ROUNDS = 10

Similarities = Float[Tensor, "queries gallery"]


def nearest(
    queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"], count: int, search: str = "auto"
) -> tuple[Float[Tensor, "queries count"], Int[Tensor, "queries count"]]:
    """Similarities and indices of the ``count`` nearest gallery vectors, the nearest first. The search is exact.

    ``search`` is ``torch``, ``faiss`` (a flat index) or ``auto``: faiss for large galleries if it is installed.
    """
    require_axes(queries, "queries dim", "The queries")
    require_axes(gallery, "gallery dim", "The gallery")
    if not 1 <= count <= len(gallery):
        raise InvalidInput(f"A gallery of {len(gallery)} vectors has no {count} nearest ones.")
    if (search_of(len(gallery)) if search == "auto" else search) == "faiss":
        return _faiss_nearest(queries, gallery, count)
    values, indices = [], []
    for some in queries.split(QUERY_CHUNK):
        ranked = (some @ gallery.T).sort(dim=1, descending=True, stable=True)
        values.append(ranked.values[:, :count])
        indices.append(ranked.indices[:, :count])
    return torch.cat(values), torch.cat(indices)


def search_of(gallery: int) -> str:
    """What searches a gallery of some vectors: ``torch``, or ``faiss`` if the gallery is large and faiss installed."""
    return "faiss" if gallery >= FAISS_FROM and find_spec("faiss") else "torch"


def _faiss_nearest(queries: Tensor, gallery: Tensor, count: int) -> tuple[Tensor, Tensor]:
    try:
        import faiss
    except ImportError:
        raise ConfigError("This search needs faiss: pip install 'redi-vit[faiss]'.") from None
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery.float().cpu().numpy())
    values, indices = index.search(queries.float().cpu().numpy(), count)
    return torch.from_numpy(values).to(queries.device), torch.from_numpy(indices).to(queries.device)


def knn_vote(
    similarity: Float[Tensor, "queries neighbours"],
    labels: Int[Tensor, "queries neighbours"],
    classes: int,
    temperature: float = TEMPERATURE,
) -> Int[Tensor, " queries"]:
    """The class of each query by the weighted vote of its neighbours (Wu et al., CVPR 2018; DINO).

    argmax_c sum_i [y_i = c] exp(s_i / temperature), with s_i the similarity of neighbour i and y_i its label.
    """
    require_same_shape(similarity, labels, "Similarities and labels")
    # exp(s / 0.07) stays below 2e6, but differences decide: take out the largest, which changes no order.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    votes = torch.zeros(len(labels), classes, dtype=weights.dtype, device=weights.device)
    return votes.scatter_add_(1, labels, weights).argmax(dim=1)


def average_precision(scores: Similarities, relevant: Bool[Tensor, "queries gallery"]) -> Float[Tensor, " queries"]:
    """AP = 1/R sum_{r=1..R} r / k_r, with k_r the rank of the r-th relevant image in the whole ranking.

    Every query needs a relevant image. The mean over queries is mAP.
    """
    require_same_shape(scores, relevant, "Scores and relevance")
    total = relevant.sum(dim=1)
    if not bool((total > 0).all()):
        raise InvalidInput("A query without a relevant image in the gallery has no average precision.")
    ranked = relevant.gather(1, ranking(scores))
    found = ranked.cumsum(dim=1)
    rank = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    return (torch.where(ranked, found / rank, 0).sum(dim=1) / total).float()


def ranking(scores: Similarities) -> Int[Tensor, "queries gallery"]:
    """Indices of the gallery for each query, the best first."""
    return scores.argsort(dim=1, descending=True, stable=True)


def recalled(relevant: Bool[Tensor, "queries ranked"], count: int) -> Bool[Tensor, " queries"]:
    """Whether one of the first ``count`` images of a ranking is relevant. The mean over queries is recall at ``count``.

    This is the recall of image retrieval, R@k, not the share of all relevant images.
    """
    return relevant[:, :count].any(dim=1)


def maxsim(queries: Float[Tensor, "queries vectors dim"], gallery: Float[Tensor, "gallery stored dim"]) -> Similarities:
    """Late interaction (Khattab and Zaharia, ColBERT, SIGIR 2020): sum over i of max over j of <q_i, g_j>.

    i counts the vectors of the query, j those of the gallery image. Images are compared in chunks.
    """
    require_axes(queries, "queries vectors dim", "The queries")
    require_axes(gallery, "gallery stored dim", "The gallery")
    vectors, stored = queries.shape[1], gallery.shape[1]
    images = max(1, PAIRS // (QUERY_CHUNK * vectors * stored))
    rows = []
    for some in queries.split(QUERY_CHUNK):
        flat = some.flatten(0, 1)
        parts = [
            (flat @ part.flatten(0, 1).T).view(len(some), vectors, len(part), stored).amax(dim=3).sum(dim=1)
            for part in gallery.split(images)
        ]
        rows.append(torch.cat(parts, dim=1))
    return torch.cat(rows)


def best_patches(
    patches: Float[Tensor, "batch patches dim"], scores: Float[Tensor, "batch patches"], count: int
) -> Float[Tensor, "batch count dim"]:
    """The ``count`` patches with the highest scores, the best first; raster order wins a tie."""
    return take(patches, scores.argsort(dim=1, descending=True, stable=True)[:, :count])


def merged_patches(patches: Float[Tensor, "batch patches dim"], count: int) -> Float[Tensor, "batch count dim"]:
    """The centres of ``count`` clusters of each image's unit patches, by spherical k-means.

    The start is fixed: the patch closest to the mean, then again and again the patch that is farthest from those taken.
    Ten rounds follow. A cluster that loses all its patches keeps its centre. The centres have unit length.
    """
    require_axes(patches, "batch patches dim", "Patches")
    if not 1 <= count <= patches.shape[1]:
        raise InvalidInput(f"{patches.shape[1]} patches make no {count} clusters.")
    images = torch.arange(len(patches), device=patches.device)
    mean = normalize(patches.mean(dim=1), dim=-1)
    chosen = (patches @ mean[:, :, None])[..., 0].argmax(dim=1)
    centres, closeness = [patches[images, chosen]], patches.new_full(patches.shape[:2], -torch.inf)
    for _ in range(count - 1):
        closeness = torch.maximum(closeness, (patches @ centres[-1][:, :, None])[..., 0])
        centres.append(patches[images, closeness.argmin(dim=1)])
    centre = torch.stack(centres, dim=1)
    for _ in range(ROUNDS):
        member = one_hot((patches @ centre.transpose(1, 2)).argmax(dim=2), count).transpose(1, 2)
        total = member.to(patches.dtype) @ patches
        centre = torch.where(member.any(dim=2, keepdim=True), normalize(total, dim=-1), centre)
    return centre
