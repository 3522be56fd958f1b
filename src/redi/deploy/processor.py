"""The input of an accelerated model as an image processor of transformers."""

from typing import Any

import torch
from transformers import BaseImageProcessor, BatchFeature
from transformers.image_transforms import to_pil_image

from redi.errors import BackboneError, InvalidInput
from redi.images.preprocessing import FILTERS, Preprocessing


class AcceleratedImageProcessor(BaseImageProcessor):
    """Resizes, crops and normalises exactly as ``Backbone.preprocessing`` does.

    transformers' own processors round the place of the crop in another way. The fields have their names.
    """

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> "AcceleratedImageProcessor":
        return cls(
            size={"shortest_edge": preprocessing.shorter},
            crop_size={"height": preprocessing.size, "width": preprocessing.size},
            resample=int(preprocessing.resample),
            image_mean=list(preprocessing.mean),
            image_std=list(preprocessing.std),
        )

    @property
    def preprocessing(self) -> Preprocessing:
        settings: Any = self
        filters = {int(resample): resample for resample in FILTERS.values()}
        try:
            own = Preprocessing(
                int(settings.size["shortest_edge"]),
                int(settings.crop_size["height"]),
                tuple(map(float, settings.image_mean)),
                tuple(map(float, settings.image_std)),
                filters[settings.resample],
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            own = None
        if own is None or not 0 < own.size <= own.shorter:
            raise BackboneError("preprocessor_config.json of an accelerated model is damaged: save it again.")
        return own

    def preprocess(self, images: Any, return_tensors: str | None = None, **changes: Any) -> BatchFeature:
        """The pixels of one picture or of a list of pictures."""
        if changed := [name for name, value in changes.items() if value is not None]:
            raise InvalidInput(f"The input of an accelerated model is fixed: {changed[0]} cannot be changed here.")
        pictures = self.fetch_images(images)
        pictures = pictures if isinstance(pictures, list | tuple) else [pictures]
        pixels = torch.stack([self.preprocessing(to_pil_image(picture)) for picture in pictures])
        return BatchFeature({"pixel_values": pixels}, tensor_type=return_tensors)


def stock(preprocessing: Preprocessing) -> dict[str, Any]:
    """The settings of transformers' own processor that comes closest, for the dense checkpoint."""
    return {
        "image_processor_type": "BitImageProcessor",
        **{f"do_{name}": True for name in ("convert_rgb", "resize", "center_crop", "rescale", "normalize")},
        "size": {"shortest_edge": preprocessing.shorter},
        "crop_size": {"height": preprocessing.size, "width": preprocessing.size},
        "resample": int(preprocessing.resample),
        "rescale_factor": 1 / 255,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
