"""Models as the user may give them: a name, a folder, or something loaded."""

from pathlib import Path
from typing import Any

from redi.backbone import Backbone
from redi.deploy import Accelerated, accelerate


def model_name(model: Any) -> str:
    """A name or path as it is; for a loaded model the name it was loaded by, or its class."""
    if isinstance(model, str | Path):
        return str(model)
    return str(getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__)


def live_backbone(model: Any) -> Backbone | None:
    """The backbone of a loaded model; None for a name."""
    if model is None or isinstance(model, str | Path):
        return None
    return (model if isinstance(model, Accelerated) else accelerate(model, cost=1.0)).backbone
