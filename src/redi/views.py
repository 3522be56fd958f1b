"""Validation views (Sec. "Validation TF-IDF map"): crops, alignment to the reference grid, aggregation.

A view is a box in the resized image (shorter side 256 by default) and a flip. Every view is resized to the same
square size before the backbone sees it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from redi.checks import require_axes, require_finite, require_float, require_same_shape
from redi.errors import InvalidInput
from redi.grid import Grid, resolve_grid
from redi.score import norm01

#: Random crops cover this fraction of the resized image, with this aspect ratio.
CROP_SCALE = (0.60, 1.00)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10
#: The centre crop, its flip and two random crops.
N_VIEWS = 4
#: Eq. viewaggregate: 0.8 of the mean plus 0.2 of the maximum over views.
MEAN_WEIGHT = 0.8


@dataclass(frozen=True)
class View:
    """A crop of the resized image in pixels, mirrored left to right if ``flip``."""

    box: tuple[int, int, int, int]  # left, top, width, height
    flip: bool = False

    def __post_init__(self) -> None:
        if len(self.box) != 4 or self.box[2] <= 0 or self.box[3] <= 0:
            raise InvalidInput(f"A view must be (left, top, width, height) with a positive extent, not {self.box}.")


def reference_view(width: int, height: int, size: int = 224) -> View:
    """The centre crop of the resized image."""
    if width < size or height < size:
        raise InvalidInput(f"A crop of {size} px does not fit into an image of {width}x{height} px.")
    return View((round((width - size) / 2), round((height - size) / 2), size, size))


def validation_views(
    width: int, height: int, index: int, size: int = 224, seed: int = 0
) -> tuple[View, View, View, View]:
    """Centre crop, its flip, and two random resized crops; ``width`` and ``height`` are the *resized* size.

    The random crops depend on (seed, index, view number) only, never on the order of calls.
    """
    centre = reference_view(width, height, size)
    return (
        centre,
        View(centre.box, flip=True),
        _random_view(width, height, random.Random(f"redi {seed} {index} 2")),
        _random_view(width, height, random.Random(f"redi {seed} {index} 3")),
    )


def stored_views(boxes: Int[Tensor, "views four"], flips: Bool[Tensor, " views"]) -> tuple[View, ...]:
    """The views of an image from the boxes and flips that a run has stored."""
    return tuple(View(tuple(box), flip) for box, flip in zip(boxes.tolist(), flips.tolist(), strict=True))


def align(
    map: Float[Tensor, "... patches"],  # noqa: A002 - the public name
    view: View,
    reference: View,
    grid: Grid | None = None,
) -> tuple[Float[Tensor, "... patches"], Bool[Tensor, "... patches"]]:
    """Bring a view's patch map onto the reference grid: ``(values, valid)``, both shaped as ``map``.

    The centre of each reference patch is expressed in the view's own coordinates (mirrored if the view is flipped).
    The map is sampled there, bilinearly between patch centres; in the outer half patch the edge value is taken.
    ``valid`` says whether the centre lies in the view's box, border included. Invalid values are 0. No map is
    normalised.
    """
    require_axes(map, "... patches", "A map")
    require_float(map, "A map")
    require_finite(map, "The values of a map")
    return _align(map, [view], [reference], (), grid)


def align_views(
    maps: Float[Tensor, "batch views patches"], views: Sequence[Sequence[View]], grid: Grid | None = None
) -> tuple[Float[Tensor, "batch views patches"], Bool[Tensor, "batch views patches"]]:
    """:func:`align` for all views of a batch of images at once; the first view is the reference."""
    require_axes(maps, "batch views patches", "The maps of the views")
    require_float(maps, "The maps of the views")
    require_finite(maps, "The maps of the views")
    if [len(image) for image in views] != [maps.shape[1]] * len(maps):
        raise InvalidInput(f"There must be {maps.shape[1]} views for each of {len(maps)} images.")
    flat = [view for image in views for view in image]
    references = [image[0] for image in views for _ in image]
    return _align(maps, flat, references, tuple(maps.shape[:2]), grid)


def aggregate(
    values: Float[Tensor, "... views patches"],
    valid: Bool[Tensor, "... views patches"],
    mean_weight: float = MEAN_WEIGHT,
) -> Float[Tensor, "... patches"]:
    """Eq. viewaggregate: t = N(0.8 mu + 0.2 xi), the mean and maximum over the views that cover a patch."""
    require_axes(values, "... views patches", "The values of the views")
    require_float(values, "The values of the views")
    require_same_shape(values, valid, "Values and mask")
    if valid.dtype != torch.bool:
        raise InvalidInput(f"The mask must be boolean, not {valid.dtype}.")
    require_finite(values, "The values of the views")
    covering = valid.sum(dim=-2)
    if not bool(covering.all()):
        raise InvalidInput("Some reference patches lie in no view: the centre crop must be one of the views.")
    mean = torch.where(valid, values, 0).sum(dim=-2) / covering
    maximum = torch.where(valid, values, -torch.inf).amax(dim=-2)
    return norm01(mean_weight * mean + (1 - mean_weight) * maximum)


def _random_view(width: int, height: int, draw: random.Random) -> View:
    """A random resized crop: area uniform, aspect log-uniform, ten tries, then a central crop.

    Only ``draw.random()`` is used, because Python guarantees its sequence across versions. The fallback for very
    elongated images is torchvision's: the largest central crop of an allowed aspect.
    """
    for _ in range(CROP_TRIES):
        area = width * height * _between(*CROP_SCALE, draw.random())
        ratio = exp(_between(log(CROP_RATIO[0]), log(CROP_RATIO[1]), draw.random()))
        crop_width, crop_height = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(draw.random() * (width - crop_width + 1))
            top = int(draw.random() * (height - crop_height + 1))
            break
    else:
        crop_width = min(width, round(height * CROP_RATIO[1]))
        crop_height = min(height, round(width / CROP_RATIO[0]))
        left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return View((left, top, crop_width, crop_height), flip=draw.random() < 0.5)


def _between(low: float, high: float, fraction: float) -> float:
    return low + (high - low) * fraction


def _align(
    maps: Float[Tensor, "*more patches"],
    views: Sequence[View],
    references: Sequence[View],
    axes: tuple[int, ...],
    grid: Grid | None,
) -> tuple[Float[Tensor, "*more patches"], Bool[Tensor, "*more patches"]]:
    """Align maps whose leading axes match ``axes``, the shape in which views and references are arranged."""
    rows, columns = resolve_grid(maps.shape[-1], grid)
    box, flip = _boxes_and_flips(views, axes)
    reference_box, reference_flip = _boxes_and_flips(references, axes)
    no_flip = torch.zeros_like(flip)
    y, inside_y = _axis_coordinates(rows, box[..., 1::2], no_flip, reference_box[..., 1::2], no_flip)
    x, inside_x = _axis_coordinates(columns, box[..., 0::2], flip, reference_box[..., 0::2], reference_flip)
    valid = (inside_y[..., :, None] & inside_x[..., None, :]).to(maps.device)
    image = maps.unflatten(-1, (rows, columns))
    values = _sampling_matrix(y).to(image) @ image @ _sampling_matrix(x).to(image).mT
    values = torch.where(valid, values, 0)
    return values.flatten(-2), valid.flatten(-2).expand(maps.shape)


def _boxes_and_flips(views: Sequence[View], axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Boxes ``[*axes, 4]`` in float64 and flips ``[*axes]``."""
    boxes = torch.tensor([view.box for view in views], dtype=torch.float64)
    flips = torch.tensor([view.flip for view in views])
    return boxes.view(*axes, 4), flips.view(axes)


def _axis_coordinates(
    patches: int,
    box: Float[Tensor, "*axes two"],
    flip: Bool[Tensor, "*axes"],
    reference: Float[Tensor, "*axes two"],
    reference_flip: Bool[Tensor, "*axes"],
) -> tuple[Float[Tensor, "*axes patches"], Bool[Tensor, "*axes patches"]]:
    """Coordinates of the reference's patch centres in the view, and whether they lie in its box, along one axis.

    Coordinates count patches from the centre of the view's first patch and are clamped to the view. ``box`` and
    ``reference`` are (origin, extent). float64, so that a view equal to the reference gives exactly 0, 1, 2, ...
    """
    origin, extent = box[..., :1], box[..., 1:]
    centre = torch.arange(patches, dtype=torch.float64) + 0.5
    centre = torch.where(reference_flip[..., None], patches - centre, centre)
    offset = reference[..., :1] + centre * reference[..., 1:] / patches - origin
    inside = (offset >= 0) & (offset <= extent)
    offset = torch.where(flip[..., None], extent - offset, offset)
    return (offset * patches / extent - 0.5).clamp(0, patches - 1), inside


def _sampling_matrix(coordinates: Float[Tensor, "*axes patches"]) -> Float[Tensor, "*axes patches patches"]:
    """Linear interpolation along one axis as a matrix: row i holds the weights of sample i."""
    centres = torch.arange(coordinates.shape[-1], dtype=torch.float64)
    return (1 - (coordinates[..., None] - centres).abs()).clamp(min=0)
