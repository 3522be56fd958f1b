"""Methods that replace all tokens by a few mixtures of them, once, halfway through: PatchMerger and TokenLearner.

A mixture has no place of its own. Under rotary positions it takes that of the patch with the largest weight in it, and
for ``Reduction.source`` a patch went into the mixture that takes the largest share of it. Both papers train the blocks
after the module with it; here they are frozen. Mixtures are of the tokens as they are, so that they look like tokens to
the next block, while the weights come from normalised tokens.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.cost import Geometry
from redi.errors import ConfigError
from redi.reduction.learned.method import Learned, Lesson
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.result import Reduction
from redi.reduction.schedule import Once

#: The share of the blocks before the module.
PLACE = 0.5
#: Standard deviation of the first logits, for normalised tokens.
SPREAD = 4.0


class Mixing(Learned):
    """A method that learns its mixtures directly, because they are smooth functions of its parameters.

    One set of parameters serves every cost: of ``most`` mixtures the first ones are used, and each batch draws a cost.
    """

    drops = False

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.most = on.patches

    @abstractmethod
    def weights(self, states: Float[Tensor, "batch patches dim"], count: int) -> Float[Tensor, "batch count patches"]:
        """The weight of every token in every mixture; each row sums to one."""

    @abstractmethod
    def products(self, before: int, after: int, width: int, head_dim: int) -> int:
        """Multiply-adds of the weights and of the mixtures."""

    def step(self, inside: Inside, count: int) -> Reduction:
        if count > self.most:
            raise ConfigError(f"{self.name} has learned {self.most} mixtures, but {count} are needed: lower the cost.")
        weights = self.weights(self.states(inside), count)
        return Reduction(
            weights.to(inside.patches.dtype) @ inside.patches,
            weights.argmax(dim=2),
            weights.argmax(dim=1),
            (inside.sizes.sum(dim=1, keepdim=True) / count).expand(-1, count),  # all mixtures count alike
        )

    def reducer(self) -> Progressive:
        return Progressive(self.step, Once(PLACE), proportional=False, products=self.products)

    def learn(self, lesson: Lesson) -> Float[Tensor, ""]:
        schedule = self.schedule(lesson)
        short = lesson.encoder.encode_progressively(
            lesson.tokens, self.reducer(), schedule, prefix_only=lesson.prefix_only
        )
        return lesson.distance(short).mean()


class PatchMerger(Mixing):
    """PatchMerger (Renggli et al., 2022): Y = softmax(W X^T) X, with a learned query for every mixture."""

    name = "patchmerger"
    rate = 1e-2

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.norm = nn.LayerNorm(on.width)
        self.queries = nn.Parameter(torch.randn(self.most, on.width) * SPREAD * on.width**-0.5)

    def weights(self, states: Float[Tensor, "batch patches dim"], count: int) -> Float[Tensor, "batch count patches"]:
        logits: Tensor = self.queries[:count] @ self.norm(states).transpose(1, 2)
        return logits.softmax(dim=-1)

    def products(self, before: int, after: int, width: int, head_dim: int) -> int:  # noqa: ARG002
        return 2 * before * after * width


class TokenLearner(Mixing):
    """TokenLearner (Ryoo et al., NeurIPS 2021), version 1.1: weights from an MLP on each token, softmax over tokens.

    A = softmax(MLP(LN(X))) with one column per mixture, Y = A^T X. The first version has convolutions and a sigmoid.
    """

    name = "tokenlearner"

    def __init__(self, on: Geometry) -> None:
        super().__init__(on)
        self.enter = nn.Sequential(nn.LayerNorm(on.width), nn.Linear(on.width, on.width), nn.GELU())
        self.leave = nn.Linear(on.width, self.most)
        # Mixtures that differ from the start: equal ones would all get the same gradient.
        nn.init.normal_(self.leave.weight, std=SPREAD * on.width**-0.5)

    def weights(self, states: Float[Tensor, "batch patches dim"], count: int) -> Float[Tensor, "batch count patches"]:
        hidden = self.enter(states)
        columns = hidden @ self.leave.weight[:count].T + self.leave.bias[:count]
        weights: Tensor = columns.softmax(dim=1).transpose(1, 2)
        return weights

    def products(self, before: int, after: int, width: int, head_dim: int) -> int:  # noqa: ARG002
        return before * width * width + 2 * before * after * width
