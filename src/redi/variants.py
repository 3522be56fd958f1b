"""A row of the bench before it is measured: which score, whose label, which reducer, how far.

The paper's rows are variants like any other. A variant is a plain value: it is written beside its
predictions, so a row can be read back without running anything.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from redi.corpus import LABEL_SOURCES, TERMS
from redi.errors import ConfigError, InvalidInput
from redi.grid import Grid
from redi.plugins import one_line
from redi.reduction import (
    ONE_SHOT,
    OPERATOR,
    PROGRESSIVE,
    WORD_MERGING,
    Budget,
    OneShot,
    Progressive,
    Reduction,
    Schedule,
    WordMerging,
)
from redi.run import ATTENTION_SCORES
from redi.scorers import SCORERS
from redi.views import MEAN_WEIGHT

DEFAULT_BUDGET = Budget()
#: Prefix of a product's name and the corpus term it multiplies with: redi_mass, bm25_mass.
PRODUCT_TERMS = {"redi": "tfidf", "bm25": "bm25"}


@dataclass(frozen=True)
class Codebook:
    """A vocabulary other than the run's own, for ablations."""

    n_words: int = 512
    n_passes: int = 3
    features: str = "prenorm"  # of the last block, before or after (postnorm) the final norm
    start: str = (
        "spread"  # spread: patches spread over the corpus; first: those of the first images
    )

    @property
    def name(self) -> str:
        return f"{self.n_words}-{self.n_passes}-{self.features}-{self.start}"


@dataclass(frozen=True)
class CorpusSettings:
    """How the corpus map is made; the paper's by default."""

    codebook: Codebook | None = None  # None: the run's own
    views: int = 4
    mean_weight: float = MEAN_WEIGHT  # the paper's 0.8; the rest is the maximum's


@dataclass(frozen=True)
class Variant:
    """Identity of a row, together with its classifier."""

    scorer: str = (
        ""  # a name in SCORERS, rollout, tfidf, bm25, redi_<name>, bm25_<name>; "" for none
    )
    labels: str = ""  # one of LABEL_SOURCES where the scorer has a corpus term
    reducer: str = OPERATOR  # "" for dense
    budget: Budget = DEFAULT_BUDGET  # of a one-shot reducer
    after: int = 0  # blocks before a one-shot reducer
    schedule: Schedule = ()  # of a progressive reducer
    corpus: CorpusSettings = CorpusSettings()

    def name(self, default: Budget) -> str:
        """Short for the paper's rows (``redi_mass``), and unique: what differs from them is added.

        ``default`` is the run's own budget, which needs no mention.
        """
        if not self.reducer:
            return "dense"
        parts = [self.scorer] if self.scorer else []
        if self.labels not in ("", "gt"):
            parts.append(self.labels)
        if self.reducer != OPERATOR:
            parts.append(self.reducer)
        if self.after:
            parts.append(f"after{self.after}")
        if self.schedule:
            text = ",".join(map(str, self.schedule))
            parts.append(f"{self.schedule[-1]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}")
        elif self.budget != default:
            b = self.budget
            parts.append(f"k{b.keep:.4g}-m{b.merge:.4g}-c{b.cells}-s{b.spatial:.4g}")
        if self.corpus != CorpusSettings():
            book = self.corpus.codebook
            parts.append(book.name if book else "own")
            parts.append(f"v{self.corpus.views}-w{self.corpus.mean_weight:.4g}")
        return "~".join(parts)

    @property
    def term(self) -> str:
        """The corpus term of the score: tfidf, bm25 or none."""
        if self.scorer in TERMS:
            return self.scorer
        prefix, _, _ = self.scorer.partition("_")
        return PRODUCT_TERMS.get(prefix, "")

    @property
    def local(self) -> str:
        """The part of the score that needs no corpus, e.g. mass of redi_mass; may be empty."""
        if self.scorer in TERMS:
            return ""
        prefix, _, rest = self.scorer.partition("_")
        return rest if prefix in PRODUCT_TERMS else self.scorer

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Variant":
        values = {entry.name: content[entry.name] for entry in fields(cls)}
        corpus = dict(values["corpus"])
        if corpus["codebook"] is not None:
            corpus["codebook"] = Codebook(**corpus["codebook"])
        values["corpus"] = CorpusSettings(**corpus)
        values["budget"] = Budget(**values["budget"])
        values["schedule"] = tuple(values["schedule"])
        return cls(**values)


DENSE = Variant(reducer="")


def split_block(name: str) -> tuple[str, int | None]:
    """``mass@4`` is the score of block 4 (counted from 1); without ``@`` it is the last block's."""
    scorer, at, block = name.partition("@")
    if not at:
        return scorer, None
    if not block.isdecimal() or int(block) < 1:
        raise ConfigError(f"{name!r}: a block is a number from 1 on, as in mass@4.")
    return scorer, int(block)


@dataclass(frozen=True)
class Catalogue:
    """Scorers and reducers by name: the package's own and those from the user's files."""

    scorers: Mapping[str, Any]
    reducers: Mapping[str, OneShot | Progressive]
    digests: Mapping[str, str]  # of the user's files, by name

    def check(self, variant: Variant) -> Variant:
        """The variant itself, or one line that says what is not known."""
        if variant.reducer not in self.reducers:
            known = ", ".join(self.reducers)
            raise ConfigError(f"There is no reducer {variant.reducer!r}; known are {known}.")
        if variant.scorer.rstrip("_") in PRODUCT_TERMS and variant.scorer not in TERMS:
            raise ConfigError(f"{variant.scorer!r} is not a product: write e.g. redi_mass.")
        if variant.local:
            scorer, block = split_block(variant.local)
            known_scorers = {*self.scorers, *ATTENTION_SCORES}
            if scorer not in known_scorers:
                names = ", ".join([*sorted(known_scorers), *TERMS])
                raise ConfigError(
                    f"There is no scorer {scorer!r}; known are {names}, and redi_<name> or "
                    "bm25_<name> for a product."
                )
            if scorer == "rollout" and block is not None:
                raise ConfigError("rollout reads every block, so it has no @block.")
        if variant.reducer == WORD_MERGING and variant.after:
            raise ConfigError(
                "word-merging knows words of embeddings: it works before block 1 only."
            )
        if variant.labels and not variant.term:
            raise ConfigError(f"{variant.scorer!r} has no corpus term, so it looks up no label.")
        if variant.term and variant.labels not in LABEL_SOURCES:
            known = ", ".join(LABEL_SOURCES)
            raise ConfigError(f"Label sources are {known}, not {variant.labels!r}.")
        return variant

    def with_words(self, centroids: Tensor, digest: str) -> "Catalogue":
        """Merging by visual word, once its vocabulary has been fitted."""
        merging = replace(ONE_SHOT[WORD_MERGING], reduce=WordMerging(centroids))
        return replace(
            self,
            reducers={**self.reducers, WORD_MERGING: merging},
            digests={**self.digests, WORD_MERGING: digest},
        )

    def digest(self, variant: Variant) -> str:
        """Of the user's reducer, where the variant has one; a user's scorer is in its scores' key."""
        return self.digests.get(variant.reducer, "")


def catalogue(
    scorers: Mapping[str, Any], reducers: Mapping[str, Any], digests: Mapping[str, str]
) -> Catalogue:
    """The package's tables and the user's additions; a name that is taken is refused."""
    taken = {*SCORERS, *ATTENTION_SCORES, *TERMS, *ONE_SHOT, *PROGRESSIVE, *LABEL_SOURCES}
    taken |= {"dense", "words"}  # other artefacts of a run
    for name in (*scorers, *reducers):
        if name in taken or name.partition("_")[0] in PRODUCT_TERMS:
            raise ConfigError(f"{name!r} is a name of the package's own: rename your function.")
    if both := set(scorers) & set(reducers):
        raise ConfigError(f"{min(both)!r} is both a scorer and a reducer: rename one.")
    wrapped = {name: guarded(name, value) for name, value in reducers.items()}
    return Catalogue({**SCORERS, **scorers}, {**ONE_SHOT, **PROGRESSIVE, **wrapped}, digests)


def guarded(name: str, value: Any) -> OneShot | Progressive:
    """A user's reducer, whose mistakes are said in one line."""

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except Exception as error:  # whatever the user's code raises
                raise InvalidInput(f"The reducer {name!r} failed: {one_line(error)}") from error

        return call

    if isinstance(value, Progressive):
        return replace(
            value,
            step=guard(value.step),
            schedule=guard(value.schedule),
            products=guard(value.products),
        )
    one_shot = value if isinstance(value, OneShot) else OneShot(value)
    tokens = guard(one_shot.tokens)

    def reduce(patches: Tensor, scores: Tensor, budget: Budget, grid: Grid) -> Reduction:
        reduction: Reduction = one_shot.reduce(patches, scores, budget, grid)
        promised = tokens(budget, grid)
        if reduction.tokens.shape[1] != promised:
            raise InvalidInput(f"it promised {promised} tokens, not {reduction.tokens.shape[1]}")
        return reduction

    return replace(one_shot, reduce=guard(reduce), tokens=tokens, products=guard(one_shot.products))
