"""The linear head of DINOv2's protocol for semantic segmentation, on frozen tokens.

Batch norm and one linear layer read every final normed patch token; the logits are upsampled bilinearly to pixels [1,
Sec. 7.4]. Deviations, to train in about a minute on a laptop:

* the statistics of the batch norm are those of all training tokens, computed once, and its affine part is folded into
  the linear layer, which can express it;
* in training, logits are upsampled to ``CELLS`` times the patch grid instead of all pixels, and the label of a cell is
  that of most of its pixels. Evaluation is on all pixels.

[1] M. Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, TMLR 2024.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from redi.errors import CorpusError
from redi.grid import Grid
from redi.images.scenes import VOID

#: Cells of the training labels per patch and axis.
CELLS = 4
#: Added to the variance, as in torch's batch norm.
EPSILON = 1e-5
#: The share of the steps in which the learning rate rises, and that over which the final loss is averaged.
WARM_UP, LAST = 0.05, 0.1


@dataclass(frozen=True)
class Recipe:
    """How the head is trained: AdamW, a linear warm-up, then a cosine to zero."""

    steps: int = 1500
    batch: int = 8  # scenes per step
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    seed: int = 0


@dataclass(frozen=True)
class LinearHead:
    """Batch norm with fixed statistics, then a linear layer."""

    mean: Float[Tensor, " dim"]
    scale: Float[Tensor, " dim"]  # one over the standard deviation
    weight: Float[Tensor, "classes dim"]
    bias: Float[Tensor, " classes"]

    def logits(
        self, tokens: Float[Tensor, "batch patches dim"], grid: Grid
    ) -> Float[Tensor, "batch classes rows columns"]:
        """Logits on the patch grid."""
        normed = (tokens - self.mean) * self.scale
        logits: Tensor = (normed @ self.weight.T + self.bias).transpose(1, 2).unflatten(2, grid)
        return logits

    def decide(
        self, tokens: Float[Tensor, "patches dim"], grid: Grid, size: tuple[int, int]
    ) -> UInt8[Tensor, "height width"]:
        """The class of every pixel of a label map."""
        return upsampled(self.logits(tokens[None], grid), size)[0].argmax(dim=0).to(torch.uint8)

    def to(self, device: torch.device) -> "LinearHead":
        return LinearHead(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": self.bias}


@runtime_checkable
class TokenSource(Protocol):
    """Frozen tokens and the labels of their cells, scene by scene."""

    @property
    def grids(self) -> Sequence[Grid]: ...

    def tokens(self, index: int) -> Float[Tensor, "patches dim"]: ...

    def cells(self, index: int) -> UInt8[Tensor, "cell_rows cell_columns"]: ...


def upsampled(
    logits: Float[Tensor, "batch classes rows columns"], size: tuple[int, int]
) -> Float[Tensor, "batch classes height width"]:
    return interpolate(logits, size, mode="bilinear", align_corners=False)


def majority(
    labels: UInt8[Tensor, "height width"], size: tuple[int, int], classes: int
) -> UInt8[Tensor, "cell_rows cell_columns"]:
    """The label of most pixels of each cell; the lowest of equal ones, void last.

    There are never more cells than pixels, so every cell has a pixel.
    """
    height, width = labels.shape
    rows, columns = min(size[0], height), min(size[1], width)
    row = torch.arange(height) * rows // height
    column = torch.arange(width) * columns // width
    cell = row[:, None] * columns + column
    kinds = labels.long().clamp(max=classes)  # void becomes the last kind
    counts = torch.bincount((cell * (classes + 1) + kinds).flatten(), minlength=rows * columns * (classes + 1))
    best = counts.view(rows, columns, classes + 1).argmax(dim=-1)
    return torch.where(best == classes, VOID, best).to(torch.uint8)


def fit_head(
    source: TokenSource, classes: int, recipe: Recipe, tick: Callable[[int], object] = lambda scenes: None
) -> tuple[LinearHead, float]:
    """Train the head; return it with the mean loss of its last steps. The same inputs give the same head.

    ``tick`` is called after each step with the number of scenes in a batch.
    """
    mean, scale = token_statistics(source)
    generator = torch.Generator().manual_seed(recipe.seed)
    weight = torch.empty(classes, len(mean)).normal_(0, 0.01, generator=generator).requires_grad_()
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.AdamW([weight, bias], lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    head, losses = LinearHead(mean, scale, weight, bias), []
    plan = _batches(source, recipe.batch, generator)
    for step in range(recipe.steps):
        indices = next(plan)
        tokens = torch.stack([source.tokens(index).float() for index in indices])
        cells = torch.stack([source.cells(index) for index in indices])
        logits = upsampled(head.logits(tokens, source.grids[indices[0]]), (cells.shape[1], cells.shape[2]))
        loss = cross_entropy(logits, cells.long(), ignore_index=VOID)
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * pace(step, recipe.steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        tick(recipe.batch)
    final = losses[-max(round(LAST * recipe.steps), 1) :]
    return LinearHead(mean, scale, weight.detach(), bias.detach()), sum(final) / len(final)


def pace(step: int, steps: int) -> float:
    """The learning rate of a step, relative to the highest."""
    warm = max(round(WARM_UP * steps), 1)
    if step < warm:
        return (step + 1) / warm
    return (1 + cos(pi * (step - warm) / max(steps - warm, 1))) / 2


def token_statistics(source: TokenSource) -> tuple[Float[Tensor, " dim"], Float[Tensor, " dim"]]:
    """The mean and one over the standard deviation of all tokens, from float64 sums."""
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    count = 0
    for index in range(len(source.grids)):
        tokens = source.tokens(index).double()
        total, squares, count = total + tokens.sum(dim=0), squares + tokens.square().sum(dim=0), count + len(tokens)
    assert isinstance(total, Tensor)
    assert isinstance(squares, Tensor)
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    return mean.float(), (variance + EPSILON).rsqrt().float()


def _batches(source: TokenSource, batch: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Batches of scenes with labelled cells and equal shapes, for ever: each epoch has another order."""
    shapes: dict[tuple[Grid, torch.Size], list[int]] = {}
    for index, grid in enumerate(source.grids):
        cells = source.cells(index)
        if bool((cells != VOID).any()):  # a batch without labels would have no loss
            shapes.setdefault((grid, cells.shape), []).append(index)
    if not shapes:
        raise CorpusError("No training scene has a labelled pixel: all of them are void.")
    while True:
        groups = []
        for indices in shapes.values():
            order = [indices[k] for k in torch.randperm(len(indices), generator=generator).tolist()]
            groups += [order[at : at + batch] for at in range(0, len(order), batch)]
        for k in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[k]
