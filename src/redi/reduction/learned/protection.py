"""Our own step with a relevance that is learned for every block, from exactly that of ``redi.accelerate`` on.

The relevance of a token is a product of powers, log r = theta_b . f, and the damage of a merge is r^p_b |x_a - x_b|^2
as in :func:`redi.reduction.protected.protected`. Theta and p are learned, linear in the block b. The features f are
the logarithms of the attention to a token (mean over the heads, and each head relative to that mean), of its size,
and of its distance from the mean token. At the start, relevance is the mean attention and p that of
``redi.accelerate``.

Which tokens merge is a ranking, which has no gradient, so an evolution strategy moves these few parameters.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.cost import Geometry
from redi.reduction.learned.method import Learned, Lesson, slope_loss
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.protected import LEAST, OURS, PROTECTION, protected
from redi.reduction.result import Reduction

#: Directions that the evolution strategy tries for every batch: with fewer, chance moves the parameters.
DIRECTIONS = 4


class Protection(Learned):
    """Exponents of relevance and of protection: in the middle of the blocks, and half of what they change by."""

    name = "protected-learned"
    drops = False
    epochs = 2
    rate = 1e-2

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        heads = on.width // on.head_dim
        self.exponents = nn.Parameter(torch.zeros(2, heads + 3))
        self.protection = nn.Parameter(torch.tensor([PROTECTION, 0.0]))
        with torch.no_grad():
            self.exponents[0, 0] = 1

    def features(self, inside: Inside) -> Float[Tensor, "batch patches features"]:
        by_head = inside.head_attention.clamp(min=LEAST)
        mean = by_head.mean(dim=1, keepdim=True)
        far = (inside.patches - inside.patches.mean(dim=1, keepdim=True)).norm(dim=-1)
        others = torch.stack([inside.sizes, far.to(mean.dtype).clamp(min=LEAST)], dim=1)
        return torch.cat([mean, by_head / mean, others], dim=1).log().transpose(1, 2)

    def step(self, inside: Inside, count: int) -> Reduction:
        place = 2 * inside.block / max(inside.depth - 1, 1) - 1  # from -1 to 1
        exponents, protection = (values[0] + place * values[1] for values in (self.exponents, self.protection))
        features = self.features(inside)  # in FP32 at least, because the sizes are
        # Large, so that the offset that makes other scores positive does not count.
        relevance = 1e6 * (features @ exponents.to(features.dtype)).softmax(dim=1)
        # Negative protection would seek damage.
        return protected(replace(inside, scores=relevance), count, protection=protection.clamp(min=0))

    def reducer(self) -> Progressive:
        base = OURS["protected"]

        def products(before: int, after: int, width: int, head_dim: int) -> int:
            features = width // head_dim + 3
            return base.products(before, after, width, head_dim) + before * (width + features)

        return replace(base, step=self.step, products=products, scored=False)

    def learn(self, lesson: Lesson) -> Float[Tensor, ""]:
        schedule = self.schedule(lesson)

        def objective() -> float:
            """The mean root of the distance from dense: the root tames images that are far off."""
            reducer = self.reducer()
            short = lesson.encoder.encode_progressively(
                lesson.tokens, reducer, schedule, prefix_only=lesson.prefix_only
            )
            return lesson.distance(short).clamp(min=0).sqrt().mean().item()

        return slope_loss(self, objective, lesson.generator, DIRECTIONS)
