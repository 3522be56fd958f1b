"""Learned reducers: their steps against loops from their docstrings, and masks against tokens that are really gone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import erf, exp, fsum, log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import save_checkpoint
from loops import Vector, attention_of, dot
from redi.backbone import Backbone, load_backbone
from redi.cost import Geometry
from redi.errors import ConfigError
from redi.learning.teacher import Teacher
from redi.reduction import DROPPED, Adaptive, Inside, Progressive, Reduction
from redi.reduction.adaptive import NEVER
from redi.reduction.learned import LEARNED, Learned, Lesson
from redi.reduction.learned.halting import EPSILON, GAMMAS, SEARCH, AViT
from redi.reduction.learned.masks import IARED, AdaViT, DynamicViT, Masked, SPViT
from redi.reduction.learned.method import TINY, drawn_mask, keep_best, masked, slope_loss
from redi.reduction.learned.mixing import Mixing, PatchMerger, TokenLearner
from redi.reduction.learned.protection import Protection
from redi.reduction.learned.targets import PatchSlimming, WeiToP
from redi.reduction.progressive import Products
from redi.reduction.protected import OURS, protected
from redi.reduction.schedule import three_blocks

#: The sizes of the small backbones and of :func:`block_of`.
ON = Geometry((6, 6), prefix=1, width=32, head_dim=8, depth=3)
#: A block in which every method has a module.
BLOCK = 1

MASKED: dict[str, type[Masked]] = {kind.name: kind for kind in (DynamicViT, SPViT, AdaViT, IARED)}
MIXING: dict[str, type[Mixing]] = {kind.name: kind for kind in (PatchMerger, TokenLearner)}
PROGRESSIVES = [name for name in LEARNED if name != "a-vit"]

masks = pytest.mark.parametrize("name", MASKED)
mixings = pytest.mark.parametrize("name", MIXING)
every = pytest.mark.parametrize("name", LEARNED)
counts = pytest.mark.parametrize("count", [35, 20, 18])


def block_of(n: int = 36, batch: int = 3, block: int = BLOCK, sizes: Tensor | None = None) -> Inside:
    """A block of a backbone with the sizes of :data:`ON`, in which every token is one patch."""
    query, key, value = torch.randn(3, batch, 4, 1 + n, 8)
    return Inside(
        patches=torch.randn(batch, n, 32),
        sizes=torch.ones(batch, n) if sizes is None else sizes,
        scores=None,
        query=query,
        key=key,
        value=value,
        bias=None,
        scale=8**-0.5,
        prefix=1,
        block=block,
        depth=3,
        origins=torch.arange(n).expand(batch, -1),
        grid=(6, 6),
    )


def part_of(inside: Inside, image: int) -> Inside:
    """One image of a batch."""
    names = ("patches", "sizes", "query", "key", "value", "origins")
    return replace(inside, **{name: getattr(inside, name)[image : image + 1] for name in names})


def make(name: str, on: Geometry = ON) -> Learned:
    """A method with random parameters, so that nothing is lost unnoticed."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        method = LEARNED[name](on)
        for value in method.state_dict().values():
            value.copy_(value + 0.3 * torch.randn(value.shape))
    return method


def step_of(method: Learned, inside: Inside, count: int) -> Reduction:
    reducer = method.reducer()
    assert isinstance(reducer, Progressive)
    return reducer.step(inside, count)


# Layers as loops over numbers.


def linear(layer: nn.Module, x: Vector) -> Vector:
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight.double().tolist(), layer.bias.double().tolist()
    return [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]


def normed(layer: nn.Module | None, x: Vector) -> Vector:
    mean = fsum(x) / len(x)
    spread = sqrt(fsum((value - mean) ** 2 for value in x) / len(x) + 1e-5)
    out = [(value - mean) / spread for value in x]
    if not isinstance(layer, nn.LayerNorm) or layer.weight is None:
        return out
    weight, bias = layer.weight.double().tolist(), layer.bias.double().tolist()
    return [w * value + b for w, value, b in zip(weight, out, bias, strict=True)]


def gelu(x: Vector) -> Vector:
    return [value * (1 + erf(value / sqrt(2))) / 2 for value in x]


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def softmax(x: Vector) -> Vector:
    weights = [exp(value - max(x)) for value in x]
    return [weight / fsum(weights) for weight in weights]


def weighted_mean(rows: list[Vector], weights: Vector) -> Vector:
    return [dot(list(column), weights) / fsum(weights) for column in zip(*rows, strict=True)]


def naive_dynamicvit(method: Any, patches: list[Vector], kept: Vector, block: int) -> Vector:
    """z = MLP(LN(x)); local = first half, global = mean of the second half over the kept tokens."""
    module = method.predictors[str(block)]
    z = [gelu(linear(module.enter[1], normed(module.enter[0], x))) for x in patches]
    half = len(z[0]) // 2
    shared = weighted_mean([row[half:] for row in z], kept)
    logits = []
    for row in z:
        hidden = gelu(linear(module.leave[0], row[:half] + shared))
        logits += linear(module.score, gelu(linear(module.leave[2], hidden)))
    return logits


def naive_spvit(method: Any, patches: list[Vector], kept: Vector, block: int) -> Vector:
    """p = sum_h a_h p_h / sum_h a_h: the probability that a token is kept."""
    module = method.predictors[str(block)]
    heads = [[x[8 * h : 8 * h + 8] for h in range(4)] for x in (normed(module.norm, x) for x in patches)]
    local = [[gelu(linear(module.enter[0], part)) for part in token] for token in heads]
    shared = [weighted_mean([token[h] for token in local], kept) for h in range(4)]
    probabilities = []
    for token, own in zip(heads, local, strict=True):
        p = [sigmoid(linear(module.leave[2], gelu(linear(module.leave[0], own[h] + shared[h])))[0]) for h in range(4)]
        means = [fsum(part) / 8 for part in token]
        a = [sigmoid(value) for value in linear(module.weigh[2], gelu(linear(module.weigh[0], means)))]
        probabilities.append(dot(a, p) / fsum(a))
    return [log(p / (1 - p)) for p in probabilities]


def naive_adavit(method: Any, patches: list[Vector], kept: Vector, block: int) -> Vector:
    """One linear layer of the normalised token."""
    norm, layer = method.predictors[str(block)]
    return [linear(layer, normed(norm, x))[0] for x in patches]


def naive_iared(method: Any, patches: list[Vector], kept: Vector, block: int) -> Vector:
    """P_i = mean_h sigmoid(x_i . v_h + b_h) with the normalised token."""
    _, layer = method.predictors[str(block)]
    policies = [fsum(map(sigmoid, linear(layer, normed(None, x)))) / layer.out_features for x in patches]
    return [log(p / (1 - p)) for p in policies]


NAIVE: dict[str, Callable[[Any, list[Vector], Vector, int], Vector]] = {
    "dynamicvit": naive_dynamicvit,
    "spvit": naive_spvit,
    "adavit": naive_adavit,
    "ia-red2": naive_iared,
}


@masks
def test_logits_are_the_loop_of_the_docstring(name: str) -> None:
    method = make(name)
    assert isinstance(method, Masked)
    for inside in (block_of(9), block_of(9, sizes=torch.tensor([1.0, 0, 1, 0, 1, 1, 0, 1, 1]).expand(3, -1))):
        logits = method.logits(inside)
        for image in range(3):
            patches, kept = inside.patches[image].double().tolist(), inside.sizes[image].tolist()
            expected = NAIVE[name](method, patches, kept, BLOCK)
            torch.testing.assert_close(logits[image], torch.tensor(expected), atol=1e-4, rtol=1e-4)


@counts
@masks
def test_the_tokens_with_the_highest_logits_stay(name: str, count: int) -> None:
    method, inside = make(name), block_of()
    assert isinstance(method, Masked)
    result = step_of(method, inside, count)
    for image in range(3):
        patches = inside.patches[image].double().tolist()
        logits = NAIVE[name](method, patches, [1.0] * 36, BLOCK)
        order = sorted(range(36), key=lambda i: -logits[i])
        alone = count - 1 if name == "spvit" else count
        kept, rest = sorted(order[:alone]), order[alone:]
        assert torch.equal(result.tokens[image, :alone], inside.patches[image, kept]), "to the last bit"
        package = [alone] if name == "spvit" else []
        assert result.positions[image].tolist() == kept + rest[: len(package)]
        gone = package[0] if package else DROPPED
        assert result.source[image].tolist() == [kept.index(i) if i in kept else gone for i in range(36)]
        if package:
            weights = [sigmoid(logits[i]) for i in rest]
            expected = weighted_mean([patches[i] for i in rest], weights)
            torch.testing.assert_close(result.tokens[image, -1], torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_keep_best_by_hand() -> None:
    inside = block_of(5, batch=1)
    result = keep_best(inside, torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3)
    assert result.positions.tolist() == [[1, 2, 3]], "of equal scores the first"
    assert result.source.tolist() == [[-1, 0, 1, 2, -1]]
    assert torch.equal(result.tokens, inside.patches[:, 1:4])


def test_a_mask_is_hard_forward_and_soft_backward() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]], requires_grad=True)
    noise = torch.tensor([[0.5, 0.8, 0.3]])
    mask = drawn_mask(logits, noise, temperature=2.0)
    # log(u / (1 - u)) is 0, 1.386 and -0.847: the sums are 2, 0.386 and -0.347.
    torch.testing.assert_close(mask, torch.tensor([[1.0, 1.0, 0.0]]))
    mask.sum().backward()
    soft = [sigmoid((value + log(u / (1 - u))) / 2) for value, u in ((2.0, 0.5), (-1.0, 0.8), (0.5, 0.3))]
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[s * (1 - s) / 2 for s in soft]]))


def test_a_mask_keeps_as_often_as_its_probability_says() -> None:
    logits = torch.tensor([[-1.0, 0.0, 2.0]]).expand(20_000, -1)
    share = drawn_mask(logits, torch.rand(20_000, 3)).mean(dim=0)
    torch.testing.assert_close(share, logits[0].sigmoid(), atol=0.02, rtol=0)


def test_masked_tokens_are_all_there_with_new_sizes() -> None:
    inside = block_of(4, batch=1)
    result = masked(inside, torch.tensor([[1.0, 0.0, 1.0, 0.5]]))
    assert result.tokens is inside.patches
    assert result.source.tolist() == result.positions.tolist() == [[0, 1, 2, 3]]
    assert result.sizes is not None
    torch.testing.assert_close(result.sizes, torch.tensor([[1.0, TINY, 1.0, 0.5]]), atol=1e-6, rtol=0)
    assert result.sizes.min() > 0, "so that a gradient can bring it back"


@pytest.mark.parametrize(
    ("depth", "blocks"), [(12, (3, 6, 9)), (24, (6, 12, 18)), (8, (2, 4, 6)), (3, (1, 2)), (1, (0, 1))]
)
def test_modules_are_where_the_schedule_removes_tokens(depth: int, blocks: tuple[int, ...]) -> None:
    assert set(three_blocks(depth)) <= set(blocks)
    on = replace(ON, depth=depth)
    for name in MASKED:
        method = LEARNED[name](on)
        reducer = method.reducer()
        assert isinstance(reducer, Progressive)
        for strength in (0.1, 0.5, 0.9):
            before = 36
            for block, count in enumerate(reducer.scheduled(on, strength)):
                if count < before:
                    logits = method.logits(block_of(before, block=block))  # type: ignore[operator]
                    assert logits.shape == (3, before)
                before = count


# Mixtures.


@mixings
@counts
def test_mixtures_are_the_loop_of_the_docstring(name: str, count: int) -> None:
    method: Any = make(name)
    inside = block_of()
    result = step_of(method, inside, count)
    for image in range(3):
        patches = inside.patches[image].double().tolist()
        if name == "patchmerger":  # softmax(W X^T) X
            rows = [normed(method.norm, x) for x in patches]
            queries = method.queries.double().tolist()[:count]
            weights = [softmax([dot(query, x) for x in rows]) for query in queries]
        else:  # softmax over the tokens of MLP(LN(X))
            hidden = [gelu(linear(method.enter[1], normed(method.enter[0], x))) for x in patches]
            columns = [linear(method.leave, x) for x in hidden]
            weights = [softmax([column[k] for column in columns]) for k in range(count)]
        expected = [weighted_mean(patches, row) for row in weights]
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected), atol=1e-4, rtol=1e-4)
        assert result.positions[image].tolist() == [max(range(36), key=lambda i: row[i]) for row in weights]
        source = [max(range(count), key=lambda k: weights[k][i]) for i in range(36)]
        assert result.source[image].tolist() == source


@mixings
def test_more_mixtures_than_were_learned_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*36 mixtures, but 40 are needed[^\n]*$"):
        step_of(make(name), block_of(49), 40)


# A-ViT.


def test_halting_by_hand_over_two_blocks() -> None:
    """gamma 1, beta 0: neurons of -2, 0 and 3 halt by 0.119, 0.5 and 0.953 per block."""
    method = AViT(ON)
    patches = torch.zeros(1, 3, 32)
    patches[0, :, 0] = torch.tensor([3.0, -2.0, 0.0])
    first = method.step(replace(block_of(3, batch=1), patches=patches), 0.0)
    assert first.memory is not None
    assert first.sizes is not None
    assert first.source.tolist() == [[0, 1, 2]], "none has reached 0.99"
    torch.testing.assert_close(first.memory, torch.tensor([[0.9526, 0.1192, 0.5]]), atol=1e-4, rtol=0)
    inside = replace(block_of(3, batch=1, block=2), patches=first.tokens, sizes=first.sizes, memory=first.memory)
    second = method.step(inside, 0.0)
    assert second.memory is not None
    assert second.source.tolist() == [[-1, 0, -1]], "0.953 + 0.953 and 0.5 + 0.5 have"
    assert second.positions.tolist() == [[1]]
    torch.testing.assert_close(second.memory, torch.tensor([[0.2384]]), atol=1e-4, rtol=0)
    assert method.step(inside, 6.0).source.tolist() == [[-1, 0, -1]], "one token stays, whatever beta is"


def test_halting_is_the_loop_over_blocks_and_tokens(dinov3: Backbone, pixels: Tensor) -> None:
    """In the backbone: the memory of a token follows it, and images of different lengths do not mix."""
    method = AViT(dinov3.at_size(48).geometry)
    seen: dict[int, Tensor] = {}
    lengths: dict[int, int] = {}

    def step(inside: Inside, threshold: float) -> Reduction:
        assert threshold == pytest.approx(-1.4)
        assert (inside.memory is None) == (inside.block == 1)
        memory = torch.zeros_like(inside.sizes) if inside.memory is None else inside.memory
        reduction = method.step(inside, threshold)
        assert reduction.memory is not None
        assert reduction.sizes is not None
        for image in range(len(inside.patches)):
            there = [i for i in range(inside.sizes.shape[1]) if inside.sizes[image, i] > 0]
            neurons = inside.patches[image, there, 0].tolist()
            total = [memory[image, i].item() + sigmoid(x - 1.4) for i, x in zip(there, neurons, strict=True)]
            stays = [i for i, sum_ in zip(there, total, strict=True) if sum_ < 1 - EPSILON]
            assert stays, "the case of the one that must stay is above"
            real = int((reduction.sizes[image] > 0).sum())
            assert reduction.positions[image, :real].tolist() == stays
            sums = [sum_ for sum_ in total if sum_ < 1 - EPSILON]
            torch.testing.assert_close(reduction.memory[image, :real], torch.tensor(sums))
            assert reduction.sizes[image].tolist() == [1.0] * real + [0.0] * (len(reduction.sizes[image]) - real)
            lengths[inside.block] = lengths.get(inside.block, 0) + real
        seen[inside.block] = reduction.memory
        return reduction

    reducer = replace(method.reducer(), step=step)
    with torch.no_grad():
        result = dinov3.encode_adaptively(dinov3.embed(pixels), reducer, 0.55)
    assert list(seen) == [1, 2]
    assert lengths[2] < lengths[1] < 3 * 36
    assert result.lengths[:, 0].tolist() == [36] * 3
    assert int(result.lengths[:, 2].sum()) == lengths[2]
    for image in range(3):
        alone = dinov3.encode_adaptively(dinov3.embed(pixels[image : image + 1]), method.reducer(), 0.55)
        assert torch.equal(alone.lengths[0], result.lengths[image])
        assert torch.equal(alone.source[0], result.source[image])


def test_strength_sets_beta() -> None:
    thresholds = AViT(ON).reducer().thresholds
    assert thresholds(3, 0.0) == (NEVER,) * 3, "nothing halts"
    assert thresholds(3, 0.25) == (NEVER, -5.0, -5.0)
    assert thresholds(3, 1.0) == (NEVER, 4.0, 4.0)


# Methods that learn from the dense pass.


def test_patch_slimming_keeps_the_same_positions_in_all_images_and_only_some_of_them_later() -> None:
    method = PatchSlimming(ON)
    method.impact.copy_(torch.rand(3, 36))
    first = step_of(method, block_of(block=0), 20)
    best = method.impact[1:].amax(dim=0).argsort(descending=True)[:20].sort().values
    assert first.positions.tolist() == [best.tolist()] * 3
    origins = torch.arange(36).expand(3, -1).gather(1, first.positions)
    later = step_of(method, replace(block_of(20, block=1), origins=origins), 8)
    left = origins.gather(1, later.positions)
    among = sorted(best.tolist(), key=lambda i: -float(method.impact[2, i]))[:8]
    assert left.tolist() == [sorted(among)] * 3


def test_patch_slimming_refuses_another_grid() -> None:
    inside = replace(block_of(), grid=(4, 9))
    with pytest.raises(ConfigError, match=r"^[^\n]*grid of \(6, 6\), not \(4, 9\)[^\n]*$"):
        step_of(PatchSlimming(ON), inside, 20)


def test_weitop_scores_by_its_mlp() -> None:
    method: Any = make("weitop")
    inside = block_of()
    result = step_of(method, inside, 20)
    norm, enter, _, leave = method.score
    for image in range(3):
        scores = [linear(leave, gelu(linear(enter, normed(norm, x))))[0] for x in inside.patches[image].tolist()]
        assert result.positions[image].tolist() == sorted(sorted(range(36), key=lambda i: -scores[i])[:20])


# Our own.


@pytest.mark.parametrize("block", [0, 1, 2])
def test_learned_protection_is_our_step_with_a_product_of_powers(block: int) -> None:
    method: Any = make("protected-learned")
    inside = block_of(block=block, sizes=torch.randint(1, 5, (3, 36)).float())
    relevance = []
    exponents = (method.exponents[0] + (block - 1) * method.exponents[1]).tolist()
    for image in range(3):
        heads = [head[0][1:] for head in attention_of(inside, image, queries=1)]
        centre = weighted_mean(inside.patches[image].tolist(), [1.0] * 36)
        powers = []
        for i, patch in enumerate(inside.patches[image].tolist()):
            mean = fsum(head[i] for head in heads) / 4
            far = sqrt(fsum((a - b) ** 2 for a, b in zip(patch, centre, strict=True)))
            factors = [mean, *(head[i] / mean for head in heads), float(inside.sizes[image, i]), far]
            powers.append(fsum(exponent * log(x) for exponent, x in zip(exponents, factors, strict=True)))
        relevance.append(softmax(powers))
    constant, linear_part = method.protection.tolist()
    protection = max(constant + (block - 1) * linear_part, 0.0)
    scores = 1e6 * torch.tensor(relevance)  # the offset of given scores is nothing beside them
    expected = protected(replace(inside, scores=scores), 22, protection)
    result = step_of(method, inside, 22)
    assert torch.equal(result.source, expected.source)
    assert torch.equal(result.positions, expected.positions)
    torch.testing.assert_close(result.tokens, expected.tokens, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_untrained_protection_is_our_step(block: int) -> None:
    inside = block_of(block=block, sizes=torch.randint(1, 5, (3, 36)).float())
    expected, result = protected(inside, 22), step_of(Protection(ON), inside, 22)
    assert torch.equal(result.source, expected.source)
    torch.testing.assert_close(result.tokens, expected.tokens, atol=1e-5, rtol=1e-4)


class Plane(Learned):
    """Two numbers, for objectives that are written down."""

    def __init__(self) -> None:
        super().__init__(ON)
        self.x, self.y = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-2.0))

    def reducer(self) -> Progressive:
        raise NotImplementedError

    def learn(self, lesson: Lesson) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("directions", [1, 3])
def test_the_slope_loss_by_hand(directions: int) -> None:
    """The objective x^2 + 3 y has the slopes 2 x and 3 along its axes: exact for antithetic moves of a square."""
    method = Plane()
    loss = slope_loss(
        method, lambda: method.x.item() ** 2 + 3 * method.y.item(), torch.Generator().manual_seed(2), directions
    )
    moves = torch.Generator().manual_seed(2)
    drawn = [tuple(float(torch.randn((), generator=moves)) for _ in range(2)) for _ in range(directions)]
    values = [1 - 6 + (0.1 * x) ** 2 for x, _ in drawn]
    assert loss.item() == pytest.approx(fsum(values) / directions, abs=1e-4), "the mean of all"
    loss.backward()
    for at, parameter in enumerate((method.x, method.y)):
        assert parameter.grad is not None
        expected = fsum((2 * 1.0 * x + 3 * y) * (x, y)[at] for x, y in drawn) / directions
        assert parameter.grad.item() == pytest.approx(expected, rel=1e-3)
    assert (method.x.item(), method.y.item()) == (1.0, -2.0), "the parameters are where they were"


def test_the_slope_loss_puts_the_parameters_back_if_the_objective_fails() -> None:
    method = Plane()

    def objective() -> float:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        slope_loss(method, objective, torch.Generator())
    assert (method.x.item(), method.y.item()) == (1.0, -2.0)


def test_halting_learns_at_the_cost_of_the_lesson(small: Backbone, pixels: Tensor) -> None:
    """Each gamma counts by its distance at the lowest beta of the search that meets the cost, if there is one."""
    method, lesson = AViT(small.geometry), lesson_for(small, pixels)
    assert method.gamma == 1.0, "untrained"
    tried: dict[float, list[tuple[float, float, float]]] = {}
    halted = method.halted

    def noted(lesson: Lesson, gamma: float, beta: float) -> tuple[float, float]:
        share, distance = halted(lesson, gamma, beta)
        tried.setdefault(gamma, []).append((beta, share, distance))
        return share, distance

    method.halted = noted  # type: ignore[method-assign]
    method.learn(lesson)
    assert tuple(tried) == GAMMAS
    expected = []
    for looks in tried.values():
        assert len(looks) == SEARCH
        expected.append(min((look for look in looks if look[1] <= lesson.cost), default=(0, 0, torch.inf))[2])
        for one, other in pairwise(sorted(looks)):
            assert one[1] >= other[1], "a higher beta halts more"
    torch.testing.assert_close(method.distance, torch.tensor(expected), atol=1e-6, rtol=1e-5)
    assert expected[GAMMAS.index(method.gamma)] == min(expected)


# Every method.


@every
def test_an_image_of_a_batch_gets_what_it_gets_alone(name: str) -> None:
    method, inside = make(name), block_of()
    reducer = method.reducer()
    amount: Any = 20 if isinstance(reducer, Progressive) else 1.0
    together = reducer.step(inside, amount)
    for image in range(3):
        alone = reducer.step(part_of(inside, image), amount)
        count = alone.tokens.shape[1]
        assert torch.equal(alone.positions[0], together.positions[image, :count])
        assert torch.equal(alone.source[0], together.source[image])
        torch.testing.assert_close(alone.tokens[0], together.tokens[image, :count])


def multiply_adds(method: Learned, run: Callable[[], Any]) -> int:
    """Of the linear layers that a run goes through."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal total
        assert isinstance(layer, nn.Linear)
        total += inputs[0].numel() // layer.in_features * layer.weight.numel()

    layers = [layer for layer in method.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return total


#: Products of a step that no linear layer does: (before, after, width, heads).
BESIDE: dict[str, Callable[[int, int, int, int], int]] = {
    "spvit": lambda n, m, width, heads: (n - m + 1) * width,  # the package
    "patchmerger": lambda n, m, width, heads: 2 * n * m * width,  # logits and mixtures
    "tokenlearner": lambda n, m, width, heads: 2 * n * m * width,
}


@pytest.mark.parametrize("on", [ON, replace(ON, width=48, head_dim=12), replace(ON, width=64, head_dim=16, depth=12)])
@pytest.mark.parametrize("name", [name for name in PROGRESSIVES if name != "protected-learned"])
def test_the_products_are_the_multiply_adds_of_the_module(name: str, on: Geometry) -> None:
    method = LEARNED[name](on)
    reducer = method.reducer()
    assert isinstance(reducer, Progressive)
    block, heads = three_blocks(on.depth)[0], on.width // on.head_dim
    inside = replace(block_of(batch=1, block=block), patches=torch.randn(1, 36, on.width))
    layers = multiply_adds(method, lambda: reducer.step(inside, 20))
    beside = BESIDE[name](36, 20, on.width, heads) if name in BESIDE else 0
    assert reducer.products(36, 20, on.width, on.head_dim) == layers + beside


def test_the_products_of_learned_protection_add_its_features() -> None:
    reducer = Protection(ON).reducer()
    own: Products = OURS["protected"].products
    # Per token: the distance from the mean token, and one power for each of 4 heads and 3 further features.
    assert reducer.products(36, 20, 32, 8) == own(36, 20, 32, 8) + 36 * (32 + 7)


# In the backbones.


@pytest.fixture(scope="module", params=["dinov3", "vit_head", "siglip"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """With rotary positions, with a head that reads the prefix, and without a CLS token."""
    folder = save_checkpoint(request.param, tmp_path_factory.mktemp(request.param))
    return load_backbone(folder).at_size(48)


def lesson_for(backbone: Backbone, pixels: Tensor, name: str = "", seed: int = 0) -> Lesson:
    """At a cost at which every method removes some tokens. A last block for the prefix alone saves much by itself."""
    teacher = Teacher(backbone)
    tokens = backbone.embed(pixels)
    hidden = backbone.encode(tokens)
    sizes = torch.ones(len(pixels), 36)

    class Dense:
        pass

    dense = Dense()
    dense.hidden, dense.sizes = hidden, sizes  # type: ignore[attr-defined]
    output = teacher.read(dense)
    return Lesson(
        encoder=backbone,
        tokens=tokens,
        cost=(0.75 if name in MIXING else 0.7) if teacher.prefix_only else 0.95,
        distance=lambda short: teacher.distance(output, teacher.read(short)),
        prefix_only=teacher.prefix_only,
        generator=torch.Generator().manual_seed(seed),
    )


@masks
@pytest.mark.parametrize(("tiny", "close"), [(1e-12, 1e-4), (TINY, 0.05)])
def test_a_pass_with_masks_is_the_pass_without_the_tokens(
    name: str, tiny: float, close: float, small: Backbone, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask of training and the step at inference choose the same tokens here. Then masks by size are removal.

    What is left of a masked token is seen only by attention that is as far from uniform as that of these backbones.
    """
    monkeypatch.setattr("redi.reduction.learned.method.TINY", tiny)
    method = make(name, small.geometry)
    assert isinstance(method, Masked)
    reducer = method.reducer()
    schedule = (36, 24, 15)
    lesson = lesson_for(small, pixels)
    left: list[Tensor] = []

    def step(inside: Inside) -> Reduction:
        """Noise of 0 and 1 that makes the drawn mask keep what the step would keep."""
        there = inside.sizes > 0.5
        logits = method.logits(inside).masked_fill(~there, -torch.inf)
        count = schedule[inside.block] - (name == "spvit")  # the package is one of them
        kept = logits.argsort(dim=1, descending=True, stable=True)[:, :count]
        noise = torch.full_like(inside.sizes, 1e-30).scatter(1, kept, 1 - 1e-7)
        reduction = method.masked(inside, noise)
        assert reduction.sizes is not None
        left.append(reduction.sizes > 0.5)
        return reduction

    with torch.no_grad():
        result = replace(lesson, prefix_only=False).pass_with(step, (1, 2))
        expected = small.encode_progressively(lesson.tokens, reducer, schedule)
    assert left[-1].sum(dim=1).tolist() == [15] * 3
    prefix = small.prefix
    torch.testing.assert_close(result.hidden[:, :prefix], expected.hidden[:, :prefix], atol=close, rtol=close)
    for image in range(3):
        patches = result.hidden[image, prefix:][left[-1][image]]
        torch.testing.assert_close(patches, expected.hidden[image, prefix:], atol=close, rtol=close)
    # What the teacher reads is the same as well.
    teacher = Teacher(small)
    torch.testing.assert_close(teacher.read(result), teacher.read(expected), atol=close, rtol=close)


def test_a_masked_token_still_gets_a_gradient(small: Backbone, pixels: Tensor) -> None:
    lesson = lesson_for(small, pixels)
    mask = torch.ones(3, 36)
    mask[:, ::2] = 0
    mask.requires_grad_()
    short = lesson.pass_with(lambda inside: masked(inside, mask), (BLOCK,))
    lesson.distance(short).sum().backward()
    assert mask.grad is not None
    assert mask.grad.isfinite().all()
    assert (mask.grad != 0).all()


@every
def test_only_the_methods_own_parameters_learn(name: str, small: Backbone, pixels: Tensor) -> None:
    method = make(name, small.geometry)
    before = {key: value.clone() for key, value in small.model.state_dict().items()}
    lesson = lesson_for(small, pixels, name)
    loss = method.learn(lesson)
    if name in ("patch-slimming", "a-vit"):
        assert loss is None
    else:
        assert loss is not None
        assert loss.isfinite()
        if name in MIXING and lesson.prefix_only:
            assert not loss.requires_grad, "the one block with mixtures is the last, which serves the prefix alone"
            return
        loss.backward()
        # A module of the last block has none if that block serves the prefix alone.
        gradients = [value.grad for value in method.parameters() if value.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients)
    assert all(value.grad is None and not value.requires_grad for value in small.parameters())
    for key, value in small.model.state_dict().items():
        assert torch.equal(value, before[key])


@every
def test_the_same_lesson_gives_the_same_loss(name: str, small: Backbone, pixels: Tensor) -> None:
    losses, states = [], []
    for seed in (3, 3, 4):
        method = make(name, small.geometry)
        loss = method.learn(lesson_for(small, pixels, name, seed))
        losses.append(None if loss is None else loss.item())
        states.append(method.state_dict())
    assert losses[0] == losses[1]
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key])
    if name in (*MASKED, "protected-learned"):
        assert losses[0] != losses[2], "it draws"


@pytest.mark.parametrize("name", MASKED)
def test_a_batch_of_one_image_can_be_learned_from(name: str, dinov3: Backbone, pixels: Tensor) -> None:
    backbone = dinov3.at_size(48)
    method = make(name, backbone.geometry)
    loss = method.learn(lesson_for(backbone, pixels[:1]))
    assert loss is not None
    loss.backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in method.parameters())


@pytest.mark.parametrize("name", PROGRESSIVES)
def test_a_method_says_whether_it_drops_patches(name: str) -> None:
    method = make(name)
    assert bool((step_of(method, block_of(), 20).source == DROPPED).any()) == method.drops


@every
def test_nothing_is_removed_at_the_weakest_extent(name: str, small: Backbone, pixels: Tensor) -> None:
    reducer, tokens = make(name, small.geometry).reducer(), small.embed(pixels)
    if isinstance(reducer, Adaptive):
        hidden = small.encode_adaptively(tokens, reducer, 0.0).hidden
    else:
        hidden = small.encode_progressively(tokens, reducer, reducer.scheduled(small.geometry, 0.0)).hidden
    assert torch.equal(hidden, small.encode(tokens))


def test_the_impact_of_a_patch_is_rollout_from_the_top(small: Backbone, pixels: Tensor) -> None:
    method = PatchSlimming(small.geometry)
    method.learn(lesson_for(small, pixels))
    captures: dict[int, dict[str, Any]] = {block: {} for block in range(3)}
    small.encode(small.embed(pixels), capture=captures)
    tokens = small.prefix + 36
    expected = torch.zeros(3, 36, dtype=torch.float64)
    for image in range(3):
        row = torch.zeros(tokens, dtype=torch.float64)
        if small.has_cls:
            row[0] = 1
        else:
            row[:] = 1 / tokens
        for block in (2, 1, 0):
            seen = captures[block]
            attention = torch.zeros(tokens, tokens, dtype=torch.float64)
            for query, key in zip(seen["query"][image].double(), seen["key"][image].double(), strict=True):
                attention += (query @ key.T * seen["scale"]).softmax(dim=1) / 4
            row = torch.stack([row @ attention[:, i] for i in range(tokens)]) / 2 + row / 2
            expected[block] += row[small.prefix :] / row[small.prefix :].max()
    torch.testing.assert_close(method.impact, expected.float(), atol=1e-4, rtol=1e-4)


def test_weitop_follows_the_attention_of_the_last_block(small: Backbone, pixels: Tensor) -> None:
    method = WeiToP(small.geometry)
    loss = method.learn(lesson_for(small, pixels))
    tokens = small.embed(pixels)
    captures: dict[int, dict[str, Any]] = {block: {} for block in range(3)}
    small.encode(tokens, capture=captures)
    before = small.encode(tokens, stop=method.block)
    options = {} if tokens.rope is None else {"position_embeddings": tokens.rope}
    attended = small.family.halves.attend(small.blocks[method.block], before, attention_mask=None, **options)
    divergences = []
    for image in range(3):
        seen = captures[2]
        rows = (seen["query"][image] @ seen["key"][image].transpose(1, 2) * seen["scale"]).softmax(dim=2).mean(dim=0)
        target = (rows[0] if small.has_cls else rows.mean(dim=0))[small.prefix :]
        target = target / target.sum()
        scores = method.score(attended[image, small.prefix :])[:, 0].softmax(dim=0)
        pairs = zip(target.tolist(), scores.tolist(), strict=True)
        divergences.append(fsum(p * log(p / q) for p, q in pairs))
    assert loss.item() == pytest.approx(fsum(divergences) / 3, rel=1e-3)
