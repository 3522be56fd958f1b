"""The identity of a table row (score, label source, reducer and extent), its name and its title.

The paper's rows have short names (``redi_mass``); other names say what differs. Only this module parses names.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from redi.attention import ATTENTION_SCORES
from redi.budget import Budget
from redi.corpus import LABEL_SOURCES, TERMS, TRUE_CLASS
from redi.cost import Geometry
from redi.early import CorpusSize, block_of_place, place_cost, place_title, require_place
from redi.errors import ConfigError
from redi.reduction import OPERATOR, REDUCERS, Adaptive, Extent, OneShot, Reducer
from redi.reduction.adaptive import Curve
from redi.reduction.reducer import PAPER as PAPER_EXTENT
from redi.reduction.titles import title
from redi.scorers import SCORERS
from redi.views import MEAN_WEIGHT, N_VIEWS
from redi.vocabulary import N_PASSES, N_WORDS

DENSE = "dense"
RANDOM = "random"

_PREFIXES = {term.prefix: name for name, term in TERMS.items()}


@dataclass(frozen=True)
class Score:
    """A corpus term, a local score, or the product of both; all fields are empty if no score is used."""

    term: str = ""  # a name in TERMS
    local: str = ""  # a name in ATTENTION_SCORES or SCORERS, or a user's function
    block: int | None = None  # of the local score, counted from 1; None is the last block

    @classmethod
    def parse(cls, name: str) -> "Score":
        """Parse ``tfidf``, ``mass``, ``redi_mass`` (TF-IDF times mass) or ``mass@4`` (mass of block 4)."""
        if name in TERMS:
            return cls(term=name)
        prefix, _, rest = name.partition("_")
        term = _PREFIXES.get(prefix, "")
        local, at, block = (rest if term else name).partition("@")
        if term and not local:
            raise ConfigError(f"{name!r} is not a product: add the name of a score, e.g. redi_mass.")
        if at and not (local and block.isdecimal() and int(block) > 0):
            raise ConfigError(f"{name!r} names no block: write a number from 1 on, e.g. mass@4.")
        return cls(term, local, int(block) if at else None)

    @property
    def name(self) -> str:
        if not (self.term and self.local):
            return self.term or self.local_name
        return f"{TERMS[self.term].prefix}_{self.local_name}"

    @property
    def local_name(self) -> str:
        """Name of the local score; empty if there is none."""
        return self.local if self.block is None else f"{self.local}@{self.block}"

    @property
    def title(self) -> str:
        """Title in tables: ``redi_col_l2`` is "REDI, Col-L2", ``mass@4`` is "Incoming mass of block 4"."""
        if not self.local:
            return TERMS[self.term].title if self.term else ""
        attention = ATTENTION_SCORES.get(self.local)
        if attention:
            local = attention.short if self.term else attention.title
        else:
            local = SCORERS[self.local].title if self.local in SCORERS else self.local
        if self.block is not None:
            local = f"{local} of block {self.block}"
        return f"{TERMS[self.term].product}, {local}" if self.term else local

    @property
    def is_product(self) -> bool:
        return bool(self.term and self.local)


NO_SCORE = Score()


def paper_scores(attention: Iterable[str]) -> tuple[Score, ...]:
    """The paper's scores in the order of its tables, after the random control, for the given attention scores."""
    names = list(attention)
    alone, products = (Score(local=name) for name in names), (Score("tfidf", name) for name in names)
    return Score(local=RANDOM), Score(term="tfidf"), *alone, *products


#: All of them, for a backbone with a CLS token.
PAPER_SCORES = paper_scores(ATTENTION_SCORES)
#: Names of the reduced rows of the paper's tables, in the order of results.json.
SCORES = tuple(score.name for score in PAPER_SCORES)
PRODUCTS = tuple(score.name for score in PAPER_SCORES if score.is_product)
#: The paper's main score: REDI with incoming attention mass.
MAIN_SCORE = Score("tfidf", "mass")
MAIN_ROW = MAIN_SCORE.name


#: Features that a codebook may have: of the last block, before or after the final norm, or before the first block.
CODEBOOK_FEATURES = ("prenorm", "postnorm", "embedding")
#: Where the words of a codebook may start: at patches spread evenly over the corpus, or at random ones.
CODEBOOK_STARTS = ("spread", "random")


@dataclass(frozen=True)
class Codebook:
    """A vocabulary other than the run's own, for ablations."""

    n_words: int = N_WORDS
    n_passes: int = N_PASSES
    features: str = "prenorm"  # one of CODEBOOK_FEATURES
    start: str = "spread"  # one of CODEBOOK_STARTS

    def __post_init__(self) -> None:
        for field_name, choices in (("features", CODEBOOK_FEATURES), ("start", CODEBOOK_STARTS)):
            value = getattr(self, field_name)
            if value not in choices:
                raise ConfigError(f"The {field_name} of a codebook must be one of {', '.join(choices)}, not {value!r}.")

    @property
    def name(self) -> str:
        return f"{self.n_words}-{self.n_passes}-{self.features}-{self.start}"


@dataclass(frozen=True)
class CorpusSettings:
    """How the corpus map is made; the defaults are the paper's."""

    codebook: Codebook | None = None  # None is the run's own vocabulary
    views: int = N_VIEWS
    mean_weight: float = MEAN_WEIGHT  # the rest is the weight of the maximum


PAPER_CORPUS = CorpusSettings()


@dataclass(frozen=True)
class Variant:
    """A row of a table. With a classifier it identifies one measurement."""

    score: Score = NO_SCORE
    label_source: str = ""  # a name in LABEL_SOURCES if the score has a corpus term
    reducer: str = OPERATOR  # empty for dense
    extent: Extent = PAPER_EXTENT
    corpus: CorpusSettings = PAPER_CORPUS
    #: Where words, class and attention come from (see :mod:`redi.early`); empty means a dense pass.
    place: str = ""

    def name(self, default: Budget) -> str:
        """A unique name. It leaves out the budget if that is ``default``, the run's own."""
        if not self.reducer:
            return DENSE
        parts = [self.score.name] if self.score.name else []
        if self.label_source not in ("", TRUE_CLASS):
            parts.append(self.label_source)
        if self.place:
            parts.append(self.place)
        if self.reducer != OPERATOR:
            parts.append(self.reducer)
        if self.extent.after:
            parts.append(f"after{self.extent.after}")
        if schedule := self.extent.schedule:
            text = ",".join(map(str, schedule))
            parts.append(f"{schedule[-1]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}")
        elif self.extent.strength is not None:
            parts.append(f"s{self.extent.strength:g}")
        elif self.extent.budget != default:
            budget = self.extent.budget
            parts.append(f"k{budget.keep:.4g}-m{budget.merge:.4g}-c{budget.cells}-s{budget.spatial:.4g}")
        if self.corpus != PAPER_CORPUS:
            parts.append(self.corpus.codebook.name if self.corpus.codebook else "own")
            parts.append(f"v{self.corpus.views}-w{self.corpus.mean_weight:.4g}")
        return "~".join(parts)

    @property
    def title(self) -> str:
        return describe(self.score, self.label_source, self.reducer, self.extent.after, self.place)

    @property
    def is_dense(self) -> bool:
        return not self.reducer

    @property
    def is_paper_score(self) -> bool:
        """Whether the run itself makes the score map."""
        paper_corpus = self.label_source in ("", TRUE_CLASS) and self.corpus == PAPER_CORPUS
        return paper_corpus and not self.place and self.score in PAPER_SCORES


def describe(score: Score, label_source: str, reducer: str, after: int, place: str = "") -> str:
    """The text of a table cell that describes a row: score with its place, label source, reducer and block."""
    if not reducer:
        return "Dense baseline"
    parts = [marked_title(score, label_source, place)] if score.name else []
    if not score.name or reducer != OPERATOR:
        parts.append(title(reducer))
    if after:
        parts.append(f"after block {after}")
    return ", ".join(parts)


def marked_title(score: Score, label_source: str, place: str = "") -> str:
    """The title of a score with its place and label source: "REDI, mass of block 4 [posterior]"."""
    title = f"{score.title} {place_title(place)}" if place else score.title
    return f"{title} [{label_source}]" if label_source else title


DENSE_VARIANT = Variant(reducer="")


def paper_rows(budget: Budget, attention: Iterable[str] = ATTENTION_SCORES) -> dict[str, Variant]:
    """The reduced rows of Tables 1 and 2 by name, for the given attention scores."""
    return {
        score.name: Variant(score, TRUE_CLASS if score.term else "", extent=Extent(budget))
        for score in paper_scores(attention)
    }


@dataclass(frozen=True)
class Catalogue:
    """Scorers and reducers by name: the package's own and those from the user's files."""

    scorers: Mapping[str, Any] = field(default_factory=lambda: SCORERS)
    reducers: Mapping[str, Reducer] = field(default_factory=lambda: REDUCERS)
    digests: Mapping[str, str] = field(default_factory=dict)  # of the user's files, by name
    has_cls: bool = True  # whether the backbone has a CLS token, which some scores read
    size: CorpusSize = field(default_factory=CorpusSize)  # of the corpus

    def check(self, variant: Variant) -> Variant:
        """Return the variant; a :class:`ConfigError` if a name is unknown or the combination is impossible."""
        if variant.reducer not in self.reducers:
            names = ", ".join(self.reducers)
            raise ConfigError(f"There is no reducer {variant.reducer!r}; choose one of {names}.")
        score = variant.score
        if score.local:
            local_names = {*self.scorers, *ATTENTION_SCORES}
            if score.local not in local_names:
                names = ", ".join([*sorted(local_names), *TERMS])
                raise ConfigError(
                    f"There is no scorer {score.local!r}; choose one of {names}, or write redi_<name> or bm25_<name> "
                    "for a product."
                )
            attention = ATTENTION_SCORES.get(score.local)
            if attention and attention.needs_cls and not self.has_cls:
                raise ConfigError(f"{score.local} reads the CLS token, and this backbone has none: use e.g. mass.")
            if attention and attention.every_block and score.block is not None:
                raise ConfigError(f"{score.local} reads every block, so it takes no @block: remove @{score.block}.")
        if self.needs_words(variant) and variant.extent.after:
            raise ConfigError(f"{variant.reducer} uses words of input embeddings, so it works before block 1 only.")
        if variant.label_source and not score.term:
            raise ConfigError(f"{score.name!r} has no corpus term, so it takes no label source.")
        if score.term and variant.label_source not in LABEL_SOURCES:
            names = ", ".join(LABEL_SOURCES)
            raise ConfigError(f"The label source must be one of {names}, not {variant.label_source!r}.")
        if variant.place:
            _check_place(variant)
        return variant

    def cost(self, variant: Variant, on: Geometry, prefix_only: bool = False) -> float:
        """Cost relative to dense. A row with a place counts all that its score needs."""
        cost = self.reducers[variant.reducer].cost(variant.extent, on, prefix_only)
        return cost + self.place_cost(variant, on)

    def place_cost(self, variant: Variant, on: Geometry) -> float:
        """The part of the cost, relative to dense, that makes the score of a row with a place; otherwise 0."""
        if not variant.place:
            return 0.0
        score = variant.score
        products = place_cost(on, variant.place, self.size, bool(score.term), variant.label_source, score.local)
        return products / on.dense

    def needs_words(self, variant: Variant) -> bool:
        """Whether the reducer needs a vocabulary of input embeddings."""
        reducer = self.reducers.get(variant.reducer)
        return isinstance(reducer, OneShot) and reducer.from_words is not None

    def with_words(self, centroids: Tensor, digest: str) -> "Catalogue":
        """A copy in which the reducers that need a vocabulary have it. Its digest joins that of a user's file."""
        fitted = {
            name: reducer.with_words(centroids)
            for name, reducer in self.reducers.items()
            if isinstance(reducer, OneShot) and reducer.from_words is not None
        }
        digests = {name: self.digests.get(name, "") + digest for name in fitted}
        return replace(self, reducers={**self.reducers, **fitted}, digests={**self.digests, **digests})

    def with_curves(self, curve: Callable[[str, Adaptive], Curve]) -> "Catalogue":
        """A copy in which the cost of an adaptive reducer, given with its name, is what ``curve`` measures."""
        measured = {
            name: reducer.measured_by(partial(curve, name))
            for name, reducer in self.reducers.items()
            if isinstance(reducer, Adaptive)
        }
        return replace(self, reducers={**self.reducers, **measured})

    def digest(self, variant: Variant) -> str:
        """Digest of a user's reducer, else empty. The digest of a user's scorer is in the key of its scores."""
        return self.digests.get(variant.reducer, "")


def _check_place(variant: Variant) -> None:
    """A :class:`ConfigError` if a score cannot be made at its place, or only after the reduction."""
    require_place(variant.place)
    attention = ATTENTION_SCORES.get(variant.score.local)
    if variant.score.local and (attention is None or attention.every_block or variant.score.block is not None):
        raise ConfigError(f"{variant.score.local_name} is not available at {variant.place}: use e.g. mass or cls_mean.")
    if variant.corpus != PAPER_CORPUS:
        raise ConfigError(f"A row of {variant.place} has one view and that place's own words, so it has no ablation.")
    if variant.label_source == "text" or variant.extent.strength is not None:
        raise ConfigError(f"A row of {variant.place} has no label source text and no adaptive reducer.")
    needed, schedule = block_of_place(variant.place), variant.extent.schedule
    if len(set(schedule[:needed])) > 1 or (variant.extent.is_budget and variant.extent.after < needed):
        raise ConfigError(f"The score of {variant.place} exists after block {needed}, so the reduction must follow it.")
