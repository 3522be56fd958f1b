"""Attention statistics taken inside the forward pass, through transformers' attention interface.

transformers lets a library register an attention function by name and passes extra keyword
arguments through to it. The function below is registered once, as ``"redi"``. A block that nobody
watches goes straight to transformers' SDPA function. A watched block computes softmax(QK^T) for a
few images at a time, hands that slice to every :class:`Watch`, and lets go of it: the slice stays
in the processor's cache and a full ``[batch, heads, tokens, tokens]`` tensor never exists.
timm's blocks come to the same arithmetic by another way: :mod:`redi.backbone.timm_model`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from redi.attention import (
    cls_max_of,
    cls_mean_of,
    cls_rows,
    head_mean,
    mass_of,
    rollout,
)
from redi.errors import InvalidInput

#: The name under which the attention function is registered with transformers.
IMPLEMENTATION = "redi"

#: Images whose attention is held at once. On a CPU two images of a ViT-B (2 x 12 x 201 x 201 FP32,
#: 3.9 MB) stay in cache and run at SDPA's speed; an accelerator wants larger slices.
SLICE_CPU = 2
SLICE_ACCELERATOR = 16

MASKED = "Watched blocks take no attention mask: patches are never masked here."

Statistic = Callable[[Float[Tensor, "batch heads tokens tokens"]], Tensor]


class Watch:
    """Collects ``statistic(attention)`` of the given blocks (numbered from 0) during ``encode``.

    The statistic maps attention ``[b, heads, tokens, tokens]`` to a tensor whose first axis is the
    batch. It is called on slices of the batch, so it must treat images independently, and it must
    not return a view of its input, which would keep the whole slice alive.
    """

    def __init__(self, statistic: Statistic, blocks: Iterable[int]) -> None:
        self.statistic = statistic
        self.blocks = frozenset(blocks)
        self._pieces: dict[int, list[Tensor]] = {}

    def begin(self, block: int) -> None:
        """Forget what an earlier pass left for this block and those after it."""
        self._pieces = {at: pieces for at, pieces in self._pieces.items() if at < block}

    def observe(self, block: int, attention: Float[Tensor, "batch heads tokens tokens"]) -> None:
        self._pieces.setdefault(block, []).append(self.statistic(attention))

    def value(self, block: int) -> Tensor:
        """The statistic of one block for the whole batch of the latest pass."""
        if block not in self._pieces:
            raise InvalidInput(f"Block {block} was not watched: encode must run through it first.")
        pieces = self._pieces[block]
        if len(pieces) > 1:
            self._pieces[block] = pieces = [torch.cat(pieces)]
        return pieces[0]

    def values(self) -> list[Tensor]:
        """The statistics of all watched blocks, first block first."""
        return [self.value(block) for block in sorted(self.blocks)]


class AttentionScores:
    """The four scores of one dense pass, from statistics captured inside the forward.

    ::

        scores = AttentionScores(backbone.depth, backbone.prefix)
        hidden = backbone.encode(tokens, watch=scores.watches)
        maps = scores.maps()          # {"mass", "rollout", "cls_max", "cls_mean"}: [batch, patches]
    """

    def __init__(self, depth: int, prefix: int) -> None:
        self.prefix = prefix
        self.means = Watch(head_mean, blocks=range(depth))
        self.rows = Watch(cls_rows, blocks=(depth - 1,))

    @property
    def watches(self) -> tuple[Watch, Watch]:
        return self.means, self.rows

    def maps(self) -> dict[str, Float[Tensor, "batch patches"]]:
        means = self.means.values()
        (rows,) = self.rows.values()
        return {
            "mass": mass_of(means[-1], self.prefix),
            "rollout": rollout(means, self.prefix),
            "cls_max": cls_max_of(rows, self.prefix),
            "cls_mean": cls_mean_of(rows, self.prefix),
        }


def attention_forward(
    module: nn.Module,
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch heads tokens head_dim"],
    value: Float[Tensor, "batch heads tokens head_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    redi_watches: Sequence[Watch] = (),
    redi_block: int = -1,
    redi_capture: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch tokens heads head_dim"], None]:
    """SDPA where nobody watches; the same attention, slice by slice and observed, where someone does.

    ``redi_capture`` is filled with the block's query, key, value and scale, for reducers that work
    inside a block.
    """
    if redi_capture is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        redi_capture.update(query=query, key=key, value=value, scale=scale)
    if not redi_watches:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return output, None
    if attention_mask is not None:
        raise InvalidInput(MASKED)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return observed_attention(query, key, value, scale, redi_watches, redi_block), None


def observed_attention(
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch heads tokens head_dim"],
    value: Float[Tensor, "batch heads tokens head_dim"],
    scale: float,
    watches: Sequence[Watch],
    block: int,
) -> Float[Tensor, "batch tokens heads head_dim"]:
    """softmax(QK^T) V, a few images at a time, each slice shown to every watch."""
    step = SLICE_CPU if query.device.type == "cpu" else SLICE_ACCELERATOR
    output = query.new_empty(query.transpose(1, 2).shape)
    for start in range(0, len(query), step):
        images = slice(start, start + step)
        logits = (query[images] @ key[images].transpose(2, 3)).mul_(scale)
        attention = logits.softmax(dim=-1)
        for watch in watches:
            watch.observe(block, attention)
        output[images] = (attention @ value[images]).transpose(1, 2)
    return output


AttentionInterface.register(IMPLEMENTATION, attention_forward)
