"""Calibration: how many tokens each block should remove, found on unlabelled images.

Each backbone tolerates merging in different blocks. The search changes the shape of the schedule at one cost and
minimises the divergence from the dense output. Other images decide between its result and the default shape.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from jaxtyping import Float, UInt8
from torch import Tensor

from redi.deploy.model import Accelerated
from redi.deploy.readout import Logits, Pixels, Readout
from redi.errors import ConfigError
from redi.records.setting import Setting
from redi.records.tuning import Calibration
from redi.reduction.schedule import Shape, early_shape
from redi.runs.progress import say
from redi.statistics import divergence

#: The cost at which a schedule is calibrated: low enough that it matters which blocks remove tokens.
CALIBRATION_COST = 0.55
POWERS = (0.7, 1.0, 1.2, 1.5, 2.0, 2.6)
#: A shape must be better by this many standard errors of the paired difference. Otherwise the search would overfit.
ERRORS = 2.0


def calibrate(
    dense: Accelerated,
    readout: Readout,
    images: Pixels,
    others: UInt8[Tensor, "others channels height width"],
    cost: float,
) -> Calibration:
    """Coordinate descent over the first block, the last block and the power. No label is used.

    ``others`` are the images that decide in the end. None of the images may be used to check the result.
    """
    default = early_shape(dense.backbone.depth)
    say(f"  calibrating the schedule on {len(images)} + {len(others)} images, cost {cost:g}")
    search = _Search(dense, readout, images, readout.logits(dense, images, "dense, images to calibrate on"), cost)
    best = search.descend(default)
    others_dense = readout.logits(dense, others, "dense, images to confirm on")

    def unseen(shape: Shape) -> float:
        logits = readout.logits(search.model(shape), others, "confirming")
        return divergence(others_dense, logits).mean().item()

    checked = {shape: unseen(shape) for shape in (best, default)}  # computed once if the two are equal
    return Calibration(
        shape=min(default, best, key=checked.__getitem__),
        cost=cost,
        trials=len(search.tried),
        default=default,
        seen=(search.mean(best), search.mean(default)),
        unseen=(checked[best], checked[default]),
    )


class _Search:
    """A search that stores the divergence of every image for every schedule it tries."""

    def __init__(self, dense: Accelerated, readout: Readout, images: Pixels, dense_logits: Logits, cost: float) -> None:
        self.dense, self.readout, self.images = dense, readout, images
        self.dense_logits, self.cost = dense_logits, cost
        self.tried: dict[tuple[int, ...], Tensor] = {}

    def model(self, shape: Shape) -> Accelerated:
        backbone = self.dense.backbone
        return Accelerated(backbone, Setting(self.cost, shape.shares(backbone.depth)))

    def divergence(self, shape: Shape) -> Float[Tensor, " images"]:
        model = self.model(shape)
        schedule = model.schedule(model.grid)
        if schedule not in self.tried:
            logits = self.readout.logits(model, self.images, f"calibrating, schedule {len(self.tried) + 1}")
            self.tried[schedule] = divergence(self.dense_logits, logits)
        return self.tried[schedule]

    def mean(self, shape: Shape) -> float:
        return self.divergence(shape).mean().item()

    def descend(self, shape: Shape) -> Shape:
        """Change one coordinate at a time until none brings a clear gain."""
        while True:
            before = shape
            for name in ("power", "first", "last"):
                for neighbour in self._neighbours(shape, name):
                    if self._better(neighbour, shape):
                        shape = neighbour
            if shape == before:
                return shape
            say(f"  {len(self.tried)} trials: {shape}, KL {self.mean(shape):.4f}")

    def _neighbours(self, shape: Shape, name: str) -> Iterator[Shape]:
        if name == "power":
            yield from (replace(shape, power=power) for power in POWERS)
            return
        # With a head that reads the prefix alone, the last block removes nothing.
        end = self.dense.backbone.depth - self.dense.prefix_only
        for value in (getattr(shape, name) - 1, getattr(shape, name) + 1):
            moved = replace(shape, **{name: value})
            if 0 <= moved.first < moved.last <= end:
                yield moved

    def _better(self, shape: Shape, than: Shape) -> bool:
        """Compare by the mean root of the divergence, which a few images with large values do not dominate."""
        try:
            gain = self.divergence(than).sqrt() - self.divergence(shape).sqrt()
        except ConfigError:  # this shape does not reach the cost
            return False
        return gain.mean().item() > ERRORS * gain.std().item() / sqrt(len(gain))
