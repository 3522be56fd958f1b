"""How far acceleration goes, as a plain value that can be written down."""

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any

from redi import artifacts
from redi.equal import Geometry, schedule_within_cost
from redi.errors import ConfigError
from redi.plugins import one_line
from redi.reduction import Progressive, Schedule
from redi.reduction.protected import OURS, PROTECTION, protected
from redi.reduction.schedule import ByShares


@dataclass(frozen=True)
class Setting:
    """A relative cost, which blocks remove how much of what goes, and what relevance is worth.

    The same setting serves every resolution: shares and cost become token counts once the grid is
    known.
    """

    cost: float = 0.65  # multiply-adds of the blocks and of the reducer, relative to dense
    shares: tuple[float, ...] = ()  # of the removed tokens, a block each; empty: much early
    protection: float = PROTECTION

    def __post_init__(self) -> None:
        if not 0 < self.cost <= 1:
            raise ConfigError(f"A cost lies between 0 and 1 (dense), not at {self.cost:g}.")
        if not (isfinite(self.protection) and self.protection >= 0):
            raise ConfigError(f"Protection must be 0 or more, not {self.protection:g}.")
        if any(not (isfinite(share) and share >= 0) for share in self.shares):
            raise ConfigError(f"Shares of blocks must be 0 or more: {self.shares}.")
        if self.shares and abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(f"Shares of blocks must add up to 1: {self.shares}.")

    @cached_property
    def reducer(self) -> Progressive:
        changes: dict[str, Any] = {}
        if self.shares:
            changes["schedule"] = ByShares(self.shares)
        if self.protection != PROTECTION:
            changes["step"] = partial(protected, protection=self.protection)
        return replace(OURS["protected"], **changes)

    def schedule(self, on: Geometry, prefix_only: bool) -> Schedule:
        """Patch tokens that leave each block: the gentlest that cost no more than asked for."""
        if self.shares and len(self.shares) != on.depth:
            raise ConfigError(
                f"This setting is for {len(self.shares)} blocks, the backbone has {on.depth}: tune it "
                "for this backbone."
            )
        return schedule_within_cost(self.reducer, self.cost, on, prefix_only)

    def save(self, file: str | Path) -> None:
        artifacts.write_text(Path(file), json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, file: str | Path) -> "Setting":
        try:
            content: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
            known = {entry.name: content.pop(entry.name) for entry in fields(cls)}
            if content:
                raise KeyError(f"{min(content)} is not known")
            numbers = {name: float(known[name]) for name in ("cost", "protection")}
            return cls(shares=tuple(map(float, known["shares"])), **numbers)
        except FileNotFoundError:
            raise ConfigError(f"There is no setting {file}: `redi tune` writes one.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file} is not a setting of `redi tune`: {one_line(error)}"
            ) from None
