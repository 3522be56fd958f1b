"""Images to tune with, in disjoint parts."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.backbone import Backbone
from redi.deploy.readout import Pixels
from redi.errors import ConfigError, CorpusError
from redi.images import LabelledImages, open_pictures
from redi.images.classes import head_classes
from redi.images.labelled import describe_left_out, spread_evenly
from redi.images.loader import ViewDataset
from redi.records.tuning import FEWEST
from redi.runs.pictures import decode
from redi.runs.progress import say

#: Images that are loaded where some unlabelled ones are asked for.
SOME = 192


@dataclass(frozen=True)
class Part:
    """Images of one part and their labels, if these can be used."""

    pixels: Pixels
    labels: Int[Tensor, " images"] | None  # classes of the head, or of the folders without a head


@dataclass(frozen=True)
class Sample:
    """The parts of a sample. Without a head, nearest images or patches are found in ``bank``; with one it is empty."""

    bank: Part
    calibration: Part
    check: Part


def load_sample(
    images: LabelledImages,
    backbone: Backbone,
    calibration: int,
    check: int,
    class_map: Path | None = None,
    workers: int = 0,
    use_labels: bool = True,
) -> Sample:
    """Take reference crops that are spread evenly over the data set, and split them into parts at random.

    If there are few images, half of them are kept for the check.
    """
    if left_out := describe_left_out(images):
        say(f"  warning: {left_out}")
    labels = _labels(images, backbone, class_map)
    labels = labels if use_labels else None
    total, bank = len(images.labels), calibration if backbone.head is None else 0
    short = calibration + bank > total // 2
    seen = total // 2 if short else calibration + bank  # images of the bank and the calibration
    count = seen + min(check, total - seen)
    chosen = spread_evenly(range(total), count)
    pixels, kept = decode(ViewDataset(images, backbone.preprocessing, False, 0), chosen, workers)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))
    seen = seen * len(kept) // count  # every part loses its share of the damaged images
    bank = seen // 2 if bank else 0
    parts = order.split([bank, seen - bank, len(kept) - seen])
    if min(len(part) for part in parts[1 if not bank else 0 :]) < FEWEST:
        raise CorpusError(
            f"{images.name} has {total} images, too few to calibrate on some and check on others: give "
            f"{(4 if bank else 2) * FEWEST} or more."
        )
    neighbours = f"{bank} to find nearest neighbours in, " if bank else ""
    asked = f" instead of {calibration} (half of all {total} are for the check)" if short else ""
    say(f"  images: {neighbours}{len(parts[1])} to calibrate on{asked}, {len(parts[2])} to check on")
    if labels is not None:
        labels = labels[torch.tensor(kept)]
        if backbone.head is None:
            labels = _usable_labels(labels, *parts)
    return Sample(*(Part(pixels[part], None if labels is None else labels[part]) for part in parts))


def normalised_images(where: str, backbone: Backbone) -> Float[Tensor, "images channels height width"]:
    """Some images of a data set, spread evenly over it, as the input of the backbone."""
    images = open_pictures(where)
    chosen = spread_evenly(range(len(images.labels)), SOME)
    pixels, _ = decode(ViewDataset(images, backbone.preprocessing, False, 0), chosen, 0)
    return backbone.preprocessing.normalise(pixels)


def _usable_labels(
    labels: Int[Tensor, " images"],
    bank: Int[Tensor, " bank"],
    _calibration: Int[Tensor, " calibration"],
    check: Int[Tensor, " check"],
) -> Int[Tensor, " images"] | None:
    """The labels if the bank has several classes, among them all classes of the check; otherwise None."""
    in_bank, in_check = labels[bank].unique(), labels[check].unique()
    if len(in_bank) > 1 and torch.isin(in_check, in_bank).all():
        return labels
    say(
        f"  labels are not used: nearest neighbours come from {len(bank)} images of {len(in_bank)} classes, "
        f"but the images to check on have {len(in_check)} classes"
    )
    return None


def _labels(images: LabelledImages, backbone: Backbone, class_map: Path | None) -> Int[Tensor, " images"] | None:
    """Labels in the numbering of the head or, without a head, of the folders; None if they cannot be used."""
    if class_map is not None and not (images.class_names and backbone.class_names):
        lacking = "the model has no head" if images.class_names else f"{images.name} has no classes"
        raise ConfigError(f"--class-map cannot be used: {lacking}. Leave it out.")
    if not images.class_names:
        return None
    labels = torch.tensor(images.labels)
    if backbone.class_names is None:
        return labels
    try:
        columns, how = head_classes(images.class_names, backbone.class_names, class_map)
    except ConfigError as error:
        if class_map is not None:
            raise
        say(f"  warning: labels are not used: {error}")
        return None
    say(f"  classes of the head {how}")
    return torch.tensor(columns)[labels]
