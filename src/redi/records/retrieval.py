"""Retrieval: the content of retrieval.json."""

from dataclasses import dataclass
from pathlib import Path

from redi.records.paired import Paired
from redi.records.reading import read_record, write_record
from redi.records.results import Environment

FILE = "retrieval.json"
#: The study that measures it, and its command.
STUDY = "retrieval"
COMMAND = f"redi compare RUN --study {STUDY}"
#: Whose labels a row uses: nobody's; those that the classifier was trained on, for a probe the gallery's; also each
#: gallery image's own. No row uses the label of a query.
NO_LABELS, CLASSIFIER_LABELS, GALLERY_LABELS = "none", "gallery (classifier)", "gallery"
#: The measures by the names of their columns.
KNN, RECALL_1, RECALL_10, MAP = "kNN", "R@1", "R@10", "mAP"


@dataclass(frozen=True)
class RetrievalLine:
    """One feature of one row, for single-vector search. All measures are in percent."""

    row: str
    title: str
    labels: str  # whose labels it uses
    feature: str  # CLS or patch mean
    cost: float  # relative to dense, on both sides
    measures: dict[str, float]  # kNN, R@1, R@10, mAP
    to_dense: dict[str, Paired]  # by measure; empty for dense itself
    to_reference: dict[str, Paired]  # empty for the reference row itself


@dataclass(frozen=True)
class IndexLine:
    """A patch index: every image is stored as some vectors, and images are compared by MaxSim."""

    chooser: str
    title: str
    labels: str
    vectors: int  # per image, in the gallery and in a query
    measures: dict[str, float]  # R@1, R@10, mAP, in percent
    to_reference: dict[str, Paired]  # with as many vectors; empty for the reference itself


@dataclass(frozen=True)
class Retrieval:
    lines: list[RetrievalLine]
    index: list[IndexLine]
    absent: list[str]  # titles of reducers that do not reach the cost of the others on this backbone
    reference: str  # title of the row that others are compared with, beside dense
    index_reference: str
    classifier: str  # that gives the predicted classes
    gallery: int  # images
    queries: int
    left_out: int  # queries whose class the gallery lacks
    classes: int
    neighbours: int  # that vote
    temperature: float
    search: str  # torch or faiss
    digests: dict[str, str]  # of what the run has made, as in results.json
    environment: Environment


def write_retrieval(folder: Path, record: Retrieval) -> Path:
    return write_record(folder / FILE, record)


def earlier_retrieval(folder: Path) -> Retrieval | None:
    """The record of an earlier call; None if there was none."""
    return read_record(folder / FILE, Retrieval, COMMAND) if (folder / FILE).exists() else None
