"""Methods whose modules predict which tokens to keep, trained through masks: DynamicViT, SPViT, AdaViT.

Each predicts a logit per token. Training draws masks from the logits; at inference the tokens with the highest logits
stay, as many as the schedule says. The papers train these modules together with the backbone; here it is frozen.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from redi.cost import Geometry
from redi.reduction.learned.method import Learned, Lesson, drawn_mask, keep_best, masked
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction, fuse_rest
from redi.reduction.schedule import early, three_blocks, thrice

#: The logit of every token at the start, nearly: most tokens are kept, so that the output can say which ones matter.
KEPT = 2.0


class Masked(Learned):
    """A method that learns through masks: distance from dense, plus the squared error of the share it keeps."""

    budget: ClassVar[float] = 2.0  # weight of the second term; DynamicViT's is 2
    rate = 1e-2
    blocks: Sequence[int]

    @abstractmethod
    def logits(self, inside: Inside) -> Float[Tensor, "batch patches"]:
        """High for a token to keep. ``inside.sizes`` is the mask so far, or 1 for all tokens at inference."""

    @abstractmethod
    def reducer(self) -> Progressive: ...

    def reduced(self, inside: Inside, count: int) -> Reduction:
        """The step at inference."""
        return keep_best(inside, self.logits(inside), count)

    def masked(self, inside: Inside, noise: Float[Tensor, "batch patches"]) -> Reduction:
        """The step in training."""
        return masked(inside, inside.sizes * drawn_mask(self.logits(inside), noise))

    def error(self, sizes: Float[Tensor, "batch tokens"], target: int) -> Float[Tensor, " batch"]:
        """The squared error of the share of patches that each image keeps."""
        return ((sizes.sum(dim=1) - target) / self.on.patches) ** 2

    def learn(self, lesson: Lesson) -> Float[Tensor, ""]:
        targets, errors = self.schedule(lesson), []

        def step(inside: Inside) -> Reduction:
            reduction = self.masked(inside, lesson.random(inside.sizes))
            assert reduction.sizes is not None
            errors.append(self.error(reduction.sizes, targets[inside.block]).mean())
            return reduction

        student = lesson.pass_with(step, self.blocks)
        return lesson.distance(student).mean() + self.budget * torch.stack(errors).mean()


def _keeping(inputs: int, logits: int) -> nn.Linear:
    """The last layer of a predictor, which starts by keeping most tokens."""
    layer = nn.Linear(inputs, logits)
    nn.init.constant_(layer.bias, KEPT)
    return layer


class DynamicViT(Masked):
    """DynamicViT (Rao et al., NeurIPS 2021): a prediction module in three blocks.

    A token's logit comes from its own features and from their mean over the tokens that are still there:
    z = MLP(LN(x)), split into halves; local = first half, global = mean of the second; logit = MLP([local, global]).
    """

    name = "dynamicvit"

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.blocks = three_blocks(on.depth)
        self.predictors = nn.ModuleDict({str(block): _Predictor(on.width) for block in self.blocks})

    def logits(self, inside: Inside) -> Float[Tensor, "batch patches"]:
        scores: Tensor = self.predictors[str(inside.block)](self.states(inside), inside.sizes)
        return scores

    def reducer(self) -> Progressive:
        return Progressive(
            self.reduced,
            thrice,
            proportional=False,
            # d -> d, d -> d/2, d/2 -> d/4, d/4 -> 1
            products=lambda before, after, width, head_dim: before * (13 * width * width // 8 + width // 4),
        )


class _Predictor(nn.Module):
    """The prediction module of DynamicViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.leave = nn.Sequential(
            nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, width // 4), nn.GELU()
        )
        self.score = _keeping(width // 4, 1)

    def forward(
        self, patches: Float[Tensor, "batch patches dim"], kept: Float[Tensor, "batch patches"]
    ) -> Float[Tensor, "batch patches"]:
        local, shared = self.enter(patches).tensor_split(2, dim=-1)
        weights = kept[..., None].to(shared.dtype)
        mean = (shared * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
        scores: Tensor = self.score(self.leave(torch.cat([local, mean.expand_as(shared)], dim=-1)))[..., 0]
        return scores


class SPViT(Masked):
    """SPViT (Kong et al., ECCV 2022): a selector per head, and a package token for what is not kept.

    Each head has the features x_h of its channels and a classifier as in DynamicViT, which gives p_h. The heads are
    weighted by a_h = sigmoid(MLP(mean of their channels)), so p = sum_h a_h p_h / sum_h a_h. The tokens that go become
    one token, sum p_i x_i / sum p_i. It comes last, counts as one of the kept tokens and may go later like any other.
    """

    name = "spvit"
    drops = False

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.blocks = three_blocks(on.depth)
        self.heads = on.width // on.head_dim
        self.predictors = nn.ModuleDict({str(block): _Selector(self.heads, on.head_dim) for block in self.blocks})

    def logits(self, inside: Inside) -> Float[Tensor, "batch patches"]:
        probability: Tensor = self.predictors[str(inside.block)](self.states(inside), inside.sizes)
        return probability.logit(eps=1e-6)

    def reduced(self, inside: Inside, count: int) -> Reduction:
        logits = self.logits(inside)
        reduction = fuse_rest(inside.patches, logits, logits.sigmoid(), count)
        # The package is one token, as in training.
        return reduction._replace(sizes=inside.sizes.new_ones(len(logits), count))

    def masked(self, inside: Inside, noise: Float[Tensor, "batch patches"]) -> Reduction:
        """All tokens and the package; of several packages, an earlier one may be masked like a token."""
        logits = self.logits(inside)
        kept = inside.sizes * drawn_mask(logits, noise)
        usual = masked(inside, kept)
        package = self._package(inside.patches, logits.sigmoid() * (inside.sizes - kept).clamp(min=0) + 1e-8)
        assert usual.sizes is not None
        gone = (inside.sizes - kept) > 0.5
        leader = logits.masked_fill(~gone, -torch.inf).argmax(dim=1, keepdim=True)
        return Reduction(
            torch.cat([inside.patches, package], dim=1),
            torch.cat([usual.positions, leader], dim=1),
            usual.source,
            torch.cat([usual.sizes, torch.ones_like(usual.sizes[:, :1])], dim=1),
        )

    @staticmethod
    def _package(
        patches: Float[Tensor, "batch patches dim"], weights: Float[Tensor, "batch patches"]
    ) -> Float[Tensor, "batch one dim"]:
        shares = (weights / weights.sum(dim=1, keepdim=True)).to(patches.dtype)
        return shares[:, None] @ patches

    def reducer(self) -> Progressive:
        def products(before: int, after: int, width: int, head_dim: int) -> int:
            own = head_dim * head_dim // 2 + head_dim * head_dim // 2 + head_dim // 2  # per head
            heads = width // head_dim
            return before * (heads * own + 2 * heads * heads) + (before - after + 1) * width

        return Progressive(self.reduced, thrice, proportional=False, products=products)


class _Selector(nn.Module):
    """The selector of SPViT; gives the probability that a token is kept."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        half = head_dim // 2
        self.heads = heads
        self.norm = nn.LayerNorm(heads * head_dim)
        self.enter = nn.Sequential(nn.Linear(head_dim, half), nn.GELU())
        self.leave = nn.Sequential(nn.Linear(2 * half, half), nn.GELU(), _keeping(half, 1))
        self.weigh = nn.Sequential(nn.Linear(heads, heads), nn.GELU(), nn.Linear(heads, heads))

    def forward(
        self, patches: Float[Tensor, "batch patches dim"], kept: Float[Tensor, "batch patches"]
    ) -> Float[Tensor, "batch patches"]:
        normed = self.norm(patches)
        by_head = normed.unflatten(-1, (self.heads, -1))
        local = self.enter(by_head)
        weights = kept[..., None, None].to(local.dtype)
        mean = (local * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
        scores = self.leave(torch.cat([local, mean.expand_as(local)], dim=-1))[..., 0].sigmoid()
        importance = self.weigh(by_head.mean(dim=-1)).sigmoid()
        probability: Tensor = (importance * scores).sum(dim=-1) / importance.sum(dim=-1)
        return probability


class AdaViT(Masked):
    """AdaViT (Meng et al., CVPR 2022), its patch policy alone: one linear layer per block.

    The paper also decides on heads and whole blocks, and a patch that one block skips may return in the next. A frozen
    block without some of its heads is another function, so those policies are left out; a patch that goes stays away.
    """

    name = "adavit"

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        removing = early(on.patches, on.depth, 0.5)
        before = (on.patches, *removing)
        self.blocks = tuple(block for block in range(on.depth) if removing[block] < before[block])
        self.predictors = nn.ModuleDict(
            {str(block): nn.Sequential(nn.LayerNorm(on.width), _keeping(on.width, 1)) for block in self.blocks}
        )

    def logits(self, inside: Inside) -> Float[Tensor, "batch patches"]:
        block = min(self.blocks, key=lambda known: abs(known - inside.block))
        scores: Tensor = self.predictors[str(block)](self.states(inside))[..., 0]
        return scores

    def reducer(self) -> Progressive:
        return Progressive(
            self.reduced, early, proportional=False, products=lambda before, after, width, head_dim: before * width
        )


class IARED(Masked):
    """IA-RED^2 (Pan et al., NeurIPS 2021), its patch policy: a multi-head interpreter in three blocks, by reward.

    The policy is P_i = mean_h sigmoid(F_q(x_i)_h . F_k(p)_h / sqrt(d_h)) with a policy token p. Here p reaches no other
    layer, so F_q^T F_k(p) is one vector and one bias per head, which are learned themselves. Training is REINFORCE with
    the greedy policy as the baseline. The reward of the paper is 1 - share^2 for a right answer and -tau for a wrong
    one. Without labels there is no wrong answer, only a distance from dense, and the share has a target: here the
    reward is minus the loss of the other methods.
    """

    name = "ia-red2"
    rate = 3e-3

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.blocks, heads = three_blocks(on.depth), on.width // on.head_dim
        self.predictors = nn.ModuleDict(
            {
                str(block): nn.Sequential(nn.LayerNorm(on.width, elementwise_affine=False), _keeping(on.width, heads))
                for block in self.blocks
            }
        )

    def logits(self, inside: Inside) -> Float[Tensor, "batch patches"]:
        by_head: Tensor = self.predictors[str(inside.block)](self.states(inside))
        return by_head.sigmoid().mean(dim=-1).logit(eps=1e-6)

    def reducer(self) -> Progressive:
        return Progressive(
            self.reduced,
            thrice,
            proportional=False,
            products=lambda before, after, width, head_dim: before * width * (width // head_dim),
        )

    def learn(self, lesson: Lesson) -> Float[Tensor, ""]:
        """No gradient goes through the backbone: the reward is a number."""
        baseline, _ = self._try(lesson, draw=False)
        reward, chance = self._try(lesson, draw=True)
        advantage = reward - baseline
        return -(advantage * chance / advantage.std(correction=0).clamp(min=1e-6)).mean()

    def _try(self, lesson: Lesson, draw: bool) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """A pass under the policy: its reward, and the log-probability of its choices, mean over the tokens."""
        targets, errors, chances = self.schedule(lesson), [], []

        def step(inside: Inside) -> Reduction:
            with torch.enable_grad():
                logits = self.logits(inside)
            there = (inside.sizes > 0.5).to(logits.dtype)
            noise = lesson.random(logits) if draw else torch.full_like(logits, 0.5)
            kept = (logits.detach() + noise.logit() > 0).to(logits.dtype)
            with torch.enable_grad():
                chance = torch.where(kept > 0, logsigmoid(logits), logsigmoid(-logits)) * there
                chances.append(chance.sum(dim=1) / there.sum(dim=1).clamp(min=1))
            sizes = there * kept
            errors.append(self.error(sizes, targets[inside.block]))
            return masked(inside, sizes)

        with torch.no_grad():
            distance = lesson.distance(lesson.pass_with(step, self.blocks))
        reward = -distance - self.budget * torch.stack(errors).mean(dim=0)
        return reward, torch.stack(chances).sum(dim=0)
