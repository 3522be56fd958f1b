"""Accuracy and paired statistics, from per-image predictions."""

from dataclasses import dataclass
from math import comb, erfc, sqrt

from jaxtyping import Bool, Float, Int
from torch import Tensor

#: The normal quantile of a 95 % interval.
Z = 1.959963984540054


@dataclass(frozen=True)
class Accuracy:
    """Percent, with 95 % intervals; the difference and its p-value are paired with dense."""

    top1: float
    top5: float
    top1_interval: tuple[float, float]
    delta_dense: float
    delta_interval: tuple[float, float]
    p_value: float  # exact McNemar test against dense
    images: int


def top5(
    logits: Float[Tensor, "batch classes"],
) -> tuple[Int[Tensor, "batch five"], Float[Tensor, "batch five"]]:
    """The five best classes (fewer where there are fewer classes) and their logits, best first."""
    values, classes = logits.topk(min(5, logits.shape[1]), dim=1)
    return classes, values


def hits(
    best: Int[Tensor, "images five"], labels: Int[Tensor, " images"]
) -> tuple[Bool[Tensor, " images"], Bool[Tensor, " images"]]:
    """Whether the label is the first, and whether it is among the five."""
    equal = best == labels[:, None]
    return equal[:, 0], equal.any(dim=1)


def accuracy(
    best: Int[Tensor, "images five"],
    dense_best: Int[Tensor, "images five"],
    labels: Int[Tensor, " images"],
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


def wilson(correct: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, in percent."""
    share = correct / images
    centre = share + Z**2 / (2 * images)
    spread = Z * sqrt(share * (1 - share) / images + Z**2 / (4 * images**2))
    scale = 100 / (1 + Z**2 / images)
    return scale * (centre - spread), scale * (centre + spread)


def paired_interval(gained: int, lost: int, images: int) -> tuple[float, float]:
    """Wald's 95 % interval of a difference of paired proportions, in percent points."""
    difference = (gained - lost) / images
    spread = Z * sqrt((gained + lost) / images - difference**2) / sqrt(images)
    return 100 * (difference - spread), 100 * (difference + spread)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact McNemar test: could so uneven a split of the changed images be a fair coin?

    Beyond 2,000 changed images the normal approximation with continuity correction is used, which
    then agrees to half a percent of p.
    """
    changed = gained + lost
    if changed == 0:
        return 1.0
    if changed > 2000:
        z = max(abs(gained - lost) - 1, 0) / sqrt(changed)
        return erfc(z / sqrt(2))
    tail = sum(comb(changed, k) for k in range(min(gained, lost) + 1))
    return float(min(1.0, 2 * tail / 2**changed))
