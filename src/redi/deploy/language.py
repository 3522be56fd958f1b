"""Vision-language models: the image tower is accelerated, and the language model is the original's own.

The language model reads the tower after one or several of its blocks. The blocks after the last of them do not run,
and the cost is relative to the dense blocks up to there. By default the full grid is restored, so nothing else changes.
With ``Setting.tokens`` the merged tokens themselves go to the language model, whose prompt is then shorter.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from operator import index
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlavaProcessor, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from redi.backbone import Backbone
from redi.cost import Geometry
from redi.deploy.card import Facts
from redi.deploy.maps import up_to_the_last, whole_patches
from redi.deploy.model import Accelerated
from redi.deploy.origin import Origin
from redi.deploy.parts import WHOLE, Parts
from redi.deploy.whole import AcceleratedModel
from redi.errors import BackboneError, ConfigError, InvalidInput
from redi.grid import Grid
from redi.records.setting import Setting
from redi.records.tuning import Tuned

#: A patch that is larger than any image. The processor counts no such patches, so the image's size has no effect.
LARGER_THAN_IMAGES = 2**31


class AcceleratedLanguageModel(AcceleratedModel):
    """A vision-language model of transformers, called like it, whose image tower merges patch tokens."""

    main_input_name = "input_ids"
    gives_tokens = True

    def __init__(
        self,
        backbone: Backbone,
        setting: Setting,
        tuned: Tuned | None,
        original: Origin | None,
        decoder: PreTrainedModel,
    ) -> None:
        self.levels = read_levels(decoder.config.vision_feature_layer, backbone.depth)  # the schedule needs them
        if setting.tokens and (len(self.levels) > 1 or self.levels == [0]):
            layer: Any = decoder.config.vision_feature_layer
            raise ConfigError(
                f"tokens needs a language model that reads one block of the tower, not vision_feature_layer={layer}."
            )
        super().__init__(backbone, setting, tuned, original, decoder)

    @classmethod
    def fits(cls, parts: Parts) -> bool:
        return parts.decoder is not None and WHOLE[type(parts.decoder).__name__].generates

    def _stand_in(self) -> Accelerated:
        return _Tower(self.backbone, self.setting, self.levels)

    def _geometry(self, grid: Grid) -> Geometry:
        return up_to_the_last(self.levels, self.backbone, grid)

    @staticmethod
    def can_generate() -> bool:
        return True

    @property
    def generation_config(self) -> Any:
        return self.decoder.generation_config

    @generation_config.setter
    def generation_config(self, config: Any) -> None:
        self.decoder.generation_config = config

    @property
    def image_tokens(self) -> int:
        """The number of placeholders that a prompt needs for an image of the usual size; with ``tokens``, of any."""
        rows, columns = self.grid
        dropped: bool = self.config.vision_feature_select_strategy == "default"  # the first token: CLS in CLIP
        return self.backbone.prefix + (self.setting.tokens or rows * columns) - dropped

    def processor(self, original: Any) -> Any:
        """The processor for this model: a copy of the original's that makes :attr:`image_tokens` placeholders.

        Without ``tokens`` the original's own fits.
        """
        if not isinstance(original, LlavaProcessor):
            raise ConfigError(f"processor() takes the LlavaProcessor of the model, not a {type(original).__name__}.")
        if not self.setting.tokens:
            return original
        fitting: Any = copy(original)
        # The processor counts the patches of an image, adds these tokens and drops one by the same rule as the model.
        fitting.patch_size = LARGER_THAN_IMAGES
        fitting.num_additional_image_tokens = self.image_tokens + (fitting.vision_feature_select_strategy == "default")
        return fitting

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the model; the arguments are those of the original. Hidden states are those of the language model."""
        self._require_same_levels(options)
        self._require_placeholders(*inputs, **options)
        return self.decoder(*inputs, **options)

    def generate(self, *inputs: Any, **options: Any) -> Any:
        """As the original's method."""
        self._require_same_levels(options)
        self._require_placeholders(*inputs[:1], **options)
        return self.decoder.generate(*inputs, **options)

    def get_image_features(self, pixel_values: Float[Tensor, "..."], **options: Any) -> Any:
        """As the original's method; of the hidden states, only those that the language model reads are there."""
        self._require_same_levels(options)
        return self.decoder.get_image_features(pixel_values, **options)

    def _require_same_levels(self, options: dict[str, Any]) -> None:
        layer = options.get("vision_feature_layer")
        layer = self.config.vision_feature_layer if layer is None else layer
        if read_levels(layer, self.backbone.depth) != self.levels:
            raise InvalidInput(
                f"vision_feature_layer cannot be {layer} here: it was chosen when the model was accelerated. Set it in "
                "the original's configuration and accelerate that again."
            )

    def _require_placeholders(
        self, input_ids: Any = None, pixel_values: Any = None, *_rest: Any, inputs: Any = None, **options: Any
    ) -> None:
        """Name the remedy if a prompt has the original's number of placeholders."""
        ids = inputs if input_ids is None else input_ids
        own = options.get("vision_feature_select_strategy") in (None, self.config.vision_feature_select_strategy)
        if not self.setting.tokens or ids is None or pixel_values is None or not own or torch.compiler.is_compiling():
            return
        count, images = int((ids == self.config.image_token_id).sum()), len(pixel_values)
        if count != images * self.image_tokens:
            raise InvalidInput(
                f"The prompts have {count} placeholders, but the number of images is {images}, and this model gives "
                f"{self.image_tokens} tokens per image: make the prompts with the processor of processor()."
            )

    def facts(self, name: str, license_name: str) -> Facts:
        return replace(super().facts(name, license_name), image_tokens=self.image_tokens)

    def _kept_processor(self) -> dict[str, Any]:
        """None: a processor of images and texts has files of its own."""
        return {}


class _Tower(Accelerated):
    """The image tower that the rest of the model calls for its hidden states."""

    gives_maps = True
    gives_tokens = True

    def __init__(self, backbone: Backbone, setting: Setting, levels: Sequence[int]) -> None:
        self.levels = levels
        super().__init__(backbone, setting)

    def _geometry(self, grid: Grid) -> Geometry:
        return up_to_the_last(self.levels, self.backbone, grid)

    def forward(  # type: ignore[override]
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        *,
        return_dict: bool | None = None,  # noqa: ARG002  # the rest of the model reads attributes
        output_hidden_states: bool | None = None,  # noqa: ARG002  # always
        interpolate_pos_encoding: bool | None = None,  # noqa: ARG002  # if it is needed
        **unsupported: Any,
    ) -> Any:
        """The hidden states that are read, in their places among those of all blocks; the others are None."""
        self._check_call(None, False, unsupported)
        backbone, merged = self.backbone, bool(self.setting.tokens)
        tokens = backbone.embed(whole_patches(pixel_values, backbone.patch_size))
        assert tokens.grid is not None
        grid = index(tokens.grid[0]), index(tokens.grid[1])  # constants, also for a compiler
        short = self._encode(tokens, self.schedule(grid), 0, residual=not merged, levels=self.levels)
        read = dict(zip(self.levels, [short.hidden] if merged else short.levels, strict=True))
        states: Any = tuple(read.get(level) for level in range(backbone.depth + 1))
        return BaseModelOutputWithPooling(hidden_states=states)


def read_levels(layers: int | Sequence[int], depth: int) -> list[int]:
    """The numbers of blocks after which the tower is read, from ``vision_feature_layer``; 0 is its embedding."""
    given = [layers] if isinstance(layers, int) else list(layers)
    if not given or not all(-depth - 1 <= layer <= depth for layer in given):
        raise BackboneError(f"vision_feature_layer={layers} does not fit a tower of {depth} blocks.")
    return [layer % (depth + 1) for layer in given]
