"""Where a model came from: its name on the Hub, and the image processor that belongs to it."""

import re
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from redi.backbone import Backbone
from redi.backbone.checkpoint import read_json
from redi.backbone.families import square, square_patch
from redi.backbone.inputs import processor_input
from redi.backbone.own_input import own_input, processor_sizes
from redi.errors import BackboneError
from redi.images.preprocessing import Preprocessing

PROCESSOR = "preprocessor_config.json"
#: The place of a Hub repository in the local cache.
CACHED = re.compile(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]")


class Origin(NamedTuple):
    """What is known of the original model; empty if unknown."""

    base_model: str  # Hub name
    license: str


def origin(config: Any) -> Origin:
    """The origin of the model with this configuration; a folder or a live model may not tell."""
    settings = getattr(config, "settings", None)  # a checkpoint of timm
    if settings is not None:
        pretrained = settings.get("pretrained_cfg", settings)
        return Origin(str(pretrained.get("hf_hub_id") or ""), str(pretrained.get("license") or ""))
    name = str(getattr(config, "name_or_path", ""))
    if cached := CACHED.search(name):
        name = "/".join(cached.groups())
    return Origin(name if _is_hub_name(name) else "", "")


def live_input(config: Any, name: str = "") -> Preprocessing:
    """The input of a live model of transformers, as far as the local files of its checkpoint tell.

    Its size is that of the checkpoint's image processor, or else that of the model's own positions. ``name`` is the
    checkpoint, if it is not the configuration's own: that of a whole model, not that of its backbone.
    """
    name = name or str(config.name_or_path)
    file, patch = f"The image processor of {name}", square_patch(config)
    settings = _processor(name, download=False) or {}
    shorter, size = processor_sizes(settings)
    sizes = (shorter, size) if size else (None, _own_size(config, patch))
    return own_input(file, settings, sizes, processor_input(file, settings, patch), patch)


def _own_size(config: Any, patch: int) -> int:
    """The side of the images that the learned positions are for; SigLIP 2 gives their number only."""
    if hasattr(config, "image_size"):
        return square(config.image_size)
    return isqrt(config.num_patches) * patch


def known_input(backbone: Backbone) -> Preprocessing:
    """The input to publish: what the backbone has, unless its image processor on the Hub was never downloaded."""
    name = str(getattr(backbone.config, "name_or_path", ""))
    if not _is_hub_name(name) or _processor(name, download=False) is not None:
        return backbone.preprocessing
    own = processor_input(f"The image processor of {name}", own_processor(backbone.config), backbone.patch_size)
    return replace(backbone.preprocessing, mean=own.mean, std=own.std)


def own_processor(config: Any) -> dict[str, Any]:
    """The settings of the image processor of a model of transformers; empty if its checkpoint has none."""
    name = str(config.name_or_path)
    settings = _processor(name, download=False)
    settings = _processor(name, download=True) if settings is None else settings
    if settings is None:
        raise BackboneError(
            f"The image processor of {name} is not in the local cache, and the Hub cannot be reached: load it once "
            "with AutoImageProcessor.from_pretrained(), and accelerate the model again."
        )
    return settings


def _is_hub_name(name: str) -> bool:
    return name.count("/") <= 1 and bool(name) and not Path(name).is_dir() and not name.startswith((".", "/", "~"))


def _processor(name: str, download: bool) -> dict[str, Any] | None:
    """The settings of the image processor: empty if the checkpoint has none, None if they are not here."""
    if not _is_hub_name(name):
        file = Path(name) / PROCESSOR
        return read_json(file) if name and file.exists() else {}
    try:
        return read_json(Path(hf_hub_download(name, PROCESSOR, local_files_only=not download)))
    except LocalEntryNotFoundError:  # before the next, of which it is a kind
        return None
    except EntryNotFoundError:
        return {}
    except Exception:  # no network, or a name that the Hub does not know: httpx raises many types
        return None
