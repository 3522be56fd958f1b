"""Small random checkpoints of every supported family, made with transformers' and timm's own classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    PreTrainedModel,
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
_LABELS: dict[str, Any] = {"num_labels": 7}

_TRANSFORMERS: dict[str, Callable[[], PreTrainedModel]] = {
    "dinov3": lambda: DINOv3ViTModel(DINOv3ViTConfig(**_MLP, num_register_tokens=4)),
    "dinov3_gated": lambda: DINOv3ViTModel(
        DINOv3ViTConfig(**_MLP, num_register_tokens=4, use_gated_mlp=True, hidden_act="silu")
    ),
    "dinov2": lambda: Dinov2Model(Dinov2Config(**_SIZE, mlp_ratio=2)),
    "dinov2_swiglu_head": lambda: Dinov2ForImageClassification(
        Dinov2Config(**_SIZE, mlp_ratio=2, use_swiglu_ffn=True, **_LABELS)
    ),
    "dinov2_registers_head": lambda: Dinov2WithRegistersForImageClassification(
        Dinov2WithRegistersConfig(**_SIZE, mlp_ratio=2, num_register_tokens=4, **_LABELS)
    ),
    "vit": lambda: ViTModel(ViTConfig(**_MLP)),
    "vit_head": lambda: ViTForImageClassification(ViTConfig(**_MLP, **_LABELS)),
    "deit_head": lambda: DeiTForImageClassification(DeiTConfig(**_MLP, **_LABELS)),
    "deit_distilled": lambda: DeiTForImageClassificationWithTeacher(DeiTConfig(**_MLP, **_LABELS)),
    "mae": lambda: ViTMAEForPreTraining(
        ViTMAEConfig(
            **_MLP,
            decoder_hidden_size=16,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=32,
        )
    ),
}


CHECKPOINTS = (*_TRANSFORMERS, *TIMM_CHECKPOINTS)


def make_model(name: str) -> Any:
    """Every parameter random, so that nothing is lost unnoticed (several start at zero or one).

    Weight matrices are scaled so that attention is far from uniform.
    """
    torch.manual_seed(0)
    small = TIMM_CHECKPOINTS.get(name)
    return scramble(small_timm(small) if small else _TRANSFORMERS[name]())


def scramble(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.5 * parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            noise = spread * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
    return model.eval()


def save_checkpoint(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    model = make_model(name).to(dtype)
    if name in TIMM_CHECKPOINTS:
        return save_timm(model, folder, TIMM_CHECKPOINTS[name])
    model.save_pretrained(folder)
    return folder


def encoder_of(model: Any) -> Any:
    """The part that ends with the final norm. (DINOv3 calls its stack of blocks the base model.)"""
    return model if isinstance(model, DINOv3ViTModel) else model.base_model
