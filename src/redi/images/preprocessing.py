"""From a picture to the input of a backbone: resize, crop, normalise."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from redi.errors import ImageError, InvalidInput
from redi.images.decode import MAX_PIXELS, to_rgb
from redi.views import View, reference_view, validation_views

#: The default input gives a 14x14 grid for any patch size: 224 px for patch 16, 196 for 14.
GRID_SIDE = 14
#: ImageNet's constants, for checkpoints that give none.
DEFAULT_MEAN = (0.485, 0.456, 0.406)
DEFAULT_STD = (0.229, 0.224, 0.225)
#: The input stays finite in FP32 with these: the largest constant, and the smallest standard deviation.
MOST_CONSTANT, LEAST_STD = 1e6, 1e-6
#: Pixels of the longest side of an input, before or after the crop.
MOST_SIDE = 16_384
#: Filters that resize images, by name: those that every version of Pillow has. All but nearest are antialiased.
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of one backbone. The sizes keep the paper's ratio of 256 to 224."""

    shorter: int  # shorter side after resizing
    size: int  # side of the crop the backbone sees
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling = Image.Resampling.BICUBIC

    def __post_init__(self) -> None:
        for name, least in (("mean", -MOST_CONSTANT), ("std", LEAST_STD)):
            values = getattr(self, name)
            if len(values) != 3 or not all(least <= value <= MOST_CONSTANT for value in values):  # NaN lies nowhere
                what = "finite numbers" if name == "mean" else "positive numbers"
                raise InvalidInput(f"The {name} of the pixels must be three {what}, not {values}.")
        if not (0 < self.size <= MOST_SIDE and 0 < self.shorter <= MOST_SIDE):
            raise InvalidInput(f"An input must have 1 to {MOST_SIDE:,} pixels a side, not {self.size}, {self.shorter}.")

    def resized(self, image: Image.Image) -> Image.Image:
        """Convert any picture to upright RGB and resize it to ``shorter``, ready to be cropped."""
        return resize(to_rgb(image), self.shorter, self.resample)

    def reference(self, resized: Image.Image) -> View:
        return reference_view(resized.width, resized.height, self.size)

    def normalise(self, pixels: Tensor) -> Float[Tensor, "*axes channels height width"]:
        """Convert the bytes of one or more crops to the backbone's input."""
        return normalise(pixels, self.mean, self.std)

    def __call__(self, image: Image.Image) -> Float[Tensor, "channels height width"]:
        """The reference crop of a picture of any size and mode."""
        _, pixels = self.cut(image)
        return self.normalise(pixels[0])

    def cut(
        self, image: Image.Image, index: int | None = None, seed: int = 0
    ) -> tuple[tuple[View, ...], UInt8[Tensor, "views channels height width"]]:
        """Views of a picture and their bytes: the reference alone, or the four that are drawn for ``index``."""
        resized = self.resized(image)
        views: tuple[View, ...] = (self.reference(resized),)
        if index is not None:
            views = validation_views(resized.width, resized.height, index, self.size, seed)
        pictures = [crop(resized, view, self.size, self.resample) for view in views]
        return views, torch.stack([to_bytes(picture) for picture in pictures])


def default_size(patch_size: int) -> int:
    """The side of the crop in pixels that gives the default grid."""
    return GRID_SIDE * patch_size


def shorter_side(size: int) -> int:
    """The shorter side of the resized image for a crop of ``size`` pixels, in the paper's ratio of 8 : 7."""
    return size * 8 // 7


def resampling(name: str) -> Image.Resampling:
    """The filter with this lower-case name."""
    if name not in FILTERS:
        raise InvalidInput(f"There is no resize filter {name!r}; choose one of {', '.join(FILTERS)}.")
    return FILTERS[name]


def resize(
    image: Image.Image, shorter: int = 256, resample: Image.Resampling = Image.Resampling.BICUBIC
) -> Image.Image:
    """Resize to a shorter side of exactly ``shorter``; the longer side is truncated, small images are upscaled."""
    if 0 in image.size:
        raise ImageError(f"The image has no pixels: its size is {image.width}x{image.height}.")
    short, long = sorted(image.size)
    longer = int(shorter * long / short)
    if shorter * longer > MAX_PIXELS:
        raise ImageError(
            f"The image is {image.width}x{image.height}: too elongated to be resized to a shorter side of {shorter}."
        )
    wide = image.width >= image.height
    size = (longer, shorter) if wide else (shorter, longer)
    return image if image.size == size else image.resize(size, resample)


def crop(
    image: Image.Image, view: View, size: int = 224, resample: Image.Resampling = Image.Resampling.BICUBIC
) -> Image.Image:
    """Cut a view out of the resized image and resize it to ``size`` x ``size``."""
    left, top, width, height = view.box
    if left < 0 or top < 0 or left + width > image.width or top + height > image.height:
        raise InvalidInput(f"{view} reaches beyond the image of {image.width}x{image.height}.")
    picture = image.crop((left, top, left + width, top + height))
    if picture.size != (size, size):
        picture = picture.resize((size, size), resample)
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view.flip else picture


def to_bytes(image: Image.Image) -> UInt8[Tensor, "channels height width"]:
    """An RGB picture as a tensor of its bytes, channels first."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1).contiguous()


def normalise(
    pixels: UInt8[Tensor, "*axes channels height width"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "*axes channels height width"]:
    """Convert bytes to the FP32 input of a backbone, on the device of the bytes."""
    centre = torch.tensor(mean, device=pixels.device)[:, None, None]
    spread = torch.tensor(std, device=pixels.device)[:, None, None]
    return (pixels.float() / 255 - centre) / spread
