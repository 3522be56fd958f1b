"""What ``redi learn`` is asked for, and what its file says about the training."""

from dataclasses import dataclass

from redi.checks import require_threads
from redi.errors import ConfigError
from redi.records.setting import TunedModel
from redi.reduction.learned import LEARNED

#: Smallest number of images to learn from, and of those that are held out.
FEWEST = 16
#: The costs to learn for if none are given; those that a method cannot reach are left out.
COSTS = (0.55, 0.65, 0.75)


@dataclass(frozen=True)
class LearnConfig:
    """A method, the images to learn from, and a fixed budget of steps."""

    backbone: str
    images: str
    method: str  # a name in LEARNED
    costs: tuple[float, ...] = ()  # relative to dense; every batch draws one of them. Empty means COSTS
    limit: int = 2000  # images to learn from, at most, drawn from the whole data set
    held: int = 256  # further images that choose among the states of the parameters
    mirror: bool = False  # whether to learn from the mirror image of each image too
    steps: int = 150
    checks: int = 6  # how often the held-out images are looked at
    batch: int = 32
    rate: float = 0.0  # of AdamW, at the start; it falls to 0 as a cosine. 0 means the method's own
    size: int = 0  # side of the input in pixels; 0 means that of the checkpoint's processor
    seed: int = 0
    device: str = "auto"
    workers: int = 2
    threads: int = 0

    def checked(self) -> "LearnConfig":
        if self.method not in LEARNED:
            raise ConfigError(f"There is no learned method {self.method!r}; choose one of {', '.join(LEARNED)}.")
        if any(not 0 < cost < 1 for cost in self.costs):
            raise ConfigError("A --cost must lie between 0 and 1, which is dense.")
        if min(self.limit, self.held) < FEWEST:
            raise ConfigError(f"--limit and --held must be at least {FEWEST} images.")
        if min(self.steps, self.checks, self.batch) < 1 or self.workers < 0 or self.size < 0:
            raise ConfigError("--steps, --checks and --batch-size must be at least 1, --workers and --size at least 0.")
        if not 0 <= self.rate < 1:
            raise ConfigError(f"--rate must be at least 0 and less than 1, not {self.rate:g}.")
        require_threads(self.threads)
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
