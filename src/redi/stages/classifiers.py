"""The classifiers of a run: the probe, the checkpoint's own head, or both."""

from pathlib import Path
from typing import Any

import torch

from redi.backbone import Classifier
from redi.backbone.classifier import NATIVE, PROBE
from redi.errors import BackboneError
from redi.images.classes import head_classes
from redi.runs.folder import Run
from redi.stages.probe import load_probe


def classifier_names(run: Run) -> list[str]:
    return [PROBE, NATIVE] if run.config.classifier == "both" else [run.config.classifier]


def native_classes(run: Run) -> tuple[list[int], str]:
    """The head's class for each folder, and how the two were matched; both empty without a native classifier."""
    if NATIVE not in classifier_names(run):
        return [], ""
    names = run.backbone.class_names
    if names is None:
        raise BackboneError(f"{run.config.backbone} has no classifier of its own: use --classifier probe.")
    file = Path(run.config.class_map) if run.config.class_map else None
    return head_classes(run.training.class_names, names, file)


def load_classifier(run: Run, name: str) -> Classifier:
    if name == NATIVE:
        return Classifier(run.backbone, columns=torch.tensor(native_classes(run)[0]))
    return Classifier(run.backbone, load_probe(run), run.config.probe.prenorm)


def classifier_key(run: Run, name: str) -> dict[str, Any]:
    """The part of a key that predictions with this classifier depend on."""
    if name == NATIVE:
        return {"native": native_classes(run)[0]}
    return {"probe": run.digest("probe"), "features": run.config.probe.features}
