"""Attention statistics taken inside the forward pass.

A watched block computes softmax(QK^T) for a few images at a time, passes that slice to every :class:`Watch`, and
drops it. The slice stays in the processor's cache, and a full ``[batch, heads, tokens, tokens]`` tensor never
exists. :mod:`redi.backbone.hook` does this for transformers' blocks, :mod:`redi.backbone.timm_model` for timm's.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from redi.attention import ATTENTION_SCORES, cls_rows, head_mean, scores_of
from redi.errors import InvalidInput
from redi.score import minmax

#: Images per slice. On a CPU, two images of a ViT-B (2 x 12 x 201 x 201 FP32, 3.9 MB) stay in the cache and run at
#: SDPA's speed; an accelerator needs larger slices.
SLICE_CPU = 2
SLICE_ACCELERATOR = 16

MASKED = "A watched block takes no attention mask: run it without a mask or without watches."

Statistic = Callable[[Float[Tensor, "batch heads tokens tokens"]], Tensor]


class Watch:
    """Collects ``statistic(attention)`` of the given blocks (numbered from 0) during ``encode``.

    The statistic maps attention ``[b, heads, tokens, tokens]`` to a tensor whose first axis is the batch. It is
    called on slices of the batch, so it must treat images independently. It must not return a view of its input,
    which would keep the whole slice alive.
    """

    def __init__(self, statistic: Statistic, blocks: Iterable[int]) -> None:
        self.statistic = statistic
        self.blocks = frozenset(blocks)
        self._pieces: dict[int, list[Tensor]] = {}

    def begin(self, block: int) -> None:
        """Drop the statistics of an earlier pass for this block and all later ones."""
        self._pieces = {key: pieces for key, pieces in self._pieces.items() if key < block}

    def observe(self, block: int, attention: Float[Tensor, "batch heads tokens tokens"]) -> None:
        self._pieces.setdefault(block, []).append(self.statistic(attention))

    def value(self, block: int) -> Tensor:
        """The statistic of one block for the whole batch of the latest pass."""
        if block not in self._pieces:
            raise InvalidInput(f"Block {block} was not watched: watch it and run encode through it first.")
        pieces = self._pieces[block]
        if len(pieces) > 1:
            self._pieces[block] = pieces = [torch.cat(pieces)]
        return pieces[0]

    def values(self) -> list[Tensor]:
        """The statistics of all watched blocks, first block first."""
        return [self.value(block) for block in sorted(self.blocks)]


class AttentionScores:
    """The attention scores of one dense pass, all or those named, from statistics taken inside the forward pass.

    ::

        scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
        hidden = backbone.encode(tokens, watch=scores.watches)
        maps = scores.maps()          # name -> [batch, patches]
    """

    def __init__(self, depth: int, prefix: int, has_cls: bool = True, names: Iterable[str] | None = None) -> None:
        self.prefix = prefix
        self.names = scores_of(has_cls) if names is None else list(names)
        every_block = any(ATTENTION_SCORES[name].every_block for name in self.names)
        self.means = Watch(head_mean, blocks=range(depth) if every_block else (depth - 1,))
        self.rows = Watch(cls_rows, blocks=(depth - 1,))

    @property
    def watches(self) -> tuple[Watch, Watch]:
        return self.means, self.rows

    def maps(self) -> dict[str, Float[Tensor, "batch patches"]]:
        return {name: minmax(values) for name, values in self.raw_maps().items()}

    def raw_maps(self) -> dict[str, Float[Tensor, "batch patches"]]:
        """The maps before their min-max normalisation."""
        means, (rows,) = self.means.values(), self.rows.values()
        return {name: ATTENTION_SCORES[name].raw(means, rows, self.prefix) for name in self.names}


def observed_attention(
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch heads tokens head_dim"],
    value: Float[Tensor, "batch heads tokens head_dim"],
    scale: float,
    watches: Sequence[Watch],
    block: int,
) -> Float[Tensor, "batch tokens heads head_dim"]:
    """softmax(QK^T) V for a few images at a time; every watch sees each slice."""
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
