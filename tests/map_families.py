"""Small random backbones of transformers, which give feature maps, and whole models that hold one."""

import warnings
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Backbone,
    Dinov2Config,
    Dinov2WithRegistersBackbone,
    Dinov2WithRegistersConfig,
    DINOv3ViTBackbone,
    DINOv3ViTConfig,
    DPTConfig,
    DPTForDepthEstimation,
    UperNetConfig,
    UperNetForSemanticSegmentation,
    ZoeDepthConfig,
)

from families import scramble

_SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "patch_size": 8,
    "image_size": 48,
}
_REGISTERS = {"num_register_tokens": 4}
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dinov2": (Dinov2Backbone, Dinov2Config, {"mlp_ratio": 2}),
    "dinov2_registers": (Dinov2WithRegistersBackbone, Dinov2WithRegistersConfig, {"mlp_ratio": 2, **_REGISTERS}),
    "dinov3": (DINOv3ViTBackbone, DINOv3ViTConfig, {"intermediate_size": 64, **_REGISTERS}),
}
BACKBONES = tuple(_KINDS)
_NECK: dict[str, Any] = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}
_BINS: dict[str, Any] = {"bin_embedding_dim": 8, "bottleneck_features": 8, "num_relative_features": 8}
_FOUR = [1, 2, 3, 4]
WHOLE = ("depth_anything", "dpt", "zoedepth", *(f"upernet_{name}" for name in BACKBONES))


def backbone_config(name: str, **changes: Any) -> Any:
    _, config, settings = _KINDS[name]
    return config(**{**_SIZE, **settings, **changes})


def make_backbone(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model, _, _ = _KINDS[name]
    return scramble(model(backbone_config(name, **changes)))


def make_whole(name: str) -> Any:
    """A whole model with random weights whose outputs are neither tiny nor huge."""
    torch.manual_seed(0)
    tokens = backbone_config("dinov2", out_indices=_FOUR, reshape_hidden_states=False)
    model: Any
    if name == "depth_anything":
        sizes: dict[str, Any] = {"patch_size": 8, "reassemble_hidden_size": 32, "head_hidden_size": 8}
        model = DepthAnythingForDepthEstimation(DepthAnythingConfig(backbone_config=tokens, **sizes, **_NECK))
    elif name == "dpt":
        model = DPTForDepthEstimation(DPTConfig(backbone_config=tokens, neck_ignore_stages=[], **_NECK))
    elif name == "zoedepth":
        with warnings.catch_warnings(action="ignore"):  # it is compiled with torch.jit.script, which is deprecated
            from transformers import ZoeDepthForDepthEstimation
        model = ZoeDepthForDepthEstimation(ZoeDepthConfig(backbone_config=tokens, **_NECK, **_BINS))
    else:
        maps = backbone_config(name.removeprefix("upernet_"), out_indices=_FOUR)
        options: dict[str, Any] = {"hidden_size": 8, "num_labels": 5, "auxiliary_in_channels": 32}
        model = UperNetForSemanticSegmentation(UperNetConfig(backbone_config=maps, **options))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.copy_((2 / weights[0].numel()) ** 0.5 * torch.randn(weights.shape, generator=generator))
    scramble(model.backbone)
    return model.eval()


def flat(output: Any) -> dict[str, Tensor]:
    """All tensors of an output by their names; feature maps are numbered."""
    tensors: dict[str, Tensor] = {}
    for name, value in output.items():
        parts = value if isinstance(value, tuple) else (value,)
        tensors |= {f"{name} {number}": part for number, part in enumerate(parts)}
    return tensors


def images(height: int = 48, width: int = 48, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, height, width)
