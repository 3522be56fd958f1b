"""Masks of objects: PNG files in which every value but 0 is the object, and how much of each patch they fill."""

from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

from redi.errors import CorpusError, ImageError
from redi.grid import Grid
from redi.images.preprocessing import Preprocessing, crop, resize, to_bytes
from redi.images.scenes import read_label_map
from redi.views import View, reference_view


def read_mask(file: Path) -> Image.Image:
    """A mask as a picture of 0 and 255. Greyscale, palette (by number) and 1-bit PNGs are read."""
    return Image.fromarray((read_label_map(file) != 0).to(torch.uint8).mul(255).numpy())


def object_share(mask: Image.Image, shorter: int, size: int, grid: Grid) -> Float[Tensor, " patches"]:
    """The fraction of each reference patch that the object fills, on the crop the backbone sees."""
    return _share(_resized(mask, shorter), size, grid)


def _resized(mask: Image.Image, shorter: int) -> Image.Image:
    return resize(mask.convert("RGB"), shorter, Image.Resampling.NEAREST)


def _share(resized: Image.Image, size: int, grid: Grid) -> Float[Tensor, " patches"]:
    view = reference_view(resized.width, resized.height, size)
    pixels = to_bytes(crop(resized, view, size, Image.Resampling.NEAREST))[:1].float() / 255
    return avg_pool2d(pixels[None], (size // grid[0], size // grid[1])).flatten()


def mask_file(masks: Path, image: str) -> Path:
    """The mask of an image: the same path below the folder of masks, as a PNG."""
    return masks / Path(image).with_suffix(".png")


def shares_of(
    masks: Path, images: list[str], views: list[View], preprocessing: Preprocessing, grid: Grid
) -> Float[Tensor, "images patches"]:
    """:func:`object_share` of the masks of some images, given by name.

    ``views`` are the crops that the images themselves had: a mask with another one has other proportions than its
    image, and its object would lie elsewhere.
    """
    if not masks.is_dir():
        raise CorpusError(f"There is no folder of masks {masks}.")
    shares = []
    for image, view in zip(images, views, strict=True):
        file = mask_file(masks, image)
        if not file.is_file():
            raise CorpusError(f"The image {image} has no mask: there is no {file}.")
        resized = _resized(read_mask(file), preprocessing.shorter)
        if reference_view(resized.width, resized.height, preprocessing.size).box != view.box:
            raise ImageError(f"The mask {file} has other proportions than its image {image}.")
        shares.append(_share(resized, preprocessing.size, grid))
    return torch.stack(shares)
