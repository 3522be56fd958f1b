"""How many patches are kept, merged and compressed."""

from dataclasses import dataclass
from math import floor, isfinite

from redi.errors import InvalidInput

#: What binary floats may be off the decimal fractions that people write.
SLACK = 1e-9


@dataclass(frozen=True)
class Budget:
    """The paper's operator by default: 98 / 49 / 49 and 2x2 cells on a 14x14 grid."""

    keep: float = 0.50  # fraction of patches that stay explicit (the paper's R)
    merge: float = 0.25  # fraction merged into kept ones (M); the rest is compressed (U)
    cells: int = 2  # summary tokens per grid axis
    spatial: float = 0.30  # weight of spatial proximity when a merge destination is chosen

    def __post_init__(self) -> None:
        if not (0 <= self.keep <= 1 and 0 <= self.merge <= 1):
            raise InvalidInput(
                f"keep and merge are fractions of 0 to 1, not {self.keep} and {self.merge}."
            )
        if self.keep + self.merge > 1 + SLACK:
            raise InvalidInput(
                f"keep + merge is {self.keep} + {self.merge}, more than all patches."
            )
        if self.keep == 0 and self.merge > 0:
            raise InvalidInput("Nothing is kept, so there is nothing to merge into: set merge=0.")
        if not isinstance(self.cells, int) or self.cells < 1:
            raise InvalidInput(f"cells must be an integer of at least 1, not {self.cells}.")
        if not isfinite(self.spatial):
            raise InvalidInput(f"spatial must be a finite number, not {self.spatial}.")

    def counts(self, patches: int) -> tuple[int, int, int]:
        """(n_R, n_M, n_U) of Sec. "Role assignment": they always add up to ``patches``.

        Fractions are rounded half up; where that overshoots, merge yields.
        """
        keep = _half_up(self.keep, patches)
        merge = min(_half_up(self.merge, patches), patches - keep)
        if keep == 0 and merge > 0:
            raise InvalidInput(
                f"keep={self.keep} of {patches} patches rounds to none, so {merge} patches have "
                "nothing to merge into: raise keep or set merge=0."
            )
        return keep, merge, patches - keep - merge

    def tokens(self, patches: int) -> int:
        """Patch tokens after reduction: an empty compress set emits no summary tokens."""
        keep, _, compress = self.counts(patches)
        return keep + (self.cells**2 if compress else 0)


def _half_up(fraction: float, patches: int) -> int:
    """The hair above one half lets 0.29 x 50 = 14.499999999999998 count as the 14.5 it stands for."""
    return floor(fraction * patches + 0.5 + SLACK)
