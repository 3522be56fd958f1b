"""Residual unmerge against sums of updates, and what it gives back to the last bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from insides import make_inside
from redi.reduction import DROPPED, PROGRESSIVE, Reduction, unreduce
from redi.reduction.result import spread_tokens
from redi.reduction.unmerge import Unmerge, compose

#: The tokens before a step, and the step.
Step = tuple[Tensor, Reduction]
#: Reducers that merge, and some that drop tokens.
NAMES = ["protected", "protected-dense", "tome", "pitome", "evit", "gtp", "algm"]


def take_steps(name: str, counts: list[int], update: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Step]]:
    """Random patches through some steps, with an update after each; the tokens at the end and (before, reduction)."""
    inside = make_inside(36, 1, seed=1)
    tokens, steps = inside.patches, list[Step]()
    for block, count in enumerate(counts):
        n = tokens.shape[1]
        grid = {"origins": torch.arange(n).expand(3, -1), "grid": (6, 6)} if n == 36 else {}
        state = make_inside(n, 1, block)
        reduction = PROGRESSIVE[name].step(
            type(state)(**{**vars(state), "patches": tokens, "sizes": torch.ones(3, n), "bias": None, **grid}), count
        )
        steps.append((tokens, reduction))
        tokens = update(reduction.tokens)
    return tokens, steps


def unmerged(steps: list[Step]) -> Unmerge:
    result = Unmerge.first(*steps[0])
    for before, reduction in steps[1:]:
        result = result.then(before, reduction)
    return result


@pytest.mark.parametrize("name", NAMES)
def test_without_updates_every_patch_comes_back_to_the_last_bit(name: str) -> None:
    counts = [27] if name in ("gtp", "algm") else [30, 22, 13]
    tokens, steps = take_steps(name, counts, lambda tokens: tokens)
    assert torch.equal(unmerged(steps).patches(tokens), steps[0][0])


@pytest.mark.parametrize("name", ["protected", "tome", "evit"])
def test_a_patch_has_its_own_value_and_every_update_of_its_representatives(name: str) -> None:
    tokens, steps = take_steps(name, [30, 22, 13], lambda tokens: 1.5 * tokens + 1)
    expected = steps[0][0].clone()
    for image in range(3):
        for patch in range(36):
            at = patch
            for number, (_, reduction) in enumerate(steps):
                at = int(reduction.source[image, at])
                after = steps[number + 1][0] if number + 1 < len(steps) else tokens
                expected[image, patch] += after[image, at] - reduction.tokens[image, at]
    torch.testing.assert_close(unmerged(steps).patches(tokens), expected)


def test_a_dropped_patch_keeps_its_value_and_gets_no_update() -> None:
    before = torch.randn(1, 3, 4)
    first = Reduction(before[:, :2] + 1, torch.tensor([[0, 1]]), torch.tensor([[0, 1, DROPPED]]))
    second = Reduction(before[:, :1], torch.tensor([[0]]), torch.tensor([[0, DROPPED]]))
    unmerge = Unmerge.first(before, first).then(first.tokens, second)
    assert unmerge.source.tolist() == [[0, DROPPED, DROPPED]]
    assert torch.equal(unmerge.patches(second.tokens + 5)[:, 1:], before[:, 1:])
    torch.testing.assert_close(unmerge.patches(second.tokens + 5)[:, 0], before[:, 0] + 5)


def test_sources_compose_and_copies_are_those_of_unreduce() -> None:
    first, second = torch.tensor([[0, 2, 1, DROPPED]]), torch.tensor([[1, DROPPED, 0]])
    assert compose(first, second).tolist() == [[1, 0, DROPPED, DROPPED]]
    tokens = torch.randn(1, 2, 3)
    source = compose(first, second)
    assert torch.equal(spread_tokens(tokens, source), unreduce(tokens, source))
