"""The sums of one k-means pass. They are exact, so chunks can be added in any order by any process."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import conv2d, embedding_bag

from redi.errors import InvalidInput

#: Adding and subtracting this number rounds a float64 to a multiple of 2**-28. Sums of these multiples are exact
#: below 2**25, so their order does not matter. The sum of similarities, one number over all patches, is rounded to
#: multiples of 2**-20 and exact below 2**33.
ROUNDING = 1.5 * 2.0 ** (52 - 28)


class CentroidSums:
    """The sums of one pass: ``update`` per chunk, ``merge`` per process, then ``centroids``.

    ``worst`` holds the patches of lowest similarity, at most one per word, lowest first. Empty words are placed on
    them.
    """

    def __init__(self, n_words: int, width: int, device: torch.device) -> None:
        self.sums = torch.zeros(n_words, width, dtype=torch.float64, device=device)
        self.counts = torch.zeros(n_words, dtype=torch.int64, device=device)
        self.similarity = torch.zeros((), dtype=torch.float64, device=device)
        self.worst = torch.empty(0, width, device=device)
        self.worst_similarity = torch.empty(0, device=device)

    def update(
        self, chunk: Float[Tensor, "images patches dim"], centroids: Float[Tensor, "words dim"]
    ) -> Int[Tensor, "images patches"]:
        """Assign the patches of a chunk, add them to the sums and return their words.

        The largest dot product is also the largest cosine, whatever the patch's length. So the features are not
        normalised, which would copy them; their lengths enter as weights of the sums.
        """
        rows = chunk.flatten(0, 1).float()
        if rows.shape[1] != centroids.shape[1]:
            raise InvalidInput(f"The features have width {rows.shape[1]}, but the codebook has {centroids.shape[1]}.")
        best, words = dot_products(rows, centroids).max(dim=1)
        length = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)
        cosine = best / length
        zero = length <= 1e-12  # a patch without direction is counted, but no word is placed on it
        if not bool(cosine.isfinite().all()):
            raise InvalidInput("Patch features must be finite, but some are not.")
        counts = torch.bincount(words, minlength=len(self.counts))
        # One bag per word. Unlike index_add_, embedding_bag runs on all cores and adds in a fixed order.
        order = words.argsort(stable=True)
        bags = embedding_bag(
            order, rows, offsets=counts.cumsum(0) - counts, mode="sum", per_sample_weights=length.reciprocal()[order]
        )
        self.sums += bags.double().add_(ROUNDING).sub_(ROUNDING)
        self.counts += counts
        self.similarity += cosine.double().sum().add_(ROUNDING * 256).sub_(ROUNDING * 256)
        self._remember_worst(rows, length, cosine.masked_fill(zero, torch.inf))
        return words.view(chunk.shape[:2])

    def merge(self, other: "CentroidSums") -> "CentroidSums":
        self.merge_state(other.state())
        return self

    def state(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def merge_state(self, state: Mapping[str, Tensor]) -> None:
        other = {name: tensor.to(self.sums.device) for name, tensor in state.items()}
        self.sums += other["sums"]
        self.counts += other["counts"]
        self.similarity += other["similarity"]
        self._keep_worst(
            torch.cat([self.worst, other["worst"]]), torch.cat([self.worst_similarity, other["worst_similarity"]])
        )

    def objective(self) -> float:
        """Mean cosine similarity of a patch to its assigned centroid."""
        return float(self.similarity / self.counts.sum())

    def centroids(self) -> tuple[Float[Tensor, "words dim"], int]:
        """Unit centroids, and the number of empty words that were placed on the patches of lowest similarity.

        A word whose patches cancel out has no direction and counts as empty.
        """
        length = torch.linalg.vector_norm(self.sums, dim=1, keepdim=True)
        centroids = (self.sums / length.clamp(min=1e-12)).float()
        empty = (length[:, 0] <= 1e-12).nonzero().flatten()[: len(self.worst)]
        centroids[empty] = self.worst[: len(empty)]
        return centroids, len(empty)

    def _remember_worst(self, rows: Tensor, length: Tensor, cosine: Tensor) -> None:
        """Add a chunk to ``worst``. If it is full, only patches below its highest similarity matter."""
        if len(self.worst) == len(self.counts):
            candidates = (cosine < self.worst_similarity[-1]).nonzero().flatten()
            if not len(candidates):
                return
        else:
            candidates = torch.arange(len(rows), device=rows.device)
        if len(candidates) > len(self.counts):
            lowest = cosine[candidates].argsort(stable=True)[: len(self.counts)]
            candidates = candidates[lowest]
        self._keep_worst(
            torch.cat([self.worst, rows[candidates] / length[candidates, None]]),
            torch.cat([self.worst_similarity, cosine[candidates]]),
        )

    def _keep_worst(self, patches: Tensor, similarity: Tensor) -> None:
        """Keep the lowest similarities. Ties are broken by content, so the order of the chunks does not matter."""
        order = patches[:, 0].argsort(stable=True)
        order = order[similarity[order].argsort(stable=True)]
        order = order[similarity[order] < torch.inf][: len(self.counts)]
        self.worst, self.worst_similarity = patches[order], similarity[order]


def nearest_words(
    patches: Float[Tensor, "*axes dim"], centroids: Float[Tensor, "words dim"]
) -> tuple[Float[Tensor, "*axes"], Int[Tensor, "*axes"]]:
    """The cosine of each patch to its nearest word, and that word."""
    similarity, words = dot_products(patches, centroids).max(dim=-1)
    return similarity / torch.linalg.vector_norm(patches, dim=-1).clamp(min=1e-12), words


def dot_products(
    features: Float[Tensor, "*axes dim"], centroids: Float[Tensor, "words dim"]
) -> Float[Tensor, "*axes words"]:
    """``features @ centroids.T``, on the CPU computed as a 1x1 convolution over patches.

    torch computes FP32 matrix products with MKL and convolutions with oneDNN, which is faster on AMD processors (by
    16 % where it was measured; see docs/LOG.md).
    """
    if features.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return features @ centroids.T
    pixels = features.reshape(1, -1, 1, features.shape[-1]).permute(0, 3, 1, 2)
    product = conv2d(pixels, centroids[:, :, None, None])
    return product.permute(0, 2, 3, 1).reshape(*features.shape[:-1], len(centroids))
