"""The differences between the supported architectures, one entry per architecture.

An entry says where the host library keeps the parts, how an image is embedded, how many prefix tokens there are,
and how the checkpoint's own head reads the final tokens. The block loop, attention capture and reduction are the
same for all. These are transformers' architectures; timm's two are in :mod:`redi.backbone.timm_model`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    Dinov2Backbone,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersBackbone,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
    DINOv3ViTBackbone,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    PreTrainedConfig,
    PreTrainedModel,
    Siglip2VisionConfig,
    Siglip2VisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTForImageClassification,
    ViTMAEConfig,
    ViTModel,
)
from transformers.modeling_outputs import BackboneOutput
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTBackboneOutput, apply_rotary_pos_emb

from redi.backbone.hook import attention_forward
from redi.backbone.tokens import Rope
from redi.errors import BackboneError

Normed = Float[Tensor, "batch tokens dim"]
Logits = Float[Tensor, "batch classes"]


@dataclass(frozen=True)
class Head:
    """A checkpoint's own classifier: the class of its model and how it reads the normed tokens."""

    model: type[nn.Module]
    trunk: str  # attribute under which the class keeps the encoder
    classify: Callable[[Any, Normed, int], Logits]  # (model, normed tokens, prefix) -> logits
    prefix_only: bool  # whether it reads only prefix tokens


@dataclass(frozen=True)
class Projection:
    """A model with a layer behind the pooled output, which makes the embedding that texts are compared with."""

    model: type[PreTrainedModel]
    trunk: str  # attribute under which the class keeps the encoder
    layer: str  # attribute path of the layer


@dataclass(frozen=True)
class Maps:
    """The backbone class of transformers, which gives feature maps, and how its maps differ from the other classes'."""

    model: type[PreTrainedModel]
    output: type[BackboneOutput]
    keeps_prefix: bool  # whether a map that is not reshaped has the prefix tokens
    norms_last: bool  # whether the map after the last block is normed even without ``apply_layernorm``


@dataclass(frozen=True)
class Halves:
    """A block in two halves, for reducers that work between them. Each half adds its residual.

    The halves use the host library's own modules; dropout and stochastic depth do nothing in evaluation.
    """

    attend: Callable[..., Tensor]  # (block, hidden, keyword arguments of the attention) -> hidden
    transform: Callable[[Any, Tensor], Tensor]  # (block, hidden) -> hidden
    mlp: str  # attribute path of the MLP inside the block
    #: (block, hidden, prefix, keyword arguments) -> hidden states of the prefix after attention to all tokens. None if
    #: the host's attention module cannot be taken apart.
    attend_prefix: Callable[..., Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture. ``blocks`` and ``norm`` are attribute paths inside the encoder."""

    blocks: str
    norm: str
    prefix: Callable[[Any], int]  # tokens before the patches; the first is CLS, or the configuration says no
    embed: Callable[[Any, Tensor], tuple[Tensor, Rope | None]]
    halves: Halves
    #: (encoder, normed tokens, patches per token or None if each is one) -> pooler_output
    pool: Callable[[Any, Normed, Float[Tensor, "batch reduced"] | None], Tensor | None]
    joint: bool = False  # whether pooler_output, behind the projection if there is one, is compared with texts
    normed_output: bool = True  # whether ``last_hidden_state`` is after the final norm
    flattened_input: bool = False  # whether the model takes flattened patches instead of pixels


@dataclass(frozen=True, kw_only=True)
class TransformersFamily(Family):
    """An architecture of transformers, with the classes that read its checkpoints."""

    config: type[PreTrainedConfig]
    encoder: type[PreTrainedModel]
    optional_pooler: bool = False  # whether an encoder may have a layer for ``pooler_output``
    heads: dict[str, Head]  # by the name in the checkpoint's "architectures"
    maps: Maps | None = None  # None if transformers has no backbone class for it
    projection: Projection | None = None


def _embed_rope(model: Any, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """DINOv3: no additive positions; every block receives (cos, sin)."""
    cos, sin = model.rope_embeddings(pixels)
    return model.embeddings(pixels), (cos, sin)


def _embed_interpolated(model: Any, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """ViT, DeiT, MAE: learned positions, interpolated if the input size is not the native one."""
    return model.embeddings(pixels, interpolate_pos_encoding=True), None


def _embed_learned(model: Any, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """DINOv2: learned positions, which the embedding interpolates by itself."""
    return model.embeddings(pixels), None


def _embed_pre_normed(model: Any, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """CLIP: a norm between the learned positions and the first block."""
    return model.pre_layrnorm(model.embeddings(pixels, interpolate_pos_encoding=True)), None


def _embed_flattened(model: Any, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """SigLIP 2: flattened patches, and positions resized to the grid of the image with antialiasing.

    transformers resizes the positions for each image of a batch in a loop; here all images have one grid.
    """
    embeddings = model.embeddings
    side, patch = embeddings.position_embedding_size, embeddings.patch_size
    grid = (pixels.shape[2] // patch, pixels.shape[3] // patch)
    learned = embeddings.position_embedding.weight
    positions = learned.view(1, side, side, -1).permute(0, 3, 1, 2).float()
    if grid != (side, side):
        positions = interpolate(positions, size=grid, mode="bilinear", align_corners=False, antialias=True)
    positions = positions.flatten(2).transpose(1, 2).to(learned.dtype)
    return embeddings.patch_embedding(flatten_patches(pixels, patch)) + positions, None


def flatten_patches(pixels: Float[Tensor, "batch channels height width"], patch: int) -> Float[Tensor, "batch n p"]:
    """The patches in raster order, each as its pixels row by row with the channels last."""
    rows = pixels.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    flattened: Tensor = rows.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return flattened


def unflatten_patches(patches: Float[Tensor, "batch n p"], patch: int, rows: int) -> Float[Tensor, "..."]:
    """The pixels of :func:`flatten_patches`, from patches in ``rows`` rows."""
    cells = patches.unflatten(2, (patch, patch, -1)).unflatten(1, (rows, -1))
    pixels: Tensor = cells.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
    return pixels


def _attend(block: Any, hidden: Tensor, **options: Any) -> Tensor:
    attended, _ = block.attention(block.layernorm_before(hidden), **options)
    return attended + hidden  # type: ignore[no-any-return]


def _transform(block: Any, hidden: Tensor) -> Tensor:
    return block.mlp(block.layernorm_after(hidden)) + hidden  # type: ignore[no-any-return]


def _attend_prefix(block: Any, hidden: Tensor, prefix: int, **options: Any) -> Tensor:
    attended = _prefix_attention(block.attention, block.layernorm_before(hidden), prefix, **options)
    return attended + hidden[:, :prefix]


def _attend_projected(block: Any, hidden: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
    """CLIP, SigLIP: the projections are called here, because SigLIP's attention module passes no arguments on."""
    attention, normed = block.self_attn, block.layer_norm1(hidden)
    query, key, value = (
        _split_heads(project(normed), attention.head_dim)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    rows, _ = attention_forward(
        attention, query, key, value, attention_mask, scaling=attention.scale, is_causal=False, **options
    )
    return attention.out_proj(rows.flatten(2)) + hidden  # type: ignore[no-any-return]


def _transform_projected(block: Any, hidden: Tensor) -> Tensor:
    return block.mlp(block.layer_norm2(hidden)) + hidden  # type: ignore[no-any-return]


def _split_heads(states: Tensor, head_dim: int) -> Float[Tensor, "batch heads tokens head_dim"]:
    return states.view(*states.shape[:2], -1, head_dim).transpose(1, 2)


def _attend_scaled(block: Any, hidden: Tensor, **options: Any) -> Tensor:
    attended, _ = block.attention(block.norm1(hidden), **options)
    return block.layer_scale1(attended) + hidden  # type: ignore[no-any-return]


def _transform_scaled(block: Any, hidden: Tensor) -> Tensor:
    return block.layer_scale2(block.mlp(block.norm2(hidden))) + hidden  # type: ignore[no-any-return]


def _attend_prefix_scaled(block: Any, hidden: Tensor, prefix: int, **options: Any) -> Tensor:
    attended = _prefix_attention(block.attention, block.norm1(hidden), prefix, **options)
    return block.layer_scale1(attended) + hidden[:, :prefix]  # type: ignore[no-any-return]


def _prefix_attention(
    attention: Any,
    normed: Normed,
    prefix: int,
    attention_mask: Tensor | None = None,
    position_embeddings: Rope | None = None,
) -> Tensor:
    """The rows of the prefix of a self-attention module; all its families have the same four projections."""
    query = _split_heads(attention.q_proj(normed[:, :prefix]), attention.head_dim)
    key, value = (_split_heads(project(normed), attention.head_dim) for project in (attention.k_proj, attention.v_proj))
    if position_embeddings is not None:  # the prefix has no position, so its queries do not turn
        key, _ = apply_rotary_pos_emb(key, key, *position_embeddings)
    rows = scaled_dot_product_attention(query, key, value, attention_mask, scale=attention.scaling)
    output: Tensor = attention.o_proj(rows.transpose(1, 2).flatten(2))
    return output


_PLAIN = Halves(_attend, _transform, "mlp", _attend_prefix)  # ViT, DeiT, MAE
# The DINO families have layer scale.
_SCALED = Halves(_attend_scaled, _transform_scaled, "mlp", _attend_prefix_scaled)
_PROJECTED = Halves(_attend_projected, _transform_projected, "mlp")  # CLIP, SigLIP


def _pool_dense(encoder: Any, normed: Normed, _sizes: Tensor | None) -> Tensor | None:
    """ViT, DeiT: a layer on the CLS token, if the model has one."""
    return None if encoder.pooler is None else encoder.pooler(normed)


def _pool_cls(_encoder: Any, normed: Normed, _sizes: Tensor | None) -> Tensor | None:
    return normed[:, 0]


def _pool_attention(encoder: Any, normed: Normed, sizes: Tensor | None) -> Tensor | None:
    """SigLIP: a learned query attends to the patches, if the model has this head.

    A token that stands for several patches gets as much attention as that many copies of it.
    """
    if not encoder.use_head:
        return None
    head = encoder.head
    if sizes is None:
        return head(normed)  # type: ignore[no-any-return]
    attention = head.attention
    bias = sizes.log().to(normed.dtype).repeat_interleave(attention.num_heads, dim=0)[:, None]
    query = head.probe.expand(len(normed), -1, -1)
    pooled, _ = attention(query, normed, normed, attn_mask=bias, need_weights=False)
    return (pooled + head.mlp(head.layernorm(pooled)))[:, 0]  # type: ignore[no-any-return]


def _classify_cls(model: Any, normed: Normed, _prefix: int) -> Logits:
    logits: Tensor = model.classifier(normed[:, 0])
    return logits


def _classify_cls_and_mean(model: Any, normed: Normed, prefix: int) -> Logits:
    pooled = torch.cat([normed[:, 0], normed[:, prefix:].mean(dim=1)], dim=1)
    logits: Tensor = model.classifier(pooled)
    return logits


def _classify_distilled(model: Any, normed: Normed, _prefix: int) -> Logits:
    logits: Tensor = (model.cls_classifier(normed[:, 0]) + model.distillation_classifier(normed[:, 1])) / 2
    return logits


# Named functions, because an accelerated model holds its family, and a lambda cannot be pickled.
def _no_prefix(_config: Any) -> int:
    return 0


def _cls_alone(_config: Any) -> int:
    return 1


def _cls_and_distillation(_config: Any) -> int:
    return 2


def _cls_and_registers(config: Any) -> int:
    count: int = config.num_register_tokens
    return 1 + count


def _heads(*heads: Head) -> dict[str, Head]:
    return {head.model.__name__: head for head in heads}


_VIT = TransformersFamily(
    config=ViTConfig,
    encoder=ViTModel,
    optional_pooler=True,
    blocks="layers",
    norm="layernorm",
    prefix=_cls_alone,
    embed=_embed_interpolated,
    halves=_PLAIN,
    pool=_pool_dense,
    heads=_heads(Head(ViTForImageClassification, "vit", _classify_cls, prefix_only=True)),
)
_DINOV2 = TransformersFamily(
    config=Dinov2Config,
    encoder=Dinov2Model,
    blocks="encoder.layer",
    norm="layernorm",
    prefix=_cls_alone,
    embed=_embed_learned,
    halves=_SCALED,
    pool=_pool_cls,
    heads=_heads(Head(Dinov2ForImageClassification, "dinov2", _classify_cls_and_mean, prefix_only=False)),
    maps=Maps(Dinov2Backbone, BackboneOutput, keeps_prefix=True, norms_last=False),
)

_SIGLIP = TransformersFamily(
    config=SiglipVisionConfig,
    encoder=SiglipVisionModel,
    blocks="encoder.layers",
    norm="post_layernorm",
    prefix=_no_prefix,
    embed=_embed_interpolated,
    halves=_PROJECTED,
    pool=_pool_attention,
    joint=True,
    heads={},
)

#: Architectures by the ``model_type`` of the checkpoint's config.json.
FAMILIES: dict[str, TransformersFamily] = {
    "dinov3_vit": TransformersFamily(
        config=DINOv3ViTConfig,
        encoder=DINOv3ViTModel,
        blocks="model.layer",
        norm="norm",
        prefix=_cls_and_registers,
        embed=_embed_rope,
        halves=_SCALED,
        pool=_pool_cls,
        heads={},
        maps=Maps(DINOv3ViTBackbone, DINOv3ViTBackboneOutput, keeps_prefix=False, norms_last=True),
    ),
    "dinov2": _DINOV2,
    "dinov2_with_registers": replace(
        _DINOV2,
        config=Dinov2WithRegistersConfig,
        encoder=Dinov2WithRegistersModel,
        prefix=_cls_and_registers,
        heads=_heads(
            Head(
                Dinov2WithRegistersForImageClassification,
                "dinov2_with_registers",
                _classify_cls_and_mean,
                prefix_only=False,
            )
        ),
        maps=Maps(Dinov2WithRegistersBackbone, BackboneOutput, keeps_prefix=True, norms_last=False),
    ),
    "vit": _VIT,
    # transformers' own MAE model masks patches at random, so its weights go into a plain ViT.
    "vit_mae": replace(_VIT, config=ViTMAEConfig, heads={}),
    "deit": replace(
        _VIT,
        config=DeiTConfig,
        encoder=DeiTModel,
        prefix=_cls_and_distillation,
        heads=_heads(
            Head(DeiTForImageClassification, "deit", _classify_cls, prefix_only=True),
            Head(DeiTForImageClassificationWithTeacher, "deit", _classify_distilled, prefix_only=True),
        ),
    ),
    "clip_vision_model": TransformersFamily(
        config=CLIPVisionConfig,
        encoder=CLIPVisionModel,
        blocks="encoder.layers",
        norm="post_layernorm",
        prefix=_cls_alone,
        embed=_embed_pre_normed,
        halves=_PROJECTED,
        pool=_pool_cls,
        projection=Projection(CLIPVisionModelWithProjection, "vision_model", "visual_projection"),
        normed_output=False,
        heads={},
    ),
    "siglip_vision_model": _SIGLIP,
    "siglip2_vision_model": replace(
        _SIGLIP, config=Siglip2VisionConfig, encoder=Siglip2VisionModel, embed=_embed_flattened, flattened_input=True
    ),
}
#: Models of images and texts by their ``model_type``, whose image tower is one of the architectures above.
TWO_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model", "siglip2": "siglip2_vision_model"}


def square_patch(config: Any) -> int:
    return square(config.patch_size)


def square(sides: Any) -> int:
    """The side of a square patch. Some configurations give one side per axis."""
    distinct = set(sides) if isinstance(sides, list | tuple) else {sides}
    if len(distinct) != 1:
        raise BackboneError(f"Patches of {sides} are not supported: patches must be square.")
    return int(distinct.pop())
