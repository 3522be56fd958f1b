"""Images to tune with, in parts that share none."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from redi.backbone import Backbone
from redi.classes import head_classes
from redi.deploy.readout import Pixels
from redi.errors import ConfigError, CorpusError
from redi.images import LabelledImages
from redi.loader import ViewDataset
from redi.progress import say, track

#: Fewest images that a part may have.
FEWEST = 8


@dataclass(frozen=True)
class Part:
    pixels: Pixels
    labels: Int[Tensor, " images"] | None  # classes of the head, or of the folders without one


@dataclass(frozen=True)
class Sample:
    """``bank`` is what a model without a head finds nearest neighbours in; else it is empty."""

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
) -> Sample:
    """Reference crops, spread evenly over the data set and dealt out at random; where there are few
    images, half of them are left to check on."""
    total, bank = len(images.labels), calibration if backbone.head is None else 0
    seen = min(calibration + bank, total // 2)  # not checked on
    wanted = seen + min(check, total - seen)
    chosen = [position * total // wanted for position in range(wanted)]
    pixels, kept = _decode(ViewDataset(images, backbone.preprocessing, False, 0), chosen, workers)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))
    seen = seen * len(kept) // wanted  # damaged images are missing from every part alike
    bank = seen // 2 if bank else 0
    parts = order.split([bank, seen - bank, len(kept) - seen])
    if min(len(part) for part in parts[1 if not bank else 0 :]) < FEWEST:
        raise CorpusError(
            f"{images.name} has {total} images, too few to calibrate on some and check on others: give "
            f"{(4 if bank else 2) * FEWEST} or more."
        )
    labels = _labels(images, backbone, class_map)
    known = None if labels is None else labels[torch.tensor(kept)]
    if known is not None and backbone.head is None:
        known = _if_known(known, *parts)
    return Sample(*(Part(pixels[part], None if known is None else known[part]) for part in parts))


def _if_known(
    labels: Int[Tensor, " images"],
    bank: Int[Tensor, " bank"],
    _calibration: Int[Tensor, " calibration"],
    check: Int[Tensor, " check"],
) -> Int[Tensor, " images"] | None:
    """Labels for nearest neighbours, if those can be right and can be wrong."""
    known, asked = labels[bank].unique(), labels[check].unique()
    if len(known) > 1 and torch.isin(asked, known).all():
        return labels
    say(
        f"  labels are not used: nearest neighbours are found among {len(bank)} images of {len(known)} "
        f"classes, and the images to check on are of {len(asked)}"
    )
    return None


def _decode(dataset: ViewDataset, chosen: list[int], workers: int) -> tuple[Pixels, list[int]]:
    plan = [chosen[start : start + 32] for start in range(0, len(chosen), 32)]
    pixels, kept, skipped = [], [], 0
    with track("images", len(chosen)) as progress:
        for batch in dataset.batches(plan, workers):
            pixels.append(batch.pixels[:, 0])
            kept += batch.indices
            skipped += len(batch.skipped)
            progress.advance(len(batch.indices) + len(batch.skipped))
    if skipped:
        say(f"  {skipped} images cannot be decoded and are left out")
    if len(kept) < 0.9 * len(chosen):
        raise CorpusError(
            f"{skipped} of {len(chosen)} images of {dataset.images.name} are damaged."
        )
    return torch.cat(pixels), kept


def _labels(
    images: LabelledImages, backbone: Backbone, class_map: Path | None
) -> Int[Tensor, " images"] | None:
    """In the head's numbering, or the folders' without a head; None where there are none to use."""
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
        say(f"  labels are not used: {error}")
        return None
    say(f"  classes of the head {how}")
    return torch.tensor(columns)[labels]
