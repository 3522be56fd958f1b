"""Studies of other tasks than classification. Their rows have no Top-1, so each has a record of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from redi import bounds
from redi.comparison.ground import Ground
from redi.comparison.localisation import find_masks, own_masks, summarise_localisation
from redi.comparison.retrieval import GALLERY, QUERIES, measure_retrieval, retrieval_rows, summarise_retrieval
from redi.errors import ConfigError
from redi.records.localisation import STUDY as LOCALISATION
from redi.records.results import Results
from redi.records.retrieval import STUDY as RETRIEVAL
from redi.reduction import Extent
from redi.rows import Catalogue
from redi.runs.folder import Run

#: The studies of this kind.
TASKS = (RETRIEVAL, LOCALISATION)


@dataclass(frozen=True)
class TaskOptions:
    """What the tasks need beside a run; None is the default."""

    masks: Path | None = None  # folder of the objects' masks
    gallery: Annotated[int | None, bounds.SEARCHED] = None  # most images of the gallery
    queries: Annotated[int | None, bounds.SEARCHED] = None  # most queries

    def check(self, tasks: Sequence[str]) -> None:
        """Refuse an option without the study that it is for, and sizes that are no sizes."""
        if self.masks is not None and LOCALISATION not in tasks:
            raise ConfigError(f"--masks is for --study {LOCALISATION}: ask for it.")
        for name, value in (("--gallery", self.gallery), ("--queries", self.queries)):
            if value is not None and RETRIEVAL not in tasks:
                raise ConfigError(f"{name} is for --study {RETRIEVAL}: ask for it.")
        bounds.require_bounds(self)


def possible_tasks(folder: Path, options: TaskOptions) -> list[str]:
    """The tasks that a run can be measured on: localisation only if there are masks."""
    has_masks = options.masks is not None or own_masks(folder).is_dir()
    return [RETRIEVAL, *[LOCALISATION] * has_masks]


class Tasks:
    """The tasks of one call, in an open run. Mistakes in the options are found when it is made."""

    def __init__(self, run: Run, names: Sequence[str], catalogue: Catalogue, options: TaskOptions) -> None:
        options.check(names)
        self.run, self.names, self.catalogue = run, names, catalogue
        self.sizes = (options.gallery or GALLERY, options.queries or QUERIES)
        self.masks = find_masks(run.folder, options.masks) if LOCALISATION in names else None

    @property
    def _ground(self) -> Ground:
        extent, images = Extent(self.run.config.budget), len(self.run.training.labels)
        return Ground(self.run.backbone.geometry, extent, self.catalogue, self.run.config.vocabulary, images)

    def print_plan(self) -> None:
        if RETRIEVAL in self.names:
            most = zip(self.sizes, (self.run.training, self.run.validation), strict=True)
            gallery, queries = (min(size, len(images.labels)) for size, images in most)
            rows = len(retrieval_rows(self._ground))
            print(f"{RETRIEVAL:<12} {rows} rows and a patch index: about {gallery} gallery images, {queries} queries")
        if self.masks is not None:
            print(f"{LOCALISATION:<12} the score maps of the run against the masks in {self.masks}; no forward pass")

    def measure(self) -> None:
        """The passes over the images; this takes all processes."""
        if RETRIEVAL in self.names:
            measure_retrieval(self.run, self.catalogue, self._ground, *self.sizes)

    def summarise(self, results: Results) -> None:
        """Write the records of the tasks; the main process does it."""
        if RETRIEVAL in self.names:
            summarise_retrieval(self.run, self.catalogue, self._ground, results, *self.sizes)
        if self.masks is not None:
            summarise_localisation(self.run, results, self.masks)
