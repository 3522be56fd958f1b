"""The content of audit.json: what defines each class of a run's training images, and what may be a shortcut."""

from dataclasses import dataclass
from pathlib import Path

from redi.grid import Grid
from redi.records.reading import read_record, write_record

FILE = "audit.json"
COMMAND = "redi audit"
#: Artefacts: the words and attention ranks of the training images; the pictures and places of the report.
PATCHES, PICTURES = "audit/patches", "audit/pictures"
UNATTENDED, FIXED_PLACE = "unattended", "fixed place"
#: The meaning of the numbers, stored with them and shown under the tables.
DEFINITIONS = {
    "tfidf": "TF-IDF of the word for the class, from the training images and the words of the audited block.",
    "mass": "share of the class's TF-IDF mass: patches times TF-IDF, relative to the sum over all words.",
    "inside": "share of the class's images that hold the word.",
    "outside": "share of all other images that hold it.",
    "lift": "attention of the last block on the word's patches, relative to the mean patch of the image.",
    "rank": "mean rank of the word's patches by that attention in their image, 0 (least) to 1 (most).",
    "border": "share of the word's patches in the outermost ring of the picture.",
    "coincidence": "how often patches of two images lie within one patch of each other: 0 is chance, 1 is always.",
    "suspicion": "evidence that the word tells the class from where no object should be: the z-score of its presence "
    "above 3, on unattended patches or in a fixed place off the middle. A class has the sum over all words.",
    "labels": "labels of training images only; no validation image was looked at.",
}


@dataclass(frozen=True)
class AuditWord:
    """A word of a class: one that defines it, or a suspect."""

    word: int
    tfidf: float
    mass: float
    inside: float
    outside: float
    lift: float
    rank: float
    border: float
    coincidence: float
    suspicion: float
    reason: str  # unattended, fixed place, or empty if the word is no suspect
    place: str  # where most of its patches lie, such as "top left"


@dataclass(frozen=True)
class Alike:
    """A class that shares words with another one."""

    label: int
    overlap: float  # share of the TF-IDF mass that both have
    words: list[int]  # the words that most of it comes from


@dataclass(frozen=True)
class AuditClass:
    name: str  # its folder
    images: int
    suspicion: float
    flagged: bool
    words: list[AuditWord]  # by TF-IDF; suspects that do not define the class come last
    alike: list[Alike]

    @property
    def suspects(self) -> list[AuditWord]:
        """The suspect words, most suspicious first."""
        return sorted((word for word in self.words if word.reason), key=lambda word: -word.suspicion)


@dataclass(frozen=True)
class AuditRecord:
    classes: list[AuditClass]  # in the order of the data
    order: list[int]  # numbers of the classes, most suspicious first
    limit: float  # suspicion above which a class is flagged
    block: int  # whose patch features are the words, counted from 1
    depth: int
    n_words: int
    grid: Grid
    attention: list[str]  # maps of the last block whose mean rank is used
    images: int
    head: list[str]  # class names of the checkpoint's head, if the run matched them
    columns: list[int]  # the class of the head of each class
    definitions: dict[str, str]

    @property
    def flagged(self) -> list[int]:
        return [label for label in self.order if self.classes[label].flagged]


def write_audit(folder: Path, record: AuditRecord) -> Path:
    return write_record(folder / FILE, record)


def read_audit(folder: Path) -> AuditRecord:
    return read_record(folder / FILE, AuditRecord, COMMAND)
