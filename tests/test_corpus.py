"""Corpus terms and label sources: by hand, against naive loops, and what each source promises."""

from collections import Counter
from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from redi.corpus import (
    LABEL_SOURCES,
    TERMS,
    CorpusTerm,
    Evidence,
    bm25_term,
    corpus_map,
    other_labels,
    tfidf_term,
    zero_shot,
)
from redi.errors import ConfigError
from redi.rows import Catalogue, Score, Variant
from redi.score import minmax
from redi.tfidf import CorpusStatistics, lookup
from redi.views import View, aggregate, align, validation_views

CLASSES, WORDS = 3, 5
# Four patches per image; word 3 in every image, word 4 in none, class 2 with one image.
IMAGES = [[0, 0, 1, 3], [0, 2, 3, 3], [1, 1, 1, 3], [2, 3, 3, 3], [0, 1, 2, 3], [2, 2, 0, 3]]
LABELS = [0, 0, 1, 1, 1, 2]


def stored() -> dict[str, Tensor]:
    """What the TF-IDF stage writes down of those images."""
    statistics = CorpusStatistics(CLASSES, WORDS)
    statistics.update(torch.tensor(IMAGES), torch.tensor(LABELS))
    return {"table": statistics.table(), "idf": statistics.idf(), **statistics.state()}


def numbered(classes: int, words: int = 3) -> CorpusTerm:
    """A term whose rows say which class they are of."""
    table = torch.arange(classes)[:, None] + torch.arange(words) / 10
    return CorpusTerm(table, lambda counts: counts)


def word_weights(
    term: CorpusTerm, source: str, labels: Tensor, probabilities: Tensor | None = None, seed: int = 0
) -> Tensor | None:
    """What a label source says about the images 0, 1, 2, ... of a data set."""
    evidence = Evidence(labels, probabilities, range(len(labels)), seed, probabilities)
    return LABEL_SOURCES[source].weigh(term, evidence)


def labels_of(weights: Tensor | None) -> list[int]:
    """Which class each row of a numbered table is of."""
    assert weights is not None
    return weights[:, 0].long().tolist()


def document_frequency(word: int) -> int:
    return sum(word in image for image in IMAGES)


def naive_tfidf() -> Tensor:
    table = torch.zeros(CLASSES, WORDS)
    for k in range(WORDS):
        idf = min(max(log((len(IMAGES) + 1) / (document_frequency(k) + 1)), 0), 8)
        for y in range(CLASSES):
            inside = [d.count(k) / 4 for d, label in zip(IMAGES, LABELS, strict=True) if label == y]
            outside = [d.count(k) / 4 for d, label in zip(IMAGES, LABELS, strict=True) if label != y]
            p, q = max(sum(inside) / len(inside), 1e-8), max(sum(outside) / len(outside), 1e-8)
            table[y, k] = max(0, log(p) - log(q)) * sqrt(p) * idf
    return table


def naive_bm25_weight(count: float, word: int) -> float:
    """idf tf (k1 + 1) / (tf + k1) with k1 = 1.2, the length of an image being the mean length."""
    df = document_frequency(word)
    idf = log(1 + (len(IMAGES) - df + 0.5) / (df + 0.5))
    return idf * count * 2.2 / (count + 1.2)


def naive_own(name: str, image: list[int]) -> list[float]:
    """The weight of each word for no class, from the image's own counts."""
    if name == "bm25":
        return [naive_bm25_weight(image.count(k), k) for k in range(WORDS)]
    return [image.count(k) / 4 * min(max(log(7 / (document_frequency(k) + 1)), 0), 8) for k in range(WORDS)]


def test_the_tfidf_term_is_the_papers_table() -> None:
    torch.testing.assert_close(tfidf_term(stored()).table, naive_tfidf(), atol=1e-6, rtol=1e-5)


def test_the_bm25_term_equals_the_naive_loop() -> None:
    table = bm25_term(stored()).table
    expected = torch.zeros(CLASSES, WORDS)
    for y in range(CLASSES):
        of_class = [image for image, label in zip(IMAGES, LABELS, strict=True) if label == y]
        for k in range(WORDS):
            mean = sum(image.count(k) for image in of_class) / len(of_class)
            expected[y, k] = naive_bm25_weight(mean, k)
    torch.testing.assert_close(table, expected)


def test_bm25_by_hand() -> None:
    # Word 0: 0.5 times in the mean image of class 1 (which has two), in one image of three.
    statistics = CorpusStatistics(3, 2)
    with_none = torch.tensor([[1, 1], [1, 1], [0, 1]])
    table = bm25_term(statistics.update(with_none, torch.tensor([0, 1, 1])).state()).table
    assert table[1, 0] == pytest.approx(log(1 + 2.5 / 1.5) * 0.5 * 2.2 / 1.7)
    assert table[0, 1] == pytest.approx(log(1 + 0.5 / 3.5) * 2 * 2.2 / 3.2)
    assert table[2].tolist() == [0, 0], "a class without images says nothing"


def test_bm25_saturates() -> None:
    counts = torch.zeros(3, WORDS)
    counts[:, 0] = torch.tensor([1.0, 2.0, 1e9])
    once, twice, forever = bm25_term(stored()).own(counts)[:, 0].tolist()
    assert once < twice < 2 * once
    assert forever == pytest.approx(2.2 * once)  # 1 (k1 + 1) / (1 + k1) is one


def test_a_class_with_every_image_twice_differs_in_nothing_but_its_idf() -> None:
    statistics = CorpusStatistics(CLASSES, WORDS)
    for _ in range(2):
        statistics.update(torch.tensor(IMAGES), torch.tensor(LABELS))
    df = torch.tensor([document_frequency(k) for k in range(WORDS)])
    once = (1 + (6 - df + 0.5) / (df + 0.5)).log()
    twice = (1 + (12 - 2 * df + 0.5) / (2 * df + 0.5)).log()
    doubled = bm25_term(statistics.state()).table
    torch.testing.assert_close(doubled / twice, bm25_term(stored()).table / once)


@pytest.mark.parametrize("name", TERMS)
def test_own_weights_of_an_image_equal_the_naive_loop(name: str) -> None:
    term = TERMS[name].make(stored())
    counts = torch.tensor([[image.count(k) for k in range(WORDS)] for image in IMAGES])
    expected = torch.tensor([naive_own(name, image) for image in IMAGES])
    torch.testing.assert_close(term.own(counts.float()), expected)
    torch.testing.assert_close(term.own(counts.float().view(2, 3, -1)), expected.view(2, 3, -1))


# Label sources ------------------------------------------------------------------------------------


def test_gt_takes_the_rows_of_the_table() -> None:
    term, labels = tfidf_term(stored()), torch.tensor([2, 0, 1, 1])
    weights = word_weights(term, "gt", labels)
    assert weights is not None
    for image, label in enumerate([2, 0, 1, 1]):
        assert torch.equal(weights[image], term.table[label])


def test_predicted_takes_the_row_of_the_most_probable_class() -> None:
    probabilities = torch.tensor([[0.2, 0.7, 0.1], [0.4, 0.35, 0.25], [0.0, 0.1, 0.9]])
    weights = word_weights(numbered(3), "predicted", torch.zeros(3).long(), probabilities)
    assert labels_of(weights) == [1, 0, 2]


@pytest.mark.parametrize("source", ["posterior", "text"])
def test_posterior_and_text_are_the_mean_weighted_by_the_probabilities(source: str) -> None:
    term = tfidf_term(stored())
    probabilities = torch.rand(6, CLASSES).softmax(dim=1)
    weights = word_weights(term, source, torch.tensor(LABELS), probabilities)
    expected = torch.zeros(6, WORDS)
    for image in range(6):
        for y in range(CLASSES):
            expected[image] += probabilities[image, y] * term.table[y]
    assert weights is not None
    torch.testing.assert_close(weights, expected)


def test_text_reads_neither_a_label_nor_the_rows_classifier() -> None:
    term, text = tfidf_term(stored()), torch.rand(6, CLASSES).softmax(dim=1)
    weigh = LABEL_SOURCES["text"].weigh
    for labels in (torch.tensor(LABELS), torch.tensor(LABELS).flip(0), torch.full((6,), -1)):
        for probabilities in (None, torch.rand(6, CLASSES)):
            weights = weigh(term, Evidence(labels, probabilities, range(6), 0, text))
            assert weights is not None
            assert torch.equal(weights, text @ term.table)
    assert not LABEL_SOURCES["text"].uses_truth


@pytest.mark.parametrize("source", ["posterior", "predicted", "text"])
def test_a_classifier_that_is_sure_and_right_is_the_oracle(source: str) -> None:
    term, labels = bm25_term(stored()), torch.tensor(LABELS)
    sure = torch.nn.functional.one_hot(labels, CLASSES).float()
    weights = word_weights(term, source, labels, sure)
    oracle = word_weights(term, "gt", labels)
    assert weights is not None
    assert oracle is not None
    torch.testing.assert_close(weights, oracle, atol=0, rtol=0)


def test_zero_shot_probabilities_equal_the_naive_loop() -> None:
    images, texts = (torch.nn.functional.normalize(torch.randn(count, 4), dim=1) for count in (5, CLASSES))
    made = zero_shot(images, texts, 7.5)
    for image in range(5):
        cosines = [sum(float(a * b) for a, b in zip(images[image], text, strict=True)) for text in texts]
        total = sum(exp(7.5 * cosine) for cosine in cosines)
        assert made[image].tolist() == pytest.approx([exp(7.5 * cosine) / total for cosine in cosines], rel=1e-4)


def test_the_bias_of_siglip_changes_no_probability() -> None:
    images, texts = (torch.nn.functional.normalize(torch.randn(count, 4), dim=1) for count in (5, CLASSES))
    biased = (20 * images @ texts.T - 12.9).softmax(dim=1)
    torch.testing.assert_close(zero_shot(images, texts, 20.0), biased)


def test_shuffled_permutes_the_labels_and_depends_on_the_seed_alone() -> None:
    labels = torch.arange(60) ** 2 % 7  # some classes more often than others
    term = numbered(7)
    shuffled = labels_of(word_weights(term, "shuffled", labels, seed=5))
    assert Counter(shuffled) == Counter(labels.tolist())
    assert shuffled != labels.tolist()
    torch.rand(3)  # the global generator has no part in it
    again = labels_of(word_weights(term, "shuffled", labels, seed=5))
    assert again == shuffled
    assert labels_of(word_weights(term, "shuffled", labels, seed=6)) != shuffled


def test_other_is_never_the_true_class_and_uniform_over_the_rest() -> None:
    classes, images = 5, 4000
    labels = torch.full((images,), 3)
    drawn = labels_of(word_weights(numbered(classes), "other", labels))
    counts = Counter(drawn)
    assert set(counts) == {0, 1, 2, 4}
    # A share of 1/4 has a standard deviation of sqrt(p (1 - p) / n).
    for count in counts.values():
        assert abs(count / images - 1 / 4) < 4 * sqrt(3 / 16 / images)


def test_other_is_drawn_for_each_image_from_seed_and_index() -> None:
    labels = torch.arange(200) % 9
    whole = other_labels(labels, 9, range(200), 1)
    assert (whole != labels).all()
    assert whole.min() == 0
    assert whole.max() == 8
    some = [150, 3, 77]
    assert torch.equal(other_labels(labels[some], 9, some, 1), whole[some])
    assert not torch.equal(other_labels(labels, 9, range(200), 2), whole)
    assert torch.equal(other_labels(labels[:4] % 2, 2, range(4), 0), 1 - labels[:4] % 2)


def test_none_has_no_weights_of_a_class() -> None:
    assert word_weights(numbered(3), "none", torch.zeros(4).long()) is None


def test_an_unknown_source_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        Catalogue().check(Variant(Score("tfidf"), "oracle"))
    message = str(caught.value)
    assert "'oracle'" in message
    assert "\n" not in message
    assert all(source in message for source in LABEL_SOURCES)


# Maps ---------------------------------------------------------------------------------------------


def some_views(images: int) -> list[tuple[View, ...]]:
    return [validation_views(40 + image, 36, index=image, size=32) for image in range(images)]


def chain(looked_up: list[Tensor], views: tuple[View, ...], mean_weight: float = 0.8) -> tuple[Tensor, int]:
    """One image: its views' maps, each aligned to the first, aggregated; and how many patches were
    not covered by all views."""
    aligned = [align(one, view, views[0]) for one, view in zip(looked_up, views, strict=True)]
    valid = torch.stack([mask for _, mask in aligned])
    values = torch.stack([value for value, _ in aligned])
    return aggregate(values, valid, mean_weight), int((~valid.all(dim=0)).sum())


@pytest.mark.parametrize("name", TERMS)
def test_a_map_is_lookup_then_align_then_aggregate_image_by_image(name: str) -> None:
    images, term, views = 5, TERMS[name].make(stored()), some_views(5)
    labels = torch.tensor([0, 1, 2, 2, 0])
    words = torch.randint(WORDS, (images, 4, 16))
    weights = word_weights(term, "gt", labels)
    result = corpus_map(term, weights, words, views)
    assert result.shape == (images, 16)
    uncovered = 0
    for image in range(images):
        label = labels[image : image + 1]
        maps = [lookup(term.table, words[image, v][None], label)[0] for v in range(4)]
        expected, outside = chain(maps, views[image])
        uncovered += outside
        torch.testing.assert_close(result[image], expected)
    assert uncovered, "some crop leaves a patch out, or nothing of the alignment is seen"


@pytest.mark.parametrize("name", TERMS)
def test_without_a_class_every_view_weighs_its_own_words(name: str) -> None:
    images, term, views = 4, TERMS[name].make(stored()), some_views(4)
    # Views of four patches, as long as the corpus's images, each with other words.
    words = torch.randint(WORDS, (images, 4, 4))
    result = corpus_map(term, None, words, views)
    for image in range(images):
        maps = []
        for view in words[image].tolist():
            weights = naive_own(name, view)
            maps.append(minmax(torch.tensor([weights[word] for word in view])))
        torch.testing.assert_close(result[image], chain(maps, views[image])[0])


def test_words_may_be_stored_small() -> None:
    term, words, views = tfidf_term(stored()), torch.randint(WORDS, (3, 4, 16)), some_views(3)
    weights = word_weights(term, "gt", torch.tensor([0, 1, 2]))
    for given in (weights, None):
        expected = corpus_map(term, given, words, views)
        assert torch.equal(corpus_map(term, given, words.to(torch.int16), views), expected)


@pytest.mark.parametrize("mean_weight", [0.0, 0.8, 1.0])
def test_the_map_weighs_mean_and_maximum_as_asked(mean_weight: float) -> None:
    term, words, views = tfidf_term(stored()), torch.randint(WORDS, (2, 4, 16)), some_views(2)
    weights = word_weights(term, "gt", torch.tensor([0, 1]))
    result = corpus_map(term, weights, words, views, mean_weight)
    assert weights is not None
    for image in range(2):
        maps = [minmax(weights[image][words[image, v]]) for v in range(4)]
        torch.testing.assert_close(result[image], chain(maps, views[image], mean_weight)[0])


@pytest.mark.parametrize("mean_weight", [0.0, 0.8, 1.0])
def test_aggregate_equals_a_naive_loop_for_any_weight_of_the_mean(mean_weight: float) -> None:
    values, valid = torch.rand(3, 4, 9), torch.rand(3, 4, 9) < 0.6
    valid[:, 0] = True  # the reference covers everything
    aggregated = aggregate(values, valid, mean_weight)
    for image in range(3):
        raw = []
        for patch in range(9):
            covering = [float(values[image, v, patch]) for v in range(4) if valid[image, v, patch]]
            mean = sum(covering) / len(covering)
            raw.append(mean_weight * mean + (1 - mean_weight) * max(covering))
        torch.testing.assert_close(aggregated[image], minmax(torch.tensor(raw)))
