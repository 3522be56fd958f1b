"""The results of a run: the content of results.json, which tables and figures read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redi.attention import ATTENTION_SCORES
from redi.budget import Budget
from redi.corpus import LABEL_SOURCES
from redi.cost import CostRow
from redi.early import require_place
from redi.errors import ArtifactError, InvalidInput, RediError
from redi.records.reading import read_record, write_record
from redi.rows import DENSE, MAIN_ROW, MAIN_SCORE, PAPER_CORPUS, CorpusSettings, Score, describe, paper_scores

FILE = "results.json"
#: How far the ends of an interval may lie beyond 0 and 100 percent.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Row:
    """One line of the tables.

    Its identity is (score, label source, reducer, budget, classifier). Rows beyond the paper's also differ in the
    place of the reducer, its schedule and the corpus settings.
    """

    name: str
    classifier: str  # probe or native
    scorer: str  # name of the score; empty for dense and for reducers that use no score
    label_source: str  # whose label the corpus term looks up: gt is an oracle; empty without a term
    reducer: str  # empty for dense
    budget: Budget | None  # only for a one-shot reducer
    after: int  # blocks before a one-shot reducer
    #: Patch tokens after each block, only for a reducer that works block by block; the mean if they differ by image.
    schedule: list[int]
    corpus: CorpusSettings | None  # None without a corpus term
    tokens: int  # sequence length after the last block, prefix included; the mean if it differs by image
    cost: float  # analytic, relative to dense; without the cost of the scores, except for a row with a place
    top1: float  # percent
    top5: float
    top1_interval: tuple[float, float]  # 95 %
    delta_dense: float  # points of Top-1 against dense
    delta_interval: tuple[float, float]
    p_value: float  # exact McNemar test against dense
    images: int
    agreement: float  # percent of images with the same Top-1 as dense, right or wrong
    divergence: float  # mean KL divergence from dense's distribution, nats
    place: str = ""  # where words, class and attention come from; empty means a dense pass

    def __post_init__(self) -> None:
        if self.place:
            require_place(self.place)
        for percent in (self.top1, self.top5, self.agreement, *self.top1_interval):
            if not -ROUNDING <= percent <= 100 + ROUNDING:
                raise InvalidInput(f"The row {self.name!r} has a percentage of {percent:g}: it must lie in 0..100.")

    @property
    def score(self) -> Score:
        return Score.parse(self.scorer)

    @property
    def title(self) -> str:
        return describe(self.score, self.label_source, self.reducer, self.after, self.place)

    def is_usual(self, run_budget: Budget) -> bool:
        """Whether the row is a point of a curve: no ablation, and the paper's proportions of the budget."""
        if self.corpus not in (None, PAPER_CORPUS) or self.place:
            return False
        if self.budget is None:
            return bool(self.schedule)
        paper_share = abs(self.budget.merge - (1 - self.budget.keep) / 2) < 1e-6
        same_cells = (self.budget.cells, self.budget.spatial) == (run_budget.cells, run_budget.spatial)
        return paper_share and same_cells


@dataclass(frozen=True)
class VocabularyNotes:
    n_words: int
    n_passes: int
    objective: list[float] = field(default_factory=list)  # mean cosine per pass
    reseeded: list[int] = field(default_factory=list)  # empty words reseeded per pass


@dataclass(frozen=True)
class ProbeNotes:
    steps: int
    loss: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run, and the size at which the backbone sees it."""

    train: str
    val: str
    train_images: int
    val_images: int
    classes: int
    limit: int = 0  # images per class, the first ones; 0 means all
    seed: int
    size: int  # side of the input in pixels

    @property
    def trial(self) -> str:
        """What ``--limit`` left of the data, in words; empty for all of it."""
        return f"at most {self.limit} images per class (--limit {self.limit})" if self.limit else ""


@dataclass(frozen=True, kw_only=True)
class Notes(Data):
    """The inputs and settings that the results were made from."""

    backbone: str
    resize: str  # filter
    budget: Budget  # of the run
    attention_scores: list[str]
    native_classes: str  # how the head's classes were matched; empty without a native classifier
    vocabulary: VocabularyNotes
    probe: ProbeNotes
    skipped_train: list[tuple[str, str]]  # (image, reason) of images that could not be decoded
    skipped_val: list[tuple[str, str]]
    object_coverage: dict[str, float] | None = None  # percent per score, only in the demo
    zero_shot: float | None = None  # Top-1 of the label source text, percent; None if it was not used
    early_top1: dict[str, float] | None = None  # Top-1 of the probe of each place, percent; None without such rows


@dataclass(frozen=True)
class Environment:
    """The versions and the machine that results were made with."""

    redi: str
    torch: str
    transformers: str
    timm: str  # empty if it was not used
    python: str
    system: str
    machine: str
    cores: int
    threads: int
    device: str
    processes: int = 1


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    costs: list[CostRow]
    notes: Notes
    environment: Environment
    digests: dict[str, str]

    def row(self, name: str, classifier: str) -> Row:
        for row in self.rows:
            if (row.name, row.classifier) == (name, classifier):
                return row
        raise ArtifactError(f"There is no row {name!r} with the {classifier} classifier.")

    @property
    def scores(self) -> list[str]:
        """Names of the paper's scores that the run has; CLS scores and rollout need a CLS token."""
        return [score.name for score in paper_scores(self.notes.attention_scores)]

    @property
    def classifiers(self) -> Sequence[str]:
        return list(dict.fromkeys(row.classifier for row in self.rows))


def write_results(folder: Path, results: Results) -> Path:
    return write_record(folder / FILE, results)


def read_results(folder: Path) -> Results:
    """Read the results of a finished run; they have every row of the paper's tables."""
    results = read_record(folder / FILE, Results, "redi run")
    try:
        _require_complete(results)
    except RediError as error:
        raise ArtifactError(f"{folder / FILE} is damaged: {error} Use `redi run` to write it again.") from None
    return results


def _require_complete(results: Results) -> None:
    if not results.rows:
        raise ArtifactError("It has no rows.")
    for row in results.rows:
        if row.classifier not in ("probe", "native"):
            raise ArtifactError(f"There is no classifier {row.classifier!r}.")
        if row.label_source and row.label_source not in LABEL_SOURCES:
            raise ArtifactError(f"There is no label source {row.label_source!r}.")
        Score.parse(row.scorer)
    # An older file lacks scores that were added since.
    stored = results.notes.attention_scores
    known = MAIN_SCORE.local in stored and set(stored) <= set(ATTENTION_SCORES)
    if not known or len(set(stored)) < len(stored):
        raise ArtifactError(f"There is no backbone with the attention scores {stored}.")
    for classifier in results.classifiers:
        for name in (DENSE, *results.scores):
            results.row(name, classifier)
        if results.row(DENSE, classifier).reducer or not results.row(MAIN_ROW, classifier).reducer:
            raise ArtifactError(f"Dense or {MAIN_ROW} has the reducer of another row.")
    if not all(row.dense for row in results.costs):
        raise ArtifactError("A dense cost is 0.")
