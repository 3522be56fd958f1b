"""The setting of the acceleration, as a plain value that can be saved."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from redi import bounds
from redi.checks import require_types
from redi.cost import Geometry
from redi.errors import ArtifactError, ConfigError
from redi.records.outputs import require_replaceable
from redi.records.reading import read_record, write_record
from redi.reduction import Extent, Progressive, Reduction
from redi.reduction.protected import OURS, PROTECTION
from redi.reduction.relevance import RELEVANCES
from redi.reduction.schedule import Fewer, Shape, dense_shape, early_shape

#: What the output is for: a decision about the image, or something about every patch. Each has its own reducer.
TASKS = {"classify": "protected", "dense": "protected-dense"}
#: The ways to restore merged patches: :mod:`redi.reduction.unmerge`, or each patch as its token is.
RESTORES = ("residual", "copy")


@dataclass(frozen=True)
class TunedModel:
    """The model that a setting was tuned for."""

    family: str  # model type of transformers, or timm
    depth: int
    width: int
    patch: int
    weights: str  # digest

    def __str__(self) -> str:
        return f"{self.family} of {self.depth} blocks, width {self.width} and patch {self.patch}"


@dataclass(frozen=True)
class SecondLook:
    """Which images get the dense answer: those whose best class has a probability below ``confidence``."""

    confidence: float
    share: float  # of the images that the confidence was set on

    def __post_init__(self) -> None:
        if not (0 <= self.confidence <= 1 and 0 < self.share < 1):
            raise ConfigError(f"Confidence lies between 0 and 1, the share of second looks too, not as in {self}.")


@dataclass(frozen=True)
class Setting:
    """A relative cost, the shape of the schedule, and the weight of relevance.

    The same setting works at every resolution: shape and cost become token counts once the grid is known. A setting
    that is made by hand belongs to no model and fits all.
    """

    # Multiply-adds of the blocks and of the reducer, relative to dense.
    cost: Annotated[float, bounds.COST_OR_DENSE] = 0.65
    shape: Shape | None = None  # None means the default of the task and the depth
    protection: Annotated[float, bounds.PROTECTION] = PROTECTION
    # The most blocks that may remove tokens; 0 means all blocks of the shape.
    steps: Annotated[int, bounds.BLOCKS] = 0
    model: TunedModel | None = None  # the only model that the setting is for
    second_look: SecondLook | None = None  # for a head: ``cost`` is then a mean over images
    outside: str = ""  # by how much the setting misses the tolerance of `redi tune`; empty if it does not
    task: str = ""  # classify or dense; empty means dense for a model that gives feature maps
    relevance: str = ""  # cls, mean_query or received; empty means cls if the model has a CLS token, else mean_query
    restore: str = "residual"  # how merged patches return to the full grid: residual, or copy of their token
    # Merged patches that a language model reads, instead of the full grid; they decide, not ``cost``.
    tokens: Annotated[int, bounds.LEFT_TOKENS] = 0

    def __post_init__(self) -> None:
        require_types(self)
        bounds.require_bounds(self)
        if self.task and self.task not in TASKS:
            raise ConfigError(f"A task is {' or '.join(TASKS)}, not {self.task!r}.")
        if self.relevance and self.relevance not in RELEVANCES:
            raise ConfigError(f"Relevance is one of {', '.join(RELEVANCES)}, not {self.relevance!r}.")
        if self.restore not in RESTORES:
            raise ConfigError(f"Patches are restored by {' or '.join(RESTORES)}, not by {self.restore!r}.")

    @property
    def is_plain(self) -> bool:
        """Whether the cost is all that was set, besides how patches are restored."""
        usual = Setting(self.cost, task=self.task, restore=self.restore)
        return self.task != "dense" and replace(self, model=None, outside="") == usual

    @cached_property
    def reducer(self) -> Progressive:
        default = OURS[TASKS[self.task or "classify"]]
        changes: dict[str, Any] = {}
        if self.relevance:
            changes["relevance"] = self.relevance
        if self.shape is not None:
            changes["schedule"] = self.shape
        if self.steps:
            changes["schedule"] = Fewer(changes.get("schedule", default.schedule), self.steps)
        if self.protection != PROTECTION:
            step: Callable[..., Reduction] = default.step
            changes["step"] = partial(step, protection=self.protection)
        return replace(default, **changes)

    def default_shape(self, depth: int) -> Shape:
        """The shape of the task, if the setting has none of its own."""
        return dense_shape(depth) if self.task == "dense" else early_shape(depth)

    def for_output(self, maps: bool) -> "Setting":
        """The same setting with a task; ``maps`` says whether the model gives nothing but feature maps.

        Merged tokens that are read themselves have the task classify: at the same number of tokens it merges later, and
        the tokens are nearer to their patches (docs/LOG.md).
        """
        return self if self.task else replace(self, task="dense" if maps and not self.tokens else "classify")

    def shared_blocks(self, depth: int) -> int:
        """The number of blocks before the first that removes tokens; both looks at an image share them."""
        return (self.shape or self.default_shape(depth)).first

    @property
    def second_share(self) -> float:
        """The share of the images that get a second look."""
        return 0.0 if self.second_look is None else self.second_look.share

    def second_cost(self, on: Geometry, prefix_only: bool) -> float:
        """The cost of a second look at one image: dense, from the shared blocks on."""
        tokens = on.prefix + on.patches
        dense = self.reducer.cost(Extent(schedule=(on.patches,) * on.depth), on, prefix_only)
        return dense - self.shared_blocks(on.depth) * on.block.cost(tokens, tokens) / on.dense

    def extent(self, on: Geometry, prefix_only: bool) -> Extent:
        """The patch tokens after each block at the first look, by the gentlest schedule within the cost."""
        if self.shape is not None and self.shape.last > on.depth:
            raise ConfigError(
                f"This setting removes tokens up to block {self.shape.last}, but only {on.depth} blocks run: use one "
                "without a shape, or run `redi tune` for this backbone."
            )
        if self.tokens:
            return self.reducer.extent_leaving(self.tokens, on)
        first_cost = self.cost - self.second_share * self.second_cost(on, prefix_only)
        return self.reducer.extent_within_cost(first_cost, on, prefix_only)

    def at_cost(self, cost: float) -> "Setting":
        """The same shape at another cost, which no tolerance was checked for."""
        if self.second_look is not None and cost != self.cost:
            raise ConfigError(
                f"This setting looks twice at some images, which was set for a cost of {self.cost:g}: call accelerate "
                "with adaptive=True and images to set it for another cost."
            )
        if self.tokens:
            raise ConfigError(f"This setting leaves {self.tokens} tokens, and its cost follows: it takes no other.")
        return self if cost == self.cost else replace(self, cost=cost, outside="")

    def save(self, file: str | Path) -> None:
        require_replaceable(Path(file), ("cost", "shape"))
        write_record(Path(file), self)

    @classmethod
    def load(cls, file: str | Path) -> "Setting":
        try:
            return read_record(Path(file), cls, "redi tune", complete=True)
        except ArtifactError as error:
            raise ConfigError(str(error)) from None
