"""Checkpoints in timm's format: ``config.json`` with an ``architecture``, and ``model.safetensors``.

timm builds the model and matches the weights, by its own rules for older names; what is taken from a
checkpoint's configuration is limited to numbers and names of the architecture. Importing timm is
left to the moment it is needed: it is an optional extra.
"""

import difflib
from collections.abc import Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from redi.backbone.families import square
from redi.backbone.inputs import constants, geometry
from redi.backbone.model import Backbone, Preprocessing
from redi.backbone.timm_model import TIMM, TimmConfig, TimmModel, timm_head
from redi.errors import BackboneError

#: What comes before a name of timm's, or before a folder in its format.
PREFIX = "timm:"
#: timm's files whose models may be a plain VisionTransformer or Eva.
MODULES = ("vision_transformer", "deit", "eva")
#: Parts of the names of models whose last layer projects to an embedding of images and texts.
PROJECTING = ("clip", "vit_pe_")
#: Names offered where one is not known.
NEAREST = 3


def hub_name(name: str) -> str:
    """The Hub repository of a timm name such as ``deit3_base_patch16_224.fb_in1k``.

    Without a tag it is the architecture's default weights. ``owner/model`` is a repository already.
    """
    if "/" in name:
        return name
    timm = import_timm()
    architecture = name.partition(".")[0]
    _require_architecture(name, architecture)
    known = [known for known in _pretrained(timm) if known.partition(".")[0] == architecture]
    if not known:
        raise BackboneError(f"timm has no weights of {architecture!r}; {_nearest(timm, name)}.")
    if name != architecture and name not in known:
        raise BackboneError(f"timm has no weights {name!r}; there are {', '.join(known)}.")
    with torch.device("meta"):  # before anything is downloaded
        _require_plain(timm.create_model(architecture, pretrained=False), name)
    settings = timm.get_pretrained_cfg(name)
    return str(settings.hf_hub_id or f"timm/{name}")


def load_timm(folder: Path, name: str | Path, settings: dict[str, Any]) -> Backbone:
    """The backbone of a folder; ``settings`` are the content of its config.json."""
    timm = import_timm()
    architecture = settings.get("architecture")
    if not isinstance(architecture, str):
        raise BackboneError(f"{folder / 'config.json'} names no architecture of timm's.")
    _require_architecture(architecture, architecture)
    given = settings.get("pretrained_cfg", settings)  # older files have everything on one level
    arguments = settings.get("model_args") or {}
    if not isinstance(given, dict) or not isinstance(arguments, dict):
        raise BackboneError(
            f"{folder / 'config.json'} must hold objects as model_args and pretrained_cfg."
        )
    _require_arguments(folder, arguments)
    classes = settings.get("num_classes", given.get("num_classes", 1000))
    arguments = {"num_classes": classes, **arguments, "dynamic_img_size": True}
    known = {entry.name for entry in fields(timm.models.PretrainedCfg)}
    options: dict[str, Any] = {key: given[key] for key in known & set(given)}
    options |= {
        "num_classes": arguments["num_classes"],
        "state_dict": None,
        "file": str(folder / "model.safetensors"),
        "source": "",
        "custom_load": False,
        "label_offset": None,
    }
    try:
        vit = timm.create_model(
            architecture,
            pretrained=True,
            pretrained_cfg=options,
            **arguments,
        )
    except Exception as error:  # whatever timm, torch or safetensors say about what does not fit
        lines = " ".join(str(error).split())
        raise BackboneError(
            f"{name} cannot be loaded ({type(error).__name__}): {lines[:200]}"
        ) from error
    _require_plain(vit, name)
    projects = any(part in architecture for part in PROJECTING)
    has_head = isinstance(vit.head, nn.Linear) and bool(vit.global_pool) and not projects
    names = class_names(settings, options, vit.num_classes) if has_head else []
    config = TimmConfig(
        hidden_size=vit.embed_dim,
        num_attention_heads=vit.blocks[0].attn.num_heads,
        patch_size=square(vit.patch_embed.patch_size),
        prefix=vit.num_prefix_tokens,
        id2label=dict(enumerate(names)),
    )
    preprocessing = timm_preprocessing(folder / "config.json", options, config.patch_size)
    model = TimmModel(vit.float(), config)
    return Backbone(model, TIMM, timm_head(vit) if has_head else None, preprocessing)


def import_timm() -> Any:
    """timm, or one line about how to get it; also where it is there and its torchvision is broken."""
    try:
        import timm
    except ImportError as error:
        raise BackboneError(
            f"Backbones with the prefix {PREFIX} need timm ({error}): install it with "
            "`pip install redi-vit[timm]`."
        ) from None
    except RuntimeError as error:
        raise BackboneError(
            f"timm cannot be imported ({' '.join(str(error).split())}): install a torchvision that "
            "was built for this torch."
        ) from None
    return timm


def class_names(settings: dict[str, Any], cfg: dict[str, Any], classes: int) -> list[str]:
    """Of the checkpoint; of ImageNet-1k by timm's list, where the weights' tag says so; else numbers.

    A name and its description are joined by a comma, so that a folder may bear either.
    """
    from timm.data import ImageNetInfo

    labels = settings.get("label_names") or settings.get("labels") or cfg.get("label_names")
    described = settings.get("label_descriptions") or cfg.get("label_descriptions") or {}
    if isinstance(labels, dict):
        labels = [
            labels.get(str(number), labels.get(number, f"LABEL_{number}"))
            for number in range(classes)
        ]
    if isinstance(labels, list | tuple) and len(labels) == classes:
        return [_described(str(label), described) for label in labels]
    if classes == 1000 and str(cfg.get("tag") or "").endswith("in1k"):
        info = ImageNetInfo()
        return [
            _described(info.index_to_label_name(k), {}, info.index_to_description(k, detailed=True))
            for k in range(classes)
        ]
    return [f"LABEL_{number}" for number in range(classes)]


def timm_preprocessing(file: Path, cfg: dict[str, Any], patch_size: int) -> Preprocessing:
    """The checkpoint's constants and filter with the project's geometry."""
    mean, std = constants(file, cfg.get("mean"), cfg.get("std"))
    filters = {filter_.name.lower(): filter_ for filter_ in Image.Resampling}
    resample = filters.get(str(cfg.get("interpolation")), Image.Resampling.BICUBIC)
    shorter, size = geometry(patch_size)
    return Preprocessing(shorter, size, mean, std, resample)


def _described(name: str, descriptions: Any, description: str = "") -> str:
    text = descriptions.get(name, description) if isinstance(descriptions, dict) else description
    return f"{name}, {text}" if text else name


def _pretrained(timm: Any) -> list[str]:
    """Names with weights of the architectures that may fit, tags included."""
    return [
        name
        for module in MODULES
        for name in timm.list_models(module=module, pretrained=True, include_tags=True)
    ]


def _nearest(timm: Any, name: str) -> str:
    """Names that hold what was asked for, then those that are spelled alike."""
    wanted = name.lower()
    known = _pretrained(timm)
    found = sorted((entry for entry in known if wanted in entry.lower()), key=len)[:NEAREST]
    found += difflib.get_close_matches(wanted, known, NEAREST)
    by_architecture = {entry.partition(".")[0]: entry for entry in reversed(known)}
    alike = difflib.get_close_matches(wanted.partition(".")[0], by_architecture, NEAREST)
    found += [by_architecture[architecture] for architecture in alike]
    found = list(dict.fromkeys(found))[:NEAREST] or ["deit3_base_patch16_224.fb_in1k"]
    return f"nearest that may fit: {', '.join(found)}"


def _require_architecture(name: str, architecture: str) -> None:
    timm = import_timm()
    if not timm.is_model(architecture):
        raise BackboneError(f"timm has no model {name!r}; {_nearest(timm, name)}.")
    if not timm.models.is_model_in_modules(architecture, MODULES):
        raise BackboneError(
            f"timm's {architecture!r} is not a plain VisionTransformer or Eva; "
            f"{_nearest(timm, name)}."
        )


def _require_arguments(folder: Path, arguments: dict[str, Any]) -> None:
    """Only what describes the architecture: create_model would take the path of a pickle as well."""
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    known = {*signature(VisionTransformer).parameters, *signature(Eva).parameters}
    known -= {"device", "dtype"}  # where and how exactly is not the checkpoint's business
    if unknown := [argument for argument in arguments if argument not in known]:
        raise BackboneError(
            f"{folder / 'config.json'} has the model argument {unknown[0]!r}, which neither timm's "
            "VisionTransformer nor its Eva knows."
        )


def _require_plain(vit: Any, name: str | Path) -> None:
    """A class token, a grid of square patches, plain blocks, attention whose one fused call is seen."""
    from timm.layers import Attention, AttentionRope, PatchEmbed
    from timm.models.eva import Eva, EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block, VisionTransformer

    plain: Sequence[tuple[bool, str]] = (
        (isinstance(vit, VisionTransformer | Eva), f"is a {type(vit).__name__}"),
        (
            type(getattr(vit, "patch_embed", None)) is PatchEmbed,
            "has no plain patch embedding",
        ),
        (_channels(vit) == 3, "does not take RGB images"),
        (getattr(vit, "cls_token", None) is not None, "has no class token, which the scores read"),
        (
            not getattr(vit, "rope_mixed", False),
            "has rotary positions that differ from block to block",
        ),
    )
    problem = next((what for fine, what in plain if not fine), "")
    for block in () if problem else vit.blocks:
        attention = getattr(block, "attn", None)
        shared = getattr(attention, "num_kv_groups", 1) != 1
        if type(block) not in (Block, EvaBlock):
            problem = f"has blocks of type {type(block).__name__}"
        elif type(attention) not in (Attention, EvaAttention, AttentionRope) or shared:
            problem = f"has attention of an unknown kind, {type(attention).__name__}"
    if problem:
        raise BackboneError(
            f"{name} {problem}; supported are timm's VisionTransformer and Eva with a class token, "
            f"a patch grid and plain pre-norm blocks, {_nearest(import_timm(), _plainer(str(name)))}."
        )


def _plainer(name: str) -> str:
    """The beginning of a name: what comes later says in which way a model is not plain."""
    return "_".join(name.rstrip("/").rsplit("/", 1)[-1].split("_")[:3])


def _channels(vit: Any) -> Any:
    """Of the input. Not every version of timm keeps them as an attribute of the model."""
    return getattr(getattr(getattr(vit, "patch_embed", None), "proj", None), "in_channels", None)
