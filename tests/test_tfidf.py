"""Eq. tf, classcontrast, idf, tfidfgt and viewtfidf."""

import warnings
from math import log, sqrt

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from redi.errors import CorpusError, InvalidInput
from redi.score import minmax
from redi.tfidf import CorpusStatistics, lookup


def naive_table(words: list[list[int]], labels: list[int], classes: int, n_words: int) -> Tensor:
    """The equations, image by image and word by word, in Python floats."""
    tf = [[image.count(k) / len(image) for k in range(n_words)] for image in words]
    table = torch.zeros(classes, n_words)
    for k in range(n_words):
        df = sum(k in image for image in words)
        idf = min(max(log((len(words) + 1) / (df + 1)), 0), 8)
        for y in range(classes):
            inside = [tf[d][k] for d in range(len(words)) if labels[d] == y]
            outside = [tf[d][k] for d in range(len(words)) if labels[d] != y]
            p, q = max(sum(inside) / len(inside), 1e-8), max(sum(outside) / len(outside), 1e-8)
            table[y, k] = max(0, log(p) - log(q)) * sqrt(p) * idf
    return table


def random_corpus(seed: int, images: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (images,), generator=generator)
    labels[:4] = torch.arange(4)
    words = torch.randint(10, (images, 12), generator=generator)
    words[:, :4] = labels[:, None]  # something class specific to find
    return words, labels


def test_by_hand() -> None:
    # Two classes, one image each, four patches; word 0 only in class 0, word 2 in both alike.
    statistics = CorpusStatistics(2, 3)
    statistics.update(torch.tensor([[0, 0, 0, 2], [1, 1, 1, 2]]), torch.tensor([0, 1]))
    idf = statistics.idf()
    assert idf.tolist() == pytest.approx([log(3 / 2), log(3 / 2), 0.0])
    high = (log(0.75) - log(1e-8)) * sqrt(0.75) * log(3 / 2)
    expected = torch.tensor([[high, 0, 0], [0, high, 0]])
    torch.testing.assert_close(statistics.table(), expected)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_naive_loop(seed: int) -> None:
    words, labels = random_corpus(seed)
    table = CorpusStatistics(4, 10).update(words, labels).table()
    expected = naive_table(words.tolist(), labels.tolist(), 4, 10)
    torch.testing.assert_close(table, expected, rtol=1e-5, atol=1e-7)
    assert table.min() == 0
    assert table.max() > 0


def test_table_is_contrast_times_support_times_idf() -> None:
    statistics = CorpusStatistics(4, 10).update(*random_corpus(0))
    product = statistics.contrast() * statistics.support() * statistics.idf()
    torch.testing.assert_close(statistics.table(), product)


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_split_and_merged_in_any_order_is_identical(seed: int, parts: int) -> None:
    words, labels = random_corpus(seed)
    whole = CorpusStatistics(4, 10).update(words, labels)
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(seed))
    merged = CorpusStatistics(4, 10)
    for part in order.chunk(parts):
        merged.merge(CorpusStatistics(4, 10).update(words[part], labels[part]))
    assert torch.equal(merged.word_counts, whole.word_counts)
    assert torch.equal(merged.document_frequency, whole.document_frequency)
    assert torch.equal(merged.class_images, whole.class_images)
    assert torch.equal(merged.table(), whole.table())


def test_idf_is_clipped_at_eight() -> None:
    statistics = CorpusStatistics(2, 2).update(torch.zeros(2, 3, dtype=torch.int64), torch.arange(2))
    statistics.class_images[:] = 2_000  # as if 4,000 images had been counted
    assert statistics.idf()[1] == 8
    assert statistics.idf()[0] == pytest.approx(log(4_001 / 3), rel=1e-6)


def test_class_without_images_has_a_zero_row_and_is_named() -> None:
    statistics = CorpusStatistics(4, 3)
    statistics.update(torch.tensor([[0, 0], [1, 2]]), torch.tensor([0, 2]))
    with pytest.warns(UserWarning, match=r"2 of 4 classes have no images.*: 1, 3\."):
        table = statistics.table()
    assert table[[1, 3]].eq(0).all()
    assert table[0].max() > 0


def test_lookup_is_the_normalised_row() -> None:
    table = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 1.0]])
    words = torch.tensor([[2, 1, 0, 1], [1, 1, 2, 0]])
    values = lookup(table, words, torch.tensor([0, 1]))
    expected = minmax(torch.tensor([[3.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 2.0]]))
    torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.uint8, torch.uint16])
def test_words_and_labels_may_be_stored_small(kind: torch.dtype) -> None:
    words, labels = random_corpus(0)
    table = CorpusStatistics(4, 10).update(words.to(kind), labels.to(kind)).table()
    expected = lookup(table, words, labels)
    assert torch.equal(lookup(table, words.to(kind), labels.to(kind)), expected)


def test_state_of_parts_merges_to_the_whole() -> None:
    words, labels = random_corpus(1)
    whole = CorpusStatistics(4, 10).update(words, labels)
    restored = CorpusStatistics(4, 10)
    for part in (slice(0, 15), slice(15, 40)):
        restored.merge_state(CorpusStatistics(4, 10).update(words[part], labels[part]).state())
    assert torch.equal(restored.table(), whole.table())


def test_lookup_where_no_word_says_anything_is_zero() -> None:
    assert lookup(torch.zeros(2, 3), torch.tensor([[0, 1]]), torch.tensor([1])).tolist() == [[0, 0]]


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    statistics = CorpusStatistics(3, 5)
    words = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(CorpusError, match="two classes"):
        CorpusStatistics(1, 5)
    for method in (statistics.table, statistics.idf, statistics.contrast, statistics.support):
        with pytest.raises(CorpusError, match="corpus is empty"):
            method()
    with pytest.raises(InvalidInput, match=r"Labels must lie in 0\.\.2, but range from 0 to 3"):
        statistics.update(words, torch.tensor([0, 3]))
    with pytest.raises(InvalidInput, match="Words must lie in"):
        statistics.update(words - 1, torch.tensor([0, 1]))
    with pytest.raises(InvalidInput, match="Words must be integers"):
        statistics.update(words.float(), torch.tensor([0, 1]))
    with pytest.raises(InvalidInput, match="2 images but 1 labels"):
        statistics.update(words, torch.tensor([0]))
    assert statistics.n_images == 0, "a refused batch must leave no trace"
    statistics.update(words, torch.tensor([0, 0]))
    with pytest.raises(InvalidInput, match="same number of patches"):
        statistics.update(words[:, :3], torch.tensor([0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CorpusError, match="fewer than two classes have images"):
            statistics.table()
    with pytest.raises(InvalidInput, match="cannot be merged"):
        statistics.merge(CorpusStatistics(3, 6))
    with pytest.raises(InvalidInput, match="Labels must lie in"):
        lookup(torch.zeros(3, 5), words, torch.tensor([0, 7]))
