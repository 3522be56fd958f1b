"""Artefacts of the stages: tensors and a manifest in one safetensors file, written completely or not at all.

The manifest says what the tensors were made from (``key``) and with which version of the package. A file is current
if its key equals the key that the stage would write now; then the stage is skipped. Digests cover the tensors and the
manifest, so a damaged file is detected and not used. Nothing is ever unpickled.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor

from redi._version import __version__
from redi.checks import parse_json
from redi.errors import ArtifactError
from redi.records.drafts import draft

Key = Mapping[str, Any]


def save(path: Path, tensors: Mapping[str, Tensor], key: Key, **notes: Any) -> None:
    """Write an artefact. ``notes`` are further facts that do not belong to its key."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    manifest = {"key": key, "notes": notes, "version": __version__, "digest": tensor_digest(owned)}
    try:
        text = json.dumps({**manifest, "seal": _seal(manifest)}, allow_nan=False)
    except ValueError:
        raise ArtifactError(f"{path} is not written: one of its numbers is not finite.") from None
    write_bytes(path, save_tensors(owned, metadata={"manifest": text}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the manifest of an artefact; raise an :class:`ArtifactError` if it is damaged."""
    manifest = read_manifest(path)
    try:
        tensors = load_tensors(path.read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise _unreadable(path) from error
    if manifest is None:
        raise _unreadable(path)
    if tensor_digest(tensors) != manifest["digest"]:
        raise _damaged(path)
    return tensors, manifest


def load_named(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load an artefact of a run folder by name; if it is missing, the error says what to do."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        raise ArtifactError(f"There is no {name} in {folder}: finish `redi run` first.")
    return load(path)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest alone, without the tensors; None if there is no file."""
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            content = parse_json((file.metadata() or {})["manifest"])
        whole = isinstance(content, dict) and {"key", "digest", "notes"} <= set(content)
        sealed = whole and content.pop("seal", "") == _seal(content)
    except KeyError:
        raise ArtifactError(f"{path} was not written by redi: move it away, or name another file.") from None
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise _unreadable(path) from error
    if not whole:
        raise _unreadable(path)
    if not sealed:
        raise _damaged(path)
    return dict(content)


def is_current(path: Path, key: Key) -> bool:
    manifest = read_manifest(path)
    return manifest is not None and manifest["key"] == json.loads(json.dumps(key))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a draft, flush it to disk, rename it: a killed run leaves no half-written file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ArtifactError(_write_failure(path, error)) from error


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _seal(manifest: Mapping[str, Any]) -> str:
    """A digest of the manifest itself, whose notes are results too."""
    as_read = json.loads(json.dumps(manifest, allow_nan=False))  # tuples are lists, and all names are texts
    text = json.dumps(as_read, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _unreadable(path: Path) -> ArtifactError:
    """Without its manifest nobody knows whose file it is, so nobody is told to delete it."""
    return ArtifactError(
        f"{path} is damaged, or was not written by redi: move it away and run the same command again, or name another "
        "file."
    )


def _damaged(path: Path) -> ArtifactError:
    """A file that is ours by its manifest."""
    return ArtifactError(
        f"{path} is damaged: its content does not match its manifest. Delete it and run the same command again to "
        "create a new one."
    )


def _write_failure(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"There is no space left to write {path}. Free some and run the command again: finished work is kept."
    return f"{path} cannot be written: {error.strerror or error}."
