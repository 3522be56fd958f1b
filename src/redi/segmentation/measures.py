"""Measures of class maps, and paired statistics over images.

mIoU comes from the counts of all images together, not from a mean over images. Every image is summarised by three
counts per class, from which mIoU and accuracy of any resample of images follow exactly:

    hits_c = #(decided c and labelled c),    decided_c,    labelled_c,    IoU_c = hits / (decided + labelled - hits).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Real, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from redi.errors import InvalidInput
from redi.images.scenes import VOID

RESAMPLES = 10_000
#: Resamples that are drawn at a time.
BLOCK = 500

Counts = Real[Tensor, "*images three classes"]


def confusion(
    decided: UInt8[Tensor, "height width"], labels: UInt8[Tensor, "label_height label_width"], classes: int
) -> Int[Tensor, "classes classes"]:
    """Pixels by label (rows) and decision (columns); void pixels are left out."""
    if decided.shape != labels.shape:
        raise InvalidInput(f"Decisions {list(decided.shape)} and labels {list(labels.shape)} have different sizes.")
    counted = labels != VOID
    pairs = labels[counted].long() * classes + decided[counted].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def class_counts(matrix: Int[Tensor, "classes classes"]) -> Int[Tensor, "three classes"]:
    """Hits, decisions and labels of each class."""
    return torch.stack([matrix.diagonal(), matrix.sum(dim=0), matrix.sum(dim=1)])


def class_iou(counts: Counts) -> Float[Tensor, "*images classes"]:
    """IoU of each class in percent; not a number if no label has the class."""
    hits, decided, labelled = counts.double().unbind(dim=-2)
    iou = 100 * hits / (decided + labelled - hits)
    return torch.where(labelled > 0, iou, torch.nan)


def mean_iou(counts: Counts) -> Float[Tensor, "*images"]:
    """Mean IoU of the classes that the labels have, in percent.

    A class that is only decided, but never labelled, does not enter the mean, so the mean is over the same classes in
    every row. Its pixels are misses of the classes that they are labelled with.
    """
    return class_iou(counts).nanmean(dim=-1)


def pixel_accuracy(counts: Counts) -> Float[Tensor, "*images"]:
    """Percent of labelled pixels whose class is right."""
    hits, _, labelled = counts.double().sum(dim=-1).unbind(dim=-1)
    return 100 * hits / labelled


def patch_cosine(
    first: Float[Tensor, "batch patches dim"], second: Float[Tensor, "batch patches dim"]
) -> Float[Tensor, " batch"]:
    """The mean over patches of the cosine between two versions of their tokens."""
    return cosine_similarity(first.float(), second.float(), dim=-1).mean(dim=1)


class RowMeasures:
    """The measures of a row, image by image, and the maps of the shown scenes."""

    def __init__(self, images: int, classes: int) -> None:
        self.counts = torch.zeros(images, 3, classes, dtype=torch.int64)
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self.agreement = torch.zeros(images, dtype=torch.float64)
        self.cosine = torch.zeros(images, dtype=torch.float64)
        self.maps: dict[str, Tensor] = {}

    def add(self, index: int, matrix: Int[Tensor, "classes classes"], agreement: float, cosine: float) -> None:
        """Add an image: its confusion matrix, percent of agreement and mean cosine with dense."""
        self.counts[index] = class_counts(matrix)
        self.confusion += matrix
        self.agreement[index], self.cosine[index] = agreement, cosine

    def tensors(self) -> dict[str, Tensor]:
        measures = {"counts": self.counts, "confusion": self.confusion}
        return {**measures, "agreement": self.agreement, "cosine": self.cosine, **self.maps}


@dataclass(frozen=True)
class Resampled:
    """A difference of two rows, first minus second, in points, with its 95 % interval over images."""

    difference: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Bootstrap:
    """Measures of several rows on the same resamples of the images."""

    miou: NDArray[np.float64]  # [rows, resamples]
    accuracy: NDArray[np.float64]
    whole: Sequence[Tensor]  # counts of all images: [three classes]

    def miou_difference(self, first: int, second: int) -> Resampled:
        point = mean_iou(self.whole[first]) - mean_iou(self.whole[second])
        return _resampled(point.item(), self.miou[first] - self.miou[second])

    def accuracy_difference(self, first: int, second: int) -> Resampled:
        point = pixel_accuracy(self.whole[first]) - pixel_accuracy(self.whole[second])
        return _resampled(point.item(), self.accuracy[first] - self.accuracy[second])


def _resampled(point: float, differences: NDArray[np.float64]) -> Resampled:
    low, high = np.quantile(differences, [0.025, 0.975])
    return Resampled(point, (float(low), float(high)))


def paired_resamples(rows: Sequence[Tensor], resamples: int = RESAMPLES, seed: int = 0) -> Bootstrap:
    """Bootstrap over images; a row is its counts [images three classes].

    A resample draws the same images for all rows, so differences are paired. It is a number of copies of each image,
    and its counts are the weighted sum over images. In a resample without a label of some class, that class is missing
    from the mean of every row.
    """
    images = len(rows[0])
    if images < 1 or any(len(row) != images for row in rows):
        raise InvalidInput("Rows must have been measured on the same images.")
    stacked = torch.stack([row.double() for row in rows])  # rows images three classes
    miou, accuracy = [], []
    for weights in _draws(images, resamples, seed):
        sums = torch.einsum("si,rikc->rskc", weights, stacked)
        miou.append(mean_iou(sums).numpy())
        accuracy.append(pixel_accuracy(sums).numpy())
    return Bootstrap(np.concatenate(miou, 1), np.concatenate(accuracy, 1), [row.sum(dim=0) for row in rows])


def _draws(images: int, resamples: int, seed: int) -> Iterator[Float[Tensor, "draws images"]]:
    generator = np.random.default_rng(seed)
    for at in range(0, resamples, BLOCK):
        copies = generator.multinomial(images, np.full(images, 1 / images), size=min(BLOCK, resamples - at))
        yield torch.from_numpy(copies).double()
