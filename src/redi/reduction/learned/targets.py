"""Methods that learn from the dense pass itself, without a student: Patch Slimming and WeiToP.

What a patch is worth is read from later blocks of the dense model, and an earlier block learns to tell it.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.reduction.learned.method import Learned, Lesson, keep_best, unchanged
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.protected import LEAST
from redi.reduction.result import Reduction
from redi.reduction.schedule import Once, early

#: The share of the blocks before WeiToP's module.
EARLY = 0.25


def mean_attention(inside: Inside) -> Float[Tensor, "batch tokens tokens"]:
    """The attention of a block, mean over the heads, in a pass in which all tokens have the size 1."""
    return ((inside.query @ inside.key.transpose(2, 3)) * inside.scale).softmax(dim=-1).mean(dim=1)


class PatchSlimming(Learned):
    """Patch Slimming (Tang et al., CVPR 2022): from the last block down, the positions with most impact on the output.

    Nothing is trained: the impact of every position on the final CLS token (on all tokens, if there is none) is
    counted over the images, as rollout from the top: from the last block down, the row of CLS is multiplied by
    (A_l + I) / 2, with A_l the attention of block l. A position that matters to a later block is kept in all earlier
    ones. So the choice is the same for all images, and belongs to one grid. The paper weights attention by values and
    fine-tunes the network as it is pruned.
    """

    name = "patch-slimming"
    epochs = 1
    impact: Tensor  # of every position before a block on the final output, summed over the images

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.register_buffer("impact", torch.zeros(on.depth, on.patches))

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        attention: dict[int, Tensor] = {}
        has_cls = True

        def look(inside: Inside) -> Reduction:
            nonlocal has_cls
            has_cls = inside.attending == "cls"
            attention[inside.block] = mean_attention(inside)
            return unchanged(inside)

        replace(lesson, prefix_only=False).pass_with(look, range(self.on.depth))
        first = attention[0]
        row = torch.zeros_like(first[:, :1])
        row[..., : 1 if has_cls else None] = 1 / (1 if has_cls else row.shape[-1])
        for block in range(self.on.depth - 1, -1, -1):
            row = (row @ attention[block] + row) / 2
            share = row[:, 0, self.on.prefix :]
            self.impact[block] += (share / share.amax(dim=1, keepdim=True).clamp(min=LEAST)).sum(dim=0)

    def step(self, inside: Inside, count: int) -> Reduction:
        if inside.origins is None or self.on.grid != inside.grid:
            raise ConfigError(f"patch-slimming was learned on a grid of {self.on.grid}, not {inside.grid}.")
        later = min(inside.block + 1, self.on.depth - 1)
        scores = self.impact[later:].amax(dim=0).to(inside.patches)
        return keep_best(inside, scores.expand(len(inside.patches), -1).gather(1, inside.origins), count)

    def reducer(self) -> Progressive:
        return Progressive(self.step, early, proportional=False, placed=True)


class WeiToP(Learned):
    """WeiToP (Zeng et al., 2026), our reading: an early module that learns the importance that the end will see.

    The paper's related work is all that was read of it: an early pruning module, trained by distilling the token
    importance that aggregation induces. For a classifier the aggregation is the CLS token of the last block (the mean
    token, if there is none). The module is an MLP on the tokens of an early block; its softmax over the tokens follows
    the attention of the last block, by KL. Tokens are dropped once, in that block.
    """

    name = "weitop"

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.block = round(EARLY * on.depth)
        hidden = on.width // 4
        self.score = nn.Sequential(nn.LayerNorm(on.width), nn.Linear(on.width, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def learn(self, lesson: Lesson) -> Float[Tensor, ""]:
        seen: dict[int, Tensor] = {}
        last = self.on.depth - 1

        def look(inside: Inside) -> Reduction:
            if inside.block == last:
                rows = mean_attention(inside)[:, : 1 if inside.attending == "cls" else None]
                target = rows.mean(dim=1)[:, inside.prefix :]
                seen[last] = target / target.sum(dim=1, keepdim=True)
            else:
                seen[inside.block] = self.states(inside)
            return unchanged(inside)

        with torch.no_grad():
            replace(lesson, prefix_only=False).pass_with(look, (self.block, last))
        logits = self.score(seen[self.block])[..., 0].log_softmax(dim=1)
        divergence: Tensor = (seen[last] * (seen[last].clamp(min=LEAST).log() - logits)).sum(dim=1).mean()
        return divergence

    def step(self, inside: Inside, count: int) -> Reduction:
        return keep_best(inside, self.score(self.states(inside))[..., 0], count)

    def reducer(self) -> Progressive:
        return Progressive(
            self.step,
            Once(EARLY),
            proportional=False,
            products=lambda before, after, width, head_dim: before * (width * width // 4 + width // 4),
        )
