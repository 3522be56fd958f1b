"""``accelerate``: a module that is called like the model it was made from and costs less."""

import json
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoModelForImageClassification,
    DeiTForImageClassificationWithTeacher,
    PreTrainedConfig,
    PreTrainedModel,
    ViTMAEForPreTraining,
    ViTMAEModel,
    ViTModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.models.deit.modeling_deit import DeiTForImageClassificationWithTeacherOutput
from transformers.utils.generic import ModelOutput

from redi.backbone import Backbone, Preprocessing, load_backbone
from redi.backbone.families import FAMILIES, Head, square, square_patch
from redi.backbone.inputs import DEFAULT_MEAN, DEFAULT_STD, shorter_side
from redi.backbone.loading import plain_vit_config
from redi.deploy.setting import Setting
from redi.equal import Geometry, schedule_cost
from redi.errors import BackboneError, InvalidInput
from redi.grid import Grid
from redi.reduction import Schedule
from redi.reduction.result import take

Module = TypeVar("Module", bound=nn.Module)

#: Beside the checkpoint in a saved folder.
SETTING_FILE = "redi.json"


@dataclass
class ReducedOutput(ModelOutput):
    """The shorter sequence as it is, on request."""

    last_hidden_state: Float[Tensor, "batch tokens dim"] | None = None  # prefix first, then patches
    pooler_output: Float[Tensor, "batch dim"] | None = None
    sizes: Float[Tensor, "batch reduced"] | None = None  # image patches that a token stands for
    source: Int[Tensor, "batch patches"] | None = None  # token that each image patch went into


class AcceleratedConfig(PreTrainedConfig):
    """Only there so that transformers' pipelines know the class; a model keeps its own config."""

    model_type = "redi_accelerated"


class Accelerated(nn.Module):
    """A frozen model that merges its patch tokens on the way.

    Called like the model it was made from, with the same kind of output. ``last_hidden_state`` is on
    the full grid in the original order: every patch has the token it went into.
    """

    config_class = AcceleratedConfig  # what transformers' registry looks for
    main_input_name = "pixel_values"

    def __init__(self, backbone: Backbone, setting: Setting) -> None:
        super().__init__()
        self.backbone = backbone
        self.setting = setting
        self.prefix_only = backbone.head is not None and backbone.head.prefix_only
        self._schedules: dict[Grid, Schedule] = {}
        self.schedule(self.grid)  # a setting that does not fit is refused now

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.model.dtype

    @property
    def _has_loss(self) -> bool:
        """Whether the model has a head that transformers trains with labels."""
        model = self.backbone.model
        distilled = isinstance(model, DeiTForImageClassificationWithTeacher)
        head = self.backbone.head is not None and isinstance(model, PreTrainedModel)
        return head and not distilled

    @staticmethod
    def can_generate() -> bool:
        """Asked by transformers' pipelines."""
        return False

    def at_cost(self, cost: float) -> "Accelerated":
        """The same weights and schedule at another cost."""
        return Accelerated(self.backbone, replace(self.setting, cost=cost))

    # A compiler shall not trace the search.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def schedule(self, grid: Grid) -> Schedule:
        """Patch tokens that leave each block for images of so many rows and columns of patches."""
        if grid not in self._schedules:
            on = replace(Geometry.of(self.backbone), grid=grid)
            self._schedules[grid] = self.setting.schedule(on, self.prefix_only)
        return self._schedules[grid]

    @property
    def grid(self) -> Grid:
        """Of the backbone's usual input."""
        return Geometry.of(self.backbone).grid

    def cost(self, grid: Grid | None = None) -> float:
        """Relative to dense; at most what was asked for, and less by the step of a token."""
        on = replace(Geometry.of(self.backbone), grid=grid or self.grid)
        return schedule_cost(self.setting.reducer, self.schedule(on.grid), on, self.prefix_only)

    def extra_repr(self) -> str:
        return f"{self.setting}"

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Tensor | None = None,
        *,
        reduced: bool = False,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool | None = None,  # noqa: ARG002  # it always is, where needed
        **unsupported: Any,
    ) -> Any:
        """``reduced`` asks an encoder for the short sequence with its sizes and sources."""
        wrong = [
            name for name, value in unsupported.items() if not (value is None or value is False)
        ]
        if wrong:
            raise InvalidInput(
                f"An accelerated model has no {', '.join(wrong)}: tokens are merged on the way. Ask the "
                "original model."
            )
        backbone, head = self.backbone, self.backbone.head
        if labels is not None and not self._has_loss:
            raise InvalidInput("This model takes no labels: it has no loss of its own.")
        if reduced and head is not None:
            raise InvalidInput(
                "A classifier gives logits; reduced=True is for encoders without a head."
            )
        tokens = backbone.embed(pixel_values)
        assert tokens.grid is not None
        grid = index(tokens.grid[0]), index(tokens.grid[1])  # constants, also for a compiler
        hidden, sizes, source = backbone.encode_progressively(
            tokens, self.setting.reducer, self.schedule(grid), prefix_only=self.prefix_only
        )
        normed = backbone.final_norm(hidden)
        if not (self.prefix_only or reduced):
            count = backbone.prefix
            normed = torch.cat([normed[:, :count], take(normed[:, count:], source)], dim=1)
        if head is not None:
            output = self._classified(head, normed, labels)
        else:
            pooled = backbone.family.pool(backbone.encoder, normed)
            output = (
                ReducedOutput(normed, pooled, sizes, source)
                if reduced
                else _encoded(normed, pooled)
            )
        return output.to_tuple() if return_dict is False else output

    def _classified(
        self, head: Head, normed: Float[Tensor, "batch tokens dim"], labels: Tensor | None
    ) -> Any:
        model: Any = self.backbone.model
        logits: Any = head.classify(model, normed, self.backbone.prefix)
        if isinstance(model, DeiTForImageClassificationWithTeacher):
            return DeiTForImageClassificationWithTeacherOutput(
                logits=logits,
                cls_logits=model.cls_classifier(normed[:, 0]),
                distillation_logits=model.distillation_classifier(normed[:, 1]),
            )
        loss = None if labels is None else model.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits)

    def save_pretrained(self, folder: str | Path) -> None:
        """The checkpoint as transformers writes it, and the setting beside it."""
        if not isinstance(self.backbone.model, PreTrainedModel):
            raise BackboneError(
                "Checkpoints of timm are not written: save the setting alone (model.setting.save), and "
                "pass it to accelerate() with the name."
            )
        self.backbone.model.save_pretrained(folder)
        self.setting.save(Path(folder) / SETTING_FILE)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Accelerated":
        """What :meth:`save_pretrained` wrote, in the precision it was written in."""
        setting = Setting.load(Path(folder) / SETTING_FILE)
        backbone = load_backbone(folder)
        stored = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return cls(backbone, setting).to(getattr(torch, stored.get("dtype", "float32")))


def _encoded(normed: Any, pooled: Any) -> Any:
    return BaseModelOutputWithPooling(last_hidden_state=normed, pooler_output=pooled)


def accelerate(
    model: PreTrainedModel | Backbone | str | Path,
    cost: float | None = None,
    setting: Setting | str | Path | None = None,
) -> Accelerated:
    """A faster module with the same call: ``accelerate(model, cost=0.65)``.

    ``model`` is a model of transformers, a Hub name or folder, or a loaded :class:`Backbone`. It is not
    changed, and its weights are shared (those of an MAE model are copied). ``cost`` is what the blocks
    may cost relative to dense. ``setting`` is a tuned one, or its file; ``cost`` then goes before the
    setting's own.
    """
    chosen = (
        setting if isinstance(setting, Setting) else Setting.load(setting) if setting else Setting()
    )
    if cost is not None:
        chosen = replace(chosen, cost=cost)
    if isinstance(model, str | Path):
        backbone = load_backbone(model)
    elif isinstance(model, Backbone):
        backbone = shared_copy(model)
    elif isinstance(model, PreTrainedModel):
        backbone = wrap(model)
    else:
        raise BackboneError(
            f"accelerate() takes a model of transformers, a name or a folder, not a "
            f"{type(model).__name__}."
        )
    return Accelerated(backbone, chosen)


def wrap(model: PreTrainedModel) -> Backbone:
    """A backbone around a copy of the model's structure that shares its weights.

    The copy has its own configuration and its own view of every parameter, so that freezing it and
    reading its attention leaves the given model alone.
    """
    if isinstance(model, ViTMAEForPreTraining):
        model = model.vit
    if isinstance(model, ViTMAEModel):
        model = _unmasked(model)
    name, kind = type(model).__name__, getattr(model.config, "model_type", None)
    family = FAMILIES.get(str(kind))
    head = family.heads.get(name) if family else None
    if family is None or not (head or type(model) is family.encoder):
        known = [
            each for entry in FAMILIES.values() for each in (entry.encoder.__name__, *entry.heads)
        ]
        raise BackboneError(
            f"{name} cannot be accelerated; supported are {', '.join(dict.fromkeys(known))}, "
            "ViTMAEModel."
        )
    patch, size = square_patch(model.config), square(model.config.image_size)
    settings = Preprocessing(shorter_side(size), size // patch * patch, DEFAULT_MEAN, DEFAULT_STD)
    return Backbone(shared_copy(model), family, head, settings)


def shared_copy(module: Module) -> Module:
    """A copy that shares the weights and may be frozen, moved or converted by itself."""
    shared: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False)
        for parameter in module.parameters()
    }
    shared |= {id(buffer): buffer for buffer in module.buffers()}
    return deepcopy(module, shared)


def _unmasked(model: ViTMAEModel) -> Any:
    """transformers' MAE model drops patches at random; its weights in a plain ViT keep them all."""
    plain: Any = ViTModel(plain_vit_config(model.config), add_pooling_layer=False)
    plain.load_state_dict(model.state_dict())
    return plain.to(device=model.device, dtype=model.dtype)


AutoModelForImageClassification.register(AcceleratedConfig, Accelerated)
