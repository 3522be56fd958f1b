"""Analytic cost of the encoder: Eq. blockcompute, and every number of the paper's Table 3.

Cost counts the multiply-adds of the dominant matrix products. It leaves out score construction, the reduction
itself and everything that depends on hardware. Eq. blockcompute assumes an MLP of hidden width 4 D. Many backbones
have another width or a gated MLP, so a backbone's cost counts the products of its own blocks (:class:`Block`).
"""

from dataclasses import dataclass

from redi.budget import Budget
from redi.errors import InvalidInput
from redi.grid import Grid

#: The line of Table 3 that depends on the products of a block.
ARITHMETIC = "Estimated dominant block arithmetic"


def block_cost(tokens: int, width: int) -> int:
    """Eq. blockcompute: C(T, D) = 12 T D^2 + 2 T^2 D.

    4 T D^2 for the query, key, value and output projections, 8 T D^2 for the MLP of hidden width 4 D, 2 T^2 D for
    queries times keys and attention times values.
    """
    if tokens < 1 or width < 1:
        raise InvalidInput(f"tokens and width must be positive, not {tokens} and {width}.")
    return 12 * tokens * width**2 + 2 * tokens**2 * width


@dataclass(frozen=True)
class Block:
    """Multiply-adds of the matrix products of one block: per token, and per pair of tokens."""

    projections: int  # per token: query, key, value and output
    mlp: int  # per token: all linear layers of the MLP
    pairs: int  # per pair of tokens: queries times keys, attention times values

    def cost(self, attending: int, transformed: int, queries: int | None = None) -> int:
        """Cost of a block whose attention sees ``attending`` tokens and whose MLP sees ``transformed``.

        ``queries`` is the number of tokens that attend, if not all of them do. The others need neither a query nor
        the output projection, which are half of the projections.
        """
        queries = attending if queries is None else queries
        projected = (attending + queries) * self.projections // 2
        return projected + attending * queries * self.pairs + transformed * self.mlp


def vit_block(width: int, hidden: int = 0, gated: bool = False) -> Block:
    """A ViT block with an MLP of the given hidden width; 0 is 4 D, the block of Eq. blockcompute.

    A gated MLP has a third matrix, which makes the gate.
    """
    if width < 1 or hidden < 0:
        raise InvalidInput(f"width must be positive and the MLP's hidden width at least 0, not {width} and {hidden}.")
    return Block(4 * width**2, (3 if gated else 2) * width * (hidden or 4 * width), 2 * width)


@dataclass(frozen=True)
class Geometry:
    """The sizes of a backbone that determine its cost."""

    grid: Grid  # (rows, columns) of patches
    prefix: int  # tokens before the patches: CLS, registers, distillation
    width: int
    head_dim: int
    depth: int
    own_block: Block | None = None  # None if its blocks are those of Eq. blockcompute
    prefix_queries: bool = False  # whether the last block can compute the queries of the prefix alone

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def block(self) -> Block:
        """The products of each block; all blocks of a backbone have the same sizes."""
        return self.own_block or vit_block(self.width)

    @property
    def dense(self) -> int:
        """Cost of all blocks on all tokens."""
        tokens = self.prefix + self.patches
        return self.depth * self.block.cost(tokens, tokens)

    def prefix_block(self, tokens: int) -> int:
        """Cost of a last block whose attention sees ``tokens`` and which works for the prefix alone."""
        return self.block.cost(tokens, self.prefix, self.prefix if self.prefix_queries else None)


@dataclass(frozen=True)
class CostRow:
    """One line of Table 3: a quantity on the dense path and on the reduced path."""

    quantity: str
    dense: float
    reduced: float
    formula: float | None = None  # ``reduced`` by Eq. blockcompute, if the backbone's blocks are not of its kind

    @property
    def reduction(self) -> float:
        """The saving in percent."""
        return 100 * (1 - self.reduced / self.dense)


def cost_table(
    patches: int = 196, prefix: int = 5, width: int = 768, budget: Budget | None = None, block: Block | None = None
) -> list[CostRow]:
    """Table 3 for a backbone and a budget; the defaults are DINOv3 ViT-B/16 and the paper's operator.

    ``block`` holds the products of the backbone's blocks; None means those of Eq. blockcompute. The sequence is
    reduced before block 1, so every block has the same ratio.
    """
    if patches < 1 or prefix < 0:
        raise InvalidInput(f"patches must be positive and prefix at least 0, not {patches} and {prefix}.")
    budget = budget or Budget()
    budget.require_fits(patches)
    keep, _, _ = budget.counts(patches)
    represented = budget.tokens(patches)
    dense, reduced = prefix + patches, prefix + represented
    formula = block_cost(reduced, width) / block_cost(dense, width)
    arithmetic = CostRow(ARITHMETIC, 1.0, formula)
    if block is not None and block != vit_block(width):
        arithmetic = CostRow(ARITHMETIC, 1.0, block.cost(reduced, reduced) / block.cost(dense, dense), formula)
    return [
        CostRow("Individually represented patches", patches, keep),
        CostRow("Patch representations after reduction", patches, represented),
        CostRow("Total sequence tokens", dense, reduced),
        CostRow("Quadratic attention term", dense**2, reduced**2),
        arithmetic,
    ]
