"""Variants of our step: another criterion, weight, matching or relevance in `protected`, all at one cost.

    python experiments/step_variants.py --backbone CHECKPOINT --images FOLDER [--cost 0.55] [--variants full ward]

The cost counts a variant's own matching. "Full, free" shows what full matching would be worth if it cost as much as
ours. Tokens do not take the position of their most relevant member, which matters for rotary positions only.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from common import arguments, development, show
from redi.deploy import Setting
from redi.reduction import Inside, Progressive, Reduction
from redi.reduction.merging import mlerp
from redi.reduction.protected import LEAST, OURS
from redi.reduction.result import take


@dataclass(frozen=True)
class Variant:
    """The parts of the step that can differ; the defaults are those of `protected`."""

    protection: float = 0.5
    ward: bool = False  # damage m_a m_b / (m_a + m_b) |x_a - x_b|^2 with m = relevance ^ protection
    full: bool = False  # every token may merge into every other, not only A into B
    dims: int = 0  # distances on a random projection to so many dimensions; 0 for the states themselves
    largest_head: bool = False  # relevance is the maximum over the heads instead of the mean
    mixed: float = 0.0  # share of size in relevance
    weight: str = "relevance"  # of a member in the mean; or size, or their geometric mean
    longest: bool = False  # the length of the longest member (MLERP) instead of the mean length
    free: bool = False  # the extra work of matching is not counted

    def __call__(self, inside: Inside, count: int) -> Reduction:
        states, n = inside.patches, inside.patches.shape[1]
        size = inside.sizes / inside.sizes.sum(dim=1, keepdim=True)
        relevance = _largest_head(inside) if self.largest_head else inside.attention
        relevance = relevance / relevance.sum(dim=1, keepdim=True)
        relevance = ((1 - self.mixed) * relevance + self.mixed * size).clamp(min=LEAST)
        distances = self._distances(states, inside.block)
        gone = self._gone(distances, relevance**self.protection, n - count)
        target = torch.where(gone, distances.masked_fill(gone[:, None], inf).argmin(dim=2), torch.arange(n))
        weight = {"relevance": relevance, "size": size, "both": (relevance * size).sqrt()}[self.weight]
        into = one_hot(target, n).transpose(1, 2) * weight[:, None]
        into = into / into.sum(dim=2, keepdim=True).clamp(min=LEAST)
        mean, length = into @ states, into @ states.norm(dim=2, keepdim=True)
        tokens = mean * (length / mean.norm(dim=2, keepdim=True).clamp(min=LEAST))
        kept = gone.long().argsort(dim=1, stable=True)[:, :count]
        place = (~gone).long().cumsum(dim=1) - 1
        reduction = Reduction(take(tokens, kept), kept, place.gather(1, target))
        return mlerp(states, reduction) if self.longest else reduction

    def _distances(self, states: Tensor, block: int) -> Tensor:
        """Squared distances, infinite where a token (row) may not merge into another (column)."""
        n, width = states.shape[1:]
        states = states - states.mean(dim=1, keepdim=True)  # a large common part would make distances inexact
        if self.dims:
            seed = torch.Generator().manual_seed(block)
            states = states @ torch.randn(width, self.dims, generator=seed) / self.dims**0.5
        odd = torch.arange(n) % 2 == 1
        allowed = ~torch.eye(n, dtype=torch.bool) if self.full else odd[:, None] & ~odd
        return torch.cdist(states, states).square().masked_fill(~allowed, inf)

    def _gone(self, distances: Tensor, mass: Tensor, remove: int) -> Tensor:
        """The tokens whose merge does least damage; of two that are nearest to each other, the heavier stays."""
        closest, nearest = distances.min(dim=2)
        partner = mass.gather(1, nearest)
        damage = (mass * partner / (mass + partner) if self.ward else mass) * closest
        if self.full:
            tokens = torch.arange(mass.shape[1])
            heavier = (mass > partner) | ((mass == partner) & (tokens < nearest))
            damage = damage.masked_fill((nearest.gather(1, nearest) == tokens) & heavier, inf)
        order = damage.argsort(dim=1, stable=True)[:, :remove]
        return torch.zeros_like(mass, dtype=torch.bool).scatter(1, order, True)

    def products(self, before: int, after: int, width: int, head_dim: int) -> int:
        """Ours, with other distances: full ones are symmetric, so half of them is enough."""
        ours = OURS["protected"].products(before, after, width, head_dim)
        if self.free or not (self.full or self.dims):
            return ours
        halves = (before // 2) * ((before + 1) // 2)
        pairs, projection = before * before // 2 if self.full else halves, before * width * self.dims
        return ours - halves * width + pairs * (self.dims or width) + projection


def _largest_head(inside: Inside) -> Tensor:
    logits = inside.scale * inside.query[:, :, :1] @ inside.key.transpose(2, 3)
    logits = logits if inside.bias is None else logits + inside.bias
    return logits.softmax(dim=-1).amax(dim=1)[:, 0, inside.prefix :]


@dataclass(frozen=True)
class Tried(Setting):
    """A setting with a variant of the step."""

    step: Variant = Variant()

    @cached_property
    def reducer(self) -> Progressive:
        return replace(OURS["protected"], step=self.step, products=self.step.products)


VARIANTS = {
    "ours": Variant(),
    "protection 0.35": Variant(protection=0.35),
    "protection 0.7": Variant(protection=0.7),
    "ward": Variant(ward=True),
    "full": Variant(full=True),
    "full, free": Variant(full=True, free=True),
    "full, ward, free": Variant(full=True, ward=True, free=True),
    "64 dimensions": Variant(dims=64),
    "full, 64 dimensions": Variant(full=True, dims=64),
    "32 dimensions": Variant(dims=32),
    "largest head": Variant(largest_head=True),
    "0.2 of size in relevance": Variant(mixed=0.2),
    "0.5 of size in relevance": Variant(mixed=0.5),
    "size as weight": Variant(weight="size"),
    "geometric mean as weight": Variant(weight="both"),
    "longest (MLERP)": Variant(longest=True),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cost", type=float, default=0.55)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    ground = development(options.backbone, options.images, options.limit, options.classes)
    rows = [ground.row("`protected`", Setting(options.cost))]
    rows += [ground.row(name, Tried(options.cost, step=VARIANTS[name])) for name in options.variants]
    print(f"Cost {options.cost:g}, {len(ground.pixels)} images\n\n{show(rows)}")


if __name__ == "__main__":
    main()
