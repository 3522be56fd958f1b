"""``load_backbone``: a Hub name or a local folder in, a frozen backbone out.

A Hub name is first brought into the local cache (only JSON and safetensors files), then loaded as
a folder, with the network out of the picture. Nothing is unpickled and no code from a checkpoint runs.
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
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import ViTConfig
from transformers.utils import logging

from redi.backbone.families import FAMILIES
from redi.backbone.model import Backbone, Preprocessing
from redi.errors import BackboneError

#: The default input gives a 14x14 grid whatever the patch size: 224 px for patch 16, 196 for 14.
GRID_SIDE = 14
#: ImageNet's constants, for checkpoints without a preprocessor file.
DEFAULT_MEAN = (0.485, 0.456, 0.406)
DEFAULT_STD = (0.229, 0.224, 0.225)

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
    :data:`redi.backbone.families.FAMILIES`.
    """
    folder = checkpoint_folder(name_or_path, revision)
    settings = _read_json(folder / "config.json")
    kind = settings.get("model_type")
    if kind not in FAMILIES:
        raise BackboneError(
            f"{name_or_path} is of type {kind!r}, which is not a supported Vision Transformer; "
            f"supported are {', '.join(FAMILIES)}."
        )
    _require_safetensors(folder)
    family = FAMILIES[kind]
    config = family.config.from_dict(settings)
    if kind == "vit_mae":
        config = _plain_vit_config(config)
    _require_square_patches(name_or_path, config)

    architecture = next(iter(settings.get("architectures") or []), "")
    head = family.heads.get(architecture)
    model_class, options = (head.model, {}) if head else (family.encoder, family.encoder_options)
    with _quiet_transformers():
        try:
            loaded: Any = model_class.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # whatever transformers or safetensors say about a broken file
            raise BackboneError(f"{name_or_path} cannot be loaded: {_first_line(error)}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if missing:
        raise BackboneError(
            f"{name_or_path} lacks {len(missing)} weights of a {kind} model, e.g. {missing[0]}: "
            "the checkpoint is incomplete or of another architecture."
        )
    return Backbone(model, family, head, _preprocessing(folder, config.patch_size))


def checkpoint_digest(folder: Path) -> str:
    """Of the configuration and the weights, so that results can say what they were made with."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.json"), *folder.glob("model*.safetensors")]):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def checkpoint_folder(name_or_path: str | Path, revision: str | None = None) -> Path:
    """The local folder of a checkpoint; a Hub name is downloaded into the cache first."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    name = str(name_or_path)
    if path.exists():
        raise BackboneError(f"{name} is a file; pass the folder that holds config.json.")
    advice = "pass a Hub name (owner/model) or a local folder with config.json and safetensors"
    if isinstance(name_or_path, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise BackboneError(f"There is no folder {name}; {advice}.")
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
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise BackboneError(
            f"{name} is not in the local cache and the Hub cannot be reached "
            f"({type(error).__name__}); check the network, log in with `hf auth login` if the model "
            "is gated, or pass a local folder."
        ) from None


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


def _require_safetensors(folder: Path) -> None:
    if (folder / "model.safetensors").exists():
        return
    if (folder / "model.safetensors.index.json").exists():
        return
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise BackboneError(
            f"{folder} holds weights only as pickle (.bin, .pt), which can run code when loaded and "
            "is refused: convert them with `model.save_pretrained(folder)`, which writes safetensors."
        )
    raise BackboneError(f"There is no model.safetensors in {folder}.")


def _require_square_patches(name: str | Path, config: Any) -> None:
    if not isinstance(config.patch_size, int):
        raise BackboneError(
            f"{name} has patches of {config.patch_size}; only square ones are supported."
        )


def _plain_vit_config(mae: Any) -> ViTConfig:
    """The encoder half of an MAE configuration."""
    shared = set(ViTConfig().to_dict()) & set(mae.to_dict())
    fields = {key: getattr(mae, key) for key in shared - {"model_type", "architectures"}}
    return ViTConfig(**fields)


def _preprocessing(folder: Path, patch_size: int) -> Preprocessing:
    """Our own geometry (the stock processor of DINOv3 squashes without a crop); constants of theirs."""
    size = GRID_SIDE * patch_size
    mean, std = DEFAULT_MEAN, DEFAULT_STD
    file = folder / "preprocessor_config.json"
    if file.exists():
        settings = _read_json(file)
        if settings.get("do_normalize", True):
            mean = tuple(settings.get("image_mean") or mean)
            std = tuple(settings.get("image_std") or std)
        else:
            mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if len(mean) != 3 or len(std) != 3 or 0 in std:
            raise BackboneError(f"{file} must give three means and three non-zero deviations.")
    return Preprocessing(shorter=size * 8 // 7, size=size, mean=mean, std=std)


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
