"""What the experiments share: images of the even classes, the dense output, and one measured row per variant."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor

from redi.backbone import Backbone, load_backbone
from redi.backbone.classifier import final_feature
from redi.deploy import Accelerated, Setting
from redi.deploy.readout import TEMPERATURE, ImageReadout, Logits, Pixels
from redi.images import open_images
from redi.images.labelled import spread_evenly
from redi.images.loader import ViewDataset
from redi.reduction import Extent, Progressive
from redi.statistics import divergence

BATCH = 50
PARITY = {"even": 0, "odd": 1}


@dataclass(frozen=True)
class Row:
    """A variant with its cost, and what it does to each image: divergence from dense, agreement, the right class."""

    name: str
    cost: float
    divergence: Tensor
    agrees: Tensor
    right: Tensor | None = None  # None if the classes of the images are not those of the head

    @property
    def kl(self) -> tuple[float, float]:
        """The mean divergence and its standard error."""
        return mean_and_error(self.divergence)

    @property
    def agreement(self) -> float:
        """In percent of the images."""
        return 100 * self.agrees.float().mean().item()

    @property
    def top1(self) -> str:
        """In percent of the images."""
        return "-" if self.right is None else f"{100 * self.right.float().mean().item():.1f}"


@dataclass(frozen=True)
class Development:
    """A backbone, images, and the dense logits of these images.

    A backbone without a head is read by its similarities to a bank of other images, as in `redi tune`, and its class is
    that of the nearest one.
    """

    backbone: Backbone
    pixels: Pixels
    labels: Tensor
    readout: ImageReadout
    dense: Logits
    classes: Tensor | None  # the class of each logit, in the numbering of the labels; None if unknown

    def row(self, name: str, variant: Accelerated | Setting | Progressive, cost: float = 0.65) -> Row:
        """Measure an accelerated model, a setting, or, as in `redi compare`, a progressive reducer at ``cost``."""
        if isinstance(variant, Progressive):
            extent = variant.extent_for_cost(cost, self.backbone.geometry)
            logits, cost = self._logits(variant, extent), variant.cost(extent, self.backbone.geometry)
        else:
            model = Accelerated(self.backbone, variant) if isinstance(variant, Setting) else variant
            logits, cost = self.readout.read(model, self.pixels), model.cost()
        agrees = self.readout.decide(logits) == self.readout.decide(self.dense)
        right = None if self.classes is None else self.classes[logits.argmax(dim=1)] == self.labels
        return Row(name, cost, divergence(self.dense, logits), agrees, right)

    @torch.inference_mode()
    def _logits(self, reducer: Progressive, extent: Extent) -> Logits:
        """Without the last-block shortcut. A reducer may drop tokens, so the mean is over the tokens that are left."""
        backbone, bank, outputs = self.backbone, self.readout.bank, []
        for chunk in self.pixels.split(BATCH):
            hidden = reducer.apply(backbone, backbone.embed(backbone.preprocessing.normalise(chunk)), extent, None)
            if backbone.head:
                outputs.append(backbone.classify(hidden))
            else:
                outputs.append(final_feature(backbone, hidden, prenorm=False))
        return torch.cat(outputs) if bank is None else torch.cat(outputs) @ bank.T / TEMPERATURE


def development(
    backbone: str | Path, images: str, limit: int = 200, classes: str = "even", whole_classes: bool = False
) -> Development:
    """Load ``limit`` images, spread evenly over the classes with even (or odd, or all) numbers in sorted order.

    With ``whole_classes`` fewer classes have all their images, so that a bank has images of every class.
    """
    model, folder = load_backbone(backbone), open_images(images)
    chosen = [k for k, label in enumerate(folder.labels) if PARITY.get(classes) in (None, label % 2)]
    wanted = limit * (1 if model.head else 2)
    if whole_classes:
        numbers = sorted({folder.labels[k] for k in chosen})
        kept = set(spread_evenly(numbers, max(wanted * len(numbers) // len(chosen), 1)))
        chosen = [k for k in chosen if folder.labels[k] in kept]
        wanted = len(chosen)
    chosen = spread_evenly(chosen, wanted)
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    dataset = ViewDataset(folder, model.preprocessing, four_views=False, seed=0)
    batches = list(dataset.batches(plan, workers=0))
    pixels, labels = torch.cat([batch.pixels[:, 0] for batch in batches]), torch.cat([b.labels for b in batches])
    answers: Tensor | None = None
    bank = pixels[:0]
    if not model.head:
        bank, answers, pixels, labels = pixels[0::2], labels[0::2], pixels[1::2], labels[1::2]
    elif len(model.class_names or []) == len(folder.class_names):
        answers = torch.arange(len(folder.class_names))
    dense = Accelerated(model, Setting(cost=1.0))
    readout = ImageReadout(dense, bank, labels=None, batch=BATCH)
    return Development(model, pixels, labels, readout, readout.read(dense, pixels), answers)


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of some values and its standard error."""
    return values.mean().item(), values.std().item() / sqrt(len(values))


def show(rows: Sequence[Row]) -> str:
    """The rows as Markdown. The last column is the paired difference in root KL from the first row.

    A few images dominate the mean of KL, so differences are clearer in its root.
    """
    lines = ["| variant | cost | Top-1 | KL (standard error) | root KL | agree | root KL minus the first |"]
    lines.append("|---" * 7 + "|")
    for row in rows:
        (kl, error), root = row.kl, row.divergence.sqrt()
        more, more_error = mean_and_error(root - rows[0].divergence.sqrt())
        difference = f"{more:+.4f} ({more_error:.4f})" if row is not rows[0] else ""
        cells = [row.name, f"{row.cost:.3f}", row.top1, f"{kl:.4f} ({error:.4f})", f"{root.mean():.4f}"]
        lines.append(f"| {' | '.join([*cells, f'{row.agreement:.1f}', difference])} |")
    return "\n".join(lines)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of every experiment."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--backbone", required=True, help="folder of a checkpoint, or its name on the Hub")
    parser.add_argument("--images", required=True, help="folder with one subfolder per class")
    parser.add_argument("--limit", type=int, default=200, help="number of images")
    parser.add_argument("--classes", choices=("even", "odd", "all"), default="even")
    return parser
