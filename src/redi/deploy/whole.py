"""Whole models, such as a depth estimator: the decoder is the original's own, and its backbone is accelerated."""

from copy import copy
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from redi.backbone import Backbone
from redi.cost import Geometry
from redi.deploy.card import Facts
from redi.deploy.maps import AcceleratedBackbone, levels, refuse_inside, up_to_the_last
from redi.deploy.model import Accelerated
from redi.deploy.origin import Origin, origin, own_processor
from redi.deploy.parts import WHOLE, Parts
from redi.grid import Grid
from redi.images.preprocessing import Preprocessing
from redi.records.setting import Setting
from redi.records.tuning import Tuned


class AcceleratedModel(Accelerated):
    """A whole model of transformers, called like it, whose output has the same type."""

    gives_maps = True

    def __init__(
        self,
        backbone: Backbone,
        setting: Setting,
        tuned: Tuned | None,
        original: Origin | None,
        decoder: PreTrainedModel,
    ) -> None:
        super().__init__(backbone, setting, tuned, original or origin(decoder.config))
        self.kind = WHOLE[type(decoder).__name__]
        self.decoder: Any
        self.decoder, holder, name = _opened(decoder, self.kind.place)
        # Not one of the decoder's modules: the weights of the backbone are in ``self.backbone`` already.
        vars(holder)[name] = self._stand_in()

    def _stand_in(self) -> Accelerated:
        """What the decoder calls in the place of its backbone."""
        return _Inner(self.backbone, self.setting)

    @classmethod
    def fits(cls, parts: Parts) -> bool:
        return parts.decoder is not None

    @classmethod
    def of_parts(
        cls, parts: Parts, setting: Setting, tuned: Tuned | None, original: Origin | None
    ) -> "AcceleratedModel":
        assert parts.decoder is not None
        return cls(parts.backbone, setting, tuned, original, parts.decoder)

    @property
    def config(self) -> Any:
        return self.decoder.config

    @property
    def dense(self) -> nn.Module:
        whole, holder, name = _opened(self.decoder, self.kind.place)
        del vars(holder)[name]
        holder._modules = {name: self.backbone.model, **holder._modules}
        return whole

    def at_cost(self, cost: float) -> "AcceleratedModel":
        return type(self)(self.backbone, self.setting.at_cost(cost), self.tuned, self.original, self.decoder)

    def train(self, mode: bool = True) -> "AcceleratedModel":  # noqa: ARG002
        """Stay in evaluation mode: the statistics of a batch norm are shared with the original."""
        return super().train(False)

    def _geometry(self, grid: Grid) -> Geometry:
        return up_to_the_last(levels(self.backbone), self.backbone, grid)

    def forward(self, pixel_values: Float[Tensor, "batch channels height width"], **options: Any) -> Any:  # type: ignore[override]
        """Run the model; ``options`` are those of the original."""
        refuse_inside(self.config, options)
        return self.decoder(pixel_values, **options)

    def facts(self, name: str, license_name: str) -> Facts:
        facts = super().facts(name, license_name)
        return replace(facts, task=self.kind.pipeline, processor=self._kept_processor())

    def _published_input(self) -> Preprocessing | None:
        """None: the image processor of the original is kept."""
        return None

    def _kept_processor(self) -> dict[str, Any]:
        return own_processor(self.config)


def _opened(model: nn.Module, place: str) -> tuple[nn.Module, nn.Module, str]:
    """A copy down to the module that holds the backbone, that module's copy, and the backbone's name in it."""
    whole = holder = copy(model)
    *above, name = place.split(".")
    for step in above:
        inner = copy(holder.get_submodule(step))
        holder._modules = {**holder._modules, step: inner}
        holder = inner
    return whole, holder, name


class _Inner(AcceleratedBackbone):
    """The backbone that a decoder calls. DPT asks it for hidden states in every call, and drops them."""

    def forward_with_filtered_kwargs(self, pixel_values: Tensor, **_options: Any) -> Any:
        return self(pixel_values)
