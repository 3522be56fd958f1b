"""Models that take flattened patches instead of pixels: SigLIP 2."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from redi.backbone.families import unflatten_patches
from redi.deploy.model import Accelerated
from redi.deploy.parts import Parts
from redi.errors import InvalidInput


class AcceleratedFlattened(Accelerated):
    """Called like SigLIP 2, with ``pixel_values`` of flattened patches, their mask and ``spatial_shapes``.

    All images of a call must have one shape. Their padding does not run; in ``last_hidden_state`` it is zero. Pixels
    are taken too, ``[batch, 3, height, width]``, as by all other accelerated models.
    """

    @classmethod
    def fits(cls, parts: Parts) -> bool:
        return parts.decoder is None and parts.backbone.family.flattened_input

    def forward(  # type: ignore[override]
        self,
        pixel_values: Float[Tensor, "..."],
        pixel_attention_mask: Tensor | None = None,
        spatial_shapes: Int[Tensor, "batch axes"] | None = None,
        *,
        return_dict: bool | None = None,
        **options: Any,
    ) -> Any:
        if pixel_values.ndim == 4:
            return super().forward(pixel_values, return_dict=return_dict, **options)
        if spatial_shapes is None:
            raise InvalidInput("Flattened patches need spatial_shapes, the rows and columns of each image.")
        rows, columns = spatial_shapes[0].tolist()
        count, padded, values = rows * columns, pixel_values.shape[1], 3 * self.backbone.patch_size**2
        if not 0 < count <= padded or pixel_values.shape[2] != values:
            raise InvalidInput(
                f"Images of {rows}x{columns} patches need at least {count} flattened patches of {values} values, not "
                f"{padded} of {pixel_values.shape[2]}."
            )
        if not (spatial_shapes == spatial_shapes[:1]).all():
            raise InvalidInput("All images of a call must have one shape: call the model once per shape.")
        valid = torch.arange(padded, device=pixel_values.device) < count
        if pixel_attention_mask is not None and not (pixel_attention_mask.bool() == valid).all():
            raise InvalidInput(f"The mask must be on for the {count} patches of each image, and off for the padding.")
        pixels = unflatten_patches(pixel_values[:, :count], self.backbone.patch_size, rows)
        output = super().forward(pixels, **options)
        if not options.get("reduced"):
            output.last_hidden_state = pad(output.last_hidden_state, (0, 0, 0, padded - count))
        return output.to_tuple() if return_dict is False else output
