"""What ``redi learn`` is asked for, and what its file says about the training."""

from dataclasses import dataclass
from typing import Annotated

from redi import bounds
from redi.errors import ConfigError
from redi.records.setting import TunedModel
from redi.reduction.learned import LEARNED

#: Smallest number of images to learn from, and of those that are held out.
FEWEST = int(bounds.LEARNED_FROM.low)
#: The costs to learn for if none are given; those that a method cannot reach are left out.
COSTS = (0.55, 0.65, 0.75)


@dataclass(frozen=True)
class LearnConfig:
    """A method, the images to learn from, and a fixed budget of steps."""

    backbone: str
    images: str
    method: str  # a name in LEARNED
    # Relative to dense; every batch draws one of them. Empty means COSTS.
    costs: Annotated[tuple[float, ...], bounds.COST] = ()
    # Images to learn from, at most, drawn from the whole data set.
    limit: Annotated[int, bounds.LEARNED_FROM] = 2000
    held: Annotated[int, bounds.LEARNED_FROM] = 256  # further images that choose among the states of the parameters
    mirror: bool = False  # whether to learn from the mirror image of each image too
    steps: Annotated[int, bounds.STEPS] = 150
    checks: Annotated[int, bounds.CHECKS] = 6  # how often the held-out images are looked at
    batch: Annotated[int, bounds.BATCH] = 32
    # AdamW's rate at the start; it falls to 0 as a cosine. 0 means the method's own.
    rate: Annotated[float, bounds.RATE] = 0.0
    # Side of the input in pixels; 0 means that of the checkpoint's processor.
    size: Annotated[int, bounds.SIZE] = 0
    seed: Annotated[int, bounds.SEED] = 0
    device: str = "auto"
    workers: Annotated[int, bounds.WORKERS] = 2
    threads: Annotated[int, bounds.THREADS] = 0

    def checked(self) -> "LearnConfig":
        if self.method not in LEARNED:
            raise ConfigError(f"There is no learned method {self.method!r}; choose one of {', '.join(LEARNED)}.")
        bounds.require_bounds(self)
        return self


@dataclass(frozen=True)
class Check:
    """A look at the held-out images."""

    step: int
    loss: float | None  # mean training loss since the last look; None before the first step
    distances: dict[str, float]  # from dense on the held-out images, by cost

    @property
    def mean(self) -> float:
        return sum(self.distances.values()) / len(self.distances)


@dataclass(frozen=True)
class Training:
    """How the parameters of a file were learned."""

    method: str
    model: TunedModel  # the only kind of model that they fit
    grid: tuple[int, int]
    images: int  # with mirror images, if there are any
    held: int
    parameters: int  # numbers that are learned or counted
    steps: int  # batches; some methods take fewer than they may
    seconds: float  # of learning and looking at the held-out images
    measure: str  # what a distance is
    checks: list[Check]
    config: LearnConfig

    @property
    def untrained(self) -> Check:
        return self.checks[0]

    @property
    def best(self) -> Check:
        """The state that was kept: the lowest mean distance on the held-out images."""
        return min(self.checks, key=lambda check: check.mean)
