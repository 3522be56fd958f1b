"""What is particular to timm's models: attention is read without a trace, heads keep their pooling."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import make_model, save_checkpoint, scramble
from redi.backbone import AttentionScores, Backbone, Watch, load_backbone
from redi.backbone.timm_loading import live_timm
from redi.backbone.timm_model import TimmModel
from redi.errors import BackboneError, InvalidInput
from redi.reduction import Reduction
from timm_families import TIMM_CHECKPOINTS, TIMM_JOINT, Small, save_timm, small_timm, without_fused_attention


@pytest.fixture(scope="module", params=TIMM_CHECKPOINTS)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    name: str = request.param
    return load_backbone(f"timm:{save_checkpoint(name, tmp_path_factory.mktemp(name))}")


@pytest.fixture(scope="module")
def dinov3(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return load_backbone(save_checkpoint("timm_dinov3", tmp_path_factory.mktemp("dinov3")))


def fused_flags(backbone: Backbone) -> list[bool]:
    """Those of the blocks; an attention pool has one too."""
    parts = [part for block in backbone.blocks for part in block.modules()]
    return [bool(part.fused_attn) for part in parts if hasattr(part, "fused_attn")]


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
    scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
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
    prefix = {"timm_vit_average": 1, "timm_eva02": 1, "timm_gap_registers": 4}
    if name in prefix:
        logits: Tensor = model.head(model.fc_norm(normed[:, prefix[name] :].mean(dim=1)))
    elif name == "timm_deit_distilled":
        logits = (model.head(normed[:, 0]) + model.head_dist(normed[:, 1])) / 2
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


def attention_pool(pool: Any, tokens: Tensor) -> Tensor:
    """A learned query that attends to the tokens, then an MLP. One head at a time."""
    query = pool.q(pool.latent[0])
    key, value = pool.kv(tokens).chunk(2, dim=-1)
    heads = []
    for part in torch.arange(query.shape[-1]).chunk(pool.num_heads):
        attention = (query[:, part] @ key[..., part].transpose(1, 2) / len(part) ** 0.5).softmax(dim=-1)
        heads.append((attention @ value[..., part])[:, 0])
    attended = pool.proj(torch.cat(heads, dim=-1))
    return attended + pool.mlp(pool.norm(attended))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", TIMM_CHECKPOINTS)
def test_the_embedding_for_texts_is_the_models_own_output(name: str, tmp_path: Path, pixels: Tensor) -> None:
    backbone, model = load_backbone(save_checkpoint(name, tmp_path)), make_model(name)
    hidden = backbone.encode(backbone.embed(pixels))
    assert backbone.has_embedding == (name in TIMM_JOINT)
    if not backbone.has_embedding:
        with pytest.raises(BackboneError, match="no embedding that texts can be compared with"):
            backbone.image_embedding(hidden)
        return
    with torch.no_grad():
        output, normed = model(pixels), model.norm(hidden)
        written = model.head(normed[:, 0]) if name == "timm_clip" else attention_pool(model.attn_pool, normed)
    for expected in (output, written):
        unit = expected / expected.square().sum(dim=1, keepdim=True).sqrt()
        torch.testing.assert_close(backbone.image_embedding(hidden), unit, atol=1e-5, rtol=1e-5)


#: Models beyond those of the other tests, with what is expected: prefix, a CLS token, a head, an embedding for texts.
OTHERS = {
    "average without fc_norm": (Small("vit_medium_patch16_gap_256", 7), (0, False, True, False)),
    "attention pool with a head": (Small("vit_so150m_patch16_reg4_map_256", 7), (4, False, True, False)),
    "AIMv2": (Small("aimv2_large_patch14_224"), (0, False, False, False)),
    "RoPE with a register": (Small("vit_medium_patch16_rope_reg1_gap_256", 7), (1, False, True, False)),
    "SigLIP with a head": (Small("vit_base_patch16_siglip_224", 7), (0, False, True, False)),
    "SigLIP without its pool": (Small("vit_base_patch16_siglip_gap_224"), (0, False, False, False)),
    "CLIP without its projection": (Small("vit_xsmall_patch16_clip_224"), (1, True, False, False)),
    "CLIP with another last layer": (Small("vit_xsmall_patch16_clip_224", 7), (1, True, True, False)),
    "CLIP, fine-tuned": (Small("vit_base_patch16_clip_224", projection=7), (1, True, True, False)),
    "EVA CLIP": (Small("eva02_base_patch16_clip_224", projection=24), (1, True, False, True)),
    "PE Core": (Small("vit_pe_core_small_patch16_384", projection=24), (1, True, False, True)),
    "PE Core without a CLS token": (Small("vit_pe_core_gigantic_patch14_448", projection=24), (0, False, False, True)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_poolings_are_timms_by_folder_and_live(other: str, tmp_path: Path, pixels: Tensor) -> None:
    small, expected = OTHERS[other]
    model: Any = scramble(small_timm(small))
    with torch.no_grad():
        features, output = model.forward_features(pixels), model(pixels)
    for backbone in (load_backbone(save_timm(model, tmp_path, small)), live_timm(model)):
        has_head, has_embedding = backbone.head is not None, backbone.has_embedding
        assert (backbone.prefix, backbone.has_cls, has_head, has_embedding) == expected
        hidden = backbone.encode(backbone.embed(pixels))
        torch.testing.assert_close(backbone.final_norm(hidden), features, atol=1e-5, rtol=1e-5)
        if backbone.head is not None:
            assert backbone.head.prefix_only == (model.global_pool == "token")
            torch.testing.assert_close(backbone.classify(hidden), output, atol=1e-5, rtol=1e-5)
        if has_embedding:
            unit = nn.functional.normalize(output, dim=-1)
            torch.testing.assert_close(backbone.image_embedding(hidden), unit, atol=1e-5, rtol=1e-5)


def test_a_head_behind_an_attention_pool_reads_every_token() -> None:
    """Whatever ``global_pool`` says: ``Eva`` keeps its pool if it is told to read the class token."""
    model: Any = small_timm(Small("vit_pe_core_small_patch16_384"))
    model.reset_classifier(7, "token")
    head = live_timm(model).head
    assert head is not None
    assert head.prefix_only == (model.attn_pool is None)


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
