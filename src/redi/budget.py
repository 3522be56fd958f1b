"""The number of patches that are kept, merged and compressed."""

from dataclasses import dataclass
from math import floor, isfinite
from typing import Annotated

from redi import bounds
from redi.checks import require_types
from redi.errors import InvalidInput
from redi.grid import Grid

#: Allowed rounding error of a binary float that stands for a decimal fraction.
SLACK = 1e-9


@dataclass(frozen=True)
class Budget:
    """Settings of the paper's operator. The defaults are 98 / 49 / 49 and 2x2 cells on a 14x14 grid."""

    keep: Annotated[float, bounds.FRACTION] = 0.50  # fraction of patches that stay explicit (the paper's R)
    merge: Annotated[float, bounds.FRACTION] = 0.25  # fraction merged into kept patches (M); the rest is compressed (U)
    cells: Annotated[int, bounds.CELLS] = 2  # summary tokens per grid axis
    # Weight of spatial proximity when a merge destination is chosen.
    spatial: Annotated[float, bounds.SPATIAL] = 0.30

    def __post_init__(self) -> None:
        require_types(self, InvalidInput)
        if not (0 <= self.keep <= 1 and 0 <= self.merge <= 1):
            raise InvalidInput(f"keep and merge must be fractions from 0 to 1, not {self.keep} and {self.merge}.")
        if self.keep + self.merge > 1 + SLACK:
            raise InvalidInput(f"keep + merge must be at most 1, but is {self.keep} + {self.merge}.")
        if self.keep == 0 and self.merge > 0:
            raise InvalidInput("keep=0 leaves no patch to merge into: raise keep or set merge=0.")
        if refusal := bounds.CELLS.refusal("cells", self.cells):
            raise InvalidInput(refusal)
        if not isfinite(self.spatial):
            raise InvalidInput(f"spatial must be a finite number, not {self.spatial}.")

    def counts(self, patches: int) -> tuple[int, int, int]:
        """(n_R, n_M, n_U) of Sec. "Role assignment": they always add up to ``patches``.

        Fractions are rounded half up. If keep and merge then exceed ``patches``, merge is reduced.
        """
        keep = _half_up(self.keep, patches)
        merge = min(_half_up(self.merge, patches), patches - keep)
        if keep == 0 and merge > 0:
            raise InvalidInput(
                f"keep={self.keep} of {patches} patches rounds to none, which leaves no patch to merge into: "
                "raise keep or set merge=0."
            )
        return keep, merge, patches - keep - merge

    def tokens(self, patches: int) -> int:
        """Number of patch tokens after reduction; an empty compress set gives no summary tokens."""
        keep, _, compress = self.counts(patches)
        return keep + (self.cells**2 if compress else 0)

    def require_fits(self, patches: int, grid: Grid | None = None) -> None:
        """Refuse a budget whose reduction has more tokens than patches, or more cells than the grid has rows."""
        _, _, compress = self.counts(patches)
        if grid is not None and compress and self.cells > min(grid):
            raise InvalidInput(
                f"cells={self.cells} does not fit a grid of {grid[0]}x{grid[1]} patches: use at most {min(grid)}."
            )
        if self.tokens(patches) > patches:
            raise InvalidInput(
                f"keep={self.keep:g}, merge={self.merge:g} and cells={self.cells} would make {self.tokens(patches):,} "
                f"tokens of {patches:,} patches: lower keep or cells."
            )

    def fits(self, patches: int, grid: Grid) -> bool:
        """Whether the reduction makes no more tokens than there are patches."""
        try:
            self.require_fits(patches, grid)
        except InvalidInput:
            return False
        return True


def _half_up(fraction: float, patches: int) -> int:
    """Round half up; the slack makes 0.29 x 50 = 14.499999999999998 count as 14.5."""
    return floor(fraction * patches + 0.5 + SLACK)
