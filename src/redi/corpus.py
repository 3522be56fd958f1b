"""Corpus terms of a score: the weight of each patch's visual word in a class, and the choice of that class.

The paper looks up the TF-IDF of the true class (``gt``), which is an oracle. The other label sources
(:data:`LABEL_SOURCES`) show how much of the gain comes from the label.

A term is a table class x word and, for the label source ``none``, a weight of an image's own word counts. TF-IDF is
the paper's term. BM25 (Robertson and Zaragoza, 2009) treats a class as one document, its mean image; this is BM25
with full length normalisation (b = 1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.scorers import image_generator
from redi.tfidf import weigh_words
from redi.views import MEAN_WEIGHT, View, aggregate, align_views

#: The label source of the paper's rows: the true class.
TRUE_CLASS = "gt"
#: BM25's saturation.
K1 = 1.2


@dataclass(frozen=True)
class CorpusTerm:
    """``table[y, k]`` weighs word k for class y; ``own(counts)`` weighs a view's own word counts."""

    table: Float[Tensor, "classes words"]
    own: Callable[[Float[Tensor, "*axes words"]], Float[Tensor, "*axes words"]]


def tfidf_term(stored: Mapping[str, Tensor]) -> CorpusTerm:
    """The paper's table; without a class, tf_d(k) idf(k) with tf_d(k) = n_d(k) / patches (Eqs. tf, idf)."""
    patches, idf = int(stored["n_patches"]), stored["idf"]
    return CorpusTerm(stored["table"], lambda counts: counts / patches * idf)


def bm25_term(stored: Mapping[str, Tensor]) -> CorpusTerm:
    """idf(k) n (k1 + 1) / (n + k1), idf(k) = log(1 + (N - df + 0.5) / (df + 0.5)).

    n is the mean count of word k in the images of a class; without a class, the count in the image itself.
    """
    images = stored["class_images"]
    df = stored["document_frequency"].double()
    idf = (1 + (int(images.sum()) - df + 0.5) / (df + 0.5)).log().float()

    def weigh(counts: Tensor) -> Tensor:
        return idf * counts * (K1 + 1) / (counts + K1)

    mean = stored["word_counts"] / images.clamp(min=1)[:, None]
    return CorpusTerm(weigh(mean.float()), weigh)


@dataclass(frozen=True)
class Term:
    """A kind of corpus term: how it is made from the stored counts, and how its scores are named."""

    make: Callable[[Mapping[str, Tensor]], CorpusTerm]
    title: str
    prefix: str  # in the name of a product with a local score (redi_mass)
    product: str  # in the title of a product ("REDI, mass")


#: Corpus terms by name.
TERMS: dict[str, Term] = {
    "tfidf": Term(tfidf_term, title="TF-IDF", prefix="redi", product="REDI"),
    "bm25": Term(bm25_term, title="BM25", prefix="bm25", product="BM25"),
}


@dataclass(frozen=True)
class Evidence:
    """The evaluation images' classes and all else that a label source may use."""

    labels: Int[Tensor, " images"]  # the true classes
    probabilities: Float[Tensor, "images classes"] | None  # of the dense classifier; None if not needed
    indices: Sequence[int]  # index of each image in its data set
    seed: int
    text: Float[Tensor, "images classes"] | None = None  # zero-shot probabilities; None if not needed


@dataclass(frozen=True)
class LabelSource:
    """A choice of the class that the corpus term looks up."""

    meaning: str
    #: The weight of each word in each image; None if every view weighs its own words.
    weigh: Callable[[CorpusTerm, Evidence], Float[Tensor, "images words"] | None]
    uses_truth: bool = False  # whether it reads the true class, so that it cannot be deployed
    uses_classifier: bool = False  # whether it depends on the classifier of the row
    uses_text: bool = False  # whether it compares the images with the names of the classes


def _true(term: CorpusTerm, evidence: Evidence) -> Tensor:
    return term.table[evidence.labels]


def _predicted(term: CorpusTerm, evidence: Evidence) -> Tensor:
    assert evidence.probabilities is not None
    return term.table[evidence.probabilities.argmax(dim=1)]


def _posterior(term: CorpusTerm, evidence: Evidence) -> Tensor:
    assert evidence.probabilities is not None
    return evidence.probabilities @ term.table


def _text(term: CorpusTerm, evidence: Evidence) -> Tensor:
    assert evidence.text is not None
    return evidence.text @ term.table


def _shuffled(term: CorpusTerm, evidence: Evidence) -> Tensor:
    generator = torch.Generator().manual_seed(evidence.seed)
    order = torch.randperm(len(evidence.labels), generator=generator)
    return term.table[evidence.labels[order]]


def _other(term: CorpusTerm, evidence: Evidence) -> Tensor:
    return term.table[other_labels(evidence.labels, len(term.table), evidence.indices, evidence.seed)]


#: Label sources by name. ``redi compare --study scorers`` measures every source that the run has: ``text`` needs
#: embeddings of the class names.
LABEL_SOURCES: dict[str, LabelSource] = {
    TRUE_CLASS: LabelSource("the true class", _true, uses_truth=True),
    "predicted": LabelSource("the Top-1 class of the dense pass", _predicted, uses_classifier=True),
    "posterior": LabelSource(
        "all classes, weighted by the dense classifier's probabilities", _posterior, uses_classifier=True
    ),
    "text": LabelSource(
        "all classes, weighted by the zero-shot probabilities of the class names", _text, uses_text=True
    ),
    "shuffled": LabelSource(
        "the true classes of the evaluation images, permuted among them", _shuffled, uses_truth=True
    ),
    "other": LabelSource("a class that is not the true one, drawn for each image", _other, uses_truth=True),
    "none": LabelSource("no class: tf x idf of the image's own words", lambda term, evidence: None),
}


def zero_shot(
    images: Float[Tensor, "images joint"], texts: Float[Tensor, "classes joint"], scale: float
) -> Float[Tensor, "images classes"]:
    """Probabilities of the classes from unit embeddings of images and of class names: softmax_y(scale * cosine).

    This is CLIP's classifier (Radford et al., 2021). SigLIP (Zhai et al., 2023) scores every pair of an image and a
    text by sigmoid(scale * cosine + bias). Exactly one class is right here, so its logits go through the same softmax.
    The bias cancels there, because it is the same number for all classes.
    """
    return (scale * images @ texts.T).softmax(dim=1)


def other_labels(
    labels: Int[Tensor, " images"], classes: int, indices: Sequence[int], seed: int
) -> Int[Tensor, " images"]:
    """A random class per image that is not its own; all other classes are equally likely."""
    steps = [int(torch.randint(1, classes, (), generator=image_generator(seed, index))) for index in indices]
    return (labels + torch.tensor(steps)) % classes


def corpus_map(
    term: CorpusTerm,
    weights: Float[Tensor, "images words"] | None,
    words: Int[Tensor, "images views patches"],
    views: Sequence[tuple[View, ...]],
    mean_weight: float = MEAN_WEIGHT,
) -> Float[Tensor, "images patches"]:
    """Look up each view (Eq. viewtfidf), align it to the first, and aggregate (Eq. viewaggregate)."""
    values, valid = align_views(view_maps(term, weights, words), views)
    return aggregate(values, valid, mean_weight)


def view_maps(
    term: CorpusTerm, weights: Float[Tensor, "images words"] | None, words: Int[Tensor, "images views patches"]
) -> Float[Tensor, "images views patches"]:
    """Eq. viewtfidf for every view. Without ``weights``, a view weighs its own word counts."""
    if weights is not None:
        return weigh_words(weights, words)
    counts = torch.zeros(*words.shape[:2], term.table.shape[1], device=words.device)
    counts.scatter_add_(2, words.long(), torch.ones_like(words, dtype=counts.dtype))
    return weigh_words(term.own(counts).flatten(0, 1), words.flatten(0, 1)).view(words.shape)
