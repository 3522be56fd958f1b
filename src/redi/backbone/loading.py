"""``load_backbone``: a Hub name or a local folder in, a frozen backbone out.

A Hub name is first brought into the local cache (only JSON and safetensors files), then loaded as
a folder, with the network out of the picture. Nothing is unpickled and no code from a checkpoint runs.
Checkpoints in timm's format go to :mod:`redi.backbone.timm_loading`, all others to transformers.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import safe_open
from transformers import ViTConfig
from transformers.utils import logging

from redi.backbone.families import FAMILIES, square_patch
from redi.backbone.inputs import constants, geometry
from redi.backbone.model import Backbone, Preprocessing
from redi.backbone.timm_loading import PREFIX, hub_name, load_timm
from redi.backbone.watch import IMPLEMENTATION
from redi.errors import BackboneError

_FILES = [
    "config.json",
    "preprocessor_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
]


def load_backbone(name_or_path: str | Path, revision: str | None = None) -> Backbone:
    """Load a frozen backbone in FP32, whatever the precision it is stored in.

    ``name_or_path`` is a folder in the Hub's format, or a Hub name such as
    ``facebook/dinov3-vitb16-pretrain-lvd1689m``. Its ``model_type`` must be one of
    :data:`redi.backbone.families.FAMILIES`. With ``timm:`` before it, it is a name of timm's, such
    as ``timm:deit3_base_patch16_224.fb_in1k``, or a folder in timm's format.
    """
    folder = checkpoint_folder(name_or_path, revision)
    settings = _read_json(folder / "config.json")
    kind = settings.get("model_type")
    if kind is None and "architecture" in settings:
        _require_safetensors(folder, name_or_path)
        return load_timm(folder, name_or_path, settings)
    if str(name_or_path).startswith(PREFIX):
        raise BackboneError(
            f"{folder / 'config.json'} names no architecture of timm's: a folder in transformers' "
            f"format is loaded without {PREFIX}"
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise BackboneError(
            f"{name_or_path} is of type {kind!r}, which is not a supported Vision Transformer; "
            f"supported are {', '.join(FAMILIES)}."
        )
    _require_safetensors(folder, name_or_path)
    family = FAMILIES[kind]
    architectures = settings.get("architectures") or []
    named = architectures if isinstance(architectures, list) else [architectures]
    head = next((family.heads[name] for name in map(str, named) if name in family.heads), None)
    model_class: Any = head.model if head else family.encoder
    options: dict[str, Any] = {}
    if family.optional_pooler and not head:
        options["add_pooling_layer"] = _has_pooler(folder)
    with _quiet_transformers():
        try:
            config = family.config.from_dict(settings)
            if kind == "vit_mae":
                config = plain_vit_config(config)
            patch_size = square_patch(config)
            loaded: Any = model_class.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation=IMPLEMENTATION,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report, which is read below
                **options,
            )
        except BackboneError:
            raise
        except Exception as error:  # whatever transformers or safetensors say about a broken file
            raise BackboneError(
                f"{name_or_path} cannot be loaded ({type(error).__name__}): {_first_line(error)}"
            ) from error
    model, report = loaded
    wrong = sorted(report["missing_keys"]) + sorted(
        str(key[0]) for key in report["mismatched_keys"]
    )
    if wrong:
        raise BackboneError(
            f"{name_or_path} lacks {len(wrong)} weights of a {kind} model or has them in another "
            f"size, e.g. {wrong[0]}: the checkpoint is incomplete or does not fit its config.json."
        )
    return Backbone(model, family, head, _preprocessing(folder, patch_size))


def checkpoint_digest(folder: Path) -> str:
    """Of the configuration and the weights, so that results can say what they were made with."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _FILES for file in folder.glob(pattern)):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def checkpoint_folder(name_or_path: str | Path, revision: str | None = None) -> Path:
    """The local folder of a checkpoint; a Hub name is downloaded into the cache first."""
    name = str(name_or_path).removeprefix(PREFIX)
    of_timm = name != str(name_or_path)
    if not name:
        raise BackboneError(f"There is no name in {str(name_or_path)!r}: pass one, or a folder.")
    path = Path(name)
    try:
        path = path.expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError):
        is_folder = exists = False
    if is_folder:
        return path
    if exists:
        raise BackboneError(f"{name} is a file; pass the folder that holds config.json.")
    advice = "pass a Hub name (owner/model) or a local folder with config.json and safetensors"
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise BackboneError(f"There is no folder {name}; {advice}.")
    if of_timm:
        name = hub_name(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except GatedRepoError:
        raise BackboneError(
            f"{name} is gated: accept its licence on its page at the Hub and log in with "
            "`hf auth login`, or pass a local folder."
        ) from None
    except RevisionNotFoundError:
        raise BackboneError(f"{name} has no revision {revision!r} at the Hub.") from None
    except RepositoryNotFoundError:
        raise BackboneError(
            f"There is no {name} at the Hub, or it is private: check the name, log in with "
            "`hf auth login`, or pass a local folder."
        ) from None
    except HFValidationError:
        raise BackboneError(f"{name!r} is neither a folder nor a Hub name; {advice}.") from None
    except Exception as error:  # no network, a time-out, a proxy: httpx has many names for it
        raise BackboneError(
            f"{name} is not in the local cache and the Hub cannot be reached "
            f"({type(error).__name__}); check the network, log in with `hf auth login` if the model "
            "is gated, or pass a local folder."
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BackboneError(f"There is no {file.name} in {file.parent}.") from None
    except (OSError, ValueError) as error:
        raise BackboneError(f"{file} cannot be read: {_first_line(error)}") from None
    if not isinstance(content, dict):
        raise BackboneError(f"{file} does not hold a JSON object.")
    return content


def _require_safetensors(folder: Path, name: str | Path) -> None:
    """Weights must be safetensors inside the folder: pickle can run code when it is loaded."""
    if (folder / "model.safetensors").exists():
        return
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        raise BackboneError(
            f"{name} has no model.safetensors. Weights as pickle (.bin, .pt) can run code when "
            "loaded and are refused: load the model once with transformers and write it with "
            "`model.save_pretrained(folder)`, which makes safetensors."
        )
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise BackboneError(f"{index} names no weights.")
    for shard in set(map(str, shards.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise BackboneError(
                f"{index} names {shard!r}, which is not a safetensors file of the same folder."
            )


def _has_pooler(folder: Path) -> bool:
    """Whether the weights hold the layer behind ``pooler_output``; a random one would be no use."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        try:
            with safe_open(folder / "model.safetensors", "pt") as weights:
                names = list(weights.keys())
        except Exception as error:  # its own error type is not public
            raise BackboneError(
                f"{folder / 'model.safetensors'} cannot be read: {_first_line(error)}"
            ) from None
    else:
        names = list(_read_json(index)["weight_map"])
    return any("pooler." in name for name in names)


def plain_vit_config(mae: Any) -> ViTConfig:
    """The encoder half of an MAE configuration."""
    shared = set(ViTConfig().to_dict()) & set(mae.to_dict())
    fields = {key: getattr(mae, key) for key in shared - {"model_type", "architectures"}}
    return ViTConfig(**fields)


def _preprocessing(folder: Path, patch_size: int) -> Preprocessing:
    """Our own geometry (the stock processor of DINOv3 squashes without a crop); constants of theirs."""
    mean = std = None
    file = folder / "preprocessor_config.json"
    if file.exists():
        settings = _read_json(file)
        mean, std = settings.get("image_mean"), settings.get("image_std")
        if not settings.get("do_normalize", True):
            mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    shorter, size = geometry(patch_size)
    return Preprocessing(shorter, size, *constants(file, mean, std))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Hide the loading bar and the report on unused weights (an MAE decoder, a pooler): what matters
    of it, missing weights, is checked here."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") + "." if text else type(error).__name__ + "."
