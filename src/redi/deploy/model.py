"""``accelerate``: a module that is called like the model it was made from and costs less."""

from copy import deepcopy
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    DeiTForImageClassificationWithTeacher,
    PreTrainedModel,
    ViTMAEForPreTraining,
    ViTMAEModel,
    ViTModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.models.deit.modeling_deit import DeiTForImageClassificationWithTeacherOutput
from transformers.utils.generic import ModelOutput

from redi.backbone import Backbone
from redi.backbone.families import FAMILIES, Head
from redi.backbone.loading import plain_vit_config
from redi.backbone.own_input import load_with_own_input
from redi.backbone.timm_loading import is_timm, live_timm
from redi.cost import Geometry
from redi.deploy.card import Facts, public
from redi.deploy.identity import require_own_model
from redi.deploy.origin import Origin, known_input, live_input, origin
from redi.deploy.saved import RECORD, Published, read_model
from redi.errors import BackboneError, InvalidInput
from redi.grid import Grid
from redi.records.reading import read_record
from redi.records.setting import Setting
from redi.records.tuning import Tuned
from redi.reduction import Extent, Schedule
from redi.reduction.result import take

Module = TypeVar("Module", bound=nn.Module)


@dataclass
class ReducedOutput(ModelOutput):
    """The output for ``reduced=True``: the shorter sequence itself."""

    last_hidden_state: Float[Tensor, "batch tokens dim"] | None = None  # prefix first, then patches
    pooler_output: Float[Tensor, "batch dim"] | None = None
    sizes: Float[Tensor, "batch reduced"] | None = None  # image patches per token
    source: Int[Tensor, "batch patches"] | None = None  # the token that each image patch was merged into


class Accelerated(Published):
    """A frozen model that merges patch tokens from block to block.

    It is called like the model it was made from and gives the same kind of output; a model of timm gives outputs of
    transformers. ``last_hidden_state`` is on the full grid in the original order: every patch has the token that it was
    merged into.
    """

    main_input_name = "pixel_values"

    def __init__(
        self, backbone: Backbone, setting: Setting, tuned: Tuned | None = None, original: Origin | None = None
    ) -> None:
        super().__init__(backbone, setting)
        self.tuned = tuned  # the record that the setting comes from, for the model card
        self.original = original or origin(backbone.config)
        self.prefix_only = backbone.head is not None and backbone.head.prefix_only
        self._schedules: dict[Grid, Schedule] = {}
        self.schedule(self.grid)  # raises now if the setting does not fit

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
        """Always False; transformers' pipelines ask for it."""
        return False

    def at_cost(self, cost: float) -> "Accelerated":
        """The same weights and the same shares per block, at another cost."""
        return Accelerated(self.backbone, self.setting.at_cost(cost), self.tuned, self.original)

    # A compiler must not trace the search.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def schedule(self, grid: Grid) -> Schedule:
        """The number of patch tokens after each block, for images of the given grid."""
        if grid not in self._schedules:
            extent = self.setting.extent(self._geometry(grid), self.prefix_only)
            self._schedules[grid] = extent.schedule
        return self._schedules[grid]

    def _geometry(self, grid: Grid) -> Geometry:
        return replace(self.backbone.geometry, grid=grid)

    @property
    def grid(self) -> Grid:
        """The grid of the backbone's usual input."""
        return self.backbone.geometry.grid

    def cost(self, grid: Grid | None = None) -> float:
        """Cost relative to dense. It is at most the setting's cost, and lower by at most the step of one token."""
        on = self._geometry(grid or self.grid)
        extent = Extent(schedule=self.schedule(on.grid))
        return self.setting.reducer.cost(extent, on, self.prefix_only)

    def extra_repr(self) -> str:
        return f"{self.setting}"

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Tensor | None = None,
        *,
        reduced: bool = False,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool | None = None,  # noqa: ARG002  # it is always done if needed
        **unsupported: Any,
    ) -> Any:
        """Run the model. With ``reduced``, an encoder returns the short sequence with its sizes and sources."""
        self._check_call(labels, reduced, unsupported)
        backbone, head = self.backbone, self.backbone.head
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
            output = ReducedOutput(normed, pooled, sizes, source) if reduced else _encoded(normed, pooled)
        return output.to_tuple() if return_dict is False else output

    def _check_call(self, labels: Tensor | None, reduced: bool, unsupported: dict[str, Any]) -> None:
        wrong = [name for name, value in unsupported.items() if not (value is None or value is False)]
        if wrong:
            raise InvalidInput(
                f"An accelerated model has no {', '.join(wrong)}: tokens are merged on the way. Use the original model."
            )
        if labels is not None and not self._has_loss:
            raise InvalidInput("This model takes no labels: it has no loss of its own.")
        if reduced and self.backbone.head is not None:
            raise InvalidInput("A classifier gives logits; reduced=True is for encoders without a head.")

    def _classified(self, head: Head, normed: Float[Tensor, "batch tokens dim"], labels: Tensor | None) -> Any:
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

    def facts(self, name: str, license_name: str) -> Facts:
        """What the model card says; ``name`` is a folder or the name on the Hub."""
        return Facts(
            name=name,
            task="image-feature-extraction" if self.backbone.head is None else "image-classification",
            base_model=self.original.base_model,
            license=license_name or self.original.license,
            cost=self.cost(),
            schedule=self.schedule(self.grid),
            preprocessing=known_input(self.backbone),
            tuned=public(self.tuned, self.setting),
        )

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, config: Any = None, **options: Any) -> "Accelerated":
        """Load what :meth:`save_pretrained` or :meth:`push_to_hub` wrote, in the precision it was written in.

        The options of transformers that choose a ``dtype``, one device (``device_map``) or a ``revision`` work too.
        """
        loaded = read_model(name_or_path, config, options)
        require_own_model(loaded.setting, loaded.backbone)
        return cls(*loaded)


def _encoded(normed: Any, pooled: Any) -> Any:
    return BaseModelOutputWithPooling(last_hidden_state=normed, pooler_output=pooled)


def accelerate(
    model: nn.Module | str | Path, cost: float | None = None, setting: Setting | Tuned | str | Path | None = None
) -> Accelerated:
    """Make a faster module with the same call, e.g. ``accelerate(model, cost=0.65)``.

    ``model`` is a model of transformers or timm, a Hub name or folder, or a loaded :class:`Backbone`. It is not
    changed, and its weights are shared (those of an MAE model are copied). ``cost`` is what the blocks may cost
    relative to dense. ``setting`` is a tuned setting, its file or its record; ``cost`` overrides the setting's own. A
    setting that was tuned for another kind of model is refused.
    """
    chosen, tuned = _setting(setting)
    if cost is not None:
        chosen = chosen.at_cost(cost)
    if isinstance(model, str | Path):
        backbone = load_with_own_input(model)
    elif isinstance(model, Backbone):
        backbone = shared_copy(model)
    elif isinstance(model, PreTrainedModel):
        backbone = wrap(model)
    elif is_timm(model):
        backbone = live_timm(shared_copy(model))
    else:
        raise BackboneError(
            f"accelerate() takes a model of transformers or timm, a name or a folder, not a {type(model).__name__}."
        )
    require_own_model(chosen, backbone)
    return Accelerated(backbone, chosen, tuned)


def _setting(given: Setting | Tuned | str | Path | None) -> tuple[Setting, Tuned | None]:
    """A setting and the record that it comes from, which lies beside its file."""
    if isinstance(given, Tuned):
        return given.setting, given
    if not isinstance(given, str | Path):
        return given or Setting(), None
    record = Path(given).with_name(RECORD)
    return Setting.load(given), read_record(record, Tuned, "redi tune") if record.exists() else None


def wrap(model: PreTrainedModel) -> Backbone:
    """A backbone around a copy of the model's structure that shares its weights.

    The copy has its own configuration and its own view of every parameter, so that freezing it and reading its
    attention do not change the given model.
    """
    if isinstance(model, ViTMAEForPreTraining):
        model = model.vit
    if isinstance(model, ViTMAEModel):
        model = _unmasked(model)
    name, kind = type(model).__name__, getattr(model.config, "model_type", None)
    family = FAMILIES.get(str(kind))
    head = family.heads.get(name) if family else None
    if family is None or not (head or type(model) is family.encoder):
        supported = [title for entry in FAMILIES.values() for title in (entry.encoder.__name__, *entry.heads)]
        raise BackboneError(
            f"{name} cannot be accelerated; supported are {', '.join(dict.fromkeys(supported))}, ViTMAEModel."
        )
    return Backbone(shared_copy(model), family, head, live_input(model.config))


def shared_copy(module: Module) -> Module:
    """A copy that shares the weights but can be frozen, moved or converted without changing the original."""
    shared: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False) for parameter in module.parameters()
    }
    shared |= {id(buffer): buffer for buffer in module.buffers()}
    return deepcopy(module, shared)


def _unmasked(model: ViTMAEModel) -> Any:
    """A plain ViT with the weights of transformers' MAE model, which would drop patches at random."""
    plain: Any = ViTModel(plain_vit_config(model.config), add_pooling_layer=False)
    plain.load_state_dict(model.state_dict())
    return plain.to(device=model.device, dtype=model.dtype)
