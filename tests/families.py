"""Small random checkpoints of every supported family, made with transformers' and timm's own classes."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
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
    ViTMAEForPreTraining,
    ViTModel,
)

from timm_families import TIMM_CHECKPOINTS, save_timm, small_timm

_SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 8,
    "image_size": 48,
}
_MLP: dict[str, Any] = {**_SIZE, "intermediate_size": 64}
_REGISTERS = {"num_register_tokens": 4}
_LABELS: dict[str, Any] = {"num_labels": 7}
_DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
}


class Small(NamedTuple):
    """A model class, its configuration class, and what makes it small."""

    model: type[PreTrainedModel]
    config: type[PreTrainedConfig]
    settings: dict[str, Any]


_TRANSFORMERS = {
    "dinov3": Small(DINOv3ViTModel, DINOv3ViTConfig, {**_MLP, **_REGISTERS}),
    "dinov3_gated": Small(
        DINOv3ViTModel, DINOv3ViTConfig, {**_MLP, **_REGISTERS, "use_gated_mlp": True, "hidden_act": "silu"}
    ),
    "dinov2": Small(Dinov2Model, Dinov2Config, {**_SIZE, "mlp_ratio": 2}),
    "dinov2_swiglu_head": Small(
        Dinov2ForImageClassification, Dinov2Config, {**_SIZE, "mlp_ratio": 2, "use_swiglu_ffn": True, **_LABELS}
    ),
    "dinov2_registers": Small(
        Dinov2WithRegistersModel, Dinov2WithRegistersConfig, {**_SIZE, "mlp_ratio": 2, **_REGISTERS}
    ),
    "dinov2_registers_head": Small(
        Dinov2WithRegistersForImageClassification,
        Dinov2WithRegistersConfig,
        {**_SIZE, "mlp_ratio": 2, **_REGISTERS, **_LABELS},
    ),
    "vit": Small(ViTModel, ViTConfig, _MLP),
    "vit_head": Small(ViTForImageClassification, ViTConfig, {**_MLP, **_LABELS}),
    "deit_head": Small(DeiTForImageClassification, DeiTConfig, {**_MLP, **_LABELS}),
    "deit_distilled": Small(DeiTForImageClassificationWithTeacher, DeiTConfig, {**_MLP, **_LABELS}),
    "mae": Small(ViTMAEForPreTraining, ViTMAEConfig, {**_MLP, **_DECODER}),
    "clip": Small(CLIPVisionModel, CLIPVisionConfig, _MLP),
    "clip_projection": Small(CLIPVisionModelWithProjection, CLIPVisionConfig, {**_MLP, "projection_dim": 24}),
    "siglip": Small(SiglipVisionModel, SiglipVisionConfig, _MLP),
    "siglip2": Small(Siglip2VisionModel, Siglip2VisionConfig, {**_MLP, "num_patches": 36}),
}

CHECKPOINTS = (*_TRANSFORMERS, *TIMM_CHECKPOINTS)


def make_model(name: str, patch: int = 8) -> Any:
    """Random weights; the grid is 6x6 at the native size, whatever the patch size."""
    if name in TIMM_CHECKPOINTS:
        return scramble(small_timm(TIMM_CHECKPOINTS[name], patch_size=patch, img_size=6 * patch))
    return scrambled(name, patch_size=patch, image_size=6 * patch)


def scrambled(name: str, **changes: Any) -> Any:
    """A small model of transformers with some settings changed."""
    torch.manual_seed(0)
    small = _TRANSFORMERS[name]
    model: Any = small.model
    return scramble(model(small.config(**{**small.settings, **changes})))


def scramble(model: nn.Module, seed: int = 1) -> nn.Module:
    """Every parameter random, so that nothing is lost unnoticed (several start at zero or one).

    Weight matrices are scaled so that attention is far from uniform.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.5 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            noise = spread * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
    return model.eval()


def save_checkpoint(name: str, folder: Path, dtype: torch.dtype = torch.float32, patch: int = 8) -> Path:
    model = make_model(name, patch).to(dtype)
    if name in TIMM_CHECKPOINTS:
        sizes = {"patch_size": patch, "img_size": 6 * patch}
        return save_timm(model, folder, TIMM_CHECKPOINTS[name], sizes)
    return save_model(model, folder)


def save_model(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def encoder_of(model: Any) -> Any:
    """The part that ends with the final norm. (DINOv3 calls its stack of blocks the base model.)"""
    if isinstance(model, CLIPVisionModelWithProjection):
        return model.vision_model
    own = (DINOv3ViTModel, CLIPVisionModel, SiglipVisionModel, Siglip2VisionModel)
    return model if isinstance(model, own) else model.base_model


def inputs_of(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    """The arguments by which a model of transformers takes normalised pixels of any size."""
    config = encoder_of(model).config
    if isinstance(model, Siglip2VisionModel):
        patch = config.patch_size
        images = [in_patches(image, patch) for image in pixels]
        shape = [pixels.shape[2] // patch, pixels.shape[3] // patch]
        return {
            "pixel_values": torch.stack(images),
            "pixel_attention_mask": torch.ones(len(pixels), shape[0] * shape[1], dtype=torch.int64),
            "spatial_shapes": torch.tensor([shape] * len(pixels)),
        }
    inputs: dict[str, Any] = {"pixel_values": pixels}
    if config.model_type in ("vit", "deit", "clip_vision_model", "siglip_vision_model"):
        inputs["interpolate_pos_encoding"] = True
    return inputs


def in_patches(image: Tensor, patch: int) -> Tensor:
    """One row per patch, in raster order, with the channels last: what SigLIP 2 takes. One patch at a time."""
    rows = [
        image[:, top : top + patch, left : left + patch].permute(1, 2, 0).flatten()
        for top in range(0, image.shape[1], patch)
        for left in range(0, image.shape[2], patch)
    ]
    return torch.stack(rows)
