"""The parts of a model of transformers: the backbone that is made faster, and the decoder that reads it.

The decoder of a vision-language model is its projector and its language model.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import transformers
from torch import nn
from transformers import (
    CLIPVisionModel,
    PreTrainedModel,
    SiglipVisionModel,
    ViTMAEForPreTraining,
    ViTMAEModel,
    ViTModel,
)
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from redi.backbone import Backbone
from redi.backbone.checkpoint import FILES, checkpoint_folder, read_json, weight_shapes
from redi.backbone.families import FAMILIES, TWO_TOWERS, Maps
from redi.backbone.loading import plain_vit_config, quiet_transformers
from redi.backbone.sizes import require_sizes
from redi.checks import require_finite_weights
from redi.deploy.origin import live_input
from redi.errors import BackboneError, one_line

Module = TypeVar("Module", bound=nn.Module)

#: The backbone classes of transformers.
MAPS = tuple(family.maps.model for family in FAMILIES.values() if family.maps is not None)
#: Sizes of a language model that must fit its weights. Its heads may be wider than their share of the width.
TEXT_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size")
#: How a generating model is used by default; a file beside the weights.
GENERATION = "generation_config.json"


class Whole(NamedTuple):
    """A class of whole models: where it keeps its backbone, and which backbones can be accelerated."""

    pipeline: str  # of transformers
    place: str = "backbone"  # attribute path of the backbone
    settings: str = "backbone_config"  # the backbone's part of the configuration
    backbones: tuple[type[PreTrainedModel], ...] = MAPS
    generates: bool = False  # whether the decoder is a language model

    @property
    def noun(self) -> str:
        return self.place.rpartition(".")[2].replace("_", " ")


#: The classes of whole models by name, because some of these classes take long to import.
WHOLE = {
    "DepthAnythingForDepthEstimation": Whole("depth-estimation"),
    "DPTForDepthEstimation": Whole("depth-estimation"),
    "LlavaForConditionalGeneration": Whole(
        "image-text-to-text", "model.vision_tower", "vision_config", (CLIPVisionModel, SiglipVisionModel), True
    ),
    "UperNetForSemanticSegmentation": Whole("image-segmentation"),
    "ZoeDepthForDepthEstimation": Whole("depth-estimation"),
}


class Parts(NamedTuple):
    """A backbone, and the rest of a whole model: a copy of it that has no backbone."""

    backbone: Backbone
    decoder: PreTrainedModel | None = None


def maps_of(backbone: Backbone) -> Maps | None:
    """How the feature maps are made; None if the model is not of a backbone class."""
    maps = getattr(backbone.family, "maps", None)
    return maps if maps is not None and type(backbone.model) is maps.model else None


def take_apart(model: PreTrainedModel) -> Parts:
    """The parts of a live model, which share its weights and leave it as it is."""
    whole = WHOLE.get(type(model).__name__)
    if whole is None:
        return Parts(wrap(model))
    above, _, name = whole.place.rpartition(".")
    inner = getattr(model.get_submodule(above), name, None)
    if type(inner) not in whole.backbones:
        noun, supported = whole.noun, ", ".join(kind.__name__ for kind in whole.backbones)
        own = f"no {noun} but an encoder of its own" if inner is None else f"the {noun} {type(inner).__name__}"
        raise BackboneError(f"This {type(model).__name__} has {own}; supported {noun}s are {supported}.")
    decoder: Any = _without_recorders(shared_copy(model)).eval()
    inner = decoder.get_submodule(above)._modules.pop(name)
    require_finite_weights(decoder)
    preprocessing = live_input(inner.config, str(model.config.name_or_path))
    return Parts(Backbone(inner, FAMILIES[inner.config.model_type], None, preprocessing), decoder)


def wrap(model: PreTrainedModel) -> Backbone:
    """A backbone around a copy of the model's structure that shares its weights.

    The copy has its own configuration and its own view of every parameter, so that freezing it and reading its
    attention do not change the given model.
    """
    if isinstance(model, ViTMAEForPreTraining):
        model = model.vit
    if isinstance(model, ViTMAEModel):
        model = _unmasked(model)
    name, kind = type(model).__name__, getattr(model.config, "model_type", None)
    family = FAMILIES.get(str(kind))
    head = family.heads.get(name) if family else None
    if kind in TWO_TOWERS and hasattr(model, "text_model"):
        raise BackboneError(f"{name} has a tower for images and one for texts: pass the first, model.vision_model.")
    projects = family is not None and family.projection is not None and type(model) is family.projection.model
    if family is None or not (head or projects or type(model) is family.encoder or type(model) in MAPS):
        supported = [title for entry in FAMILIES.values() for title in (entry.encoder.__name__, *entry.heads)]
        supported += [entry.projection.model.__name__ for entry in FAMILIES.values() if entry.projection]
        supported += [ViTMAEModel.__name__, *(entry.__name__ for entry in MAPS), *WHOLE]
        raise BackboneError(f"{name} cannot be accelerated; supported are {', '.join(dict.fromkeys(supported))}.")
    return Backbone(_without_recorders(shared_copy(model)), family, head, live_input(model.config))


def shared_copy(module: Module) -> Module:
    """A copy that shares the weights but can be frozen, moved or converted without changing the original."""
    shared: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False) for parameter in module.parameters()
    }
    shared |= {id(buffer): buffer for buffer in module.buffers()}
    return deepcopy(module, shared)


def _without_recorders(copied: Module) -> Module:
    """Remove the hooks by which transformers records hidden states: a compiler cannot trace them.

    Backbone classes have them from the start. transformers installs them again where they are needed.
    """
    for module in copied.modules():
        hooks = module._forward_hooks
        for key in [key for key, hook in hooks.items() if hook.__module__ == maybe_install_capturing_hooks.__module__]:
            del hooks[key]
        vars(module).pop("_output_capturing_hooks_installed", None)
    return copied


def _unmasked(model: ViTMAEModel) -> Any:
    """A plain ViT with the weights of transformers' MAE model, which would drop patches at random."""
    plain: Any = ViTModel(plain_vit_config(model.config), add_pooling_layer=False)
    plain.load_state_dict(model.state_dict())
    return plain.to(device=model.device, dtype=model.dtype)


def load_live(name_or_path: str | Path, dtype: torch.dtype | None = None) -> PreTrainedModel | None:
    """The whole model or the backbone class of a checkpoint; None if the checkpoint is of another class.

    It is loaded in FP32 if no ``dtype`` is given; a language model, which is large, in the precision of its file.
    """
    folder = checkpoint_folder(name_or_path, files=(*FILES, GENERATION))
    settings = read_json(folder / "config.json")
    architectures = settings.get("architectures")
    classes = {*WHOLE, *(entry.__name__ for entry in MAPS)}
    names = map(str, architectures if isinstance(architectures, list) else [architectures])
    class_name = next((name for name in names if name in classes), None)
    if class_name is None:
        return None
    kind, whole = getattr(transformers, class_name), WHOLE.get(class_name)
    sizes = settings if whole is None else settings.get(whole.settings)
    precision: Any = dtype or ("auto" if whole is not None and whole.generates else torch.float32)
    text = settings.get("text_config") if whole is not None and whole.generates else None
    shapes = weight_shapes(folder, name_or_path)
    require_sizes(folder / "config.json", sizes if isinstance(sizes, dict) else {}, shapes)
    if isinstance(text, dict):
        require_sizes(folder / "config.json", {name: text[name] for name in TEXT_SIZES if name in text}, shapes)
    try:
        with quiet_transformers():
            model, report = kind.from_pretrained(
                folder,
                dtype=precision,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report lists them
            )
    except Exception as error:  # transformers and safetensors raise many types on broken files
        raise BackboneError(f"{name_or_path} cannot be loaded ({one_line(error)})") from error
    if unusable := sorted(report["missing_keys"]) + sorted(str(key[0]) for key in report["mismatched_keys"]):
        raise BackboneError(
            f"{name_or_path} lacks {len(unusable)} weights of a {class_name} or has them in another size, e.g. "
            f"{unusable[0]}: the checkpoint is incomplete or does not fit its config.json."
        )
    loaded: PreTrainedModel = model
    return loaded
