"""The share of the class object that the kept patches cover, for images whose object mask is known."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from redi.budget import Budget
from redi.grid import Grid
from redi.images.masks import object_share, read_mask


def kept_coverage(
    scores: Float[Tensor, "images patches"], share: Float[Tensor, "images patches"], budget: Budget
) -> Float[Tensor, " images"]:
    """The fraction of the object's area inside the crop that lies in kept patches."""
    n_keep, _, _ = budget.counts(scores.shape[1])
    kept = scores.argsort(dim=1, descending=True, stable=True)[:, :n_keep]
    return share.gather(1, kept).sum(dim=1) / share.sum(dim=1).clamp(min=1e-8)


def mean_coverage(
    scores: dict[str, Tensor], masks: list[Path], shorter: int, size: int, grid: Grid, budget: Budget
) -> dict[str, float]:
    """Mean coverage per score over the images, in percent."""
    share = torch.stack([object_share(read_mask(mask), shorter, size, grid) for mask in masks])
    return {name: 100 * float(kept_coverage(values.float(), share, budget).mean()) for name, values in scores.items()}
