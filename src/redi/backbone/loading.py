"""``load_backbone``: a Hub name or a local folder in, a frozen backbone out.

Checkpoints in timm's format go to :mod:`redi.backbone.timm_loading`, all others to transformers.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import ViTConfig
from transformers.utils import logging

from redi.backbone.checkpoint import checkpoint_folder, read_json, weight_shapes
from redi.backbone.families import FAMILIES, TWO_TOWERS, Head, TransformersFamily, square_patch
from redi.backbone.hook import register_attention
from redi.backbone.inputs import processor_input
from redi.backbone.model import Backbone
from redi.backbone.sizes import require_sizes
from redi.backbone.timm_loading import PREFIX, load_timm
from redi.checks import require_type
from redi.errors import BackboneError, one_line

#: How the model types that :mod:`redi.deploy` writes begin.
ACCELERATED = "redi_accelerated"


def load_backbone(name_or_path: str | Path, revision: str | None = None) -> Backbone:
    """Load a frozen backbone in FP32, whatever precision it is stored in.

    ``name_or_path`` is a folder in the Hub's format, or a Hub name such as
    ``facebook/dinov3-vitb16-pretrain-lvd1689m``. Its ``model_type`` must be one of
    :data:`redi.backbone.families.FAMILIES`. With the prefix ``timm:`` it is a timm name, such as
    ``timm:deit3_base_patch16_224.fb_in1k``, or a folder in timm's format.
    """
    require_type(name_or_path, str | Path, "name_or_path", BackboneError)
    require_type(revision, str | None, "revision", BackboneError)
    folder = checkpoint_folder(name_or_path, revision)
    settings = read_json(folder / "config.json")
    kind = settings.get("model_type")
    if kind is None and "architecture" in settings:
        return load_timm(folder, name_or_path, settings, weight_shapes(folder, name_or_path))
    if str(name_or_path).startswith(PREFIX):
        raise BackboneError(
            f"{folder / 'config.json'} names no timm architecture: to load a folder in transformers' format, leave "
            f"out the prefix {PREFIX!r}."
        )
    if str(kind).startswith(ACCELERATED):
        raise BackboneError(
            f"{name_or_path} holds an accelerated model: load it with redi.Accelerated.from_pretrained(), or pass its "
            "folder dense, which holds the original."
        )
    if not isinstance(kind, str) or kind not in {**FAMILIES, **TWO_TOWERS}:
        raise BackboneError(
            f"{name_or_path} has the model type {kind!r}, which is not supported; supported are "
            f"{', '.join([*FAMILIES, *TWO_TOWERS])}."
        )
    shapes = weight_shapes(folder, name_or_path)
    if kind in TWO_TOWERS:
        _require_towers(name_or_path, settings)
        kind, settings = TWO_TOWERS[kind], _image_tower(folder / "config.json", settings)
    require_sizes(folder / "config.json", settings, shapes)
    family = FAMILIES[kind]
    architectures = settings.get("architectures") or []
    classes = architectures if isinstance(architectures, list) else [architectures]
    head = next((family.heads[name] for name in map(str, classes) if name in family.heads), None)
    try:
        config = family.config.from_dict(settings)
        if kind == "vit_mae":
            config = plain_vit_config(config)
        patch_size = square_patch(config)
        model, report = _load_transformers(folder, family, head, config, shapes)
    except BackboneError:
        raise
    except Exception as error:  # transformers and safetensors raise many types on broken files
        raise BackboneError(f"{name_or_path} cannot be loaded ({one_line(error)})") from error
    require_all_weights(report, name_or_path, kind)
    processor = folder / "preprocessor_config.json"
    content = read_json(processor) if processor.exists() else {}
    return Backbone(model, family, head, processor_input(processor, content, patch_size))


def _require_towers(name: str | Path, settings: dict[str, Any]) -> None:
    """Refuse a classifier on an image tower, whose head would be dropped without a word."""
    if "ForImageClassification" in str(settings.get("architectures")):
        raise BackboneError(
            f"{name} is a classifier on an image tower, whose head is not supported: pass the model of images and "
            "texts, or its image tower, and train a probe."
        )


def _image_tower(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The part of the configuration of a model of images and texts that describes its image tower."""
    vision = settings.get("vision_config")
    if not isinstance(vision, dict):
        raise BackboneError(f"{file} must describe the image tower as a JSON object, vision_config.")
    joint = {"projection_dim": settings["projection_dim"]} if "projection_dim" in settings else {}
    return {**vision, **joint}


def _load_transformers(
    folder: Path, family: TransformersFamily, head: Head | None, config: Any, weights: Collection[str]
) -> tuple[Any, dict[str, Any]]:
    """The model, and transformers' report on weights that are missing or have another size."""
    projection = family.projection
    projects = projection is not None and any(projection.layer in name for name in weights)
    model_class: Any = head.model if head else projection.model if projection and projects else family.encoder
    options: dict[str, Any] = {}
    if family.optional_pooler and not head:  # without weights the pooler would be random
        options["add_pooling_layer"] = any("pooler." in name for name in weights)
    with quiet_transformers():
        loaded: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation=register_attention(),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report lists them
            **options,
        )
    return loaded


def require_all_weights(report: dict[str, Any], name: str | Path, kind: str) -> None:
    """Refuse a checkpoint that lacks weights, by transformers' report on how a model of this kind was loaded."""
    unusable = sorted(report["missing_keys"]) + sorted(str(key[0]) for key in report["mismatched_keys"])
    if unusable:
        raise BackboneError(
            f"{name} lacks {len(unusable)} weights of a {kind} model or has them in another size, e.g. "
            f"{unusable[0]}: the checkpoint is incomplete or does not fit its config.json."
        )


def plain_vit_config(mae: Any) -> ViTConfig:
    """The encoder part of an MAE configuration, as a configuration of a plain ViT."""
    shared = set(ViTConfig().to_dict()) & set(mae.to_dict())
    fields = {key: getattr(mae, key) for key in shared - {"model_type", "architectures"}}
    return ViTConfig(**fields)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the loading bar and the report on unused weights (an MAE decoder, a pooler).

    The caller checks the important part of that report: the missing weights.
    """
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
