"""Analytic cost of the encoder: Eq. blockcompute and, from it, every number of the paper's Table 3.

Cost counts the multiply-adds of the dominant matrix products. It leaves out score construction, the reduction
itself and everything that depends on hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from redi.budget import Budget
from redi.errors import InvalidInput
from redi.grid import Grid


def block_cost(tokens: int, width: int) -> int:
    """Eq. blockcompute: C(T, D) = 12 T D^2 + 2 T^2 D.

    4 T D^2 for the query, key, value and output projections, 8 T D^2 for the MLP of hidden width 4 D, 2 T^2 D for
    queries times keys and attention times values.
    """
    if tokens < 1 or width < 1:
        raise InvalidInput(f"tokens and width must be positive, not {tokens} and {width}.")
    return 12 * tokens * width**2 + 2 * tokens**2 * width


def progressive_cost(before: Sequence[int], after: Sequence[int], width: int) -> int:
    """Cost of blocks whose attention sees ``before[k]`` tokens and whose MLP sees ``after[k]``.

    Each term of Eq. blockcompute is taken at its own number of tokens, which includes the prefix.
    """
    return sum(4 * t * width**2 + 2 * t**2 * width + 8 * m * width**2 for t, m in zip(before, after, strict=True))


@dataclass(frozen=True)
class Geometry:
    """The sizes of a backbone that determine its cost."""

    grid: Grid  # (rows, columns) of patches
    prefix: int  # tokens before the patches: CLS, registers, distillation
    width: int
    head_dim: int
    depth: int

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def dense(self) -> int:
        """Cost of all blocks on all tokens."""
        return self.depth * block_cost(self.prefix + self.patches, self.width)


@dataclass(frozen=True)
class CostRow:
    """One line of Table 3: a quantity on the dense path and on the reduced path."""

    quantity: str
    dense: float
    reduced: float

    @property
    def reduction(self) -> float:
        """The saving in percent."""
        return 100 * (1 - self.reduced / self.dense)


def cost_table(patches: int = 196, prefix: int = 5, width: int = 768, budget: Budget | None = None) -> list[CostRow]:
    """Table 3 for a backbone and a budget; the defaults are DINOv3 ViT-B/16 and the paper's operator.

    The sequence is reduced before block 1, so every block has the same ratio.
    """
    if patches < 1 or prefix < 0:
        raise InvalidInput(f"patches must be positive and prefix at least 0, not {patches} and {prefix}.")
    budget = budget or Budget()
    budget.require_fits(patches)
    keep, _, _ = budget.counts(patches)
    represented = budget.tokens(patches)
    dense, reduced = prefix + patches, prefix + represented
    return [
        CostRow("Individually represented patches", patches, keep),
        CostRow("Patch representations after reduction", patches, represented),
        CostRow("Total sequence tokens", dense, reduced),
        CostRow("Quadratic attention term", dense**2, reduced**2),
        CostRow("Estimated dominant block arithmetic", 1.0, block_cost(reduced, width) / block_cost(dense, width)),
    ]
