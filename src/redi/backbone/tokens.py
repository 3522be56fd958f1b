"""What flows through the blocks: prefix tokens, patch tokens, and the rotary positions of the latter."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from redi.grid import Grid
from redi.reduction import Reduction

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Tokens:
    """Tokens on their way through a backbone, before or between blocks.

    ``rope`` is (cos, sin), each ``[patches, head_dim]`` while all images share the full grid, or
    ``[batch, 1, patches, head_dim]`` once each image has kept its own positions; None for learned
    positions, which are already added to the patches. ``grid`` is the grid the image was cut into
    and stays the same when the sequence is shortened.
    """

    prefix: Float[Tensor, "batch prefix dim"]
    patches: Float[Tensor, "batch patches dim"]
    rope: Rope | None = None
    grid: Grid | None = None

    @property
    def sequence(self) -> Float[Tensor, "batch tokens dim"]:
        return torch.cat([self.prefix, self.patches], dim=1)

    def advanced(self, hidden: Float[Tensor, "batch tokens dim"]) -> "Tokens":
        """The same tokens after some blocks: ``hidden`` is what ``encode(..., stop=k)`` returned."""
        count = self.prefix.shape[1]
        return replace(self, prefix=hidden[:, :count], patches=hidden[:, count:])

    def reduced(self, reduction: Reduction) -> "Tokens":
        """The shortened sequence. The prefix is untouched; each token keeps an existing position."""
        rope = None if self.rope is None else self._gather_rope(reduction.positions)
        return replace(self, patches=reduction.tokens, rope=rope)

    def _gather_rope(self, positions: Tensor) -> Rope:
        assert self.rope is not None
        cos, sin = self.rope
        if cos.ndim == 2:
            return cos[positions][:, None], sin[positions][:, None]
        index = positions[:, None, :, None].expand(-1, -1, -1, cos.shape[-1])
        return cos.gather(2, index), sin.gather(2, index)
