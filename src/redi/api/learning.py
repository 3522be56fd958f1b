"""Learned reducers."""

from pathlib import Path
from typing import Any

from redi.api.models import live_backbone, model_name
from redi.api.results import LearnResult
from redi.api.settings import configured
from redi.backbone import load_backbone
from redi.backbone.own_input import load_with_own_input
from redi.checks import require_type
from redi.deploy.parts import shared_copy
from redi.errors import ConfigError
from redi.learning.files import SUFFIX, is_learned
from redi.learning.train import learn as train
from redi.records.learning import LearnConfig
from redi.records.outputs import require_apart, require_file
from redi.runs.config import saved_config
from redi.runs.places import data_places


def learn(
    model: Any, method: str, images: str | Path | None = None, *, out: str | Path | None = None, **settings: Any
) -> LearnResult:
    """Learn a reducer for a frozen model without labels, as ``redi learn`` does.

    ``model`` is as for :func:`redi.tune`, or the folder of a run, whose training images are the default of ``images``.
    ``method`` is a name in ``redi.reduction.learned.LEARNED``. ``out`` is the file; by default its name is that of the
    method. More settings are the options of ``redi learn``: ``cost`` (one or a list), ``limit``, ``held``, ``mirror``,
    ``steps``, ``checks``, ``rate``, ``size``, ``seed``, ``batch_size``, ``device``, ``workers`` and ``threads``.
    """
    require_type(images, str | Path | None, "images")
    require_type(out, str | Path | None, "out")
    name, backbone = model_name(model), live_backbone(model)
    is_run = isinstance(model, str | Path) and (Path(model) / "config.toml").is_file()
    if is_run:
        run = saved_config(Path(model))
        name, images = run.backbone, run.train if images is None else images
        settings["size"] = settings.get("size") or run.size or None
    if images is None:
        raise ConfigError("Name the images to learn from with --images; only the folder of a run has its own.")
    names = {"cost": "costs", "batch_size": "batch"}
    config = configured(LearnConfig, settings, names, backbone=name, images=str(images), method=method).checked()
    file = Path(f"{method}{SUFFIX}" if out is None else out)
    require_file(file, (SUFFIX,), ours=is_learned)
    inputs = [("the images", place) for place in data_places(config.images)]
    require_apart(file, inputs + [("the model", place) for place in data_places(name.removeprefix("timm:"))])
    if is_run:
        backbone = load_backbone(run.backbone, run.revision or None)
        backbone = backbone.with_resize(run.resize) if run.resize else backbone
    elif backbone is not None:
        backbone = shared_copy(backbone)  # it is frozen and may be moved
    return LearnResult(train(config, backbone or load_with_own_input(name), file), file)
