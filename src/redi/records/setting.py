"""The setting of the acceleration, as a plain value that can be saved."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any

from redi.cost import Geometry
from redi.errors import ArtifactError, ConfigError
from redi.records.reading import read_record, write_record
from redi.reduction import Extent, Progressive
from redi.reduction.protected import OURS, PROTECTION, protected
from redi.reduction.schedule import ByShares


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
class Setting:
    """A relative cost, the share of the removed tokens per block, and the weight of relevance.

    The same setting works at every resolution: shares and cost become token counts once the grid is known. A setting
    that is made by hand belongs to no model and fits all.
    """

    cost: float = 0.65  # multiply-adds of the blocks and of the reducer, relative to dense
    shares: tuple[float, ...] = ()  # of the removed tokens, per block; empty means the default shape
    protection: float = PROTECTION
    model: TunedModel | None = None  # the only model that the setting is for
    outside: str = ""  # by how much the setting misses the tolerance of `redi tune`; empty if it does not

    def __post_init__(self) -> None:
        if not 0 < self.cost <= 1:
            raise ConfigError(f"A cost lies between 0 and 1 (dense), not at {self.cost:g}.")
        if not (isfinite(self.protection) and self.protection >= 0):
            raise ConfigError(f"Protection must be 0 or more, not {self.protection:g}.")
        if any(not (isfinite(share) and share >= 0) for share in self.shares):
            raise ConfigError(f"The shares of the blocks must be 0 or more, not {self.shares}.")
        if self.shares and abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(f"The shares of the blocks must add up to 1, not {self.shares}.")

    @cached_property
    def reducer(self) -> Progressive:
        changes: dict[str, Any] = {}
        if self.shares:
            changes["schedule"] = ByShares(self.shares)
        if self.protection != PROTECTION:
            changes["step"] = partial(protected, protection=self.protection)
        return replace(OURS["protected"], **changes)

    def extent(self, on: Geometry, prefix_only: bool) -> Extent:
        """The patch tokens after each block, by the gentlest schedule within the cost."""
        if self.shares and len(self.shares) != on.depth:
            raise ConfigError(
                f"This setting is for {len(self.shares)} blocks, but the backbone has {on.depth}: run `redi tune` for "
                "this backbone."
            )
        return self.reducer.extent_within_cost(self.cost, on, prefix_only)

    def at_cost(self, cost: float) -> "Setting":
        """The same shares at another cost, which no tolerance was checked for."""
        return self if cost == self.cost else replace(self, cost=cost, outside="")

    def save(self, file: str | Path) -> None:
        write_record(Path(file), self)

    @classmethod
    def load(cls, file: str | Path) -> "Setting":
        try:
            return read_record(Path(file), cls, "redi tune", complete=True)
        except ArtifactError as error:
            raise ConfigError(str(error)) from None
