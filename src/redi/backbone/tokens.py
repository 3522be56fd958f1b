"""The input of the blocks: prefix tokens, patch tokens, and the rotary positions of the patches."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from redi.grid import Grid
from redi.reduction import Reduction

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Tokens:
    """Tokens before or between the blocks of a backbone.

    ``rope`` is (cos, sin). Both are ``[patches, head_dim]`` while all images share the full grid, and
    ``[batch, 1, patches, head_dim]`` once each image has its own positions. For learned positions, which are already
    added to the patches, ``rope`` is None. ``grid`` is the patch grid of the image; a reduction does not change it.
    """

    prefix: Float[Tensor, "batch prefix dim"]
    patches: Float[Tensor, "batch patches dim"]
    rope: Rope | None = None
    grid: Grid | None = None

    @property
    def sequence(self) -> Float[Tensor, "batch tokens dim"]:
        return torch.cat([self.prefix, self.patches], dim=1)

    def advanced(self, hidden: Float[Tensor, "batch tokens dim"]) -> "Tokens":
        """The tokens after some blocks; ``hidden`` is the output of ``encode(..., stop=k)``."""
        count = self.prefix.shape[1]
        return replace(self, prefix=hidden[:, :count], patches=hidden[:, count:])

    def reduced(self, reduction: Reduction) -> "Tokens":
        """The shortened sequence. The prefix does not change; each token takes an existing position."""
        rope = None if self.rope is None else self._gather_rope(reduction.positions)
        return replace(self, patches=reduction.tokens, rope=rope)

    def _gather_rope(self, positions: Tensor) -> Rope:
        assert self.rope is not None
        cos, sin = self.rope
        if cos.ndim == 2:
            return cos[positions][:, None], sin[positions][:, None]
        index = positions[:, None, :, None].expand(-1, -1, -1, cos.shape[-1])
        return cos.gather(2, index), sin.gather(2, index)
