"""Localisation: the content of localisation.json."""

from dataclasses import dataclass
from pathlib import Path

from redi.records.paired import Paired
from redi.records.reading import read_record, write_record
from redi.records.results import Environment

FILE = "localisation.json"
#: The study that measures it, and its command.
STUDY = "localisation"
COMMAND = f"redi compare RUN --study {STUDY}"
#: The folder of the masks of a run with pictures of its own, beside the pictures themselves.
MASKS = "val-masks"


@dataclass(frozen=True)
class LocalisationLine:
    """How well the map of one score finds the object. All measures are in percent."""

    row: str
    title: str
    label_source: str  # empty if the score has no corpus term
    pointing: float  # images whose best patch lies on the object
    iou: float  # mean, each half of the images at the threshold that is best on the other half
    ranked_iou: float  # as iou, with the same number of patches in every image instead of the same threshold
    best_iou: float  # mean at the one threshold that is best on these images themselves
    threshold: float  # that threshold
    curve: list[float]  # mean IoU at every threshold
    pointing_to_reference: Paired | None  # None for the reference itself
    iou_to_reference: Paired | None


@dataclass(frozen=True)
class Localisation:
    lines: list[LocalisationLine]
    reference: str  # title of the row that others are compared with
    ceiling: float  # mean over images of the highest IoU of any set of patches, percent
    whole: float  # mean IoU of the whole image, percent: the mean area of the object
    thresholds: list[float]
    classifier: str  # that gives the predicted classes
    images: int
    left_out: int  # images whose crop shows nothing of the object
    masks: str  # name of their folder
    digests: dict[str, str]  # of what the run has made, as in results.json
    environment: Environment


def write_localisation(folder: Path, record: Localisation) -> Path:
    return write_record(folder / FILE, record)


def earlier_localisation(folder: Path) -> Localisation | None:
    """The record of an earlier call; None if there was none."""
    return read_record(folder / FILE, Localisation, COMMAND) if (folder / FILE).exists() else None
