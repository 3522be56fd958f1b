"""Checkpoints in timm's format (``config.json`` with an ``architecture``, and ``model.safetensors``), and live models.

timm builds the model and matches the weights by its own rules for older names. Only numbers and names of the
architecture are read from a checkpoint's configuration. timm is optional, so it is imported only when needed.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from redi.backbone.families import square
from redi.backbone.inputs import checkpoint_input
from redi.backbone.model import Backbone
from redi.backbone.sizes import require_sizes
from redi.backbone.timm_model import TIMM, TIMM_JOINT, TimmConfig, TimmModel, timm_head
from redi.errors import BackboneError
from redi.images.preprocessing import Preprocessing, shorter_side

#: The prefix of a timm name, or of a folder in timm's format.
PREFIX = "timm:"
#: timm's modules whose models may be a plain VisionTransformer or Eva.
MODULES = ("vision_transformer", "deit", "eva")
#: Parts of the names of towers that are trained with texts and end in a projection to the joint embedding.
PROJECTING = ("clip", "vit_pe_core")
#: Part of the names of towers that are trained with texts and whose attention pool gives the joint embedding.
POOLING = "siglip"
#: Part of the tag of weights that were fine-tuned on labels, so that the last layer is a classifier.
FINE_TUNED = "_ft_"
#: Number of names to suggest if a name is unknown.
NEAREST = 3


def hub_name(name: str) -> str:
    """The Hub repository of a timm name such as ``deit3_base_patch16_224.fb_in1k``.

    A name without a tag means the architecture's default weights. ``owner/model`` is already a repository.
    """
    if "/" in name:
        return name
    timm = import_timm()
    architecture = name.partition(".")[0]
    _require_architecture(name, architecture)
    tagged = [entry for entry in _pretrained(timm) if entry.partition(".")[0] == architecture]
    if not tagged:
        raise BackboneError(f"timm has no weights for {architecture!r}; {_nearest(timm, name)}.")
    if name != architecture and name not in tagged:
        raise BackboneError(f"timm has no weights called {name!r}; choose one of {', '.join(tagged)}.")
    with torch.device("meta"):  # the check comes before the download
        _require_plain(timm.create_model(architecture, pretrained=False), name)
    repository = str(timm.get_pretrained_cfg(name).hf_hub_id or f"timm/{name}")
    other = repository.rpartition("/")[2].partition(".")[0]
    if other != architecture and timm.is_model(other):  # e.g. CLIP with QuickGELU, which config.json must name
        raise BackboneError(
            f"timm reads {name} from {repository}, a repository of {other}: create the model with timm, save it with "
            "timm.models.save_for_hf(model, folder, safe_serialization=True), and pass the folder."
        )
    return repository


def load_timm(
    folder: Path, name: str | Path, settings: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Backbone:
    """Load the backbone of a folder; ``settings`` is the content of its config.json, ``shapes`` are its weights'."""
    timm = import_timm()
    architecture = settings.get("architecture")
    if not isinstance(architecture, str):
        raise BackboneError(f"{folder / 'config.json'} names no timm architecture.")
    _require_architecture(architecture, architecture)
    pretrained = settings.get("pretrained_cfg", settings)  # older files have everything on one level
    arguments = settings.get("model_args") or {}
    if not isinstance(pretrained, dict) or not isinstance(arguments, dict):
        raise BackboneError(f"{folder / 'config.json'} must hold JSON objects as model_args and pretrained_cfg.")
    _require_arguments(folder, arguments)
    classes = settings.get("num_classes", pretrained.get("num_classes", 1000))
    require_sizes(folder / "config.json", {"num_classes": classes, **arguments}, shapes)
    arguments = {"num_classes": classes, **arguments, "dynamic_img_size": True}
    keys = {entry.name for entry in fields(timm.models.PretrainedCfg)}
    options: dict[str, Any] = {key: pretrained[key] for key in keys & set(pretrained)}
    options |= {
        "num_classes": arguments["num_classes"],
        "state_dict": None,
        "file": str(folder / "model.safetensors"),
        "source": "",
        "custom_load": False,
        "label_offset": None,
    }
    try:
        vit = timm.create_model(architecture, pretrained=True, pretrained_cfg=options, **arguments)
    except Exception as error:  # timm, torch and safetensors raise many types
        reason = " ".join(str(error).split())
        raise BackboneError(f"{name} cannot be loaded ({type(error).__name__}): {reason[:200]}") from error
    _require_plain(vit, name)
    if POOLING in architecture and vit.attn_pool is None:  # where timm does not insist on every weight
        _require_weights(vit, name, shapes)
    preprocessing = _preprocessing(folder / "config.json", vit, options)
    return _backbone(vit.float(), architecture, preprocessing, pretrained, settings)


def is_timm(model: nn.Module) -> bool:
    """Whether the class of a live model is timm's; timm itself is not imported."""
    return any(kind.__module__.startswith("timm.") for kind in type(model).__mro__)


def live_timm(vit: Any) -> Backbone:
    """The backbone around a live model, with the input that its ``pretrained_cfg`` describes and its own image size."""
    options = dict(getattr(vit, "pretrained_cfg", None) or {})
    name = str(options.get("architecture") or type(vit).__name__)
    _require_plain(vit, name)
    height, width = vit.patch_embed.img_size
    if height != width:
        raise BackboneError(f"{name} takes images of {width}x{height}; supported are square ones.")
    preprocessing = _preprocessing(f"The pretrained_cfg of {name}", vit, options)
    preprocessing = replace(preprocessing, shorter=shorter_side(height), size=height)
    return _backbone(vit, name, preprocessing, options, {})


def _preprocessing(source: str | Path, vit: Any, options: dict[str, Any]) -> Preprocessing:
    mean, std, interpolation = (options.get(name) for name in ("mean", "std", "interpolation"))
    return checkpoint_input(source, square(vit.patch_embed.patch_size), mean, std, str(interpolation))


def _backbone(
    vit: Any, architecture: str, preprocessing: Preprocessing, pretrained: dict[str, Any], settings: dict[str, Any]
) -> Backbone:
    """Wrap a plain model. ``pretrained`` is its pretrained_cfg, ``settings`` the config.json that it came with."""
    is_joint = _is_joint(vit, architecture, pretrained)
    has_head = isinstance(vit.head, nn.Linear) and bool(vit.global_pool) and not is_joint
    names = class_names(settings, pretrained, vit.num_classes) if has_head else []
    config = TimmConfig(
        hidden_size=vit.embed_dim,
        num_attention_heads=vit.blocks[0].attn.num_heads,
        patch_size=square(vit.patch_embed.patch_size),
        prefix=vit.num_prefix_tokens,
        has_cls=vit.cls_token is not None,
        id2label=dict(enumerate(names)),
        settings=settings,
    )
    # Weights that were trained with another activation run, as in timm, but their embedding is not that of the texts.
    is_native = "quickgelu" in architecture or "QuickGELU" not in str(pretrained.get("notes"))
    family = TIMM_JOINT if is_joint and is_native else TIMM
    return Backbone(TimmModel(vit, config), family, timm_head(vit) if has_head else None, preprocessing)


def _is_joint(vit: Any, architecture: str, pretrained: dict[str, Any]) -> bool:
    """Whether the model's own output is the embedding that texts are compared with.

    The last layer of a CLIP or PE tower is a classifier instead if the tag says that the weights were fine-tuned, or
    if the layer was replaced: then its size is not that of the ``pretrained_cfg``.
    """
    if not vit.global_pool:
        return False
    if not isinstance(vit.head, nn.Linear):
        return vit.attn_pool is not None and POOLING in architecture
    is_own = vit.num_classes == pretrained.get("num_classes", vit.num_classes)
    is_fine_tuned = FINE_TUNED in str(pretrained.get("tag"))
    return is_own and not is_fine_tuned and any(part in architecture for part in PROJECTING)


def import_timm() -> Any:
    """Import timm; if timm is missing or its torchvision is broken, the error says what to install."""
    try:
        import timm
    except ImportError as error:
        raise BackboneError(
            f"Backbones with the prefix {PREFIX} need timm ({error}): install it with `pip install redi-vit[timm]`."
        ) from None
    except RuntimeError as error:
        raise BackboneError(
            f"timm cannot be imported ({' '.join(str(error).split())}): install a torchvision built for this torch."
        ) from None
    return timm


def class_names(settings: dict[str, Any], cfg: dict[str, Any], classes: int) -> list[str]:
    """Class names from the checkpoint; otherwise timm's ImageNet-1k names if the tag says so; otherwise numbers.

    A name and its description are joined by a comma, so a folder may have either as its name.
    """
    from timm.data import ImageNetInfo

    labels = settings.get("label_names") or settings.get("labels") or cfg.get("label_names")
    descriptions = settings.get("label_descriptions") or cfg.get("label_descriptions") or {}
    if isinstance(labels, dict):
        labels = [labels.get(str(number), labels.get(number, f"LABEL_{number}")) for number in range(classes)]
    if isinstance(labels, list | tuple) and len(labels) == classes:
        return [_described(str(label), descriptions) for label in labels]
    if classes == 1000 and str(cfg.get("tag") or "").endswith("in1k"):
        info = ImageNetInfo()
        return [
            _described(info.index_to_label_name(k), {}, info.index_to_description(k, detailed=True))
            for k in range(classes)
        ]
    return [f"LABEL_{number}" for number in range(classes)]


def _described(name: str, descriptions: Any, description: str = "") -> str:
    text = descriptions.get(name, description) if isinstance(descriptions, dict) else description
    return f"{name}, {text}" if text else name


def _pretrained(timm: Any) -> list[str]:
    """Names of all weights, with their tags, whose architectures may be supported."""
    return [name for module in MODULES for name in timm.list_models(module=module, pretrained=True, include_tags=True)]


def _nearest(timm: Any, name: str) -> str:
    """Suggest names that contain ``name``, then names with a similar spelling."""
    query = name.lower()
    names = _pretrained(timm)
    nearest = sorted((entry for entry in names if query in entry.lower()), key=len)[:NEAREST]
    nearest += difflib.get_close_matches(query, names, NEAREST)
    by_architecture = {entry.partition(".")[0]: entry for entry in reversed(names)}
    similar = difflib.get_close_matches(query.partition(".")[0], by_architecture, NEAREST)
    nearest += [by_architecture[architecture] for architecture in similar]
    nearest = list(dict.fromkeys(nearest))[:NEAREST] or ["deit3_base_patch16_224.fb_in1k"]
    return f"the nearest names are {', '.join(nearest)}"


def _require_architecture(name: str, architecture: str) -> None:
    timm = import_timm()
    if not timm.is_model(architecture):
        raise BackboneError(f"timm has no model {name!r}; {_nearest(timm, name)}.")
    if not timm.models.is_model_in_modules(architecture, MODULES):
        raise BackboneError(f"timm's {architecture!r} is not a plain VisionTransformer or Eva; {_nearest(timm, name)}.")


def _require_arguments(folder: Path, arguments: dict[str, Any]) -> None:
    """Allow only arguments of the architecture: create_model would also accept the path of a pickle."""
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    allowed = {*signature(VisionTransformer).parameters, *signature(Eva).parameters}
    allowed -= {"device", "dtype"}  # the caller decides these, not the checkpoint
    if unknown := [argument for argument in arguments if argument not in allowed]:
        raise BackboneError(
            f"{folder / 'config.json'} has the model argument {unknown[0]!r}, which neither timm's VisionTransformer "
            "nor its Eva has."
        )


def _require_plain(vit: Any, name: str | Path) -> None:
    """Require a grid of square patches, plain blocks, attention that makes one fused call, and a known pooling."""
    from timm.layers import Attention, AttentionPoolLatent, AttentionRope, PatchEmbed
    from timm.models.eva import Eva, EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block, VisionTransformer

    pool = getattr(vit, "attn_pool", None)
    requirements: Sequence[tuple[bool, str]] = (
        (isinstance(vit, VisionTransformer | Eva), f"is a {type(vit).__name__}"),
        (type(getattr(vit, "patch_embed", None)) is PatchEmbed, "has no plain patch embedding"),
        (_channels(vit) == 3, "does not take RGB images"),
        (pool is None or type(pool) is AttentionPoolLatent, f"has an attention pool of type {type(pool).__name__}"),
        (not getattr(vit, "rope_mixed", False), "has rotary positions that differ from block to block"),
    )
    problem = next((failure for is_met, failure in requirements if not is_met), "")
    for block in () if problem else vit.blocks:
        attention = getattr(block, "attn", None)
        shared = getattr(attention, "num_kv_groups", 1) != 1
        if type(block) not in (Block, EvaBlock):
            problem = f"has blocks of type {type(block).__name__}"
        elif type(attention) not in (Attention, EvaAttention, AttentionRope) or shared:
            problem = f"has attention of an unknown kind, {type(attention).__name__}"
    if problem:
        raise BackboneError(
            f"{name} {problem}; supported are timm's VisionTransformer and Eva with a patch grid and plain pre-norm "
            f"blocks; {_nearest(import_timm(), _base_name(str(name)))}."
        )


def _require_weights(vit: Any, name: str | Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if missing := [weight for weight in vit.state_dict() if weight not in shapes]:
        raise BackboneError(f"{name} lacks {len(missing)} weights, e.g. {missing[0]}: the checkpoint is incomplete.")


def _base_name(name: str) -> str:
    """The first three parts of a name; later parts often say how a model differs from a plain one."""
    return "_".join(name.rstrip("/").rsplit("/", 1)[-1].split("_")[:3])


def _channels(vit: Any) -> Any:
    """The number of input channels. Not every version of timm keeps it as an attribute of the model."""
    return getattr(getattr(getattr(vit, "patch_embed", None), "proj", None), "in_channels", None)
