"""Checkpoints as files: a Hub name or a local folder in, a folder of JSON and safetensors out.

A Hub name is first downloaded to the local cache (only JSON and safetensors files) and then treated as a folder, so
later steps do not need the network. Nothing is unpickled and no code from a checkpoint runs.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors import safe_open

from redi.backbone.timm_loading import PREFIX, hub_name
from redi.checks import parse_json
from redi.errors import BackboneError, one_line

#: Files of a checkpoint, as patterns.
FILES = ["config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json"]


def checkpoint_digest(folder: Path) -> str:
    """Digest of the configuration and the weights; results record it."""
    digest = hashlib.sha256()
    try:
        for file in sorted(file for pattern in FILES for file in folder.glob(pattern)):
            _require_file(file)
            digest.update(file.name.encode())
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    except OSError as error:
        raise BackboneError(f"{error.filename or folder} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()[:16]


def _require_file(file: Path) -> None:
    """Refuse what is not a plain file: reading a pipe would never end."""
    if not file.is_file():
        raise BackboneError(f"{file} is not a file." if file.exists() else f"There is no {file.name} in {file.parent}.")


def checkpoint_folder(
    name_or_path: str | Path, revision: str | None = None, files: Sequence[str] = FILES, **options: Any
) -> Path:
    """The local folder of a checkpoint; of a Hub name, ``files`` are downloaded into the cache first.

    ``options`` are those of huggingface_hub's ``snapshot_download``.
    """
    name = str(name_or_path).removeprefix(PREFIX)
    is_timm = name != str(name_or_path)
    if not name:
        raise BackboneError(f"There is no name in {str(name_or_path)!r}: pass the name of a model or a folder.")
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
    if is_timm:
        name = hub_name(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files), **options))
    except GatedRepoError:
        raise BackboneError(
            f"{name} is gated: accept its licence on the Hub and log in with `hf auth login`, or pass a local folder."
        ) from None
    except RevisionNotFoundError:
        raise BackboneError(f"{name} has no revision {revision!r} on the Hub.") from None
    except RepositoryNotFoundError:
        raise BackboneError(
            f"There is no folder {path} here, and no model {name} on the Hub, or it is private: check the name, log in "
            "with `hf auth login`, or pass a local folder."
        ) from None
    except HFValidationError:
        raise BackboneError(f"{name!r} is neither a folder nor a Hub name; {advice}.") from None
    except Exception as error:  # no network, a time-out, a proxy: httpx raises many types
        raise BackboneError(
            f"There is no folder {path} here, {name} is not in the local cache, and the Hub cannot be reached "
            f"({type(error).__name__}): check the name and the network, log in with `hf auth login` if the model is "
            "gated, or pass a local folder."
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    try:
        _require_file(file)
        content = parse_json(file.read_text(encoding="utf-8"))
    except BackboneError:
        raise
    except (OSError, ValueError) as error:
        raise BackboneError(f"{file} cannot be read: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise BackboneError(f"{file} does not hold a JSON object.")
    return content


def weight_files(folder: Path, name: str | Path) -> list[Path]:
    """The weights as safetensors inside the folder. Pickles are refused: loading one can run code."""
    whole = folder / "model.safetensors"
    if whole.exists():
        return [whole]
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        raise BackboneError(
            f"{name} has no model.safetensors. Weights in pickle files (.bin, .pt) can run code and are refused: load "
            "the model once with transformers and write it as safetensors with `model.save_pretrained(folder)`."
        )
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise BackboneError(f"{index} names no weights.")
    files = sorted(set(map(str, shards.values())))
    for shard in files:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise BackboneError(f"{index} names {shard!r}, which is not a safetensors file of the same folder.")
    return [folder / shard for shard in files]


def weight_shapes(folder: Path, name: str | Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights by their names; the tensors are not read."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder, name):
        _require_file(file)
        try:
            file.open("rb").close()  # safetensors would say that a file without permission is missing
            with safe_open(file, "pt") as weights:
                shapes |= {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
        except PermissionError as error:
            raise BackboneError(f"{file} cannot be read: {error.strerror}.") from None
        except Exception as error:  # safetensors raises its own type
            raise BackboneError(f"{file} cannot be read: {one_line(error)}") from None
    return shapes
