"""``accelerate``: from a model of transformers or timm, or its name, to an accelerated one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from redi.backbone import Backbone
from redi.backbone.own_input import load_with_own_input
from redi.backbone.timm_loading import is_timm, live_timm
from redi.checks import require_type
from redi.deploy.model import NO_HEAD, Accelerated, assemble
from redi.deploy.parts import Parts, load_live, shared_copy, take_apart
from redi.deploy.sample import normalised_images
from redi.deploy.saved import RECORD
from redi.deploy.second_look import with_second_look
from redi.errors import BackboneError, ConfigError
from redi.learning.files import LearnedFile, load_learned, require_fit
from redi.records.reading import read_record
from redi.records.setting import Setting
from redi.records.tuning import Tuned
from redi.runs.identity import require_own_model


def accelerate(
    model: nn.Module | str | Path,
    cost: float | None = None,
    setting: Setting | Tuned | str | Path | None = None,
    *,
    reducer: Any = None,
    task: str | None = None,
    tokens: int | None = None,
    adaptive: bool = False,
    images: Float[Tensor, "images channels height width"] | str | Path | None = None,
) -> Accelerated:
    """Make a faster module with the same call, e.g. ``accelerate(model, cost=0.65)``.

    ``model`` is a model of transformers or timm, a Hub name or folder, or a loaded :class:`Backbone`. It is not
    changed, and its weights are shared (those of an MAE model are copied). ``cost`` is what the blocks may cost
    relative to dense. ``setting`` is a tuned setting, its file or its record; ``cost`` overrides the setting's own. A
    setting that was tuned for another kind of model is refused.

    ``reducer`` is a file of ``redi learn`` for this model, or what :func:`redi.learn` returned. It replaces our own
    merging at the given cost.

    ``task`` is ``"classify"`` if a head or your own code decides about the whole image, or ``"dense"`` if every patch
    is read and CLS is not. By default it is dense for a model that gives feature maps (next paragraph), else classify.

    A backbone of transformers (``Dinov2Backbone``, ``Dinov2WithRegistersBackbone``, ``DINOv3ViTBackbone``) gives its
    feature maps on the full grid. A whole model that holds one (Depth Anything, DPT, UperNet, ZoeDepth) keeps its
    decoder. For both, the blocks after the last feature map do not run, and ``cost`` is relative to the dense blocks up
    to there. Models of timm have ``forward_intermediates``.

    A vision-language model (LLaVA, whose tower is of CLIP or SigLIP) keeps its language model, which reads the full
    grid. With ``tokens``, it reads this many merged patches of each image instead, and the cost follows from their
    number; prompts then come from :meth:`redi.deploy.AcceleratedLanguageModel.processor`.

    With ``adaptive``, images that the fast model is not sure of get the dense model's answer, and ``cost`` is a mean
    over images. ``images`` are some unlabelled ones like those to come: a folder or another address of ``redi tune``,
    or pixels that are normalised as the model's input. They set the confidence that is asked for (see
    :func:`redi.deploy.second_look.with_second_look`).
    """
    require_type(cost, float | None, "cost")
    require_type(setting, Setting | Tuned | str | Path | None, "setting")
    require_type(task, str | None, "task")
    require_type(tokens, int | None, "tokens")
    require_type(adaptive, bool, "adaptive")
    require_type(images, Tensor | str | Path | None, "images")
    if images is not None and not adaptive:
        raise ConfigError("images are for adaptive=True, which sets a confidence on them.")
    chosen, tuned = _setting(setting)
    if images is not None:
        chosen = replace(chosen, second_look=None)  # which is set anew
    if tokens is not None:
        if tokens and cost is not None:
            raise ConfigError(f"The cost follows from tokens={tokens}: leave out one of the two.")
        chosen = replace(chosen, tokens=tokens)
    if cost is not None:
        chosen = chosen.at_cost(cost)
    if task is not None:
        chosen = replace(chosen, task=task)
    if isinstance(model, str | Path):
        live = load_live(model)
        parts = Parts(load_with_own_input(model)) if live is None else take_apart(live)
    elif isinstance(model, Backbone):
        parts = Parts(shared_copy(model))
    elif isinstance(model, PreTrainedModel):
        parts = take_apart(model)
    elif is_timm(model):
        parts = Parts(live_timm(shared_copy(model)))
    else:
        raise BackboneError(
            f"accelerate() takes a model of transformers or timm, a name or a folder, not an object of the type "
            f"{type(model).__name__}."
        )
    require_own_model(chosen, parts.backbone)
    faster = assemble(parts, chosen, tuned)
    if reducer is not None:
        faster = faster.use_learned(_learned(reducer, parts.backbone))
    if images is not None:
        if reducer is not None:
            raise ConfigError("Second looks are set for our own reducer: leave out adaptive or reducer.")
        if faster.backbone.head is None:
            raise ConfigError(NO_HEAD)
        if isinstance(images, str | Path):
            images = normalised_images(str(images), faster.backbone)
        return with_second_look(faster, images)
    if adaptive and chosen.second_look is None:
        raise ConfigError(
            "adaptive=True needs images=..., a folder of unlabelled ones on which it sets the confidence to ask for."
        )
    return faster


def _setting(given: Setting | Tuned | str | Path | None) -> tuple[Setting, Tuned | None]:
    """A setting and the record that it comes from, which lies beside its file."""
    if isinstance(given, Tuned):
        return given.setting, given
    if not isinstance(given, str | Path):
        return given or Setting(), None
    record = Path(given).with_name(RECORD)
    return Setting.load(given), read_record(record, Tuned, "redi tune") if record.exists() else None


def _learned(reducer: Any, backbone: Backbone) -> LearnedFile:
    """A learned reducer from its file, or from the result of a training."""
    if isinstance(reducer, str | Path):
        return load_learned(Path(reducer), backbone)
    learned = getattr(reducer, "learned", reducer)
    if not isinstance(learned, LearnedFile):
        raise ConfigError(f"reducer is a file of `redi learn` or the result of redi.learn(), not {reducer!r}.")
    require_fit(learned.training, backbone, "The reducer")
    learned.method.to(backbone.device)
    return learned
