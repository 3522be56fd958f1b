"""What is particular to timm's models: attention is read without a trace, heads keep their pooling."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import make_model, save_checkpoint
from redi.backbone import AttentionScores, Backbone, Watch, load_backbone
from redi.backbone.timm_model import TimmModel
from redi.errors import BackboneError, InvalidInput
from redi.reduction import Reduction
from timm_families import TIMM_CHECKPOINTS, without_fused_attention


@pytest.fixture(scope="module", params=TIMM_CHECKPOINTS)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    name: str = request.param
    return load_backbone(f"timm:{save_checkpoint(name, tmp_path_factory.mktemp(name))}")


@pytest.fixture(scope="module")
def dinov3(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return load_backbone(save_checkpoint("timm_dinov3", tmp_path_factory.mktemp("dinov3")))


def fused_flags(backbone: Backbone) -> list[bool]:
    return [bool(part.fused_attn) for part in backbone.modules() if hasattr(part, "fused_attn")]


def code_of(module: nn.Module) -> list[Any]:
    """Whatever makes a module's forward: its class, its own attributes that are callable, its hooks."""
    return [
        (
            type(part),
            sorted(k for k, v in vars(part).items() if callable(v)),
            list(part._forward_hooks),
            list(part._forward_pre_hooks),
        )
        for part in module.modules()
    ]


def test_nothing_of_timm_is_changed_by_watching(backbone: Backbone, pixels: Tensor) -> None:
    forward, flags = nn.functional.scaled_dot_product_attention, fused_flags(backbone)
    before = code_of(backbone.model)
    tokens = backbone.embed(pixels)
    dense = backbone.encode(tokens)
    scores = AttentionScores(backbone.depth, backbone.prefix)
    backbone.encode(tokens, watch=scores.watches)
    assert flags == [True] * backbone.depth
    assert fused_flags(backbone) == flags
    assert code_of(backbone.model) == before
    assert nn.functional.scaled_dot_product_attention is forward
    assert torch.equal(backbone.encode(tokens), dense)


def test_an_exception_inside_a_watched_block_leaves_no_trace(dinov3: Backbone, pixels: Tensor) -> None:
    def fail(attention: Tensor) -> Tensor:
        raise KeyError("a statistic that fails")

    tokens = dinov3.embed(pixels)
    dense = dinov3.encode(tokens)
    without_fused_attention(dinov3)
    try:
        with pytest.raises(KeyError, match="a statistic that fails"):
            dinov3.encode(tokens, watch=[Watch(fail, blocks=[1])])
        assert fused_flags(dinov3) == [False] * 3, "timm's own setting is back"
    finally:
        for block in dinov3.blocks:
            block.block.attn.fused_attn = True  # type: ignore[union-attr]
    assert torch.equal(dinov3.encode(tokens), dense)


def test_watching_works_where_timm_was_told_to_do_without_fused_attention(dinov3: Backbone, pixels: Tensor) -> None:
    tokens = dinov3.embed(pixels)
    expected = AttentionScores(3, 5)
    dinov3.encode(tokens, watch=expected.watches)
    without_fused_attention(dinov3)
    unfused = AttentionScores(3, 5)
    dinov3.encode(tokens, watch=unfused.watches)
    assert fused_flags(dinov3) == [False] * 3
    for block in dinov3.blocks:
        block.block.attn.fused_attn = True  # type: ignore[union-attr]
    # The unwatched path of the first two blocks differs in its last digits.
    torch.testing.assert_close(unfused.maps(), expected.maps(), atol=1e-4, rtol=0)


def test_a_watched_block_takes_no_mask(dinov3: Backbone, pixels: Tensor) -> None:
    tokens = dinov3.embed(pixels)
    watch = Watch(lambda attention: attention.mean(1), blocks=[0])
    with pytest.raises(InvalidInput, match="no attention mask"):
        dinov3.blocks[0](
            tokens.sequence,
            position_embeddings=tokens.rope,
            attention_mask=torch.zeros(3, 1, 1, 41),
            redi_watches=(watch,),
            redi_block=0,
        )


def test_attention_that_makes_no_fused_call_is_an_error_and_no_wrong_number(tmp_path: Path, pixels: Tensor) -> None:
    """A later version of timm might bring such an attention."""
    backbone = load_backbone(save_checkpoint("timm_mae", tmp_path))
    assert isinstance(backbone.model, TimmModel)
    backbone.model.vit.blocks[1].attn.forward = lambda hidden, **options: hidden
    watch = Watch(lambda attention: attention.mean(1), blocks=[1])
    with pytest.raises(BackboneError, match=r"0 fused attention calls.*supported version of timm"):
        backbone.encode(backbone.embed(pixels), watch=[watch])


@pytest.mark.parametrize("name", ["timm_dinov3", "timm_eva02"])
def test_shuffling_patches_with_their_rotary_positions_shuffles_the_outputs(
    name: str, tmp_path: Path, pixels: Tensor
) -> None:
    backbone = load_backbone(save_checkpoint(name, tmp_path))
    tokens = backbone.embed(pixels)
    order = torch.stack([torch.randperm(36) for _ in range(3)])
    index = order[..., None].expand(-1, -1, 32)
    shuffled = tokens.reduced(Reduction(tokens.patches.gather(1, index), order, order))
    assert shuffled.rope is not None
    assert shuffled.rope[0].shape == (3, 1, 36, 8)
    dense, output = backbone.encode(tokens), backbone.encode(shuffled)
    expected = dense[:, backbone.prefix :].gather(1, index)
    torch.testing.assert_close(output[:, backbone.prefix :], expected, atol=1e-4, rtol=1e-4)
    raster = torch.arange(36).expand(3, -1)
    wrong = tokens.reduced(Reduction(tokens.patches.gather(1, index), raster, order))
    assert not torch.allclose(backbone.encode(wrong)[:, backbone.prefix :], expected, atol=1e-2)


def pooled(name: str, normed: Tensor, model: Any) -> Tensor:
    """Each head written out."""
    if name == "timm_vit_average":
        logits: Tensor = model.head(model.fc_norm(normed[:, 1:].mean(dim=1)))
    elif name == "timm_deit_distilled":
        logits = (model.head(normed[:, 0]) + model.head_dist(normed[:, 1])) / 2
    elif name == "timm_eva02":
        logits = model.head(model.fc_norm(normed[:, 1:].mean(dim=1)))
    else:
        logits = model.head(normed[:, 0])
    return logits


@pytest.mark.parametrize("name", [n for n, small in TIMM_CHECKPOINTS.items() if small.classes])
def test_a_head_pools_as_it_was_trained_also_over_fewer_tokens(name: str, tmp_path: Path, pixels: Tensor) -> None:
    backbone = load_backbone(save_checkpoint(name, tmp_path))
    model = make_model(name)
    tokens = backbone.embed(pixels)
    places = torch.arange(0, 36, 2).expand(3, -1)
    fewer = tokens.reduced(Reduction(tokens.patches[:, ::2], places, places))
    for given in (tokens, fewer):
        hidden = backbone.encode(given)
        with torch.no_grad():
            expected = pooled(name, model.norm(hidden), model)
        torch.testing.assert_close(backbone.classify(hidden), expected, atol=1e-5, rtol=1e-5)


def test_costs_and_moves_know_the_backbone(dinov3: Backbone) -> None:
    on = dinov3.geometry
    assert (on.prefix, on.patches) == (5, 196)
    half = load_half(dinov3)
    assert half.encode(half.embed(torch.randn(1, 3, 48, 48))).dtype == torch.bfloat16


def load_half(backbone: Backbone) -> Backbone:
    from copy import deepcopy

    return deepcopy(backbone).to(torch.bfloat16)


@pytest.mark.compiles
def test_timms_fused_path_can_be_compiled(dinov3: Backbone, pixels: Tensor) -> None:
    compiled = torch.compile(lambda given: dinov3.encode(dinov3.embed(given)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(pixels), dinov3.encode(dinov3.embed(pixels)))
