"""Which blocks remove how much, found on unlabelled images.

Every backbone has its own places where tokens may go. The search moves the shape of the schedule, at
one cost, against the divergence from the dense output; other images say whether it was worth it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

from jaxtyping import Float
from torch import Tensor

from redi.deploy.model import Accelerated
from redi.deploy.readout import Logits, Pixels, Readout
from redi.deploy.setting import Setting
from redi.errors import ConfigError
from redi.progress import say
from redi.reduction.schedule import Shape, early_shape
from redi.statistics import divergence

#: Where a schedule is best calibrated: low enough that it matters which blocks remove.
CALIBRATION_COST = 0.55
POWERS = (0.7, 1.0, 1.2, 1.5, 2.0, 2.6)
#: A shape must be better by so many standard errors of the paired difference. Without that, the search
#: fits the images it sees.
ERRORS = 2.0


@dataclass(frozen=True)
class Calibration:
    """What was found, and how far from dense it stays: mean KL divergence, nats."""

    shape: Shape  # to be used: the one that was found if it is better on other images too
    cost: float
    trials: int
    default: Shape
    seen: tuple[float, float]  # on the images of the search: what was found, the default
    unseen: tuple[float, float]  # on others: what was found, the default


def calibrate(
    dense: Accelerated,
    readout: Readout,
    images: Pixels,
    others: Pixels,
    others_wanted: Logits,
    cost: float,
) -> Calibration:
    """Coordinate descent over the first block, the last block and the power. No label is looked at.

    ``others_wanted`` is what the dense model says of the other images.
    """
    wanted = readout.logits(dense, images)
    default = early_shape(dense.backbone.depth)
    say(f"  calibrating the schedule on {len(wanted)} images, cost {cost:g}")
    search = _Search(dense, readout, images, wanted, cost)
    found = search.descend(default)

    def unseen(shape: Shape) -> float:
        logits = readout.logits(search.model(shape), others)
        return divergence(others_wanted, logits).mean().item()

    checked = {shape: unseen(shape) for shape in (found, default)}  # once where they are the same
    return Calibration(
        shape=min(default, found, key=checked.__getitem__),
        cost=cost,
        trials=len(search.known),
        default=default,
        seen=(search.mean(found), search.mean(default)),
        unseen=(checked[found], checked[default]),
    )


class _Search:
    """Remembers the divergence of every image for every schedule that was tried."""

    def __init__(
        self, dense: Accelerated, readout: Readout, images: Pixels, wanted: Logits, cost: float
    ) -> None:
        self.dense, self.readout, self.images = dense, readout, images
        self.wanted, self.cost = wanted, cost
        self.known: dict[tuple[int, ...], Tensor] = {}

    def model(self, shape: Shape) -> Accelerated:
        backbone = self.dense.backbone
        return Accelerated(backbone, Setting(self.cost, shape.shares(backbone.depth)))

    def strayed(self, shape: Shape) -> Float[Tensor, " images"]:
        model = self.model(shape)
        schedule = model.schedule(model.grid)
        if schedule not in self.known:
            found = self.readout.logits(model, self.images)
            self.known[schedule] = divergence(self.wanted, found)
        return self.known[schedule]

    def mean(self, shape: Shape) -> float:
        return self.strayed(shape).mean().item()

    def descend(self, shape: Shape) -> Shape:
        """Until no coordinate brings a clear gain."""
        while True:
            before = shape
            for name in ("power", "first", "last"):
                for tried in self._neighbours(shape, name):
                    if self._better(tried, shape):
                        shape = tried
            if shape == before:
                return shape
            say(f"  {len(self.known)} trials: {shape}, KL {self.mean(shape):.4f}")

    def _neighbours(self, shape: Shape, name: str) -> Iterator[Shape]:
        if name == "power":
            yield from (replace(shape, power=power) for power in POWERS)
            return
        end = self.dense.backbone.depth - self.dense.prefix_only  # where the last block may remove
        for value in (getattr(shape, name) - 1, getattr(shape, name) + 1):
            moved = replace(shape, **{name: value})
            if 0 <= moved.first < moved.last <= end:
                yield moved

    def _better(self, tried: Shape, than: Shape) -> bool:
        """By the mean root of the divergence, which few images with a large one do not rule."""
        try:
            gain = self.strayed(than).sqrt() - self.strayed(tried).sqrt()
        except ConfigError:  # this shape does not reach the cost
            return False
        return gain.mean().item() > ERRORS * gain.std().item() / sqrt(len(gain))
