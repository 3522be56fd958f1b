"""A-ViT (Yin et al., CVPR 2022): each token halts when its accumulated halting probability reaches one.

Adaptive: images differ in length. One neuron of a token is its halting logit, h = sigmoid(gamma t_0 + beta), and a
token is gone from the block on in which the sum of its h reaches 1 - epsilon. The paper fine-tunes the whole network,
so that the neuron learns its task. Here the two scalars are all that is set: gamma is the best of six on the images,
and beta is what meets the cost. CLS never halts, because the head was trained on its last state and not on the paper's
mean over the blocks.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from redi.cost import Geometry
from redi.reduction.adaptive import NEVER, Adaptive, Thresholds, compacted
from redi.reduction.learned.method import Learned, Lesson, masked
from redi.reduction.progressive import Inside
from redi.reduction.result import DROPPED, Reduction, places, take

#: The paper's epsilon.
EPSILON = 0.01
#: The values of gamma that are tried; the first is that of an untrained method.
GAMMAS = (1.0, 2.0, 4.0, -1.0, -2.0, -4.0)
#: Beta at strengths 0 and 1.
BETAS = (-8.0, 4.0)
#: Passes of the search for the beta that meets the cost of a batch.
SEARCH = 7


class AViT(Learned):
    """The scalars of A-ViT."""

    name = "a-vit"
    lessons = 12
    distance: Tensor  # from dense for each gamma, summed over the batches

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.register_buffer("distance", torch.zeros(len(GAMMAS)))

    @property
    def gamma(self) -> float:
        return GAMMAS[int(self.distance.argmin())]

    def step(self, inside: Inside, beta: float) -> Reduction:
        """Drop the tokens that halt."""
        total = halting(inside, self.gamma, beta)
        stays = _staying(total, inside.sizes > 0)
        index, _ = compacted(stays)
        real = stays.gather(1, index)
        source = places(index, total.shape[1])
        return Reduction(
            take(inside.patches, index),
            index,
            torch.where(stays, source, DROPPED),
            real.to(inside.sizes.dtype),
            total.gather(1, index),
        )

    def reducer(self) -> Adaptive:
        return Adaptive(self.step, _betas, products=lambda before, after, width, head_dim: before)

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> None:
        """Try every gamma with the lowest beta that meets the cost of the lesson.

        This takes the place of the paper's ponder loss and depth prior.
        """
        for number, gamma in enumerate(GAMMAS):
            low, high = BETAS
            met = torch.inf  # a gamma that cannot meet the cost is not taken
            for _ in range(SEARCH):
                beta = (low + high) / 2
                share, distance = self.halted(lesson, gamma, beta)
                if share > lesson.cost:
                    low = beta
                else:
                    high, met = beta, distance
            self.distance[number] += met

    def halted(self, lesson: Lesson, gamma: float, beta: float) -> tuple[float, float]:
        """A pass: its share of tokens, mean over the blocks, which is nearly its cost; and its distance from dense."""
        shares = [torch.tensor(1.0)]

        def step(inside: Inside) -> Reduction:
            total = halting(inside, gamma, beta)
            stays = _staying(total, inside.sizes > 0.5)
            shares.append(stays.float().mean().cpu())
            return masked(inside, stays.to(inside.sizes.dtype))._replace(memory=total)

        short = lesson.pass_with(step, range(1, self.on.depth))
        return torch.stack(shares).mean().item(), lesson.distance(short).mean().item()


def halting(inside: Inside, gamma: float, beta: float) -> Float[Tensor, "batch patches"]:
    """The accumulated halting probability of each token, up to this block."""
    now = (gamma * inside.patches[..., 0] + beta).sigmoid()
    return now if inside.memory is None else inside.memory + now


def _staying(
    total: Float[Tensor, "batch patches"], there: Bool[Tensor, "batch patches"]
) -> Bool[Tensor, "batch patches"]:
    """The tokens that have not halted, and at least the one that is furthest from it."""
    least = total.masked_fill(~there, torch.inf).argmin(dim=1, keepdim=True)
    return ((total < 1 - EPSILON) & there).scatter(1, least, True)


def _betas(depth: int, strength: float) -> Thresholds:
    if strength == 0:
        return (NEVER,) * depth
    low, high = BETAS
    return (NEVER, *(low + (high - low) * strength,) * (depth - 1))
