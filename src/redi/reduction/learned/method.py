"""What a learned reducer is: its parameters, the reducer that they make, and how they learn from a batch.

The backbone stays frozen, and there are no labels: the parameters learn to keep the output of the reduced model close
to that of the dense one. Training masks tokens instead of removing them, so that a gradient can say what a token is
worth. A token that stays has the size 1 and one that goes the size 0, so proportional attention, which adds log(size)
to the logits of a key, is DynamicViT's attention mask.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from redi.cost import Geometry
from redi.reduction.adaptive import NEVER, Adaptive
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.reducer import Encoder, Schedule
from redi.reduction.result import Reduction, places, take

#: The size of a masked token. It is not 0, so that the gradient can say that it should come back.
TINY = 1e-6


@dataclass(frozen=True)
class Lesson:
    """One batch of images to learn from. It holds no labels."""

    encoder: Encoder
    tokens: Any  # of the images, before block 1
    cost: float  # relative to dense, drawn for this batch
    #: The distance of each image's output from the dense one, from what the encoder returned.
    distance: Callable[[Any], Float[Tensor, " batch"]]
    prefix_only: bool  # whether the output is read from the prefix alone
    generator: torch.Generator  # of all randomness

    def pass_with(self, step: Callable[[Inside], Reduction], blocks: Collection[int]) -> Any:
        """A forward pass with a step in some blocks, which may leave any number of tokens."""

        def thresholds(depth: int, _strength: float) -> tuple[float, ...]:
            return tuple(0.0 if block in blocks else NEVER for block in range(depth))

        reducer = Adaptive(lambda inside, _threshold: step(inside), thresholds)
        return self.encoder.encode_adaptively(self.tokens, reducer, 1.0, prefix_only=self.prefix_only)

    def random(self, like: Tensor) -> Tensor:
        """Uniform numbers between 0 and 1, both excluded."""
        numbers = torch.rand(like.shape, generator=self.generator).clamp(1e-6, 1 - 1e-6)
        return numbers.to(like.device)


class Learned(nn.Module, ABC):
    """The parameters of one method for one backbone and grid."""

    name: ClassVar[str]
    drops: ClassVar[bool] = True  # whether patches are dropped, not merged
    #: Passes over the images, and batches, that a method takes at most; 0 means that the number of steps decides.
    epochs: ClassVar[int] = 0
    lessons: ClassVar[int] = 0
    #: The learning rate of AdamW at the start.
    rate: ClassVar[float] = 1e-3

    def __init__(self, on: Geometry) -> None:
        super().__init__()
        self.on = on
        self._schedules: dict[tuple[float, bool], Schedule] = {}

    @abstractmethod
    def reducer(self) -> Progressive | Adaptive:
        """The reducer that the parameters make, for use as they are now."""

    @abstractmethod
    def learn(self, lesson: Lesson) -> Float[Tensor, ""] | None:
        """The loss on a batch; None if the method only counts and there is nothing to descend."""

    def states(self, inside: Inside) -> Float[Tensor, "batch patches dim"]:
        """The tokens in the precision of the parameters."""
        return inside.patches.to(next(self.parameters()).dtype)

    def schedule(self, lesson: Lesson) -> Schedule:
        """The patch tokens after each block at the cost of a lesson."""
        key = (lesson.cost, lesson.prefix_only)
        if key not in self._schedules:
            reducer = self.reducer()
            assert isinstance(reducer, Progressive)
            self._schedules[key] = reducer.extent_within_cost(lesson.cost, self.on, lesson.prefix_only).schedule
        return self._schedules[key]


def unchanged(inside: Inside) -> Reduction:
    """All tokens as they are."""
    return masked(inside, torch.ones_like(inside.sizes))


def masked(inside: Inside, sizes: Float[Tensor, "batch patches"]) -> Reduction:
    """All tokens, with new sizes: close to 0 for a token that is masked."""
    index = torch.arange(inside.patches.shape[1], device=inside.patches.device).expand(len(inside.patches), -1)
    return Reduction(inside.patches, index, index, TINY + (1 - TINY) * sizes)


def keep_best(inside: Inside, scores: Float[Tensor, "batch patches"], count: int) -> Reduction:
    """Keep the tokens with the highest scores, in order, and drop the others."""
    kept = scores.argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
    return Reduction(take(inside.patches, kept), kept, places(kept, scores.shape[1]))


def drawn_mask(
    logits: Float[Tensor, "batch patches"], noise: Float[Tensor, "batch patches"], temperature: float = 1.0
) -> Float[Tensor, "batch patches"]:
    """1 for tokens that are kept and 0 for others, by the straight-through Gumbel softmax of two classes.

    The difference of two Gumbel variables is logistic, log(u / (1 - u)). Forward, the mask is hard. Backward, it is
    sigmoid((logit + noise) / temperature).
    """
    soft = ((logits + noise.logit()) / temperature).sigmoid()
    return (soft > 0.5).to(soft.dtype) + soft - soft.detach()


#: Standard deviation of the moves of :func:`slope_loss`.
MOVE = 0.1


def slope_loss(
    method: Learned, objective: Callable[[], float], generator: torch.Generator, directions: int = 1
) -> Float[Tensor, ""]:
    """A loss for parameters that an objective depends on without a gradient, such as those of a ranking.

    The parameters are moved at random, forth and back. The difference of the two objectives is the slope along that
    direction, and the gradient of the loss is that slope times the direction, mean over some directions: an evolution
    strategy with antithetic samples. It needs forward passes alone. The value of the loss is the mean objective.
    """
    parameters = list(method.parameters())

    @torch.no_grad()
    def moved(moves: Sequence[Tensor], by: float) -> float:
        before = [value.clone() for value in parameters]
        for value, move in zip(parameters, moves, strict=True):
            value.add_(move, alpha=by)
        try:
            return objective()
        finally:
            for value, old in zip(parameters, before, strict=True):
                value.copy_(old)

    objectives, slopes = 0.0, torch.zeros((), device=parameters[0].device)
    for _ in range(directions):
        moves = [torch.randn(value.shape, generator=generator).to(value.device) for value in parameters]
        forth, back = moved(moves, MOVE), moved(moves, -MOVE)
        objectives += (forth + back) / 2
        along = torch.stack([(value * move).sum() for value, move in zip(parameters, moves, strict=True)]).sum()
        slopes = slopes + (forth - back) / (2 * MOVE) * along
    return (objectives + slopes - slopes.detach()) / directions
