"""Visual words: spherical k-means over a stream of patch features (Sec. "Visual vocabulary").

The stream is read once per pass. Memory holds one chunk of features and sums of the size of the codebook. A chunk
has a fixed number of images, whatever the batch size of the stream. Sums within a chunk are FP32; sums across
chunks are float64 and exact. So the result depends neither on the batch size nor on the order of the chunks.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import floor, sqrt
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from redi import bounds
from redi.centroids import CentroidSums, dot_products
from redi.checks import require_axes, require_finite, require_float, require_type
from redi.errors import CorpusError, InvalidInput

#: Images per chunk: 6,272 patches of a 14x14 grid, enough for the matrix product to run at full speed.
CHUNK_IMAGES = 32

#: The paper's vocabulary: the number K of words and the number of passes.
N_WORDS = 512
N_PASSES = 3

GOLDEN = (sqrt(5) - 1) / 2


#: Batches of a stream may differ in their number of images.
Batch = Float[Tensor, "_batch patches dim"]
Stream = Iterable[Batch]


@runtime_checkable
class IndexedFeatures(Protocol):
    """A stream of known size that returns the features of single images without reading the others."""

    n_images: int

    def __iter__(self) -> Iterator[Batch]: ...

    def take(self, images: Sequence[int]) -> Float[Tensor, "taken patches dim"]: ...


class Vocabulary:
    """Spherical k-means with the paper's defaults: 512 words, three full passes.

    Each pass assigns every patch to the centroid of highest cosine similarity, then sets each centroid to the unit
    mean of its patches. A word without patches is placed on one of the patches of lowest similarity in that pass.

    Learned: ``centroids_ [words, dim]`` (unit length), ``counts_`` (patches per word in the last pass),
    ``objective_`` (mean cosine to the assigned centroid, per pass), ``reseeded_`` (re-seeded empty words per pass).
    """

    centroids_: Float[Tensor, "words dim"]
    counts_: Int[Tensor, " words"]
    objective_: list[float]
    reseeded_: list[int]

    def __init__(self, n_words: int = N_WORDS, n_passes: int = N_PASSES) -> None:
        for name, number, within in (("n_words", n_words, bounds.WORDS), ("n_passes", n_passes, bounds.PASSES)):
            require_type(number, int, name, InvalidInput)
            if refusal := within.refusal(name, number):
                raise InvalidInput(refusal)
        self.n_words = n_words
        self.n_passes = n_passes

    @torch.no_grad()
    def fit(self, features: Stream, start: Float[Tensor, "words dim"] | None = None) -> "Vocabulary":
        """Learn the words from batches of patch features, which need not be unit length.

        ``features`` is read several times, so it is a list or an object whose ``__iter__`` starts again. ``start``
        replaces the deterministic start. The deterministic start reads single images of :class:`IndexedFeatures`;
        it reads any other stream once to count the images and once more, up to the last word, to take the patches.
        """
        if isinstance(features, Iterator):
            raise InvalidInput(
                "The features are read once per pass, but a generator can be read only once: "
                "pass a list or an object whose __iter__ starts again."
            )
        if start is None:
            start = spread_start(features, self.n_words)
        require_axes(start, "words dim", "The codebook's start")
        require_float(start, "The codebook's start")
        require_finite(start, "The codebook's start")
        if len(start) != self.n_words:
            raise InvalidInput(f"The start has {len(start)} words, but n_words is {self.n_words}.")
        self.centroids_ = normalize(start.float(), dim=1)
        self.objective_, self.reseeded_ = [], []
        for _ in range(self.n_passes):
            sums = CentroidSums(self.n_words, start.shape[1], start.device)
            for chunk in rechunk(features, CHUNK_IMAGES):
                sums.update(chunk, self.centroids_)
            self.step(sums)
        return self

    def step(self, sums: CentroidSums) -> None:
        """End a pass: compute the centroids from its sums."""
        if int(sums.counts.sum()) < self.n_words:
            raise CorpusError(
                f"{int(sums.counts.sum())} patches cannot form {self.n_words} words: use more images or fewer words."
            )
        self.centroids_, reseeded = sums.centroids()
        self.counts_ = sums.counts
        self.objective_.append(sums.objective())
        self.reseeded_.append(reseeded)

    def assign(self, features: Float[Tensor, "*axes dim"]) -> Int[Tensor, "*axes"]:
        """The word of each patch: the centroid of highest cosine similarity; the lowest index wins a tie."""
        require_float(features, "Features")
        if features.shape[-1] != self.centroids_.shape[1]:
            raise InvalidInput(
                f"The features have width {features.shape[-1]}, but the vocabulary has {self.centroids_.shape[1]}."
            )
        return dot_products(features.float(), self.centroids_.to(features.device)).argmax(dim=-1)


def rechunk(features: Stream, images: int) -> Iterator[Batch]:
    """The same images in the same order, in chunks of ``images`` (the last may be smaller)."""
    pending: list[Tensor] = []
    n_pending = 0
    for batch in _checked(features):
        while len(batch):
            part = batch[: images - n_pending]
            pending.append(part)
            n_pending += len(part)
            batch = batch[len(part) :]
            if n_pending == images:
                yield torch.cat(pending) if len(pending) > 1 else pending[0]
                pending, n_pending = [], 0
    if pending:
        yield torch.cat(pending)


def _checked(features: Stream) -> Iterator[Batch]:
    """The batches that are not empty; an error if their images differ in shape."""
    shape: tuple[int, ...] | None = None
    for batch in features:
        if batch.ndim == 3 and len(batch) == 0:
            continue
        require_axes(batch, "batch patches dim", "Every batch of features")
        require_float(batch, "Features")
        if shape not in (None, tuple(batch.shape[1:])):
            raise InvalidInput(f"Every image must have the same shape, not {shape} and {tuple(batch.shape[1:])}.")
        shape = tuple(batch.shape[1:])
        yield batch


def start_patches(n_images: int, n_patches: int, n_words: int) -> list[tuple[int, int]]:
    """The (image, patch) at which each word starts, spread evenly over the corpus in index order.

    Word k starts at patch floor(k P / K) of all P patches. The patches of each image are then rotated by a multiple
    of the golden ratio: otherwise, in a corpus whose size is a multiple of K, every word would start in the same
    corner of its image. No two words share a patch.
    """
    total = n_images * n_patches
    if total < n_words:
        raise CorpusError(f"{total} patches cannot form {n_words} words: use more images or fewer words.")
    places = [divmod(word * total // n_words, n_patches) for word in range(n_words)]
    return [(image, (patch + floor(image * GOLDEN % 1 * n_patches)) % n_patches) for image, patch in places]


def spread_start(features: Stream, n_words: int) -> Float[Tensor, "words dim"]:
    """The deterministic start. It reads at most K images if the stream is :class:`IndexedFeatures`."""
    if isinstance(features, IndexedFeatures):
        n_images = features.n_images
        if n_images == 0:
            raise CorpusError("The corpus is empty: there are no patch features.")
        places = start_patches(n_images, features.take([0]).shape[1], n_words)
        images = sorted({image for image, _ in places})
        features_of = dict(zip(images, features.take(images), strict=True))
        return torch.stack([features_of[image][patch] for image, patch in places])
    sizes = [(len(batch), batch.shape[1]) for batch in _checked(features)]
    if not sizes:
        raise CorpusError("The corpus is empty: there are no patch features.")
    n_images = sum(images for images, _ in sizes)
    places = start_patches(n_images, sizes[0][1], n_words)
    words: list[Tensor] = []
    first_image = 0
    for batch in _checked(features):
        while len(words) < n_words and places[len(words)][0] < first_image + len(batch):
            image, patch = places[len(words)]
            words.append(batch[image - first_image, patch])
        first_image += len(batch)
        if len(words) == n_words:
            break
    if len(words) < n_words:
        raise InvalidInput("The features can be read only once: pass a list or an object whose __iter__ starts again.")
    return torch.stack(words)
