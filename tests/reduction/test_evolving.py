"""Evo-ViT: its step by hand and against a loop, its forward pass against one token at a time, and its cost."""

from dataclasses import replace
from math import fsum

import pytest
import torch
from torch import Tensor

from families import save_checkpoint
from insides import make_inside
from loops import Expected, Vector, dot, image_of
from redi.backbone import Backbone, load_backbone
from redi.backbone.tokens import Tokens
from redi.cost import Geometry, vit_block
from redi.errors import ConfigError, InvalidInput
from redi.reduction import PROGRESSIVE, Extent, Reduction, Schedule
from redi.reduction.evolving import EVOLVING, SlowFast, evo_vit, evolve
from redi.reduction.schedule import Once

EVO = EVOLVING["evo-vit"]
SCHEDULE = (36, 20, 11)

schedules = pytest.mark.parametrize("schedule", [SCHEDULE, (36, 36, 2), (36, 1, 1)])


@pytest.fixture(scope="module", params=["dinov3", "vit_head", "siglip"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """With rotary positions, with learned ones, and without a CLS token."""
    return load_backbone(save_checkpoint(request.param, tmp_path_factory.mktemp(request.param)))


def naive_evo_vit(patches: list[Vector], evolved: Vector, count: int) -> Expected:
    """Sec. 3 of Evo-ViT: the informative tokens, then sum of a_i x_i / sum of a_i over the placeholders."""
    order = sorted(range(len(patches)), key=lambda i: -evolved[i])
    slow, fast = sorted(order[: count - 1]), order[count - 1 :]
    total = fsum(evolved[i] for i in fast)
    mean = [fsum(evolved[i] * patches[i][axis] for i in fast) / total for axis in range(len(patches[0]))]
    source = [slow.index(i) if i in slow else count - 1 for i in range(len(patches))]
    return Expected([*(patches[i] for i in slow), mean], [*slow, fast[0]], source)


def test_the_step_by_hand() -> None:
    inside = replace(
        make_inside(4, 1, batch=1),
        patches=torch.tensor([[[10.0], [20.0], [30.0], [40.0]]]),
        scores=torch.tensor([[0.1, 0.5, 0.3, 0.1]]),
    )
    result = evo_vit(inside, 2)
    assert result.positions.tolist() == [[1, 2]], "the best of the others lends its position"
    assert result.source.tolist() == [[1, 0, 1, 1]]
    torch.testing.assert_close(result.tokens.flatten(), torch.tensor([20.0, (1 + 9 + 4) / 0.5]))


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize(("n", "count"), [(2, 1), (9, 8), (9, 5), (16, 3), (25, 1)])
def test_the_step_is_the_loop_of_the_paper(n: int, count: int, prefix: int) -> None:
    inside = replace(make_inside(n, prefix), scores=torch.rand(3, n))
    result = evo_vit(inside, count)
    assert inside.scores is not None
    for image in range(3):
        expected = naive_evo_vit(image_of(inside, image).patches, inside.scores[image].tolist(), count)
        assert result.positions[image].tolist() == expected.positions
        assert result.source[image].tolist() == expected.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(expected.tokens), atol=1e-5, rtol=1e-5)


def test_tokens_without_any_attention_have_a_plain_mean() -> None:
    inside = replace(make_inside(6, 1), scores=torch.tensor([[1.0, 0, 0, 0, 0, 0]] * 3))
    result = evo_vit(inside, 2)
    torch.testing.assert_close(result.tokens[:, 1], inside.patches[:, 1:].mean(dim=1))
    assert result.positions.tolist() == [[0, 1]] * 3


def test_attention_evolves_by_hand() -> None:
    now = torch.tensor([[0.4, 0.2, 0.1]])
    assert torch.equal(evolve(None, now, None), now)
    past = torch.tensor([[0.2, 0.6, 0.1]])
    torch.testing.assert_close(evolve(past, now, None), torch.tensor([[0.3, 0.4, 0.1]]))
    # Tokens 0 and 2 are slow; the third token is the representative, whose attention is nobody's.
    reduction = Reduction(torch.zeros(1, 3, 1), torch.tensor([[0, 2, 1]]), torch.tensor([[0, 2, 1, 2]]))
    past = torch.tensor([[0.2, 0.6, 0.1, 0.3]])
    torch.testing.assert_close(
        evolve(past, torch.tensor([[0.4, 0.3, 0.9]]), reduction), torch.tensor([[0.3, 0.6, 0.2, 0.3]])
    )


def attention_in(backbone: Backbone, capture: dict[str, Tensor], patches: int) -> Vector:
    """Of CLS, or of the mean query if there is none, to each patch token of one image; mean over the heads."""
    rows = []
    for query, key in zip(capture["query"][0], capture["key"][0], strict=True):
        one = query[0] if backbone.has_cls else query.mean(dim=0)
        logits = torch.tensor([dot(one.tolist(), other.tolist()) for other in key]) * float(capture["scale"])
        rows.append(logits.softmax(dim=0)[-patches:])
    mean: Vector = torch.stack(rows).mean(dim=0).tolist()
    return mean


def naive_slow_fast(backbone: Backbone, pixels: Tensor, schedule: Schedule) -> Tensor:
    """One image, block by block and token by token, with the backbone's own blocks."""
    tokens = backbone.embed(pixels[None])
    prefix, patches, rope = tokens.prefix[0], list(tokens.patches[0]), tokens.rope
    evolved: Vector = []
    for block, count in enumerate(schedule):
        capture: dict[str, Tensor] = {}
        n = len(patches)
        order = sorted(range(n), key=lambda i: -evolved[i]) if evolved else list(range(n))
        slow, fast = (list(range(n)), []) if count == n else (sorted(order[: count - 1]), order[count - 1 :])
        inputs, places = [patches[i] for i in slow], list(slow)
        if fast:
            total = fsum(evolved[i] for i in fast)
            inputs.append(torch.stack([evolved[i] / total * patches[i] for i in fast]).sum(dim=0))
            places.append(fast[0])
        rows = None if rope is None else (rope[0][places][None, None], rope[1][places][None, None])
        shorter = Tokens(prefix[None], torch.stack(inputs)[None], rows)
        outputs = backbone.encode(shorter, start=block, stop=block + 1, capture={block: capture})[0]
        attention = attention_in(backbone, capture, len(inputs))
        prefix, outputs = outputs[: len(prefix)], outputs[len(prefix) :]
        for place, i in enumerate(slow):
            patches[i] = outputs[place]
        for i in fast:
            patches[i] = patches[i] + (outputs[-1] - inputs[-1])
        if not evolved:
            evolved = attention
        else:
            for place, i in enumerate(slow):
                evolved[i] = 0.5 * evolved[i] + 0.5 * attention[place]
    return torch.cat([prefix, torch.stack(patches)])


@schedules
def test_the_forward_pass_is_the_loop_over_blocks_and_tokens(
    schedule: Schedule, small: Backbone, pixels: Tensor
) -> None:
    result = small.encode_progressively(small.embed(pixels), EVO, schedule)
    assert torch.equal(result.sizes, torch.ones(3, 36))
    assert torch.equal(result.source, torch.arange(36).expand(3, -1)), "every patch is there"
    for image in range(3):
        expected = naive_slow_fast(small, pixels[image], schedule)
        torch.testing.assert_close(result.hidden[image], expected, atol=1e-4, rtol=1e-4)


def test_without_a_fast_path_it_is_the_dense_encoding(small: Backbone, pixels: Tensor) -> None:
    tokens = small.embed(pixels)
    result = small.encode_progressively(tokens, EVO, (36, 36, 36))
    torch.testing.assert_close(result.hidden, small.encode(tokens), atol=1e-6, rtol=1e-6)


@schedules
def test_the_prefix_alone_is_that_of_the_whole_pass(schedule: Schedule, small: Backbone, pixels: Tensor) -> None:
    tokens = small.embed(pixels)
    whole = small.encode_progressively(tokens, EVO, schedule)
    short = small.encode_progressively(tokens, EVO, schedule, prefix_only=True)
    torch.testing.assert_close(short.hidden, whole.hidden[:, : small.prefix], atol=1e-5, rtol=1e-5)


def test_levels_are_the_sequences_between_the_blocks(small: Backbone, pixels: Tensor) -> None:
    tokens = small.embed(pixels)
    whole = small.encode_progressively(tokens, EVO, SCHEDULE, levels=(0, 2, 3))
    assert torch.equal(whole.levels[0], tokens.sequence)
    assert torch.equal(whole.levels[2], whole.hidden)
    part = small.encode_progressively(tokens, EVO, SCHEDULE[:2], levels=(2,))
    torch.testing.assert_close(part.levels[0], whole.levels[1])


def test_an_image_of_a_batch_gets_what_it_gets_alone(small: Backbone, pixels: Tensor) -> None:
    together = small.encode_progressively(small.embed(pixels), EVO, SCHEDULE)
    for image in range(3):
        alone = small.encode_progressively(small.embed(pixels[image : image + 1]), EVO, SCHEDULE)
        torch.testing.assert_close(alone.hidden[0], together.hidden[image], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("schedule", "start"), [((30, 30, 30), 0), ((36, 20, 20), 1)])
def test_a_fast_path_needs_a_block_before_it(schedule: Schedule, start: int, dinov3: Backbone, pixels: Tensor) -> None:
    """Before any block of the pass there is no attention to choose by."""
    tokens = dinov3.embed(pixels)
    if start:
        tokens = tokens.advanced(dinov3.encode(tokens, stop=start))
    with pytest.raises(InvalidInput, match=r"^[^\n]+$"):
        dinov3.encode_progressively(tokens, EVO, schedule, start=start)


# Cost ---------------------------------------------------------------------------------------------


def test_cost_by_hand() -> None:
    """Width 8, four patches and CLS: a dense block sees 5 tokens, one with two slow tokens sees 3."""
    on = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=3)
    dense, short = (12 * tokens * 64 + 2 * tokens**2 * 8 for tokens in (5, 3))
    step = (3 + 2) * 8  # the mean of three tokens, and the attention to two
    cost = EVO.cost(Extent(schedule=(4, 2, 2)), on)
    assert cost == pytest.approx((dense + 2 * (short + step)) / (3 * dense))
    assert EVO.cost(Extent(schedule=(4, 4, 4)), on) == 1
    # For the prefix alone, the last block has the keys and values of 3 tokens, and the rest for CLS.
    last = 4 * 3 * 64 + 2 * 9 * 8 + 8 * 1 * 64
    cost = EVO.cost(Extent(schedule=(4, 2, 2)), on, prefix_only=True)
    assert cost == pytest.approx((dense + short + last + 2 * step) / (3 * dense))
    narrow = 2 * 3 * 64 + 2 * 1 * 64 + 2 * 3 * 8 + 8 * 1 * 64
    cost = EVO.cost(Extent(schedule=(4, 2, 2)), replace(on, prefix_queries=True), prefix_only=True)
    assert cost == pytest.approx((dense + short + narrow + 2 * step) / (3 * dense))


def test_cost_counts_the_backbones_own_blocks() -> None:
    own = vit_block(8, hidden=24, gated=True)
    on = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=2, own_block=own)
    expected = own.cost(5, 5) + own.cost(3, 3) + 5 * 8
    assert EVO.cost(Extent(schedule=(4, 2)), on) == pytest.approx(expected / (2 * own.cost(5, 5)))


def test_all_tokens_are_left_whatever_the_schedule() -> None:
    on = Geometry((14, 14), prefix=1, width=192, head_dim=64, depth=12)
    assert isinstance(EVO, SlowFast)
    for cost in (0.5, 0.65, 0.9):
        extent = EVO.extent_within_cost(cost, on)
        assert EVO.cost(extent, on) <= cost
        assert EVO.tokens_left(extent, on) == 196
        assert set(extent.schedule[:4]) == {196}, "the first third of the blocks is dense"
    with pytest.raises(ConfigError, match="leaves all tokens"):
        EVO.extent_for_tokens(100, on)
    assert PROGRESSIVE["evo-vit"] is EVO


@pytest.mark.parametrize(
    ("place", "depth", "expected"),
    [(1 / 3, 6, (10, 10, 6, 6, 6, 6)), (0.5, 3, (10, 10, 6)), (0.25, 1, (6,)), (1.0, 2, (10, 6)), (0.0, 2, (6, 6))],
)
def test_once_removes_in_one_block(place: float, depth: int, expected: Schedule) -> None:
    assert Once(place)(10, depth, 0.4) == expected
    assert Once(place)(10, depth, 0.0) == (10,) * depth
    assert Once(place)(10, depth, 1.0)[-1] == 1
