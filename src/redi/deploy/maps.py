"""Feature maps at several depths, as decoders read them: each on the full grid.

Transformers' backbone classes give them. The blocks after the last map do not run, and the cost is relative to the
dense blocks up to there.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.backbone_utils import BackboneMixin

from redi.backbone import Backbone
from redi.cost import Geometry
from redi.deploy.card import Facts
from redi.deploy.intermediates import on_grid
from redi.deploy.model import Accelerated
from redi.deploy.parts import Parts, maps_of
from redi.errors import InvalidInput
from redi.grid import Grid

#: Outputs that an accelerated model does not have.
INSIDE = ("output_hidden_states", "output_attentions")


def levels(backbone: Backbone) -> list[int]:
    """The numbers of blocks after which a backbone of transformers gives its feature maps; 0 is the stem."""
    config: Any = backbone.config
    return [config.stage_names.index(name) for name in config.out_features]


def up_to_the_last(read: Sequence[int], backbone: Backbone, grid: Grid) -> Geometry:
    """The sizes that the cost depends on: only the blocks up to the last level that is read run."""
    return replace(backbone.geometry, grid=grid, depth=max(1, *read))


def whole_patches(pixels: Float[Tensor, "..."], patch: int) -> Float[Tensor, "..."]:
    """The pixels without the rest that fills no patch; transformers' patch embedding leaves it out too."""
    height, width = (side // patch * patch for side in pixels.shape[-2:])
    return pixels[..., :height, :width]


class AcceleratedBackbone(BackboneMixin, Accelerated):
    """A backbone class of transformers, called like it, with feature maps at its ``out_features``."""

    gives_maps = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)  # BackboneMixin calls Accelerated, then reads the configuration
        model: Any = self.backbone.model
        self.num_features = model.num_features

    @classmethod
    def fits(cls, parts: Parts) -> bool:
        return parts.decoder is None and maps_of(parts.backbone) is not None

    def _geometry(self, grid: Grid) -> Geometry:
        return up_to_the_last(levels(self.backbone), self.backbone, grid)

    def forward(  # type: ignore[override]
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        *,
        return_dict: bool | None = None,
        **unsupported: Any,
    ) -> Any:
        """Run the blocks up to the last feature map."""
        refuse_inside(self.config, unsupported)
        self._check_call(None, False, unsupported)
        config, maps = self.config, maps_of(self.backbone)
        assert maps is not None
        wanted = levels(self.backbone)
        tokens = self.backbone.embed(whole_patches(pixel_values, self.backbone.patch_size))
        assert tokens.grid is not None
        grid = index(tokens.grid[0]), index(tokens.grid[1])  # constants, also for a compiler
        short = self._encode(tokens, self.schedule(grid), 0, residual=True, levels=wanted)
        states = [
            self.backbone.final_norm(state)
            if config.apply_layernorm or (maps.norms_last and level == self.backbone.depth)
            else state
            for level, state in zip(wanted, short.levels, strict=True)
        ]
        feature_maps: Any = tuple(self._map(state, grid, maps.keeps_prefix) for state in states)
        output: Any = maps.output(feature_maps=feature_maps)
        if getattr(config, "return_class_token", False):
            output.cls_tokens = tuple(state[:, 0] for state in states)
        return output.to_tuple() if return_dict is False else output

    def _map(self, state: Float[Tensor, "batch tokens dim"], grid: Grid, keeps_prefix: bool) -> Float[Tensor, "..."]:
        if not self.config.reshape_hidden_states:
            return state if keeps_prefix else state[:, self.backbone.prefix :]
        return on_grid(state[:, self.backbone.prefix :], grid)

    def facts(self, name: str, license_name: str) -> Facts:
        return replace(super().facts(name, license_name), task="")


def refuse_inside(config: Any, options: dict[str, Any]) -> None:
    """Refuse outputs from inside the blocks, whether the call or the configuration asks for them."""
    for name in INSIDE:
        asked = options.get(name)
        if getattr(config, name, False) if asked is None else asked:
            raise InvalidInput(
                f"An accelerated model has no {name}: tokens are merged on the way. Use the original model."
            )
