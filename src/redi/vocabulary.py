"""Visual words: spherical k-means over a stream of patch features (Sec. "Visual vocabulary").

The stream is walked once a pass and never held: what stays in memory is one chunk of features and
sums of the size of the codebook. The stream is cut into chunks of a fixed number of images, whatever
the batch size it arrives in; sums within a chunk are FP32, across chunks float64 and exact. So the
result depends neither on the batch size nor on the order in which processes add up their chunks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, sqrt
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import conv2d, embedding_bag, normalize

from redi.checks import require_axes, require_finite, require_float
from redi.errors import CorpusError, InvalidInput

#: Images a chunk: 6,272 patches of a 14x14 grid, enough for the matrix product to run at full speed.
CHUNK_IMAGES = 32

#: Adding and subtracting this rounds a float64 to a multiple of 2**-28. Sums of such multiples below
#: 2**25 are exact, so the chunks may be added in any order, by any number of processes. The sum of
#: similarities, one number over all patches, is rounded to multiples of 2**-20 and exact below 2**33.
ROUNDING = 1.5 * 2.0 ** (52 - 28)

GOLDEN = (sqrt(5) - 1) / 2


@runtime_checkable
class IndexedFeatures(Protocol):
    """A stream that knows its size and can give the features of single images without a walk."""

    n_images: int

    def __iter__(self) -> Iterator[Float[Tensor, "batch patches dim"]]: ...

    def take(self, images: Sequence[int]) -> Float[Tensor, "taken patches dim"]: ...


class Vocabulary:
    """Spherical k-means with the paper's defaults: 512 words, three full passes.

    Each pass assigns every patch to the centroid of highest cosine similarity and then makes each
    centroid the unit mean of its patches. A word that got no patch is placed on one of the
    worst-represented patches of that pass.

    Learned: ``centroids_ [words, dim]`` (unit length), ``counts_`` (patches a word in the last
    pass), ``objective_`` (mean cosine to the assigned centroid, one value a pass), ``reseeded_``
    (empty words placed anew, one value a pass).
    """

    centroids_: Float[Tensor, "words dim"]
    counts_: Int[Tensor, " words"]
    objective_: list[float]
    reseeded_: list[int]

    def __init__(self, n_words: int = 512, n_passes: int = 3) -> None:
        if n_words < 1 or n_passes < 1:
            raise InvalidInput(f"n_words and n_passes must be positive: {n_words}, {n_passes}.")
        self.n_words = n_words
        self.n_passes = n_passes

    @torch.no_grad()
    def fit(
        self,
        features: Iterable[Float[Tensor, "batch patches dim"]],
        start: Float[Tensor, "words dim"] | None = None,
    ) -> "Vocabulary":
        """``features`` can be walked again: a list, or an object whose ``__iter__`` starts anew.

        Vectors need not be unit length. ``start`` overrides the deterministic start, which reads
        single images where the stream is :class:`IndexedFeatures`. Of any other stream the size is
        unknown, so it is walked once more to count and once more, up to the last word, to pick.
        """
        if isinstance(features, Iterator):
            raise InvalidInput(
                "The features are walked once a pass, but a generator can be walked only once: "
                "pass a list or an object whose __iter__ starts anew."
            )
        if start is None:
            start = spread_start(features, self.n_words)
        require_axes(start, "words dim", "The codebook's start")
        require_float(start, "The codebook's start")
        require_finite(start, "The codebook's start")
        if len(start) != self.n_words:
            raise InvalidInput(f"The start has {len(start)} words, but {self.n_words} are wanted.")
        self.centroids_ = normalize(start.float(), dim=1)
        self.objective_, self.reseeded_ = [], []
        for _ in range(self.n_passes):
            sums = CentroidSums(self.n_words, start.shape[1], start.device)
            for chunk in rechunk(features, CHUNK_IMAGES):
                sums.update(chunk, self.centroids_)
            self.step(sums)
        return self

    def step(self, sums: "CentroidSums") -> None:
        """End a pass: take the centroids that its sums give."""
        if int(sums.counts.sum()) < self.n_words:
            raise CorpusError(
                f"{int(sums.counts.sum())} patches cannot form {self.n_words} words: "
                "use more images or fewer words."
            )
        self.centroids_, reseeded = sums.centroids()
        self.counts_ = sums.counts
        self.objective_.append(sums.objective())
        self.reseeded_.append(reseeded)

    def assign(self, features: Float[Tensor, "*axes dim"]) -> Int[Tensor, "*axes"]:
        """The word of each patch: highest cosine similarity, the lowest index where two are equal."""
        require_float(features, "Features")
        if features.shape[-1] != self.centroids_.shape[1]:
            raise InvalidInput(
                f"The features have width {features.shape[-1]}, "
                f"the vocabulary has {self.centroids_.shape[1]}."
            )
        return dot_products(features.float(), self.centroids_.to(features.device)).argmax(dim=-1)


class CentroidSums:
    """What one pass accumulates: ``update`` per chunk, ``merge`` per process, then ``centroids``.

    ``worst`` holds the worst-represented patches so far (as many as there are words, which is the
    most that could be empty), lowest similarity first, for the re-seeding of empty words.
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

        The largest dot product is the largest cosine whatever the patch's length, so the features
        are not copied to normalise them: the lengths enter as weights of the sums.
        """
        rows = chunk.flatten(0, 1).float()
        if rows.shape[1] != centroids.shape[1]:
            raise InvalidInput(
                f"The features have width {rows.shape[1]}, the codebook has {centroids.shape[1]}."
            )
        best, words = dot_products(rows, centroids).max(dim=1)
        length = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)
        cosine = best / length
        zero = length <= 1e-12  # a patch without direction: counted, but no place for a word
        if not bool(cosine.isfinite().all()):
            raise InvalidInput("Patch features must be finite, but some are not.")
        counts = torch.bincount(words, minlength=len(self.counts))
        # One bag a word: the rows in order of their word, cut where the word changes. Unlike
        # index_add_ it runs on all cores and adds in a fixed order.
        order = words.argsort(stable=True)
        bags = embedding_bag(
            order,
            rows,
            offsets=counts.cumsum(0) - counts,
            mode="sum",
            per_sample_weights=length.reciprocal()[order],
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
            torch.cat([self.worst, other["worst"]]),
            torch.cat([self.worst_similarity, other["worst_similarity"]]),
        )

    def objective(self) -> float:
        """Mean cosine similarity of a patch to the centroid it was assigned to."""
        return float(self.similarity / self.counts.sum())

    def centroids(self) -> tuple[Float[Tensor, "words dim"], int]:
        """Unit sums, and the number of empty words that were placed on badly represented patches.

        A word whose patches cancel out has no direction and counts as empty.
        """
        length = torch.linalg.vector_norm(self.sums, dim=1, keepdim=True)
        centroids = (self.sums / length.clamp(min=1e-12)).float()
        empty = (length[:, 0] <= 1e-12).nonzero().flatten()[: len(self.worst)]
        centroids[empty] = self.worst[: len(empty)]
        return centroids, len(empty)

    def _remember_worst(self, rows: Tensor, length: Tensor, cosine: Tensor) -> None:
        """Only patches below the best of the worst so far can matter: soon almost none."""
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
        """Lowest similarity first. Ties are broken by content, so the order of parts does not matter."""
        order = patches[:, 0].argsort(stable=True)
        order = order[similarity[order].argsort(stable=True)]
        order = order[similarity[order] < torch.inf][: len(self.counts)]
        self.worst, self.worst_similarity = patches[order], similarity[order]


def dot_products(
    features: Float[Tensor, "*axes dim"], centroids: Float[Tensor, "words dim"]
) -> Float[Tensor, "*axes words"]:
    """``features @ centroids.T``, on the CPU written as a 1x1 convolution over patches.

    It is the same product. But torch gives FP32 matrix products to MKL and convolutions to oneDNN,
    and on AMD processors the latter is faster (16 % on the one at hand; see docs/LOG.md).
    """
    if features.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return features @ centroids.T
    picture = features.reshape(1, -1, 1, features.shape[-1]).permute(0, 3, 1, 2)
    product = conv2d(picture, centroids[:, :, None, None])
    return product.permute(0, 2, 3, 1).reshape(*features.shape[:-1], len(centroids))


def rechunk(
    features: Iterable[Float[Tensor, "batch patches dim"]], images: int
) -> Iterator[Float[Tensor, "images patches dim"]]:
    """The same images in the same order, in chunks of ``images`` (the last may be smaller)."""
    pending: list[Tensor] = []
    waiting = 0
    for batch in _checked(features):
        while len(batch):
            part = batch[: images - waiting]
            pending.append(part)
            waiting += len(part)
            batch = batch[len(part) :]
            if waiting == images:
                yield torch.cat(pending) if len(pending) > 1 else pending[0]
                pending, waiting = [], 0
    if pending:
        yield torch.cat(pending)


def _checked(
    features: Iterable[Float[Tensor, "batch patches dim"]],
) -> Iterator[Float[Tensor, "batch patches dim"]]:
    """Batches that are not empty, all of one shape but for their length."""
    shape: tuple[int, ...] | None = None
    for batch in features:
        if batch.ndim == 3 and len(batch) == 0:
            continue
        require_axes(batch, "batch patches dim", "Every batch of features")
        require_float(batch, "Features")
        if shape not in (None, tuple(batch.shape[1:])):
            raise InvalidInput(
                f"Every image must have the same patches: {shape} so far, {tuple(batch.shape[1:])} now."
            )
        shape = tuple(batch.shape[1:])
        yield batch


def start_patches(n_images: int, n_patches: int, n_words: int) -> list[tuple[int, int]]:
    """(image, patch) of each word's start: spread evenly over the index-ordered corpus.

    Word k takes place floor(k P / K) of the P patches. Within each image the patches are then turned
    by a multiple of the golden ratio: without it a corpus whose size is a multiple of K would start
    every word in the same corner of its image. No two words share a patch.
    """
    total = n_images * n_patches
    if total < n_words:
        raise CorpusError(
            f"{total} patches cannot form {n_words} words: use more images or fewer words."
        )
    places = [divmod(word * total // n_words, n_patches) for word in range(n_words)]
    return [
        (image, (patch + floor(image * GOLDEN % 1 * n_patches)) % n_patches)
        for image, patch in places
    ]


def spread_start(
    features: Iterable[Float[Tensor, "batch patches dim"]], n_words: int
) -> Float[Tensor, "words dim"]:
    """The deterministic start: the features of at most K images, where the stream can be indexed."""
    if isinstance(features, IndexedFeatures):
        n_images = features.n_images
        if n_images == 0:
            raise CorpusError("The corpus is empty: there are no patch features.")
        first = features.take([0])
        places = start_patches(n_images, first.shape[1], n_words)
        images = sorted({image for image, _ in places})
        taken = dict(zip(images, features.take(images), strict=True))
        return torch.stack([taken[image][patch] for image, patch in places])
    sizes = [(len(batch), batch.shape[1]) for batch in _checked(features)]
    if not sizes:
        raise CorpusError("The corpus is empty: there are no patch features.")
    n_images = sum(images for images, _ in sizes)
    places = start_patches(n_images, sizes[0][1], n_words)
    rows: list[Tensor] = []
    first_image = 0
    for batch in _checked(features):
        while len(rows) < n_words and places[len(rows)][0] < first_image + len(batch):
            image, patch = places[len(rows)]
            rows.append(batch[image - first_image, patch])
        first_image += len(batch)
        if len(rows) == n_words:
            break
    if len(rows) < n_words:
        raise InvalidInput(
            "The features can be walked only once: pass a list, or an object that restarts."
        )
    return torch.stack(rows)
