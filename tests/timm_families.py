"""Small checkpoints of timm's models, written by timm in the Hub's format."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from timm_import import timm

_SMALL: dict[str, Any] = {"img_size": 48, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "mlp_ratio": 2}


class Small(NamedTuple):
    """An architecture of timm's by name, with what makes it small, and the classes of its head."""

    architecture: str
    classes: int = 0
    arguments: Mapping[str, Any] = MappingProxyType({})
    projection: int = 0  # outputs of a last layer that is no classifier


TIMM_CHECKPOINTS = {
    "timm_vit_average": Small("vit_base_patch16_224", 7, {"global_pool": "avg"}),  # with fc_norm
    "timm_mae": Small("vit_base_patch16_224"),
    "timm_deit_distilled": Small("deit_tiny_distilled_patch16_224", 7),
    "timm_deit3": Small("deit3_base_patch16_224", 7),
    "timm_dinov2": Small("vit_small_patch14_dinov2"),
    "timm_dinov2_registers": Small("vit_small_patch14_reg4_dinov2"),
    "timm_dinov3": Small("vit_small_patch16_dinov3"),
    "timm_eva02": Small("eva02_tiny_patch14_224", 7),  # interleaved RoPE and learned positions
    "timm_clip": Small("vit_xsmall_patch16_clip_224", projection=24),
    "timm_siglip": Small("vit_base_patch16_siglip_224"),  # an attention pool; no prefix
    "timm_gap_registers": Small("vit_betwixt_patch16_reg4_gap_256", 7),  # a prefix without a CLS token
}
#: Those whose own output texts are compared with.
TIMM_JOINT = ("timm_clip", "timm_siglip")


def small_timm(small: Small, **arguments: Any) -> nn.Module:
    """The model with timm's own initial weights, in evaluation mode."""
    torch.manual_seed(0)
    options = {**_SMALL, **small.arguments, **arguments}
    outputs = small.classes or small.projection
    model: nn.Module = timm().create_model(
        small.architecture,
        num_classes=outputs,
        dynamic_img_size=True,
        pretrained_cfg_overlay={"num_classes": outputs} if small.projection else None,
        **options,
    )
    return model.eval()


def save_timm(
    model: Any, folder: Path, small: Small, arguments: Mapping[str, Any] = MappingProxyType({}), **settings: Any
) -> Path:
    """Write a model in the Hub's format with timm's own function; ``settings`` go into config.json."""
    timm().models.save_for_hf(
        model,
        folder,
        model_args={**_SMALL, **small.arguments, **arguments},
        model_config=settings,
        safe_serialization=True,
    )
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def without_fused_attention(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]


def timm_attentions(model: Any, pixels: Tensor) -> list[Tensor]:
    """Full attention of every block by timm's unfused path, which ends in a dropout module."""
    seen: list[Tensor] = []
    without_fused_attention(model)
    hooks = [
        block.attn.attn_drop.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model.forward_features(pixels)
    for hook in hooks:
        hook.remove()
    return seen
