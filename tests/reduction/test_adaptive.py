"""Sequences whose length differs by image: padding, lengths, cost and reading, with ATM as the example.

A made-up step is checked too, so that what holds does not hang on ATM.
"""

from dataclasses import replace
from statistics import mean

import pytest
import torch
from torch import Tensor

from redi.backbone import Backbone
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.reduction import ADAPTIVE, DROPPED, PROGRESSIVE, REDUCERS, Adaptive, Extent, Inside, Reduction
from redi.reduction.adaptive import NEVER, Curve, Point, compacted, curve_of
from redi.reduction.result import take


def drop_weak(inside: Inside, threshold: float) -> Reduction:
    """Drop every token to which CLS attends less than a share of the mean, but never all of them."""
    real, attention = inside.sizes > 0, inside.attention
    kept = real & (attention >= threshold * attention.sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True))
    index, place = compacted(kept)
    return Reduction(take(inside.patches, index), index, torch.where(kept, place, DROPPED))


#: Thresholds of three blocks at which the images of the ``pixels`` fixture end at different lengths.
STEPS = {"atm": (replace(ADAPTIVE["atm"], thresholds=lambda depth, strength: (0.9, 0.85, 0.8)))}
STEPS["dropping"] = Adaptive(drop_weak, lambda depth, strength: (0.9, NEVER, 0.95))

adaptives = pytest.mark.parametrize("reducer", STEPS.values(), ids=STEPS)


@pytest.fixture
def images(pixels: Tensor) -> Tensor:
    """Noise of several contrasts over a flat ground, so that lengths differ."""
    ground = torch.linspace(-2, 2, 48).expand(3, 48, 48)
    return ground + pixels * torch.tensor([0.02, 0.3, 1.0])[:, None, None, None]


@adaptives
def test_an_image_of_a_batch_gets_what_it_gets_alone(reducer: Adaptive, backbone: Backbone, images: Tensor) -> None:
    together = backbone.encode_adaptively(backbone.embed(images), reducer, 0.5)
    assert len(set(together.lengths[:, -1].tolist())) > 1, "the lengths differ"
    for image in range(3):
        alone = backbone.encode_adaptively(backbone.embed(images[image : image + 1]), reducer, 0.5)
        length = int(alone.lengths[0, -1])
        assert torch.equal(alone.lengths[0], together.lengths[image])
        assert torch.equal(alone.source[0], together.source[image])
        assert (alone.sizes > 0).all(), "one image needs no padding"
        assert torch.equal(alone.sizes[0], together.sizes[image, :length])
        assert not together.sizes[image, length:].any(), "what is behind is padding"
        real = together.hidden[image, : backbone.prefix + length]
        torch.testing.assert_close(real, alone.hidden[0], atol=2e-5, rtol=1e-4)


@adaptives
def test_the_prefix_alone_is_what_the_whole_last_block_gives(
    reducer: Adaptive, backbone: Backbone, images: Tensor
) -> None:
    """The attention of a block sees the tokens before its step, so only the MLP of the patches is left out."""
    tokens = backbone.embed(images)
    whole = backbone.encode_adaptively(tokens, reducer, 0.5)
    short = backbone.encode_adaptively(tokens, reducer, 0.5, prefix_only=True)
    torch.testing.assert_close(short.hidden, whole.hidden[:, : backbone.prefix], atol=1e-6, rtol=1e-5)
    assert torch.equal(short.lengths[:, :-1], whole.lengths[:, :-1])
    assert torch.equal(short.lengths[:, -1], whole.lengths[:, -2])


@adaptives
def test_padding_is_never_attended_to(reducer: Adaptive, dinov3: Backbone, images: Tensor) -> None:
    """Padding of other values changes no real token."""

    def spoiled(inside: Inside, threshold: float) -> Reduction:
        reduction = reducer.step(inside, threshold)
        count = reduction.tokens.shape[1]
        used = torch.zeros(3, count + 1).scatter(1, reduction.source % (count + 1), 1.0)[:, :count]
        return reduction._replace(tokens=torch.where(used[..., None] > 0, reduction.tokens, 100.0))

    tokens = dinov3.embed(images)
    clean = dinov3.encode_adaptively(tokens, reducer, 0.5)
    other = dinov3.encode_adaptively(tokens, replace(reducer, step=spoiled), 0.5)
    real = torch.cat([torch.ones(3, dinov3.prefix), clean.sizes], dim=1) > 0
    assert not real.all()
    assert not torch.equal(clean.hidden[~real], other.hidden[~real])
    torch.testing.assert_close(clean.hidden[real], other.hidden[real])


def test_a_block_without_a_threshold_runs_unchanged(backbone: Backbone, images: Tensor) -> None:
    tokens = backbone.embed(images)
    result = backbone.encode_adaptively(tokens, ADAPTIVE["atm"], 0.0)
    assert torch.equal(result.hidden, backbone.encode(tokens))
    assert result.lengths.tolist() == [[36] * 3] * 3


def test_scores_of_another_shape_are_refused(dinov3: Backbone, images: Tensor) -> None:
    with pytest.raises(InvalidInput, match=r"\[3, 35\], but must have \[3, 36\]"):
        dinov3.encode_adaptively(dinov3.embed(images), ADAPTIVE["atm"], 0.5, torch.rand(3, 35))


# Cost ---------------------------------------------------------------------------------------------

ON = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=2)


def test_cost_is_the_mean_over_the_images_of_the_cost_of_their_own_lengths() -> None:
    """As that of a progressive reducer with the same counts, but every step matches, also if it merges nothing."""
    products = lambda before, after, width, head_dim: 100 * before + after  # noqa: E731
    reducer = Adaptive(drop_weak, lambda depth, strength: (0.5, 0.5), products=products)
    fixed = replace(PROGRESSIVE["tome"], products=products)
    lengths = torch.tensor([[4, 2], [3, 3], [2, 1]])
    wanted = [fixed.cost(Extent(schedule=tuple(image)), ON) for image in lengths.tolist()]
    wanted[0] += 404 / ON.dense
    wanted[1] += 303 / ON.dense
    assert reducer.image_costs(lengths, 0.5, ON).tolist() == pytest.approx(wanted)
    (point,) = curve_of(reducer, lengths[:, None], ON, (0.5,))
    assert point == pytest.approx((0.5, mean(wanted), 2.0))


def test_costs_between_measured_strengths_are_interpolated() -> None:
    measured: list[Adaptive] = []

    def curve(reducer: Adaptive) -> Curve:
        measured.append(reducer)
        return Point(0.0, 1.0, 4.0), Point(0.5, 0.8, 3.0), Point(1.0, 0.4, 1.0)

    reducer = ADAPTIVE["atm"].measured_by(curve)
    assert not measured, "nobody has asked"
    assert [reducer.cost(Extent(strength=s), ON) for s in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx(
        [1.0, 0.9, 0.8, 0.6, 0.4]
    )
    assert reducer.extent_for_cost(0.7, ON) == Extent(strength=0.625)
    assert reducer.tokens_left(Extent(strength=0.75), ON) == 2
    assert reducer.extent_for_tokens(3, ON).strength == 0.251, "the first that rounds to 3"
    with pytest.raises(ConfigError, match=r"from 0\.400 to 1\.000"):
        reducer.extent_for_cost(0.3, ON)
    assert measured == [ADAPTIVE["atm"]], "once"


@pytest.mark.parametrize("name", ADAPTIVE)
def test_without_images_the_cost_is_not_known(name: str) -> None:
    with pytest.raises(ConfigError, match="follows the image"):
        REDUCERS[name].extent_for_cost(0.7, ON)


# Reading ------------------------------------------------------------------------------------------
