"""Spherical k-means: against faiss, against a naive loop, and its invariances."""

import weakref
from collections.abc import Iterator, Sequence

import faiss
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from redi.centroids import CentroidSums
from redi.errors import CorpusError, InvalidInput
from redi.vocabulary import Vocabulary, rechunk, start_patches


def clustered(words: int = 12, images: int = 90, patches: int = 16, dim: int = 24) -> Tensor:
    """Patches around well separated directions: no near-ties, no empty word."""
    generator = torch.Generator().manual_seed(3)
    centres = normalize(torch.randn(words, dim, generator=generator), dim=1)
    place = torch.randint(words, (images, patches), generator=generator)
    noise = 0.15 * torch.randn(images, patches, dim, generator=generator)
    scale = 1 + torch.rand(images, patches, 1, generator=generator)
    return (centres[place] + noise) * scale


def naive_kmeans(features: Tensor, start: Tensor, passes: int) -> Tensor:
    rows = normalize(features.flatten(0, 1).double(), dim=1)
    centroids = normalize(start.double(), dim=1)
    for _ in range(passes):
        sums = torch.zeros_like(centroids)
        for row in rows:
            cosines = [float(row @ centroid) for centroid in centroids]
            sums[cosines.index(max(cosines))] += row
        centroids = normalize(sums, dim=1)
    return centroids.float()


class Stream:
    """A corpus that counts how often it is walked and can give single images."""

    def __init__(self, features: Tensor, batch: int) -> None:
        self.features, self.batch = features, batch
        self.walks = 0
        self.taken: list[int] = []
        self.n_images = len(features)

    def __iter__(self) -> Iterator[Tensor]:
        self.walks += 1
        yield from self.features.split(self.batch)

    def take(self, images: Sequence[int]) -> Tensor:
        self.taken += images
        return self.features[list(images)]


def test_by_hand() -> None:
    # Three patches near the x axis, one on the y axis; one pass from the axes.
    features = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[3.0, 4.0], [4.0, 3.0]]])
    vocabulary = Vocabulary(n_words=2, n_passes=1).fit([features], start=torch.eye(2))
    first = normalize(torch.tensor([1.0, 0.0]) + torch.tensor([0.8, 0.6]), dim=0)
    second = normalize(torch.tensor([0.0, 1.0]) + torch.tensor([0.6, 0.8]), dim=0)
    torch.testing.assert_close(vocabulary.centroids_, torch.stack([first, second]))
    assert vocabulary.counts_.tolist() == [2, 2]
    assert vocabulary.objective_ == [pytest.approx((1 + 1 + 0.8 + 0.8) / 4)]


def test_equals_the_naive_loop() -> None:
    features = clustered(images=20)
    start = features.flatten(0, 1)[:12]
    vocabulary = Vocabulary(12, n_passes=2).fit([features], start=start)
    torch.testing.assert_close(vocabulary.centroids_, naive_kmeans(features, start, 2))


def test_agrees_with_faiss() -> None:
    features = clustered()
    rows = normalize(features.flatten(0, 1), dim=1)
    start = rows[torch.linspace(0, len(rows) - 1, 12).long()]
    vocabulary = Vocabulary(12, n_passes=3).fit([features], start=start)
    assert vocabulary.reseeded_ == [0, 0, 0]
    kmeans = faiss.Kmeans(rows.shape[1], 12, niter=3, spherical=True, max_points_per_centroid=10**9)
    kmeans.train(rows.numpy(), init_centroids=start.numpy())
    torch.testing.assert_close(vocabulary.centroids_, torch.from_numpy(kmeans.centroids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("batch", [1, 7, 90])
def test_batch_size_does_not_matter(batch: int) -> None:
    features = clustered()
    whole = Vocabulary(12).fit([features])
    batched = Vocabulary(12).fit(features.split(batch))
    torch.testing.assert_close(batched.centroids_, whole.centroids_, atol=1e-6, rtol=0)
    assert torch.equal(batched.assign(features), whole.assign(features))


def test_objective_never_falls_between_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 16, 8, generator=generator)
    vocabulary = Vocabulary(20, n_passes=8).fit(features.split(9))
    assert vocabulary.reseeded_ == [0] * 8
    assert all(b >= a for a, b in zip(vocabulary.objective_, vocabulary.objective_[1:], strict=False))
    assert vocabulary.objective_[-1] > vocabulary.objective_[0]


def test_vector_length_does_not_matter() -> None:
    features = clustered()
    scaled = features * (0.1 + torch.rand(*features.shape[:2], 1))
    torch.testing.assert_close(Vocabulary(12).fit([features]).centroids_, Vocabulary(12).fit([scaled]).centroids_)


def test_each_pass_walks_the_stream_once_and_the_start_needs_few_images() -> None:
    stream = Stream(clustered(), batch=8)
    vocabulary = Vocabulary(12, n_passes=3).fit(stream)
    assert stream.walks == 3
    assert len(set(stream.taken)) <= 12
    plain = Vocabulary(12, n_passes=3).fit(list(stream))
    assert torch.equal(vocabulary.centroids_, plain.centroids_)


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 60))
def test_start_patches_are_distinct_and_evenly_spread(images: int, patches: int, words: int) -> None:
    if images * patches < words:
        with pytest.raises(CorpusError, match="cannot form"):
            start_patches(images, patches, words)
        return
    places = start_patches(images, patches, words)
    assert len(set(places)) == words
    assert all(0 <= image < images and 0 <= patch < patches for image, patch in places)
    per_image = [sum(image == k for image, _ in places) for k in range(images)]
    assert max(per_image) - min(per_image) <= 1


def test_start_is_not_one_corner_where_the_corpus_is_a_multiple_of_the_words() -> None:
    assert len({patch for _, patch in start_patches(1024, 196, 512)}) > 100


def test_empty_word_is_placed_on_the_worst_represented_patch_and_counted() -> None:
    features = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]])
    start = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # nothing is near the second word
    vocabulary = Vocabulary(2, n_passes=1).fit([features], start=start)
    assert vocabulary.reseeded_ == [1]
    torch.testing.assert_close(vocabulary.centroids_[1], torch.tensor([0.0, 1.0]))
    again = Vocabulary(2, n_passes=2).fit([features], start=start)
    assert again.counts_.tolist() == [2, 1]


def test_sums_of_parts_merge_to_the_whole() -> None:
    features = clustered()
    centroids = Vocabulary(12).fit([features]).centroids_
    whole, left, right = (CentroidSums(12, 24, torch.device("cpu")) for _ in range(3))
    for chunk in rechunk([features], 32):
        whole.update(chunk, centroids)
    left.update(features[:32], centroids)
    right.update(features[32:64], centroids)
    right.update(features[64:], centroids)
    left.merge(right)
    assert torch.equal(left.counts, whole.counts)
    torch.testing.assert_close(left.sums, whole.sums, atol=1e-12, rtol=0)
    torch.testing.assert_close(left.worst_similarity, whole.worst_similarity)


def test_equal_words_give_the_lowest_index() -> None:
    vocabulary = Vocabulary(3)
    vocabulary.centroids_ = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert vocabulary.assign(torch.tensor([[5.0, 0.0], [0.0, 2.0]])).tolist() == [1, 0]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 10))
def test_rechunk_keeps_every_image_in_order(batches: list[int], size: int) -> None:
    images = torch.arange(sum(batches), dtype=torch.float32)[:, None, None]
    chunks = list(rechunk(images.split(batches), size))
    assert torch.equal(torch.cat(chunks), images)
    assert all(len(chunk) == size for chunk in chunks[:-1])


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    features = torch.rand(2, 3, 4)
    with pytest.raises(CorpusError, match="6 patches cannot form 7 words"):
        Vocabulary(7).fit([features])
    with pytest.raises(CorpusError, match="6 patches cannot form 7 words"):
        Vocabulary(7).fit([features], start=torch.rand(7, 4))
    with pytest.raises(CorpusError, match="corpus is empty"):
        Vocabulary(2).fit([])
    with pytest.raises(InvalidInput, match="only once"):
        Vocabulary(2).fit(batch for batch in [features])
    with pytest.raises(InvalidInput, match="start has 3 words"):
        Vocabulary(2).fit([features], start=torch.rand(3, 4))
    with pytest.raises(InvalidInput, match="finite"):
        Vocabulary(2).fit([features / 0], start=torch.rand(2, 4))
    with pytest.raises(InvalidInput, match="width 5"):
        Vocabulary(2).fit([features]).assign(torch.rand(3, 5))
    with pytest.raises(InvalidInput, match="width 4, but the codebook has 5"):
        Vocabulary(2).fit([features], start=torch.rand(2, 5))
    with pytest.raises(InvalidInput, match="start must be finite"):
        Vocabulary(2).fit([features], start=torch.rand(2, 4) / 0)
    with pytest.raises(InvalidInput, match="same shape"):
        Vocabulary(2).fit([features, torch.rand(2, 4, 4)])
    with pytest.raises(InvalidInput, match=r"\[batch patches dim\]"):
        Vocabulary(2).fit(features)
    with pytest.raises(InvalidInput, match="floating point"):
        Vocabulary(2).fit([features.long()])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_features_of_other_precision_are_taken(kind: torch.dtype) -> None:
    features = clustered()
    vocabulary = Vocabulary(12).fit([features.to(kind)])
    expected = Vocabulary(12).fit([features])
    assert vocabulary.centroids_.dtype == torch.float32
    torch.testing.assert_close(vocabulary.centroids_, expected.centroids_, atol=1e-2, rtol=0)
    assert torch.equal(vocabulary.assign(features.to(kind)), expected.assign(features))


def test_empty_batches_are_passed_over() -> None:
    features = clustered()
    whole = Vocabulary(12).fit([features])
    assert torch.equal(Vocabulary(12).fit([features[:0], features]).centroids_, whole.centroids_)


def test_a_patch_without_direction_is_no_place_for_a_word() -> None:
    features = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.9, 0.1], [0.0, 1.0]]])
    start = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    vocabulary = Vocabulary(2, n_passes=1).fit([features], start=start)
    torch.testing.assert_close(vocabulary.centroids_.norm(dim=1), torch.ones(2))


def test_memory_does_not_grow_with_the_corpus() -> None:
    """What a pass holds besides the current chunk: the state, of the codebook's size."""
    sizes: list[int] = []
    for images in (64, 640):
        alive: list[weakref.ref[Tensor]] = []

        class Corpus:
            def __init__(self, images: int, alive: list[weakref.ref[Tensor]]) -> None:
                self.images, self.alive = images, alive

            def __iter__(self) -> Iterator[Tensor]:
                generator = torch.Generator().manual_seed(0)
                for _ in range(self.images // 16):
                    batch = torch.randn(16, 4, 8, generator=generator)
                    self.alive.append(weakref.ref(batch))
                    yield batch
                    del batch
                    sizes[-1] = max(sizes[-1], sum(ref() is not None for ref in self.alive))

        sizes.append(0)
        Vocabulary(6).fit(Corpus(images, alive), start=torch.eye(8)[:6])
    assert sizes[1] <= sizes[0] + 1
    assert sizes[1] < 6
