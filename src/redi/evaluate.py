"""Accuracy and its difference from dense, from per-image predictions."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from redi.statistics import mcnemar, paired_interval, wilson


@dataclass(frozen=True)
class Accuracy:
    """Accuracy in percent with 95 % intervals; the difference from dense and its p-value are paired by image."""

    top1: float
    top5: float
    top1_interval: tuple[float, float]
    delta_dense: float
    delta_interval: tuple[float, float]
    p_value: float  # exact McNemar test against dense
    images: int


def top5(logits: Float[Tensor, "batch classes"]) -> tuple[Int[Tensor, "batch five"], Float[Tensor, "batch five"]]:
    """The five best classes (fewer if there are fewer classes) and their logits, best first."""
    values, classes = logits.topk(min(5, logits.shape[1]), dim=1)
    return classes, values


def hits(
    best: Int[Tensor, "images five"], labels: Int[Tensor, " images"]
) -> tuple[Bool[Tensor, " images"], Bool[Tensor, " images"]]:
    """Whether the label is the best class, and whether it is among the best five."""
    equal = best == labels[:, None]
    return equal[:, 0], equal.any(dim=1)


def accuracy(
    best: Int[Tensor, "images five"], dense_best: Int[Tensor, "images five"], labels: Int[Tensor, " images"]
) -> Accuracy:
    first, five = hits(best, labels)
    dense_first, _ = hits(dense_best, labels)
    images = len(labels)
    correct, dense_correct = int(first.sum()), int(dense_first.sum())
    gained = int((first & ~dense_first).sum())
    lost = int((~first & dense_first).sum())
    return Accuracy(
        top1=100 * correct / images,
        top5=100 * int(five.sum()) / images,
        top1_interval=wilson(correct, images),
        delta_dense=100 * (correct - dense_correct) / images,
        delta_interval=paired_interval(gained, lost, images),
        p_value=mcnemar(gained, lost),
        images=images,
    )


def choose_sample(
    dense_right: Bool[Tensor, " images"],
    reduced_right: Bool[Tensor, " images"],
    indices: Int[Tensor, " images"],
    size: int,
) -> list[int]:
    """Choose images of every outcome: rescued, lost, both wrong, both right.

    Each outcome gets an equal share of the sample; if an outcome has too few images, the others get more. The
    images of an outcome are spread evenly over the index order.
    """
    outcomes = [
        indices[~dense_right & reduced_right],
        indices[dense_right & ~reduced_right],
        indices[~dense_right & ~reduced_right],
        indices[dense_right & reduced_right],
    ]
    images_left, chosen = size, []
    # The smallest outcome comes first, so that the others share the places it leaves free.
    for outcomes_left, images in zip(range(len(outcomes), 0, -1), sorted(outcomes, key=len), strict=True):
        count = min(len(images), -(-images_left // outcomes_left))
        places = [place * len(images) // count for place in range(count)]
        chosen += images[places].tolist()
        images_left -= count
    return sorted(chosen)
