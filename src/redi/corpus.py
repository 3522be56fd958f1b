"""Corpus terms of a score: what a corpus of visual words says about each patch, and for whose class.

The paper looks up the TF-IDF of the true class (``gt``), which is an oracle. The other sources say how
much of that is the label:

    gt         the true class
    predicted  the Top-1 class of the dense pass
    posterior  all classes, weighted by the dense classifier's probabilities
    shuffled   the true classes of the evaluation images, permuted among them
    other      some class that is not the true one, drawn for each image
    none       no class: tf x idf of the image's own words

A term is a table class x word and, for ``none``, a weight of an image's own word counts. TF-IDF is the
paper's; BM25 (Robertson and Zaragoza, 2009) reads a class as one document: its mean image, which is
BM25 with full length normalisation (b = 1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.errors import InvalidInput
from redi.scorers import image_generator
from redi.tfidf import weigh_words
from redi.views import MEAN_WEIGHT, View, aggregate, align_views

LABEL_SOURCES = ("gt", "predicted", "posterior", "shuffled", "other", "none")
#: Sources that depend on the classifier of a row.
FROM_CLASSIFIER = ("predicted", "posterior")
#: BM25's saturation.
K1 = 1.2


@dataclass(frozen=True)
class CorpusTerm:
    """``table[y, k]`` for a class; ``own(counts)`` weighs a view's own word counts, for no class."""

    table: Float[Tensor, "classes words"]
    own: Callable[[Float[Tensor, "*axes words"]], Float[Tensor, "*axes words"]]


def tfidf_term(stored: Mapping[str, Tensor]) -> CorpusTerm:
    """The paper's table; for no class tf_d(k) idf(k), tf_d(k) = n_d(k) / patches (Eqs. tf, idf)."""
    patches, idf = int(stored["n_patches"]), stored["idf"]
    return CorpusTerm(stored["table"], lambda counts: counts / patches * idf)


def bm25_term(stored: Mapping[str, Tensor]) -> CorpusTerm:
    """idf(k) n (k1 + 1) / (n + k1), idf(k) = log(1 + (N - df + 0.5) / (df + 0.5)).

    n is the mean count of word k in the images of a class; for no class, in the image itself.
    """
    images = stored["class_images"]
    df = stored["document_frequency"].double()
    idf = (1 + (int(images.sum()) - df + 0.5) / (df + 0.5)).log().float()

    def weigh(counts: Tensor) -> Tensor:
        return idf * counts * (K1 + 1) / (counts + K1)

    mean = stored["word_counts"] / images.clamp(min=1)[:, None]
    return CorpusTerm(weigh(mean.float()), weigh)


TERMS: dict[str, Callable[[Mapping[str, Tensor]], CorpusTerm]] = {
    "tfidf": tfidf_term,
    "bm25": bm25_term,
}


def word_weights(
    term: CorpusTerm,
    source: str,
    labels: Int[Tensor, " images"],
    probabilities: Float[Tensor, "images classes"] | None,
    indices: Sequence[int],
    seed: int,
) -> Float[Tensor, "images words"] | None:
    """The weight of each word for each image; None where every view weighs its own (``none``).

    ``probabilities`` are the dense classifier's, over the classes of the table. ``indices`` number the
    images in their data set: ``other`` is drawn from (seed, index); ``shuffled`` permutes all of them.
    """
    if source == "none":
        return None
    if source in FROM_CLASSIFIER:
        assert probabilities is not None
        if source == "posterior":
            return probabilities @ term.table
        return term.table[probabilities.argmax(dim=1)]
    if source == "gt":
        return term.table[labels]
    if source == "shuffled":
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        return term.table[labels[order]]
    if source == "other":
        return term.table[other_labels(labels, len(term.table), indices, seed)]
    raise InvalidInput(f"Label sources are {', '.join(LABEL_SOURCES)}, not {source!r}.")


def other_labels(
    labels: Int[Tensor, " images"], classes: int, indices: Sequence[int], seed: int
) -> Int[Tensor, " images"]:
    """For each image a class that is not its own, all others equally likely."""
    steps = [
        int(torch.randint(1, classes, (), generator=image_generator(seed, index)))
        for index in indices
    ]
    return (labels + torch.tensor(steps)) % classes


def corpus_map(
    term: CorpusTerm,
    weights: Float[Tensor, "images words"] | None,
    words: Int[Tensor, "images views patches"],
    views: Sequence[tuple[View, ...]],
    mean_weight: float = MEAN_WEIGHT,
) -> Float[Tensor, "images patches"]:
    """Look up each view (Eq. viewtfidf), align it to the first, aggregate (Eq. viewaggregate)."""
    if weights is None:
        counts = torch.zeros(*words.shape[:2], term.table.shape[1], device=words.device)
        counts.scatter_add_(2, words.long(), torch.ones_like(words, dtype=counts.dtype))
        looked_up = weigh_words(term.own(counts).flatten(0, 1), words.flatten(0, 1))
        looked_up = looked_up.view(words.shape)
    else:
        looked_up = weigh_words(weights, words)
    values, valid = align_views(looked_up, views)
    return aggregate(values, valid, mean_weight)
