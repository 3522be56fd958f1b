"""transformers' weights under timm's names, so that both libraries can be given the same checkpoint."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from timm_import import timm

#: The order matters: the last part of an attention must be renamed before that of an MLP.
_NAMES = [
    (r"^(vit|deit|dinov2|dinov2_with_registers)\.", ""),
    (r"^(encoder\.layer|model\.layer|layers|layer)\.", "blocks."),
    (r"^embeddings\.patch_embeddings\.(projection\.)?", "patch_embed.proj."),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(attention\.)?(query|q_proj)\.", ".attn.q."),
    (r"\.attention\.(attention\.)?(key|k_proj)\.", ".attn.k."),
    (r"\.attention\.(attention\.)?(value|v_proj)\.", ".attn.v."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.up_proj)\.", ".mlp.fc1."),
    (r"\.(output\.dense|mlp\.down_proj)\.", ".mlp.fc2."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
]
#: The same for CLIP and SigLIP.
_TOWER_NAMES = [
    (r"^vision_model\.", ""),
    (r"^head\.probe$", "attn_pool.latent"),
    (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.mlp\.", "attn_pool.mlp."),
    (r"^encoder\.layers\.", "blocks."),
    (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^embeddings\.position_embedding\.weight$", "pos_embed"),
    (r"^pre_layrnorm\.", "norm_pre."),
    (r"^post_layernorm\.", "norm."),
    (r"^visual_projection\.", "head."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.self_attn\.([qkv])_proj\.", r".attn.\1."),
    (r"\.self_attn\.out_proj\.", ".attn.proj."),
]


def timm_weights(
    weights: dict[str, Tensor], depth: int, names: Sequence[tuple[str, str]] = _NAMES
) -> dict[str, Tensor]:
    """Names of ``VisionTransformer``; query, key and value are one matrix there."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for pattern, new in names:
            name = re.sub(pattern, new, name)
        if not name.endswith("mask_token"):
            renamed[name] = tensor
    for block in range(depth):
        at = f"blocks.{block}.attn."
        for kind in ("weight", "bias"):
            parts = [renamed.pop(f"{at}{part}.{kind}", None) for part in "qkv"]
            if parts[1] is None:  # DINOv3's keys have no bias
                assert parts[0] is not None
                assert parts[2] is not None
                renamed[f"{at}q_bias"], renamed[f"{at}v_bias"] = parts[0], parts[2]
            else:
                renamed[f"{at}qkv.{kind}"] = torch.cat([part for part in parts if part is not None])
    return renamed


def tower_weights(weights: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """CLIP's projection has a bias in timm; SigLIP's attention pool has a matrix for the query alone."""
    renamed = timm_weights(weights, depth, _TOWER_NAMES)
    renamed["pos_embed"] = renamed["pos_embed"][None]
    if "cls_token" in renamed:
        renamed["cls_token"] = renamed["cls_token"][None, None]
    if "head.weight" in renamed:
        renamed["head.bias"] = torch.zeros(len(renamed["head.weight"]))
    for kind in ("weight", "bias"):
        joined = renamed.pop(f"head.attention.in_proj_{kind}", None)
        if joined is not None:
            query, key, value = joined.chunk(3)
            renamed[f"attn_pool.q.{kind}"] = query
            renamed[f"attn_pool.kv.{kind}"] = torch.cat([key, value])
    return renamed


def eva_weights(weights: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Names of ``Eva``: layer scale is a parameter of the block."""
    return {
        re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", name): tensor for name, tensor in timm_weights(weights, depth).items()
    }


def split_positions(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """DINOv2 with registers: the position of the class token goes into the token."""
    positions = weights["pos_embed"]
    return {**weights, "cls_token": weights["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}


def write_timm_folder(
    folder: Path, weights: dict[str, Tensor], architecture: str, classes: int, **settings: Any
) -> Path:
    """A folder in timm's format with the given weights; ``settings`` may hold ``model_args``."""
    arguments = settings.pop("model_args", {})
    own = {"num_classes": classes}
    model = timm().create_model(architecture, num_classes=classes, pretrained_cfg_overlay=own, **arguments)
    model.load_state_dict(weights)
    timm().models.save_for_hf(model, folder, model_args=arguments, model_config=settings, safe_serialization=True)
    return folder


def stored_weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")
