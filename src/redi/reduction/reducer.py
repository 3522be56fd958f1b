"""One interface for all reducers: tokens, cost, the extent that meets a cost, and the forward pass.

Cost is relative to dense: the multiply-adds of the matrix products of the backbone's own blocks, plus those of the
reducer itself. It leaves out the pass that makes the scores.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from redi.budget import Budget
from redi.cost import Geometry
from redi.errors import ConfigError

#: An extent meets a relative cost if its own cost differs by at most this much.
TOLERANCE = 0.02

Schedule = tuple[int, ...]


@dataclass(frozen=True)
class Extent:
    """How much a reducer removes, and where."""

    budget: Budget = Budget()  # one-shot reducers
    after: int = 0  # one-shot reducers: number of blocks before the reduction
    schedule: Schedule = ()  # progressive reducers: number of patch tokens after each block
    strength: float | None = None  # adaptive reducers: from 0 to 1

    @property
    def is_budget(self) -> bool:
        """Whether it is the extent of a one-shot reducer."""
        return not self.schedule and self.strength is None

    def at_keep(self, keep: float) -> "Extent":
        """The paper's proportions at another keep rate: half of the rest is merged, half compressed."""
        return replace(self, budget=replace(self.budget, keep=keep, merge=(1 - keep) / 2))


PAPER = Extent()


@runtime_checkable
class Encoder(Protocol):
    """The methods of a backbone that a reducer uses."""

    def encode(self, tokens: Any, start: int = 0, *, prefix_only: bool = False) -> Tensor: ...

    def encode_progressively(
        self, tokens: Any, reducer: Any, schedule: Schedule, scores: Tensor | None = None, prefix_only: bool = False
    ) -> Any: ...

    def encode_adaptively(
        self, tokens: Any, reducer: Any, strength: float, scores: Tensor | None = None, prefix_only: bool = False
    ) -> Any: ...


class Reducer(ABC):
    """A way to shorten the token sequence: :class:`OneShot`, :class:`Progressive` or :class:`Adaptive`.

    With ``prefix_only`` the last block works for the prefix alone, which is exact for a head that reads nothing else.
    """

    follows_budget: ClassVar[bool]  # whether its extent is a budget, not a schedule
    keeps_all: ClassVar[bool] = False  # whether all tokens are there in the end, so that rows compare by cost alone
    scored: bool  # whether it can read scores that are given to it
    slow: bool  # whether studies measure it at one cost only
    loops: bool  # whether it takes one Python step per merged pair, which a compiler would unroll

    @property
    def needs_score(self) -> bool:
        """Whether it cannot work without given scores; a progressive reducer has a relevance of its own."""
        return self.follows_budget and self.scored

    @abstractmethod
    def tokens_left(self, extent: Extent, on: Geometry) -> int:
        """Number of patch tokens after the last block."""

    @abstractmethod
    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:
        """Cost relative to dense."""

    @abstractmethod
    def apply(
        self,
        encoder: Encoder,
        tokens: Any,
        extent: Extent,
        scores: Float[Tensor, "batch patches"] | None,
        prefix_only: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        """The sequence before the final norm, from the tokens after ``extent.after`` blocks."""

    @abstractmethod
    def costs(self, on: Geometry, like: Extent, prefix_only: bool = False) -> list[tuple[float, Extent]]:
        """All extents that a search considers, with their costs; ``like`` gives the fields that it keeps."""

    def extent_for_cost(self, cost: float, on: Geometry, like: Extent = PAPER, prefix_only: bool = False) -> Extent:
        """The extent whose cost is nearest; a :class:`ConfigError` if it differs by more than ``TOLERANCE``."""
        choices = self.costs(on, like, prefix_only)
        nearest, extent = min(choices, key=lambda choice: abs(choice[0] - cost))
        if not abs(nearest - cost) <= TOLERANCE:
            reached = [reached for reached, _ in choices]
            raise ConfigError(
                f"A relative cost of {cost:g} cannot be met: possible costs range from {min(reached):.3f} to "
                f"{max(reached):.3f}, in steps."
            )
        return extent

    def extent_for_tokens(self, tokens: int, on: Geometry, like: Extent = PAPER) -> Extent:
        """The first extent whose number of patch tokens is nearest to ``tokens``."""
        extents = [extent for _, extent in self.costs(on, like)]
        return min(extents, key=lambda extent: abs(self.tokens_left(extent, on) - tokens))
