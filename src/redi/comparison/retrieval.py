"""The study ``retrieval``: search with dense, reduced, merged and pooled features, and with a patch index.

The gallery is made of the run's training images, the queries are its validation images, both as reference crops. The
classes of the gallery are known. Those of the queries are read here, after everything else, to measure the rankings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from redi.comparison.embedding import CHOOSERS, Side, embed_side, index_sizes, limited, stored_vectors
from redi.comparison.ground import Ground
from redi.comparison.paired import paired_to
from redi.comparison.studies import rows_at_cost
from redi.corpus import TRUE_CLASS
from redi.records.deployed import OWN, PEER
from redi.records.paired import Paired
from redi.records.results import Results
from redi.records.retrieval import (
    CLASSIFIER_LABELS,
    GALLERY_LABELS,
    KNN,
    MAP,
    NO_LABELS,
    RECALL_1,
    RECALL_10,
    IndexLine,
    Retrieval,
    RetrievalLine,
    write_retrieval,
)
from redi.reduction.titles import title
from redi.retrieval import (
    NEIGHBOURS,
    QUERY_CHUNK,
    TEMPERATURE,
    average_precision,
    knn_vote,
    maxsim,
    nearest,
    ranking,
    recalled,
    search_of,
)
from redi.rows import DENSE, DENSE_VARIANT, MAIN_SCORE, RANDOM, Catalogue, Score, Variant, marked_title
from redi.runs.environment import environment
from redi.runs.folder import Run
from redi.runs.progress import say
from redi.stages.classifiers import classifier_names
from redi.stages.evaluate import tokens_and_cost
from redi.stages.score import scored_images

#: Images of the gallery and queries, at most. Beyond it, as many of each class are taken.
GALLERY, QUERIES = 5_000, 2_000
#: Reducers that are measured at the cost of the paper's operator.
AT_COST = ("pool", OWN, PEER)
#: The row and the chooser that others are compared with.
REFERENCE = "mass"
#: Ranks of the recall.
RECALLS = {RECALL_1: 1, RECALL_10: 10}


@dataclass(frozen=True)
class Row:
    """A way to make the feature of an image, which may differ between the gallery and the queries."""

    gallery: Variant
    query: Variant
    labels: str

    @property
    def title(self) -> str:
        if self.gallery == self.query:
            return self.gallery.title
        return marked_title(self.gallery.score, "gallery's class")


def retrieval_rows(ground: Ground) -> list[Row]:
    """Dense, the paper's operator with several scores, and grid pooling, redi.accelerate and ToMe at its cost."""
    free = [DENSE_VARIANT, ground.row(Score(local=RANDOM)), ground.row(Score(local="mass"))]
    free.append(ground.row(MAIN_SCORE, "none"))
    free += [row for name in AT_COST for row in rows_at_cost(ground, name, ground.operator_cost())]
    predicted, posterior = (ground.row(MAIN_SCORE, source) for source in ("predicted", "posterior"))
    return [
        *(Row(variant, variant, NO_LABELS) for variant in free),
        *(Row(variant, variant, CLASSIFIER_LABELS) for variant in (predicted, posterior)),
        Row(ground.row(MAIN_SCORE, TRUE_CLASS), posterior, GALLERY_LABELS),
    ]


def retrieval_sides(run: Run, rows: list[Row], gallery: int = GALLERY, queries: int = QUERIES) -> tuple[Side, Side]:
    """The gallery and the queries; of a large data set, some images of each class."""
    decoded, scored = run.load("decoded")["indices"].tolist(), scored_images(run)
    for_queries = list(dict.fromkeys(chooser.of_query or name for name, chooser in CHOOSERS.items()))
    return (
        Side(
            "gallery",
            "train",
            run.training,
            limited(run.training.labels, decoded, gallery),
            list(dict.fromkeys(row.gallery for row in rows)),
            list(CHOOSERS),
            labelled=True,
            seed=run.config.seed + 1,
        ),
        Side(
            "queries",
            "val",
            run.validation,
            limited(run.validation.labels, scored, queries),
            list(dict.fromkeys(row.query for row in rows)),
            for_queries,
            labelled=False,
            seed=run.config.seed,
        ),
    )


@torch.no_grad()
def measure_retrieval(
    run: Run, catalogue: Catalogue, ground: Ground, gallery: int = GALLERY, queries: int = QUERIES
) -> None:
    """Embed both sides; this takes all processes."""
    for side in retrieval_sides(run, retrieval_rows(ground), gallery, queries):
        embed_side(run, side, catalogue)


@torch.no_grad()
def summarise_retrieval(
    run: Run,
    catalogue: Catalogue,
    ground: Ground,
    results: Results,
    most_gallery: int = GALLERY,
    most_queries: int = QUERIES,
) -> None:
    """Rank the gallery for every query and write retrieval.json; the main process does it."""
    rows = retrieval_rows(ground)
    gallery, queries = retrieval_sides(run, rows, most_gallery, most_queries)
    measured = _Measured(run, gallery, queries)
    record = Retrieval(
        lines=_single_vectors(run, catalogue, rows, measured),
        index=_patch_index(run, measured),
        absent=[title(name) for name in AT_COST if name not in {row.gallery.reducer for row in rows}],
        reference=Score(local=REFERENCE).title,
        index_reference=CHOOSERS[REFERENCE].title,
        classifier=classifier_names(run)[0],
        gallery=len(gallery.indices),
        queries=len(measured.query_labels),
        left_out=int((~measured.known).sum()),
        classes=len(measured.gallery_labels.unique()),
        neighbours=measured.neighbours,
        temperature=TEMPERATURE,
        search=search_of(len(gallery.indices)),
        digests=results.digests,
        environment=environment(run.device, run.ranks.world),
    )
    write_retrieval(run.folder, record)


class _Measured:
    """Both sides with their labels. A query whose class the gallery lacks is left out."""

    def __init__(self, run: Run, gallery: Side, queries: Side) -> None:
        self.run, self.gallery, self.queries = run, gallery, queries
        self.gallery_labels = torch.tensor([run.training.labels[index] for index in gallery.indices])
        labels = torch.tensor([run.validation.labels[index] for index in queries.indices])
        self.known = torch.isin(labels, self.gallery_labels)
        self.query_labels = labels[self.known]
        # More neighbours than a class has images would let other classes vote whenever the search is perfect.
        self.neighbours = min(NEIGHBOURS, int(self.gallery_labels.bincount().max()))

    def measure(self, queries: Tensor, gallery: Tensor) -> dict[str, Tensor]:
        """The measures of every query, for single vectors or for several per image."""
        queries, gallery = (side.float().to(self.run.device) for side in (queries[self.known], gallery))
        if queries.ndim == 3:
            parts = [self._ranked(maxsim(some, gallery), number) for number, some in _chunks(queries)]
            return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        count = min(len(gallery), max(self.neighbours, *RECALLS.values()))
        similarity, index = (tensor.cpu() for tensor in nearest(queries, gallery, count))
        found = self.gallery_labels[index]
        votes = knn_vote(
            similarity[:, : self.neighbours], found[:, : self.neighbours], len(self.run.training.class_names)
        )
        relevant = found == self.query_labels[:, None]
        precision = [
            average_precision((some @ gallery.T).cpu(), self._relevant(number, len(some)))
            for number, some in _chunks(queries)
        ]
        return {
            KNN: votes == self.query_labels,
            **{name: recalled(relevant, count) for name, count in RECALLS.items()},
            MAP: torch.cat(precision),
        }

    def _relevant(self, start: int, count: int) -> Tensor:
        return self.gallery_labels == self.query_labels[start : start + count, None]

    def _ranked(self, scores: Tensor, start: int) -> dict[str, Tensor]:
        scores, relevant = scores.cpu(), self._relevant(start, len(scores))
        first = relevant.gather(1, ranking(scores)[:, : max(RECALLS.values())])
        return {
            **{name: recalled(first, count) for name, count in RECALLS.items()},
            MAP: average_precision(scores, relevant),
        }


def _chunks(queries: Tensor) -> list[tuple[int, Tensor]]:
    return [(at, queries[at : at + QUERY_CHUNK]) for at in range(0, len(queries), QUERY_CHUNK)]


def _single_vectors(run: Run, catalogue: Catalogue, rows: list[Row], measured: _Measured) -> list[RetrievalLine]:
    budget, on = run.config.budget, run.backbone.geometry
    gallery, queries = run.load(measured.gallery.features), run.load(measured.queries.features)
    lines = []
    for kind, feature in enumerate(["CLS", "patch mean"] if run.backbone.has_cls else ["patch mean"]):
        values: dict[str, dict[str, Tensor]] = {}
        for row in rows:
            name = row.gallery.name(budget)
            values[name] = measured.measure(queries[row.query.name(budget)][:, kind], gallery[name][:, kind])
        to_dense, to_reference = _paired(values, DENSE), _paired(values, REFERENCE)
        for row in rows:
            name = row.gallery.name(budget)
            lines.append(
                RetrievalLine(
                    row=name,
                    title=row.title,
                    labels=row.labels,
                    feature=feature,
                    cost=tokens_and_cost(on, catalogue, row.gallery)[1],
                    measures=_percent(values[name]),
                    to_dense=to_dense[name],
                    to_reference=to_reference[name],
                )
            )
    return lines


def _patch_index(run: Run, measured: _Measured) -> list[IndexLine]:
    gallery, queries = run.load(measured.gallery.patches), run.load(measured.queries.patches)
    sizes = index_sizes(run.backbone.geometry.patches)
    lines = []
    for size in sizes:
        say(f"patch index: {size} vector{'s' * (size > 1)} per image")
        values = {}
        for name, chooser in CHOOSERS.items():
            own = chooser.of_query or name
            of_query, of_gallery = queries[own], gallery[name]
            values[name] = measured.measure(
                stored_vectors(of_query, own, sizes, size), stored_vectors(of_gallery, name, sizes, size)
            )
        to_reference = _paired(values, REFERENCE)
        lines += [
            IndexLine(name, chooser.title, chooser.labels, size, _percent(values[name]), to_reference[name])
            for name, chooser in CHOOSERS.items()
        ]
    return lines


def _percent(values: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: 100 * tensor.double().mean().item() for name, tensor in values.items()}


def _paired(values: Mapping[str, Mapping[str, Tensor]], reference: str) -> dict[str, dict[str, Paired]]:
    """By row, then by measure; empty for the reference itself."""
    paired: dict[str, dict[str, Paired]] = {row: {} for row in values}
    for measure in values[reference]:
        for row, difference in paired_to({name: own[measure] for name, own in values.items()}, reference).items():
            paired[row][measure] = difference
    return paired
