"""Adaptive reducers: block-by-block reducers whose step decides for each image how many tokens it keeps.

Images of a batch then differ in length. Each is padded at the end to the longest one. Padding is a token of size 0: it
stands for no patch, and proportional attention, which adds log(size) to the logits of a key, masks it exactly. So an
image gets the result that it would get alone, where there is no padding at all.

A step takes the state of a block and the threshold of that block. The strength, from 0 to 1, chooses the thresholds.
What a strength costs depends on the images, so it is measured on some (:class:`Curve`).
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.reduction.progressive import Inside, Products, blocks_cost
from redi.reduction.reducer import Encoder, Extent, Reducer
from redi.reduction.result import Reduction

#: The threshold of a block that removes nothing and runs unchanged.
NEVER = inf
#: The strengths at which costs are measured; in between they are interpolated.
STRENGTHS = tuple(step / 16 for step in range(17))
#: Number of strengths that a search for a cost tries.
STEPS = 1000

Thresholds = tuple[float, ...]


class Point(NamedTuple):
    """A strength, and means over the images it was measured on."""

    strength: float
    cost: float  # relative to dense
    tokens: float  # patch tokens after the last block


Curve = tuple[Point, ...]


@dataclass(frozen=True)
class Adaptive(Reducer):
    """A reducer whose extent is a strength. Its cost is the mean over images of the costs at their own lengths."""

    follows_budget: ClassVar[bool] = False

    step: Callable[[Inside, float], Reduction]  # (state of the block, its threshold); see the rules in ``compacted``
    thresholds: Callable[[int, float], Thresholds]  # (depth, strength) -> one threshold per block
    scored: bool = False
    slow: bool = False
    proportional: ClassVar[bool] = True  # log(0) masks the padding
    loops: bool = False
    products: Products = lambda before, after, width, head_dim: 0
    curve: Callable[[], Curve] | None = None  # measures the strengths, or loads what was measured

    def measured_by(self, curve: Callable[["Adaptive"], Curve]) -> "Adaptive":
        """The same reducer for the images that ``curve`` measures it on, once and only if it is needed."""
        points: list[Curve] = []

        def once() -> Curve:
            if not points:
                points.append(curve(self))
            return points[0]

        return replace(self, curve=once)

    def tokens_left(self, extent: Extent, on: Geometry) -> int:  # noqa: ARG002
        return round(self._measured(extent).tokens)

    def cost(self, extent: Extent, on: Geometry, prefix_only: bool = False) -> float:  # noqa: ARG002
        """What the strength was measured to cost: with the shortcut of the last block if the curve has it."""
        return self._measured(extent).cost

    def costs(self, on: Geometry, like: Extent, prefix_only: bool = False) -> list[tuple[float, Extent]]:  # noqa: ARG002
        extents = [Extent(strength=step / STEPS) for step in range(STEPS + 1)]
        return [(self._measured(extent).cost, extent) for extent in extents]

    def image_costs(
        self, lengths: Int[Tensor, "batch depth"], strength: float, on: Geometry, prefix_only: bool = False
    ) -> Float[Tensor, " batch"]:
        """The relative cost of each image, from its patch tokens after each block."""
        active = [threshold < NEVER for threshold in self.thresholds(on.depth, strength)]
        costs = [blocks_cost(tuple(image), active, self.products, on, prefix_only) for image in lengths.tolist()]
        return torch.tensor(costs, dtype=torch.float64)

    def apply(
        self,
        encoder: Encoder,
        tokens: Any,
        extent: Extent,
        scores: Float[Tensor, "batch patches"] | None,
        prefix_only: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        """The sequences, padded at the end."""
        hidden: Tensor = self.shorten(encoder, tokens, extent, scores, prefix_only).hidden
        return hidden

    def shorten(
        self, encoder: Encoder, tokens: Any, extent: Extent, scores: Tensor | None, prefix_only: bool = False
    ) -> Any:
        """As :meth:`apply`, with the lengths of each image."""
        return encoder.encode_adaptively(tokens, self, extent.strength or 0.0, scores, prefix_only)

    def _measured(self, extent: Extent) -> Point:
        """The measured values at a strength, linear between the measured strengths."""
        if self.curve is None:
            raise ConfigError(
                "Its length follows the image, so its cost is known only for given images: use redi compare, which "
                "measures it on training images."
            )
        points, strength = self.curve(), extent.strength or 0.0
        right = min(max(bisect_right([point.strength for point in points], strength), 1), len(points) - 1)
        low, high = points[right - 1], points[right]
        share = (strength - low.strength) / (high.strength - low.strength)
        return Point(*(a + share * (b - a) for a, b in zip(low, high, strict=True)))


def curve_of(
    reducer: Adaptive,
    lengths: Int[Tensor, "images strengths depth"],
    on: Geometry,
    strengths: tuple[float, ...],
    prefix_only: bool = False,
) -> Curve:
    """Mean cost and length at every strength, from the patch tokens of each image after each block."""
    return tuple(
        Point(
            strength,
            reducer.image_costs(of_strength, strength, on, prefix_only).mean().item(),
            of_strength[:, -1].double().mean().item(),
        )
        for strength, of_strength in zip(strengths, lengths.unbind(dim=1), strict=True)
    )


def compacted(kept: Bool[Tensor, "batch patches"]) -> tuple[Int[Tensor, "batch reduced"], Int[Tensor, "batch patches"]]:
    """The kept tokens of each image, moved to the front: their indices, and the place of each token.

    There are as many places as the longest image needs. The last places of the others are padding: ``index`` points
    them at tokens that are not kept, and no token may have them in ``Reduction.source``. The place of a token that is
    not kept is meaningless.
    """
    longest = int(kept.sum(dim=1).max())
    index = kept.long().argsort(dim=1, descending=True, stable=True)[:, :longest]
    return index, kept.long().cumsum(dim=1) - 1
