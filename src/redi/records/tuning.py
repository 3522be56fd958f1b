"""The results of ``redi tune``: the content of tune.json."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from redi import bounds
from redi.errors import ConfigError
from redi.records.reading import write_record
from redi.records.results import Environment
from redi.records.setting import TASKS, Setting
from redi.records.timing import Spread
from redi.reduction.schedule import Shape

#: Smallest number of images in each part of a sample.
FEWEST = int(bounds.SAMPLE.low)
#: Default costs to try.
COSTS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
#: Default tolerances: points of accuracy, and percent of agreement with dense.
MAX_DROP, MIN_AGREEMENT = 1.0, 95.0
#: The second for a dense task. A patch has many neighbours that are nearly as near, so its nearest one changes easily.
MIN_PATCH_AGREEMENT = 65.0
#: Fewer steps must be this many times as fast as all, because they lose a little more.
WORTH = 1.03


@dataclass(frozen=True)
class TuneConfig:
    backbone: str
    images: str
    task: str = "classify"  # or dense: what is lost is then measured on every patch, for a model without a head
    # Points of accuracy that may be lost, where labels can be used; None: MAX_DROP.
    max_drop: Annotated[float | None, bounds.PERCENT] = None
    # Percent of images or patches, where they cannot; None: by the task.
    min_agreement: Annotated[float | None, bounds.PERCENT] = None
    # Empty means all of COSTS that the backbone can reach.
    costs: Annotated[tuple[float, ...], bounds.COST] = ()
    # Side of the input in pixels; 0 means that of the checkpoint's processor.
    size: Annotated[int, bounds.SIZE] = 0
    resize: str = ""  # filter that resizes images; empty means the backbone's own
    calibration: Annotated[int, bounds.SAMPLE] = 192  # images to calibrate the schedule on
    check: Annotated[int, bounds.SAMPLE] = 1000  # largest number of images to check on
    class_map: str = ""
    batch: Annotated[int, bounds.BATCH] = 8  # images per call, timed or not
    repeats: Annotated[int, bounds.REPEATS] = 15
    limit: Annotated[float, bounds.SECONDS] = 10.0  # seconds of timing per setting
    device: str = "auto"
    workers: Annotated[int, bounds.WORKERS] = 2
    threads: Annotated[int, bounds.THREADS] = 0

    def checked(self) -> "TuneConfig":
        bounds.require_bounds(self)
        if self.task not in TASKS:
            raise ConfigError(f"--task must be {' or '.join(TASKS)}, not {self.task!r}.")
        return replace(self, costs=tuple(sorted(set(self.costs))))

    def allowed(self, labelled: bool) -> float:
        """The points that may be lost, of accuracy if the images are labelled and of agreement otherwise."""
        if labelled:
            return MAX_DROP if self.max_drop is None else self.max_drop
        default = MIN_PATCH_AGREEMENT if self.task == "dense" else MIN_AGREEMENT
        return 100 - (default if self.min_agreement is None else self.min_agreement)


@dataclass(frozen=True)
class Calibration:
    """The outcome of the search for a schedule. Distances are mean KL from dense in nats, or 1 - cosine to dense."""

    shape: Shape  # the shape to use: the best of the search if it is also better on other images, else the default
    cost: float
    trials: int
    default: Shape
    seen: tuple[float, float]  # distance of (best, default) on the images of the search
    unseen: tuple[float, float]  # the same on other images


@dataclass(frozen=True)
class Steps:
    """Fewer and larger steps against one step in every block of the default schedule, timed on this machine."""

    fewer: int  # blocks that remove tokens, at most
    all: int  # the same in the default schedule
    cost: float  # of both
    batch: int
    speedup: Spread  # quartiles of the time of all / the time of fewer, repeat by repeat

    @property
    def chosen(self) -> int:
        """What a setting has in ``steps``: 0, unless fewer are clearly faster in the median and in most repeats."""
        return self.fewer if self.speedup.median >= WORTH and self.speedup.low > 1 else 0

    def __str__(self) -> str:
        low, median, high = self.speedup
        outcome = "used" if self.chosen else f"not used: it takes {WORTH:g} in the median, and a gain in most repeats"
        return (
            f"Steps: {self.fewer} blocks that remove tokens are {median:.2f} ({low:.2f} {high:.2f}) times as fast as "
            f"all {self.all} at cost {self.cost:g}, batch {self.batch}; {outcome}."
        )


@dataclass(frozen=True)
class Point:
    """One setting, checked on images that it was not calibrated on."""

    cost: float  # of the blocks and the reducer, relative to dense
    schedule: tuple[int, ...]
    speedup: Spread  # quartiles of dense / accelerated, repeat by repeat
    accuracy: float | None  # percent; None without labels
    agreement: float  # percent of images (for a dense task, of the patches of an image) with the same decision as dense
    divergence: float | None  # mean KL divergence from dense, nats; None for a dense task
    drop: float  # points lost: accuracy with labels, agreement without
    drop_bound: float  # one-sided 95 % upper bound of the true drop
    needed: int | None  # images for which the bound would be within the tolerance, at this rate; None: no number
    cosine: float | None = None  # mean cosine of patches to those of dense, for a dense task

    @property
    def faster(self) -> bool:
        """Whether the setting was faster than dense in at least three of four repeats."""
        return self.speedup.low > 1


@dataclass(frozen=True)
class Tuned:
    points: list[Point]
    chosen: int | None  # index in points; None means dense, because no setting is faster
    setting: Setting  # the calibrated schedule at the chosen cost; says so if that is outside the tolerance
    calibration: Calibration
    dense_accuracy: float | None
    images: int  # number of images in the check
    allowed: float  # points that may be lost
    config: TuneConfig
    environment: Environment
    steps: Steps | None = None  # None: not timed, because the schedule has no more, or so few miss a cost

    @property
    def dense_task(self) -> bool:
        return self.setting.task == "dense"

    @property
    def measure(self) -> str:
        if self.dense_task:
            return "patch agreement"
        return "agreement" if self.dense_accuracy is None else "accuracy"

    def write(self, folder: Path) -> list[Path]:
        """Write the record and the setting."""
        write_record(folder / "tune.json", self)
        write_record(folder / "setting.json", self.setting)
        return [folder / "tune.json", folder / "setting.json"]
