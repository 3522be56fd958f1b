"""What a study is made for: one backbone, the run's own budget, and the available scores and reducers."""

from dataclasses import dataclass, replace

from redi.corpus import LABEL_SOURCES, TRUE_CLASS
from redi.cost import Geometry
from redi.reduction import OPERATOR, Extent, Reducer
from redi.rows import MAIN_SCORE, NO_SCORE, Catalogue, Score, Variant
from redi.runs.config import VocabularyConfig


@dataclass(frozen=True)
class Study:
    """A list of variants with a title, and a reference row to compare them with in addition to dense."""

    name: str
    title: str
    variants: list[Variant]
    reference: Variant


@dataclass(frozen=True)
class Ground:
    """What the rows of a study depend on."""

    on: Geometry
    extent: Extent  # the run's own budget
    catalogue: Catalogue
    vocabulary: VocabularyConfig
    training_images: int
    has_text: bool = False  # whether the run has embeddings of its class names
    prefix_only: bool = False  # whether the last block works for the prefix alone (rows at a cost without a score)

    @property
    def label_sources(self) -> list[str]:
        """The label sources that every score can be measured with."""
        return [name for name, source in LABEL_SOURCES.items() if self.has_text or not source.uses_text]

    @property
    def later(self) -> int:
        """A third of the depth, where a one-shot reducer can use the attention of the block before it."""
        return max(1, self.on.depth // 3)

    @property
    def operator(self) -> Reducer:
        return self.catalogue.reducers[OPERATOR]

    def row(self, score: Score = NO_SCORE, label_source: str = "", **changes: object) -> Variant:
        """A row under the paper's operator and the run's budget, unless ``changes`` say otherwise."""
        variant = Variant(score, label_source, extent=self.extent)
        return self.catalogue.check(replace(variant, **changes))  # type: ignore[arg-type]

    @property
    def oracle(self) -> Variant:
        return self.row(MAIN_SCORE, TRUE_CLASS)

    def fits(self, variant: Variant) -> bool:
        """Whether the budget of a row makes no more tokens than there are patches."""
        extent = variant.extent
        return not extent.is_budget or extent.budget.fits(self.on.patches, self.on.grid)

    def operator_cost(self, keep: float | None = None) -> float:
        """Cost of the paper's operator at a keep rate, or at the run's own budget."""
        extent = self.extent if keep is None else self.extent.at_keep(keep)
        return self.operator.cost(extent, self.on)
