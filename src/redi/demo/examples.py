"""Example inputs for a backbone: a given picture or generated scenes."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from redi.demo.generator import scene
from redi.images import Preprocessing, load_image


def example_pixels(
    preprocessing: Preprocessing, batch: int, image: Path | None = None
) -> Float[Tensor, "batch channels height width"]:
    """A batch that repeats one picture, or a batch of different scenes if no picture is given."""
    if image is not None:
        return preprocessing(load_image(image)).expand(batch, -1, -1, -1).contiguous()
    return torch.stack([preprocessing(scene(seed=0, index=index).image) for index in range(batch)])
