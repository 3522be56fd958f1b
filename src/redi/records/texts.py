"""Embeddings of class names, as a file: what ``redi text`` writes and a run keeps.

Whoever has the file needs only the image tower of the model to know which class a picture shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts

#: What the embeddings are made from.
FIELDS = ("classes", "names", "templates", "checkpoint")


@dataclass(frozen=True)
class ClassTexts:
    """One unit embedding per class, the scale that makes logits of cosines, and what they were made from."""

    classes: list[str]  # names of the class folders
    names: list[str]  # of the classes in the prompts
    templates: list[str]  # {} is the name
    checkpoint: str  # digest of the whole model
    embeddings: Float[Tensor, "classes joint"]
    scale: float
    bias: float  # of SigLIP; probabilities of classes do not depend on it

    @property
    def key(self) -> dict[str, Any]:
        """The part of a manifest's key that says what the embeddings were made from."""
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is stored; its digest says whether two files give the same probabilities."""
        return {"embeddings": self.embeddings, "scale": torch.tensor(self.scale)}

    def select(self, classes: Sequence[str], where: object) -> "ClassTexts":
        """The embeddings of some classes, in their order. ``where`` names the file in the error if one is missing."""
        places = {name: place for place, name in enumerate(self.classes)}
        if missing := [name for name in classes if name not in places]:
            raise ConfigError(
                f"{where} has no embedding of the class {missing[0]!r} ({len(missing)} of {len(classes)} are missing): "
                "the names of its classes must be those of the folders; see `redi text --train`."
            )
        chosen = [places[name] for name in classes]
        names = [self.names[place] for place in chosen]
        return ClassTexts(
            list(classes), names, self.templates, self.checkpoint, self.embeddings[chosen], self.scale, self.bias
        )

    def write(self, path: Path) -> None:
        artifacts.save(path, self.tensors, {"stage": "text", **self.key}, bias=self.bias)


def read_texts(path: Path) -> ClassTexts:
    """Read the user's file. Anything else in it is an error that does not tell the user to delete it."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}: write the embeddings of the class names with `redi text`.")
    try:
        texts = texts_of(*artifacts.load(path))
        if texts.embeddings.shape[:1] != (len(texts.classes),) or not texts.embeddings.isfinite().all():
            raise ValueError("not one finite embedding per class")
        return texts
    except (ArtifactError, KeyError, TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"{path} holds no embeddings of class names, or is damaged: write them with `redi text`."
        ) from None


def texts_of(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> ClassTexts:
    """The embeddings in the content of an artefact."""
    return ClassTexts(
        **{name: manifest["key"][name] for name in FIELDS},
        embeddings=tensors["embeddings"],
        scale=tensors["scale"].item(),
        bias=manifest["notes"]["bias"],
    )


def is_texts(path: Path) -> bool:
    """Whether a file was written by ``redi text``, so that it may be written again."""
    try:
        manifest = artifacts.read_manifest(path)
    except ArtifactError:
        return False
    return manifest is not None and manifest["key"].get("stage") == "text"
