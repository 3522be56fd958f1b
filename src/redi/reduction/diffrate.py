"""DiffRate: pruning and merging by rank, with rates per block that its authors learned.

The step needs no training. The rates were learned on ImageNet for DeiT and MAE models and are published
(:mod:`redi.reduction.diffrate_rates`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch.nn.functional import normalize

from redi.reduction.diffrate_rates import PUBLISHED, Kept
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.reducer import Schedule
from redi.reduction.result import DROPPED, Reduction, places, take

#: Model whose rates are used for each number of blocks. DeiT-T has the widest range of budgets for 12 blocks.
MODELS = {12: "DeiT-T", 24: "MAE-L", 32: "MAE-H"}


@dataclass(frozen=True)
class Budget:
    """The rates of one model at one budget, in patches."""

    counts: Schedule  # before the first block, then after each block
    pruned: tuple[int, ...]  # how many of the tokens that a block removes are pruned; the others are merged

    @classmethod
    def published(cls, pruning: Kept, merging: Kept) -> "Budget":
        counts, pruned = [pruning[0] - 1], []
        for after_pruning, after_merging in zip(pruning, merging, strict=True):
            left = min(counts[-1], after_pruning - 1)
            pruned.append(counts[-1] - left)
            counts.append(min(left, after_merging - 1))
        return cls(tuple(counts), tuple(pruned))

    def kept(self, block: int) -> float:
        """The share of its tokens that a block keeps."""
        return self.counts[block + 1] / self.counts[block]


#: Model -> its budgets, largest first.
BUDGETS = {
    model: [Budget.published(*rows[gflops]) for gflops in sorted(rows, reverse=True)]
    for model, rows in PUBLISHED.items()
}


@dataclass(frozen=True)
class DiffRate:
    """The schedules and the step with the rates of ``model``, or of the model in ``MODELS`` nearest in depth."""

    model: str | None = None

    def budgets(self, depth: int) -> list[Budget]:
        return BUDGETS[self.model or MODELS[min(MODELS, key=lambda blocks: abs(log(depth / blocks)))]]

    def schedule(self, patches: int, depth: int, strength: float) -> Schedule:
        """Published counts, and between two budgets their linear interpolation.

        Of K budgets, the k-th largest has the strength k / (K + 1). Above the largest budget the removed tokens are
        scaled, towards none. Below the smallest, the kept shares are raised to a power, so that blocks that remove
        nothing still do not. With another number of blocks, the last block keeps the share of the published last
        block, which keeps few tokens, and the shares of the others are interpolated over the depth.
        """
        shares = [[count / budget.counts[0] for count in budget.counts[1:]] for budget in self.budgets(depth)]
        place = strength * (len(shares) + 1)
        below = place - len(shares)
        if below > 0:
            wanted = [share ** (1 / max(1 - below, 1e-3)) for share in shares[-1]]
        else:
            lower = min(int(place), len(shares) - 1)
            more = [[1.0] * len(shares[0]), *shares][lower]
            wanted = [a + (place - lower) * (b - a) for a, b in zip(more, shares[lower], strict=True)]
        counts = [max(round(patches * _at(wanted, _place(block, depth, len(wanted)))), 1) for block in range(depth)]
        return tuple(min(counts[: block + 1]) for block in range(depth))

    def step(self, inside: Inside, count: int) -> Reduction:
        """DiffRate (Chen et al., ICCV 2023): prune the tail of the ranking, merge the part before it.

        Tokens are ranked by the CLS attention of the block, or the given score. The last ones are dropped. Each token
        between them and the ``count`` first merges into the most similar of the latter: cosine of the hidden states
        after attention, and the plain mean of the states, as in the authors' code. There the size of a merged token
        grows by cos x size, which we do not let become negative. How many of the removed tokens are pruned follows
        the budget at which the block keeps the most similar share of its tokens. The similarities of pruned tokens
        are computed too, so that the cost does not depend on this split.
        """
        n = inside.patches.shape[1]
        merging = n - count - self.pruned(inside.block, inside.depth, n, count)
        ranking = inside.relevance.argsort(dim=1, descending=True, stable=True)
        keep, rest = ranking[:, :count], ranking[:, count:]
        states = inside.patches.to(torch.promote_types(inside.patches.dtype, torch.float32))
        kept, gone = take(states, keep), take(states, rest)
        similarity, destination = (normalize(gone, dim=-1) @ normalize(kept, dim=-1).transpose(1, 2)).max(dim=2)
        merged = (torch.arange(n - count, device=rest.device) < merging).expand_as(rest)
        assignment = kept.new_zeros(len(kept), count, n - count)
        assignment.scatter_(1, destination[:, None], merged.to(kept.dtype)[:, None])
        sizes = inside.sizes.to(kept.dtype)
        growth = similarity.clamp(min=0) * sizes.gather(1, rest)
        mean = torch.baddbmm(kept, assignment, gone) / (1 + assignment.sum(dim=2, keepdim=True))
        return Reduction(
            mean.to(inside.patches.dtype),
            keep,
            places(keep, n).scatter(1, rest, torch.where(merged, destination, DROPPED)),
            (sizes.gather(1, keep) + (assignment * growth[:, None]).sum(dim=2)).to(inside.sizes.dtype),
        )

    def pruned(self, block: int, depth: int, before: int, after: int) -> int:
        """How many of the tokens that a block removes are pruned."""
        budgets = self.budgets(depth)
        block = round(_place(block, depth, len(budgets[0].pruned)))
        removing = [budget for budget in budgets if budget.kept(block) < 1]
        if not removing:
            return 0
        distances = [abs(budget.kept(block) - after / before) for budget in removing]
        like = removing[distances.index(min(distances))]  # min with a key cannot be compiled
        share = like.pruned[block] / (like.counts[block] - like.counts[block + 1])
        return round(share * (before - after))


def _place(block: int, depth: int, blocks: int) -> float:
    """Where ``block`` of ``depth`` is among ``blocks``: the first and the last are the first and the last."""
    if block == depth - 1:
        return blocks - 1
    return block * (blocks - 2) / max(depth - 2, 1)


def _at(values: Sequence[float], place: float) -> float:
    """The values, interpolated linearly between two places."""
    lower = int(place)
    upper = min(lower + 1, len(values) - 1)
    return values[lower] + (place - lower) * (values[upper] - values[lower])


def _products(before: int, after: int, width: int, _head_dim: int) -> int:
    """Multiply-adds of the CLS row of attention, the similarities and the sums."""
    return before * width + 2 * (before - after) * after * width


_RATES = DiffRate()
#: The reducer of this file by name.
DIFFRATE: dict[str, Progressive] = {
    "diffrate": Progressive(_RATES.step, _RATES.schedule, scored=True, products=_products)
}
