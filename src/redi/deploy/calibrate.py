"""Calibration: how many tokens each block should remove, found on unlabelled images.

Each backbone tolerates merging in different blocks. The search changes the shape of the schedule at one cost and
minimises the distance from the dense output: KL of the decisions, or 1 - cosine of the patches for a dense task. Other
images decide between its result and the default shape.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from jaxtyping import Float, UInt8
from torch import Tensor

from redi.deploy.model import Accelerated
from redi.deploy.readout import Pixels, Readout
from redi.errors import ConfigError
from redi.records.tuning import Calibration
from redi.reduction.schedule import Shape
from redi.runs.progress import say

#: The cost at which a schedule is calibrated: low enough that it matters which blocks remove tokens.
CALIBRATION_COST = 0.55
STARTS = (0.0, 1.0, 2.5, 4.0)
HOLDS = (0.0, 0.3, 0.6, 0.75, 0.9)
#: A shape must be better by this many standard errors of the paired difference. Otherwise the search would overfit.
ERRORS = 2.0


def calibrate(
    dense: Accelerated,
    readout: Readout,
    images: Pixels,
    others: UInt8[Tensor, "others channels height width"],
    cost: float,
) -> Calibration:
    """Coordinate descent over the four numbers of a shape. No label is used.

    ``dense`` has the task and the number of steps to calibrate for. ``others`` are the images that decide in the end.
    None of the images may be used to check the result.
    """
    default = dense.setting.default_shape(dense.backbone.depth)
    say(f"  calibrating the schedule on {len(images)} + {len(others)} images, cost {cost:g}")
    search = _Search(dense, readout, images, cost)
    best = search.descend(default)
    others_dense = readout.read(dense, others, "dense, images to confirm on")

    def unseen(shape: Shape) -> float:
        reduced = readout.read(search.model(shape), others, "confirming")
        return readout.distance(others_dense, reduced).mean().item()

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
    """A search that stores the distance of every image for every schedule it tries."""

    def __init__(self, dense: Accelerated, readout: Readout, images: Pixels, cost: float) -> None:
        self.dense, self.readout, self.images, self.cost = dense, readout, images, cost
        self.dense_outputs = readout.read(dense, images, "dense, images to calibrate on")
        self.tried: dict[tuple[int, ...], Tensor] = {}

    def model(self, shape: Shape) -> Accelerated:
        return Accelerated(self.dense.backbone, replace(self.dense.setting, cost=self.cost, shape=shape))

    def distance(self, shape: Shape) -> Float[Tensor, " images"]:
        model = self.model(shape)
        schedule = model.schedule(model.grid)
        if schedule not in self.tried:
            reduced = self.readout.read(model, self.images, f"calibrating, schedule {len(self.tried) + 1}")
            self.tried[schedule] = self.readout.distance(self.dense_outputs, reduced)
        return self.tried[schedule]

    def mean(self, shape: Shape) -> float:
        return self.distance(shape).mean().item()

    def descend(self, shape: Shape) -> Shape:
        """Change one coordinate at a time until none brings a clear gain."""
        while True:
            before = shape
            for name in ("hold", "start", "first", "last"):
                for neighbour in self._neighbours(shape, name):
                    if self._better(neighbour, shape):
                        shape = neighbour
            if shape == before:
                return shape
            say(f"  {len(self.tried)} trials: {shape}, {self.readout.distance_name} {self.mean(shape):.4f}")

    def _neighbours(self, shape: Shape, name: str) -> Iterator[Shape]:
        if name in ("hold", "start"):
            values = HOLDS if name == "hold" else STARTS
            fields = {"start": shape.start, "hold": shape.hold}
            yield from (Shape(shape.first, shape.last, **{**fields, name: value}) for value in values)
            return
        # With a head that reads the prefix alone, the last block removes nothing.
        end = self.dense.backbone.depth - self.dense.prefix_only
        for value in (getattr(shape, name) - 1, getattr(shape, name) + 1):
            ends = {"first": shape.first, "last": shape.last, name: value}
            if 0 <= ends["first"] < ends["last"] <= end:
                yield replace(shape, **ends)

    def _better(self, shape: Shape, than: Shape) -> bool:
        """Compare by the mean root of the distance, which a few images with large values do not dominate."""
        try:
            gain = self.distance(than).sqrt() - self.distance(shape).sqrt()
        except ConfigError:  # this shape does not reach the cost
            return False
        return gain.mean().item() > ERRORS * gain.std().item() / sqrt(len(gain))
