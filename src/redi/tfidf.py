"""Supervised visual TF-IDF (Sec. "Supervised visual TF-IDF"): corpus counts, the table, the lookup.

The counts are integers, so they are exact for any order of the batches and any number of processes. Only
:meth:`CorpusStatistics.table` takes logarithms.
"""

import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from redi.checks import require_axes, require_finite, require_float, require_range
from redi.errors import CorpusError, InvalidInput
from redi.score import norm01

#: Lower bound of both class averages before the logarithm (the paper's 1e-8).
FLOOR = 1e-8
#: The paper clips idf to [0, 8].
IDF_CLIP = 8.0


class CorpusStatistics:
    """Counts over a labelled corpus of visual words: ``update`` per batch, ``merge`` per process.

    Symbols: n_d(k) is counted in ``update``; ``word_counts[y, k]`` is its sum over the images of class y;
    ``document_frequency[k]`` is df(k); ``class_images[y]`` is the number of images of class y; N is their total.
    The counts of several processes are summed by adding these three tensors.
    """

    def __init__(self, n_classes: int, n_words: int) -> None:
        if n_classes < 2:
            raise CorpusError(f"TF-IDF contrasts a class with the rest: it needs two classes or more, not {n_classes}.")
        if n_words < 1:
            raise CorpusError(f"The vocabulary must have at least one word, not {n_words}.")
        self.n_classes = n_classes
        self.n_words = n_words
        self.n_patches: int | None = None  # patches per image, the 196 of Eq. tf; set by update
        self.word_counts = torch.zeros(n_classes, n_words, dtype=torch.int64)
        self.document_frequency = torch.zeros(n_words, dtype=torch.int64)
        self.class_images = torch.zeros(n_classes, dtype=torch.int64)

    @property
    def n_images(self) -> int:
        return int(self.class_images.sum())

    def update(self, words: Integer[Tensor, "batch patches"], labels: Integer[Tensor, " batch"]) -> "CorpusStatistics":
        """Count a batch of images. A batch that raises an error changes no count."""
        require_axes(words, "batch patches", "Words")
        require_axes(labels, "batch", "Labels")
        if len(words) != len(labels):
            raise InvalidInput(f"There are {len(words)} images but {len(labels)} labels.")
        require_range(words, self.n_words, "Words")
        require_range(labels, self.n_classes, "Labels")
        self._expect_patches(words.shape[1])
        words, labels = words.cpu().long(), labels.cpu().long()
        per_image = torch.zeros(len(words), self.n_words, dtype=torch.int64)  # n_d(k)
        per_image.scatter_add_(1, words, torch.ones_like(words))
        self.word_counts.index_add_(0, labels, per_image)
        self.document_frequency += (per_image > 0).sum(dim=0)
        self.class_images += torch.bincount(labels, minlength=self.n_classes)
        return self

    def state(self) -> dict[str, Tensor]:
        return {
            "word_counts": self.word_counts,
            "document_frequency": self.document_frequency,
            "class_images": self.class_images,
            "n_patches": torch.tensor(self.n_patches or 0),
        }

    def merge_state(self, state: Mapping[str, Tensor]) -> None:
        """Add the counts of another part of the corpus, as :meth:`state` gives them."""
        other = CorpusStatistics(*state["word_counts"].shape)
        other.word_counts = state["word_counts"]
        other.document_frequency = state["document_frequency"]
        other.class_images = state["class_images"]
        other.n_patches = int(state["n_patches"]) or None
        self.merge(other)

    def merge(self, other: "CorpusStatistics") -> "CorpusStatistics":
        """Add the counts of another part of the corpus."""
        if (self.n_classes, self.n_words) != (other.n_classes, other.n_words):
            raise InvalidInput(
                f"Statistics of {self.n_classes} classes x {self.n_words} words cannot be merged "
                f"with those of {other.n_classes} x {other.n_words}."
            )
        if other.n_patches is not None:
            self._expect_patches(other.n_patches)
        self.word_counts += other.word_counts
        self.document_frequency += other.document_frequency
        self.class_images += other.class_images
        return self

    def idf(self) -> Float[Tensor, " words"]:
        """Eq. idf: clip_[0,8] log((N + 1) / (df(k) + 1))."""
        self._require_images()
        ratio = (self.n_images + 1) / (self.document_frequency.double() + 1)
        return ratio.log().clamp(0, IDF_CLIP).float()

    def contrast(self) -> Float[Tensor, "classes words"]:
        """Eq. classcontrast without its root: max{0, log p_y(k) - log p_not-y(k)}.

        p_y(k) is the mean of tf_d(k) = n_d(k) / 196 (Eq. tf) over the images of class y, p_not-y(k) the mean over
        all other images. Both are at least 1e-8. A class without images has a zero row.
        """
        inside = self._class_frequency().clamp(min=FLOOR)
        outside_counts = self.word_counts.sum(dim=0) - self.word_counts
        outside_images = self.n_images - self.class_images
        outside = (outside_counts / self._patches(outside_images)[:, None]).clamp(min=FLOOR)
        value = (inside.log() - outside.log()).clamp(min=0)
        return torch.where(self.class_images[:, None] > 0, value, 0).float()

    def support(self) -> Float[Tensor, "classes words"]:
        """The root of Eq. classcontrast: sqrt(p_y(k)), where p_y(k) is at least 1e-8."""
        return self._class_frequency().clamp(min=FLOOR).sqrt().float()

    def table(self) -> Float[Tensor, "classes words"]:
        """Eq. tfidfgt: TFIDF_gt(y, k) = r_y(k) idf(k), r_y(k) = contrast times support."""
        self._require_images()
        empty = (self.class_images == 0).nonzero().flatten().tolist()
        if self.n_classes - len(empty) < 2:
            raise CorpusError("TF-IDF contrasts a class with the rest, but fewer than two classes have images.")
        if empty:
            shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
            warnings.warn(
                f"{len(empty)} of {self.n_classes} classes have no images, so their TF-IDF is zero: {shown}.",
                stacklevel=2,
            )
        return self.contrast() * self.support() * self.idf()

    def _class_frequency(self) -> Float[Tensor, "classes words"]:
        """p_y(k) before the lower bound, in float64."""
        self._require_images()
        return self.word_counts / self._patches(self.class_images)[:, None]

    def _patches(self, images: Int[Tensor, " classes"]) -> Float[Tensor, " classes"]:
        """The number of patches in ``images`` images; 1 if there are none, so that 0 / 0 becomes 0."""
        assert self.n_patches is not None
        return (images * self.n_patches).clamp(min=1).double()

    def _expect_patches(self, n_patches: int) -> None:
        if self.n_patches not in (None, n_patches):
            raise InvalidInput(
                f"Every image must have the same number of patches, not {self.n_patches} and {n_patches}."
            )
        self.n_patches = n_patches

    def _require_images(self) -> None:
        if self.n_images == 0:
            raise CorpusError("The corpus is empty: no training image has been counted.")


def lookup(
    table: Float[Tensor, "classes words"], words: Integer[Tensor, "batch patches"], labels: Integer[Tensor, " batch"]
) -> Float[Tensor, "batch patches"]:
    """Eq. viewtfidf: tau_i = TFIDF(y, z_i), t = N(tau), for one view of each image."""
    require_axes(table, "classes words", "The TF-IDF table")
    require_axes(words, "batch patches", "Words")
    require_axes(labels, "batch", "Labels")
    if len(words) != len(labels):
        raise InvalidInput(f"There are {len(words)} images but {len(labels)} labels.")
    require_range(words, table.shape[1], "Words")
    require_range(labels, table.shape[0], "Labels")
    require_float(table, "The TF-IDF table")
    require_finite(table, "The TF-IDF table")
    table, labels = table.to(words.device), labels.to(words.device)
    return weigh_words(table[labels.long()], words)


def weigh_words(
    weights: Float[Tensor, "batch words"], words: Integer[Tensor, "batch *more"]
) -> Float[Tensor, "batch *more"]:
    """The core of Eq. viewtfidf: each patch gets the weight that its word has in its image, then N."""
    return norm01(weights.gather(1, words.long().flatten(1)).view(words.shape))
