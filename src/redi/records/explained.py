"""One image through every step of the method: the data that its pictures and tables show.

The report takes the data from the records of a run, ``redi inspect`` from a forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from redi.budget import Budget
from redi.grid import Grid
from redi.tfidf import weigh_words
from redi.views import View, align_views


@dataclass(frozen=True)
class Fate:
    """Where the patches of an image go under one score."""

    source: Int[Tensor, " patches"]  # the output token each patch went into
    positions: Int[Tensor, " reduced"]  # the grid index whose position each output token carries
    kept: int  # number of output tokens that are kept patches; the others are summaries

    @property
    def roles(self) -> list[int]:
        """The role of each patch: 0 keep, 1 merge, 2 compress."""
        places = self.positions.tolist()
        # A kept patch is the position of its own token, a merged one is not.
        return [
            2 if token >= self.kept else int(places[token] != patch) for patch, token in enumerate(self.source.tolist())
        ]

    @property
    def destinations(self) -> dict[int, int]:
        """The kept patch that each merged patch went into."""
        places, sources = self.positions.tolist(), self.source.tolist()
        return {patch: places[sources[patch]] for patch, role in enumerate(self.roles) if role == 1}

    @property
    def leaders(self) -> list[int]:
        """The patches whose positions the summary tokens took, cells in raster order."""
        leaders: list[int] = self.positions[self.kept :].tolist()
        return leaders


@dataclass(frozen=True)
class Guess:
    """A class and its logit."""

    name: str
    logit: float


@dataclass(frozen=True)
class Closeness:
    """How near an image is to the corpus: the mean cosine of its patches to their visual words.

    An image like the validation images lies below ``limit`` with a probability of 1 %, or of 1 / (images + 1) if
    there are fewer than 99 of them: the rank of a new image among them is uniform.
    """

    value: float
    validation: Float[Tensor, " images"]  # the same of the run's validation images

    @property
    def limit(self) -> float:
        rank = max(1, (len(self.validation) + 1) // 100)
        return float(self.validation.kthvalue(rank).values)

    @property
    def is_far(self) -> bool:
        return self.value < self.limit - 1e-4  # not the last digits of the image that is the limit itself


@dataclass(frozen=True)
class Explained:
    """All steps of one image. Without a corpus, ``words``, ``lookups``, ``aligned`` and ``valid`` have no views."""

    name: str
    looked_up: str  # the class whose TF-IDF was looked up; empty without a corpus
    label_source: str  # whose class that is: gt (the true one, an oracle), given or predicted
    grid: Grid
    budget: Budget
    crops: UInt8[Tensor, "views channels height width"]
    views: Sequence[View]
    words: Int[Tensor, "corpus_views patches"]
    lookups: Float[Tensor, "corpus_views patches"]  # TF-IDF of each view, on its own grid
    aligned: Float[Tensor, "corpus_views patches"]  # the same on the grid of the reference crop
    valid: Bool[Tensor, "corpus_views patches"]  # whether the view covers the patch of the reference crop
    scores: dict[str, Float[Tensor, " patches"]]
    fates: dict[str, Fate]
    guesses: dict[str, list[Guess]]  # Top-5 per row; empty without a classifier
    closeness: Closeness | None = None  # only if the image was inspected with a run


def corpus_steps(
    weights: Float[Tensor, " words"], words: Int[Tensor, "views patches"], views: Sequence[View]
) -> tuple[Float[Tensor, "views patches"], Float[Tensor, "views patches"], Bool[Tensor, "views patches"]]:
    """(lookups, aligned, valid) of one image: the steps before Eq. viewaggregate."""
    lookups = weigh_words(weights[None], words[None])
    aligned, valid = align_views(lookups, [tuple(views)])
    return lookups[0], aligned[0], valid[0]
