"""Analytic cost of the encoder: Eq. blockcompute and, from it, every number of the paper's Table 3.

These are counts of multiply-adds in the dominant matrix products. They leave out score
construction, the reduction itself and everything that depends on hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from redi.errors import InvalidInput
from redi.reduction.budget import Budget


def block_cost(tokens: int, width: int) -> int:
    """Eq. blockcompute: C(T, D) = 12 T D^2 + 2 T^2 D.

    4 T D^2 for the query, key, value and output projections, 8 T D^2 for the MLP of hidden width
    4 D, 2 T^2 D for queries times keys and attention times values.
    """
    if tokens < 1 or width < 1:
        raise InvalidInput(f"tokens and width must be positive, not {tokens} and {width}.")
    return 12 * tokens * width**2 + 2 * tokens**2 * width


def progressive_cost(before: Sequence[int], after: Sequence[int], width: int) -> int:
    """Blocks whose attention sees ``before[k]`` tokens and whose MLP sees ``after[k]``: the terms of
    Eq. blockcompute, each with its own number of tokens (prefix included)."""
    return sum(
        4 * t * width**2 + 2 * t**2 * width + 8 * m * width**2
        for t, m in zip(before, after, strict=True)
    )


@dataclass(frozen=True)
class CostRow:
    """One line of Table 3: a quantity of the dense path and of the reduced path."""

    quantity: str
    dense: float
    reduced: float

    @property
    def reduction(self) -> float:
        """Percent saved."""
        return 100 * (1 - self.reduced / self.dense)


def cost_table(
    patches: int = 196, prefix: int = 5, width: int = 768, budget: Budget | None = None
) -> list[CostRow]:
    """Table 3 for a backbone and a budget; the defaults are DINOv3 ViT-B/16 and the paper's operator.

    Reduction happens before block 1, so the ratio of one block is the ratio of all of them.
    """
    if patches < 1 or prefix < 0:
        raise InvalidInput(f"There must be patches and no negative prefix: {patches}, {prefix}.")
    budget = budget or Budget()
    keep, _, _ = budget.counts(patches)
    represented = budget.tokens(patches)
    dense, reduced = prefix + patches, prefix + represented
    return [
        CostRow("Individually represented patches", patches, keep),
        CostRow("Patch representations after reduction", patches, represented),
        CostRow("Total sequence tokens", dense, reduced),
        CostRow("Quadratic attention term", dense**2, reduced**2),
        CostRow(
            "Estimated dominant block arithmetic",
            1.0,
            block_cost(reduced, width) / block_cost(dense, width),
        ),
    ]
