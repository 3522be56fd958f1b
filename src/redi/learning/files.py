"""Learned reducers as files: parameters and how they were learned, in one safetensors file."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch

from redi import bounds
from redi.backbone import Backbone
from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts
from redi.records.learning import Training
from redi.records.reading import build
from redi.reduction.learned import LEARNED, Learned
from redi.runs.identity import identify
from redi.runs.progress import say

SUFFIX = ".safetensors"


class LearnedFile(NamedTuple):
    """A learned reducer and its origin."""

    method: Learned
    training: Training
    digest: str  # of the parameters


def save_learned(path: Path, method: Learned, training: Training, key: artifacts.Key) -> LearnedFile:
    tensors = {name: value.detach().cpu() for name, value in method.state_dict().items()}
    artifacts.save(path, tensors, key, training=asdict(training))
    return LearnedFile(method, training, artifacts.tensor_digest(tensors)[:16])


def read_training(path: Path) -> Training:
    """How a file was learned, without its parameters."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}: make one with `redi learn`.")
    try:
        manifest = artifacts.read_manifest(path)
        assert manifest is not None
        training: Training = build(Training, manifest["notes"]["training"])
        complete = bool(training.checks) and all(check.distances for check in training.checks)
    except (KeyError, TypeError, ValueError):  # an ArtifactError is a ValueError
        complete = False
    if not complete or not all(1 <= side <= bounds.SIZE.high for side in training.grid):
        raise ConfigError(f"{path} holds no learned reducer, or is damaged: make one with `redi learn`.")
    if training.method not in LEARNED:
        raise ConfigError(f"{path} holds {training.method!r}, which this version of redi does not know.")
    return training


def is_learned(path: Path) -> bool:
    """Whether a file was written by ``redi learn``."""
    try:
        read_training(path)
    except ConfigError:
        return False
    return True


def require_fit(training: Training, backbone: Backbone, name: str) -> None:
    """A :class:`ConfigError` if a reducer was learned on another kind of model; other weights give a warning."""
    model = identify(backbone)
    if replace(model, weights=training.model.weights) != training.model:
        raise ConfigError(f"{name} was learned on a {training.model}, not on a {model}: run `redi learn` for this one.")
    if model != training.model:
        say(f"warning: {name} was learned on other weights or in another precision: run `redi learn` again.")


def load_learned(path: Path, backbone: Backbone) -> LearnedFile:
    """Load a learned reducer for the kind of model that it was learned on; other weights give a warning."""
    training = read_training(path)
    require_fit(training, backbone, str(path))
    try:
        tensors, _ = artifacts.load(path)
    except ArtifactError:
        raise ConfigError(f"{path} is damaged: run `redi learn` again, with another --out.") from None
    rows, columns = training.grid
    try:
        with torch.device("meta"):  # no memory is taken for a size that the file only claims to have
            method = LEARNED[training.method](replace(backbone.geometry, grid=(rows, columns)))
        method.load_state_dict(tensors, assign=True)
    except RuntimeError:
        raise ConfigError(f"{path} lacks parameters of {training.method}: run `redi learn` again.") from None
    # What a method has counted may be infinite, as the distance of a scale of A-ViT that cannot meet a cost.
    if any(value.isnan().any() for value in tensors.values()) or any(p.isinf().any() for p in method.parameters()):
        raise ConfigError(f"{path} has parameters that are not finite: run `redi learn` again.")
    method.requires_grad_(False).eval().to(backbone.device)
    return LearnedFile(method, training, artifacts.tensor_digest(tensors)[:16])
